//! CSV and TSV. The crate csv takes a row apart; where it ends is found here, because a quote that is never closed must
//! not make one row of the rest of the file.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

use super::super::Result;
use super::Reader;
use super::cell::{Cell, Record, harmless};
use super::export::{Fill, Fills, Output};
use super::lines::{Lines, trim_end};

pub(super) const COMMA: u8 = b',';
pub(super) const TAB: u8 = b'\t';
const BOM: &str = "\u{feff}";
const HINT_QUOTE: &str = "close the quote; a quote inside of a quoted field is written twice";

/// How the file is written beyond its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) delimiter: u8,
    /// It begins with a byte order mark.
    pub(super) marked: bool,
    /// Its lines end as on Windows.
    pub(super) crlf: bool,
}

/// Reads rows. An empty line is a row without cells.
pub(super) struct CsvReader {
    lines: Lines,
    delimiter: u8,
    splitter: Splitter,
    number: u64,
}

impl CsvReader {
    pub(super) fn open(path: &Path, delimiter: u8) -> Result<Self> {
        let lines = Lines::open(path)?;
        Ok(Self { lines, delimiter, splitter: Splitter::new(delimiter), number: 0 })
    }

    /// How a file is written, by its first line.
    pub(super) fn style(path: &Path, delimiter: u8) -> Result<Style> {
        let mut lines = Lines::open(path)?;
        let mut first = String::new();
        lines.append(&mut first)?;
        Ok(Style { delimiter, marked: lines.is_marked(), crlf: first.ends_with("\r\n") })
    }

    /// The text of the next row, which may have line breaks in quotes, with the number of its first line.
    fn next_text(&mut self) -> Result<Option<(u64, String)>> {
        let mut text = String::new();
        let Some(first) = self.lines.append(&mut text)? else { return Ok(None) };
        let mut quoted = ends_in_quotes(&text, self.delimiter, false);
        while quoted {
            let start = text.len();
            match self.lines.append(&mut text) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    return Err(self.lines.wrong(
                        first,
                        "a quote opens here and is never closed",
                        HINT_QUOTE,
                    ));
                }
                // Where the row begins says more than where it became too long.
                Err(error) => {
                    let text = format!("a quoted field that begins here goes on until: {error}");
                    return Err(self.lines.wrong(first, &text, HINT_QUOTE));
                }
            }
            quoted = ends_in_quotes(&text[start..], self.delimiter, true);
        }
        trim_end(&mut text);
        Ok(Some((first, text)))
    }
}

impl Reader for CsvReader {
    fn next(&mut self) -> Result<Option<Record>> {
        let Some((line, text)) = self.next_text()? else { return Ok(None) };
        let number = self.number;
        self.number += 1;
        if text.is_empty() {
            return Ok(Some(Record { number, cells: Vec::new(), original: Some(text) }));
        }
        let cells = self.splitter.split(&text).map_err(|error| self.lines.wrong(line, &error, HINT_QUOTE))?;
        Ok(Some(Record { number, cells, original: Some(text) }))
    }
}

/// Whether a quoted field goes on after this line. A quote counts only at the start of a field, as it does in the crate
/// csv: `5" pipe` has none that opens.
fn ends_in_quotes(line: &str, delimiter: u8, mut quoted: bool) -> bool {
    let mut at_start = !quoted;
    let mut bytes = line.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            // Two quotes are one in the text.
            b'"' if quoted && bytes.peek() == Some(&b'"') => drop(bytes.next()),
            b'"' if quoted => quoted = false,
            b'"' if at_start => quoted = true,
            _ => {}
        }
        at_start = !quoted && byte == delimiter;
    }
    quoted
}

/// Where the fields of a row are in its text, quotes included.
fn fields(text: &str, delimiter: u8) -> Vec<Range<usize>> {
    let mut fields = Vec::new();
    let (mut start, mut quoted, mut at_start) = (0, false, true);
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' if quoted && bytes.peek().is_some_and(|(_, next)| *next == b'"') => drop(bytes.next()),
            b'"' if quoted => quoted = false,
            b'"' if at_start => quoted = true,
            _ if byte == delimiter && !quoted => {
                fields.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
        at_start = !quoted && byte == delimiter;
    }
    fields.push(start..text.len());
    fields
}

/// Takes rows apart. The reader of the crate csv is kept, because making one costs far more than reading a row.
struct Splitter {
    reader: ::csv::Reader<Feed>,
    fields: ::csv::StringRecord,
}

impl Splitter {
    fn new(delimiter: u8) -> Self {
        let mut builder = ::csv::ReaderBuilder::new();
        // A carriage return alone ends no row here, so it must not end one there.
        builder.has_headers(false).flexible(true).delimiter(delimiter);
        builder.terminator(::csv::Terminator::Any(b'\n'));
        Self { reader: builder.from_reader(Feed::default()), fields: ::csv::StringRecord::new() }
    }

    /// The fields of a whole row. With the line end behind it the reader does not ask for more, so it never meets an end
    /// of its input, after which it would not go on.
    fn split(&mut self, text: &str) -> Result<Vec<Cell>, String> {
        let feed = self.reader.get_mut();
        feed.bytes.clear();
        feed.bytes.extend_from_slice(text.as_bytes());
        feed.bytes.push(b'\n');
        feed.read = 0;
        match self.reader.read_record(&mut self.fields) {
            Ok(true) => Ok(self.fields.iter().map(|field| Cell::Plain(field.to_owned())).collect()),
            Ok(false) => Err("the row cannot be taken apart".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// One row at a time as the input of a reader.
#[derive(Default)]
struct Feed {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&self.bytes[self.read..]).read(buffer)?;
        self.read += count;
        Ok(count)
    }
}

/// Writes rows. Cells of a file of the same kind keep their bytes.
pub(super) struct CsvOutput<'a> {
    writer: &'a mut (dyn Write + Send),
    style: Style,
    /// Rows come from a file with this separator.
    from: Option<u8>,
    /// Columns of scores.
    targets: Vec<usize>,
    line: String,
}

impl<'a> CsvOutput<'a> {
    pub(super) fn new(
        writer: &'a mut (dyn Write + Send),
        style: Style,
        from: Option<u8>,
        targets: Vec<usize>,
    ) -> Self {
        let line = if style.marked { BOM.to_owned() } else { String::new() };
        Self { writer, style, from, targets, line }
    }

    fn push(&mut self, index: usize, field: &str) {
        if index > 0 {
            self.line.push(char::from(self.style.delimiter));
        }
        self.line.push_str(field);
    }
}

impl Output for CsvOutput<'_> {
    fn row(&mut self, record: &Record, fills: &Fills<'_>) -> Result<(), io::Error> {
        let delimiter = self.style.delimiter;
        let original = record.original.as_deref().filter(|_| self.from == Some(delimiter));
        let originals = match original {
            Some(text) if !record.cells.is_empty() => fields(text, delimiter),
            _ => Vec::new(),
        };
        let width = fills.width(record);
        for column in 0..width {
            let field =
                match (fills.get(column), original.zip(originals.get(column)), record.cells.get(column)) {
                    (Some(fill), _, _) => quoted(fill_text(fill), delimiter),
                    (None, Some((text, field)), _) => Cow::Borrowed(&text[field.clone()]),
                    // A model wrote this one too, in an earlier export.
                    (None, None, Some(cell)) if self.targets.contains(&column) => {
                        quoted(harmless(cell.text()), delimiter)
                    }
                    (None, None, Some(cell)) => quoted(cell.text(), delimiter),
                    (None, None, None) => Cow::Borrowed(""),
                };
            // A line without anything would be no row to most programs.
            let field = if width == 1 && field.is_empty() { Cow::Borrowed("\"\"") } else { field };
            self.push(column, &field);
        }
        self.line.push_str(if self.style.crlf { "\r\n" } else { "\n" });
        self.writer.write_all(self.line.as_bytes())?;
        self.line.clear();
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), io::Error> {
        self.writer.write_all(self.line.as_bytes())
    }
}

fn fill_text<'a>(fill: &Fill<'a>) -> Cow<'a, str> {
    match fill {
        Fill::Head(name) => Cow::Borrowed(*name),
        Fill::Value(value) => harmless(super::cell::value_text(value).unwrap_or_default()),
    }
}

fn quoted(text: Cow<'_, str>, delimiter: u8) -> Cow<'_, str> {
    let special = |byte: u8| matches!(byte, b'"' | b'\r' | b'\n') || byte == delimiter;
    if !text.bytes().any(special) {
        return text;
    }
    Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
}
