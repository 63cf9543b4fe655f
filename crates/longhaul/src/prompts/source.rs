//! The bytes of a run file: readable as often as needed, with their digest. A pipe is copied to a temporary file, which
//! has no name and goes with the program.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::exit::{Code, Failure};
use crate::texts;

/// Largest input.
const INPUT_BYTES_MAX: u64 = 64_000_000_000;
/// The mark that some programs put before UTF-8.
const BOM: &[u8] = b"\xEF\xBB\xBF";
/// How a workbook begins, as every zip archive does.
const ZIP: &[u8] = b"PK\x03\x04";
/// How files begin that people hand over by mistake: start, what it is, what to do.
const FOREIGN: [(&[u8], &str, &str); 6] = [
    (b"\xFF\xFE", "UTF-16 text", "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE | longhaul run -"),
    (b"\xFE\xFF", "UTF-16 text", "save it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE | longhaul run -"),
    (b"\x1F\x8B", "compressed", "unpack it on the way: gunzip -c FILE | longhaul run -"),
    (b"\x28\xB5\x2F\xFD", "compressed", "unpack it on the way: zstd -dc FILE | longhaul run -"),
    (
        b"\xD0\xCF\x11\xE0",
        "an old or an encrypted workbook",
        "save it as .xlsx without a password: soffice --headless --convert-to xlsx FILE",
    ),
    (
        b"PAR1",
        "a Parquet file",
        "write it as JSONL first: duckdb -c \"COPY (FROM 'FILE') TO 'prompts.jsonl'\"",
    ),
];

/// Something that can be read twice.
#[derive(Debug, Clone)]
pub(super) struct Source {
    name: String,
    file: Arc<File>,
    stamp: Stamp,
}

/// Tells whether a file was written to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Source {
    /// A file, or stdin for `-`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Self::spool("stdin", io::stdin().lock());
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| {
            texts::unreadable(&name, &error).hint("name a file of prompts, or - to read them from stdin")
        })?;
        let metadata = file.metadata().with_context(|| format!("looking at {name}"))?;
        if metadata.is_dir() {
            return Err(Failure::new(Code::Usage, format!("{name} is a folder"))
                .hint("name one file of prompts; several go through: cat FOLDER/*.jsonl | longhaul run -")
                .into());
        }
        // A pipe, such as the shell makes of <(command), can be read only once.
        if metadata.is_file() { Self::of(&name, file) } else { Self::spool(&name, file) }
    }

    /// Copies `reader` to a temporary file.
    pub(super) fn spool(name: &str, reader: impl Read) -> Result<Self> {
        let mut file = tempfile::tempfile().context("making a temporary file for the prompts")?;
        let copied = io::copy(&mut reader.take(INPUT_BYTES_MAX + 1), &mut file);
        copied.and_then(|_| file.flush()).with_context(|| format!("copying {name} to a temporary file"))?;
        Self::of(name, file)
    }

    fn of(name: &str, file: File) -> Result<Self> {
        let stamp = stamp(&file, name)?;
        if stamp.bytes > INPUT_BYTES_MAX {
            let text = format!("{name} is larger than {INPUT_BYTES_MAX} bytes");
            return Err(Failure::new(Code::Usage, text).hint("split it into several runs").into());
        }
        let source = Self { name: name.to_owned(), file: Arc::new(file), stamp };
        source.refuse_foreign()?;
        Ok(source)
    }

    /// Whether it is an archive, as workbooks are.
    pub(super) fn is_zip(&self) -> Result<bool> {
        Ok(self.start()?.starts_with(ZIP))
    }

    /// Its first bytes.
    fn start(&self) -> Result<Vec<u8>> {
        let mut start = Vec::new();
        let longest = FOREIGN.iter().map(|(start, _, _)| start.len()).max().unwrap_or(0).max(ZIP.len());
        let reading = || format!("reading {}", self.name);
        Tap::new(self).take(longest as u64).read_to_end(&mut start).with_context(reading)?;
        Ok(start)
    }

    fn refuse_foreign(&self) -> Result<()> {
        let start = self.start()?;
        match FOREIGN.iter().find(|(foreign, _, _)| start.starts_with(foreign)) {
            Some((_, what, hint)) => {
                Err(Failure::new(Code::Usage, format!("{} is {what}", self.name)).hint(hint).into())
            }
            None => Ok(()),
        }
    }

    /// What messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its bytes from the start, behind a byte order mark.
    pub(super) fn reader(&self) -> Result<Tap> {
        let mut start = [0; BOM.len()];
        let mut tap = Tap::new(self);
        let mut read = 0;
        while read < BOM.len() {
            let count = tap.read(&mut start[read..]).with_context(|| format!("reading {}", self.name))?;
            if count == 0 {
                break;
            }
            read += count;
        }
        // The digest is that of the whole content, mark and all, so that other tools find the same one.
        Ok(if &start[..read] == BOM { tap } else { Tap::new(self) })
    }

    /// Its bytes for a reader that goes back and forth.
    pub(super) fn cursor(&self) -> FileCursor {
        FileCursor { file: Arc::clone(&self.file), offset: 0 }
    }

    /// Refuses a file that was written to since it was opened.
    pub(super) fn unchanged(&self) -> Result<()> {
        if stamp(&self.file, &self.name)? == self.stamp {
            return Ok(());
        }
        Err(Failure::new(Code::Failure, format!("{} was changed while it was read", self.name))
            .hint("run it again when nobody writes to it")
            .into())
    }
}

fn stamp(file: &File, name: &str) -> Result<Stamp> {
    let metadata = file.metadata().with_context(|| format!("looking at {name}"))?;
    Ok(Stamp { bytes: metadata.len(), modified: metadata.modified().ok() })
}

/// One pass over the bytes, with their digest. Each pass has a place of its own in the shared file.
#[derive(Debug)]
pub(super) struct Tap {
    file: Arc<File>,
    offset: u64,
    digest: Sha256,
}

impl Tap {
    fn new(source: &Source) -> Self {
        Self { file: Arc::clone(&source.file), offset: 0, digest: Sha256::new() }
    }

    /// How many bytes were read, and their SHA-256 in hexadecimal.
    pub(super) fn digest(&self) -> (u64, String) {
        let digest = self.digest.clone().finalize();
        (self.offset, digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Read for Tap {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}

/// A place of its own in the shared file.
#[derive(Debug)]
pub(super) struct FileCursor {
    file: Arc<File>,
    offset: u64,
}

impl Read for FileCursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Seek for FileCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::End(by) => (self.file.metadata()?.len(), by),
            SeekFrom::Current(by) => (self.offset, by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a place before the start of the file");
        self.offset = from.checked_add_signed(by).ok_or_else(before)?;
        Ok(self.offset)
    }
}
