//! Rows of CSV and TSV as text. The crate csv parses a row; this module finds where a row ends, because a quote that is never
//! closed must not turn the rest of the file into one row.

use std::borrow::Cow;
use std::io::{self, Read};
use std::iter::{Enumerate, Peekable};
use std::ops::Range;
use std::str::Bytes;

use super::COLUMNS_MAX;

/// Separates columns of CSV.
pub const COMMA: u8 = b',';
/// Separates columns of TSV.
pub const TAB: u8 = b'\t';

/// Whether a quoted field goes on after this line.
pub fn ends_in_quotes(line: &str, delimiter: u8, quoted: bool) -> bool {
    let mut separators = Separators::new(line, delimiter, quoted);
    while separators.next().is_some() {}
    separators.quoted
}

/// Where the fields of a row are in its text, quotes included.
pub fn fields(text: &str, delimiter: u8) -> Vec<Range<usize>> {
    let mut start = 0;
    let ends = Separators::new(text, delimiter, false).chain([text.len()]);
    ends.map(|end| std::mem::replace(&mut start, end + 1)..end).collect()
}

/// The places of separators outside of quotes. A quote counts only at the start of a field, as it does in the crate csv:
/// `5" pipe` has none that opens.
struct Separators<'a> {
    bytes: Peekable<Enumerate<Bytes<'a>>>,
    delimiter: u8,
    quoted: bool,
    at_start: bool,
}

impl<'a> Separators<'a> {
    fn new(text: &'a str, delimiter: u8, quoted: bool) -> Self {
        Self { bytes: text.bytes().enumerate().peekable(), delimiter, quoted, at_start: !quoted }
    }
}

impl Iterator for Separators<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while let Some((at, byte)) = self.bytes.next() {
            match byte {
                // Two quotes are one in the text.
                b'"' if self.quoted => {
                    self.quoted = self.bytes.next_if(|(_, next)| *next == b'"').is_some();
                    self.at_start = false;
                }
                b'"' if self.at_start => (self.quoted, self.at_start) = (true, false),
                _ => {
                    self.at_start = !self.quoted && byte == self.delimiter;
                    if self.at_start {
                        return Some(at);
                    }
                }
            }
        }
        None
    }
}

/// A field as it is written.
pub fn quoted(text: Cow<'_, str>, delimiter: u8) -> Cow<'_, str> {
    let special = |byte: u8| matches!(byte, b'"' | b'\r' | b'\n') || byte == delimiter;
    if !text.bytes().any(special) {
        return text;
    }
    Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
}

/// Parses rows. The reader of the crate csv is kept, because making one costs far more than reading a row.
#[derive(Debug)]
pub struct Splitter {
    reader: ::csv::Reader<Feed>,
    fields: ::csv::StringRecord,
    delimiter: u8,
}

impl Splitter {
    /// For rows with this separator.
    pub fn new(delimiter: u8) -> Self {
        let mut builder = ::csv::ReaderBuilder::new();
        // A carriage return alone ends no row here, so it must not end one there.
        builder.has_headers(false).flexible(true).delimiter(delimiter);
        builder.terminator(::csv::Terminator::Any(b'\n'));
        Self { reader: builder.from_reader(Feed::default()), fields: ::csv::StringRecord::new(), delimiter }
    }

    /// The fields of a whole row. With the line end behind it the reader does not ask for more, so it never meets an end
    /// of its input, after which it would not go on.
    pub fn split(&mut self, text: &str) -> Result<impl Iterator<Item = &str>, String> {
        // Checked before anything is allocated for a field. Only a row that is long enough needs it.
        let many = text.len() >= COLUMNS_MAX;
        if many && Separators::new(text, self.delimiter, false).nth(COLUMNS_MAX - 1).is_some() {
            return Err(format!("the row has more than {COLUMNS_MAX} columns"));
        }
        let feed = self.reader.get_mut();
        feed.bytes.clear();
        feed.bytes.extend_from_slice(text.as_bytes());
        feed.bytes.push(b'\n');
        feed.read = 0;
        match self.reader.read_record(&mut self.fields) {
            Ok(true) => Ok(self.fields.iter()),
            Ok(false) => Err("the row cannot be parsed".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// One row at a time as the input of a reader.
#[derive(Debug, Default)]
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
