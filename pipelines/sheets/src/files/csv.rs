//! CSV and TSV files, read row by row and written again with their scores.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use super::super::Result;
use super::Reader;
use super::export::{Fill, Fills, Output};
use super::lines::{Lines, trim_end};
use longhaul_pipeline::table_files::cell::value_text;
use longhaul_pipeline::table_files::csv::{Splitter, ends_in_quotes, fields, quoted};
use longhaul_pipeline::table_files::{Cell, Record, harmless};

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
        let fields =
            self.splitter.split(&text).map_err(|error| self.lines.wrong(line, &error, HINT_QUOTE))?;
        let cells = fields.map(|field| Cell::Plain(field.to_owned())).collect();
        Ok(Some(Record { number, cells, original: Some(text) }))
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
                    (None, None, Some(cell)) => quoted(cell.field(), delimiter),
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
        Fill::Head(name) => harmless(Cow::Borrowed(*name)),
        Fill::Value(Value::String(text)) => harmless(Cow::Borrowed(text)),
        Fill::Value(value) => value_text(value).unwrap_or_default(),
    }
}
