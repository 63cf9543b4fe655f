//! Checks a workbook against its limits before anything of it is kept in memory. A workbook is a zip archive of XML: a
//! megabyte of it can unpack to a gigabyte in one cell, and the crate that reads it holds what it meets. So every part is
//! unpacked here once and thrown away, by the same XML reader with the same settings.
//!
//! Any part of the archive may be named as the sheet or as the list of sheets. Those up to [`PART_BYTES_MAX`] may be
//! anything, such as pictures; larger ones must be regular: XML with short tags, texts and cells. What the crate holds for the
//! whole workbook is counted in all of them.

use std::cell::Cell as Shared;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use zip::ZipArchive;

const MIB: u64 = 1024 * 1024;
/// Largest workbook that is read.
pub const XLSX_BYTES_MAX: u64 = 100 * MIB;
/// All parts of a workbook, unpacked.
pub const XLSX_UNPACKED_BYTES_MAX: u64 = 2_048 * MIB;
/// Most bytes of a workbook's texts, unpacked: they are held in memory.
pub const XLSX_TEXT_BYTES_MAX: u64 = 128 * MIB;
/// Largest part that may be anything.
const PART_BYTES_MAX: u64 = 16 * MIB;
/// Longest tag or text, and longest cell with its tags, of a larger part. A spreadsheet program allows 32,767 characters.
const CELL_BYTES_MAX: u64 = MIB;
/// Deepest tag of a larger part.
const DEPTH_MAX: usize = 256;
/// Rows of a large sheet pack 10 to 60 times; the format allows 1,032.
const INFLATE_RATIO_MAX: u64 = 200;
/// Bytes that may be read to find the parts of the archive, and how many there may be.
const DIRECTORY_BYTES_MAX: u64 = 8 * MIB;
const PARTS_MAX: usize = 10_000;
/// Texts of a workbook: each takes some fifty bytes beyond its own.
const TEXTS_MAX: u64 = 4_000_000;
/// Formats of cells, with the fonts, fills and borders that they name.
const FORMATS_MAX: u64 = 262_144;
/// Each format gets a copy of what it names.
const FORMAT_COPIES_BYTES_MAX: u64 = 128 * MIB;
/// Each sheet gets a copy of the address of its part.
const SHEETS_MAX: u64 = 4_096;
const ADDRESS_BYTES_MAX: u64 = 32 * 1024;
const BUFFER_BYTES: usize = 64 * 1024;
/// How an archive begins. This distinguishes it from other files of spreadsheet programs.
const ZIP_START: &[u8] = b"PK\x03\x04";

/// Why a workbook is not read.
#[derive(Debug)]
pub(super) enum Refused {
    /// It is not a workbook, or a damaged one; why.
    Damaged(String),
    /// It exceeds a bound; which.
    TooLarge(String),
}

type Result<T, E = Refused> = std::result::Result<T, E>;

/// Unpacks every part of a workbook once, in bounded memory, and leaves the file at its start.
pub(super) fn check<R: Read + Seek>(file: &mut R) -> Result<()> {
    let bytes = file.seek(SeekFrom::End(0)).map_err(damaged)?;
    if bytes > XLSX_BYTES_MAX {
        return too_large(format!("has more than {} MiB", XLSX_BYTES_MAX / MIB));
    }
    let mut start = Vec::new();
    file.rewind().map_err(damaged)?;
    file.by_ref().take(ZIP_START.len() as u64).read_to_end(&mut start).map_err(damaged)?;
    if start != ZIP_START {
        return Err(Refused::Damaged("it is not a zip archive".to_owned()));
    }
    let left = Shared::new(DIRECTORY_BYTES_MAX);
    let reader = Budgeted { inner: BufReader::new(&mut *file), left: &left };
    let mut archive = ZipArchive::new(reader).map_err(damaged)?;
    if archive.len() > PARTS_MAX {
        return too_large(format!("has more than {PARTS_MAX} parts"));
    }
    left.set(u64::MAX);
    let mut before = 0;
    for index in 0..archive.len() {
        let content = archive.by_index(index).map_err(damaged)?;
        // The crate finds parts by names in which case and slashes do not matter.
        let name = content.name().map_err(damaged)?.replace('\\', "/").to_ascii_lowercase();
        let packed = content.compressed_size().min(bytes);
        before += Part { name: &name, packed, before }.check(content)?;
    }
    drop(archive);
    file.rewind().map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Refused {
    Refused::Damaged(error.to_string())
}

fn too_large<T>(what: String) -> Result<T> {
    Err(Refused::TooLarge(what))
}

/// A part of the archive.
struct Part<'a> {
    name: &'a str,
    /// Its size in the archive.
    packed: u64,
    /// Bytes of the parts before it, unpacked.
    before: u64,
}

impl Part<'_> {
    /// Unpacks the part to its end, and says how many bytes it has.
    fn check(&self, content: impl Read) -> Result<u64> {
        let meter = Meter::default();
        let metered = Metered { inner: content, meter: &meter, part: self };
        let mut reader = Reader::from_reader(BufReader::with_capacity(BUFFER_BYTES, metered));
        let config = reader.config_mut();
        config.check_end_names = false;
        config.check_comments = false;
        config.expand_empty_elements = true;
        self.events(&mut reader, &meter)?;
        // Behind XML that cannot be read is what only counts by its size.
        let rest = io::copy(reader.get_mut(), &mut io::sink());
        match (meter.refused.take(), rest) {
            (Some(refused), _) => Err(refused),
            (None, Err(error)) => Err(damaged(error)),
            (None, Ok(_)) => Ok(meter.read.get()),
        }
    }

    /// Reads as far as the part is XML.
    fn events<R: BufRead>(&self, reader: &mut Reader<R>, meter: &Meter) -> Result<()> {
        let mut outline = Outline::default();
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let start = reader.buffer_position();
            meter.event_start.set(start);
            let event = match reader.read_event_into(&mut buffer) {
                Ok(Event::Eof) => return Ok(()),
                Ok(event) => event,
                Err(_) => {
                    meter.irregular.set(meter.irregular.get().or(Some("no XML")));
                    return meter.refused.take().map_or(Ok(()), Err);
                }
            };
            match &event {
                Event::Start(tag) => outline.start(self, tag, start)?,
                Event::End(tag) => outline.end(tag.name().as_ref()),
                _ => {}
            }
            outline.event(self, start, reader.buffer_position())?;
            if let Some(irregular) = outline.irregular {
                meter.irregular.set(Some(irregular));
            }
        }
    }

    /// What is wrong after this many bytes of it, if anything.
    fn refuse(&self, read: u64, irregular: Option<&str>) -> Result<()> {
        let name = self.name;
        if self.is_texts() && read > XLSX_TEXT_BYTES_MAX {
            return too_large(format!("has texts of more than {} MiB", XLSX_TEXT_BYTES_MAX / MIB));
        }
        if read > PART_BYTES_MAX {
            let max = PART_BYTES_MAX / MIB;
            if read > self.packed.saturating_mul(INFLATE_RATIO_MAX) {
                return too_large(format!(
                    "has a part that unpacks to more than {INFLATE_RATIO_MAX} times its size ({name})"
                ));
            }
            if let Some(irregular) = irregular {
                return too_large(format!("has a part of more than {max} MiB with {irregular} ({name})"));
            }
            if self.is_formats() || self.is_addresses() || name.ends_with("theme/theme1.xml") {
                return too_large(format!("has a part of more than {max} MiB ({name})"));
            }
        }
        if self.before + read > XLSX_UNPACKED_BYTES_MAX {
            return too_large(format!("unpacks to more than {} MiB", XLSX_UNPACKED_BYTES_MAX / MIB));
        }
        Ok(())
    }

    fn is_texts(&self) -> bool {
        self.name.ends_with("sharedstrings.xml")
    }

    fn is_formats(&self) -> bool {
        self.name.ends_with("styles.xml")
    }

    fn is_addresses(&self) -> bool {
        self.name.ends_with(".rels")
    }
}

/// What was seen of a part's XML.
#[derive(Default)]
struct Outline {
    /// Names of the open tags, one behind the other, and where each begins.
    names: String,
    open: Vec<usize>,
    /// Depth and place of the cell or text that is being read.
    cell: Option<(usize, u64)>,
    /// Why it may not be large, if so; the first reason counts.
    irregular: Option<&'static str>,
    texts: u64,
    formats: u64,
    sheets: u64,
    longest: u64,
}

impl Outline {
    fn start(&mut self, part: &Part<'_>, tag: &BytesStart<'_>, at: u64) -> Result<()> {
        if self.open.len() < DEPTH_MAX {
            self.open.push(self.names.len());
            self.names.push_str(tag.name().as_ref());
        } else {
            self.irregular.get_or_insert("tags nested too deeply");
        }
        match tag.local_name().as_ref() {
            name @ ("c" | "si" | "definedName") => {
                self.cell.get_or_insert((self.open.len(), at));
                self.texts += u64::from(name == "si");
                if name == "definedName" && at > PART_BYTES_MAX {
                    self.irregular.get_or_insert("definitions of names");
                }
            }
            // Memory for this many texts is allocated at once, however many there are.
            "sst" => {
                let named = tag.try_get_attribute("uniqueCount").ok().flatten();
                let count = named.and_then(|count| count.value.trim().parse().ok());
                self.texts = self.texts.max(count.unwrap_or(0));
            }
            "xf" | "font" | "fill" | "border" | "numFmt" if part.is_formats() => self.formats += 1,
            "sheet" => self.sheets += 1,
            _ => {}
        }
        for (count, max, what) in [
            (self.texts, TEXTS_MAX, "texts"),
            (self.formats, FORMATS_MAX, "formats"),
            (self.sheets, SHEETS_MAX, "sheets"),
        ] {
            if count > max {
                return too_large(format!("has more than {max} {what}"));
            }
        }
        Ok(())
    }

    fn end(&mut self, name: &str) {
        if self.cell.is_some_and(|(depth, _)| depth >= self.open.len()) {
            self.cell = None;
        }
        match self.open.pop() {
            Some(start) if &self.names[start..] == name => self.names.truncate(start),
            _ => _ = self.irregular.get_or_insert("tags that do not match"),
        }
    }

    /// Looks at the length of an event and of the cell that it is in.
    fn event(&mut self, part: &Part<'_>, start: u64, end: u64) -> Result<()> {
        let bytes = end - start;
        if bytes > CELL_BYTES_MAX || self.cell.is_some_and(|(_, start)| end - start > CELL_BYTES_MAX) {
            self.irregular.get_or_insert("a cell of more than 1 MiB");
        }
        self.longest = self.longest.max(bytes);
        if part.is_addresses() && bytes > ADDRESS_BYTES_MAX {
            return too_large(format!(
                "has an address of more than {ADDRESS_BYTES_MAX} bytes ({})",
                part.name
            ));
        }
        if part.is_formats() && self.longest.saturating_mul(self.formats) > FORMAT_COPIES_BYTES_MAX {
            return too_large("has too many or too long formats".to_owned());
        }
        Ok(())
    }
}

/// What was read of a part.
#[derive(Default)]
struct Meter {
    read: Shared<u64>,
    /// Where the event begins that is being read.
    event_start: Shared<u64>,
    irregular: Shared<Option<&'static str>>,
    refused: Shared<Option<Refused>>,
}

/// A part on its way to the XML reader, which gets no more than may be held.
struct Metered<'a, R> {
    inner: R,
    meter: &'a Meter,
    part: &'a Part<'a>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let Meter { read, event_start, irregular, refused } = self.meter;
        read.set(read.get() + count as u64);
        // What is read ahead of the event is not yet of it, and so is a little of what follows.
        if read.get().saturating_sub(event_start.get()) > CELL_BYTES_MAX + BUFFER_BYTES as u64 {
            irregular.set(irregular.get().or(Some("a cell of more than 1 MiB")));
        }
        match self.part.refuse(read.get(), irregular.get()) {
            Ok(()) => Ok(count),
            Err(why) => {
                refused.set(Some(why));
                Err(io::Error::other("too large"))
            }
        }
    }
}

/// A file of which only a bounded part may be read for now.
struct Budgeted<'a, R> {
    inner: R,
    left: &'a Shared<u64>,
}

impl<R: Read> Read for Budgeted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("the list of its parts is too long"))?);
        Ok(count)
    }
}

impl<R: Seek> Seek for Budgeted<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}
