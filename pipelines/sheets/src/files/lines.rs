//! Lines of UTF-8 with their numbers and a bound. What is wrong is told by the line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::super::{Error, Result};
use super::{open_file, unreadable};
use longhaul_pipeline::table_files::ROW_BYTES_MAX;

const BUFFER_BYTES: usize = 256 * 1024;
const BOM: &[u8] = b"\xef\xbb\xbf";
const HINT_UTF8: &str = "save the file as UTF-8: iconv -f LATIN1 -t UTF-8 FILE";

/// Reads lines.
pub(super) struct Lines {
    reader: BufReader<File>,
    path: PathBuf,
    number: u64,
    buffer: Vec<u8>,
    marked: bool,
}

impl Lines {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, open_file(path)?);
        let start = reader.fill_buf().map_err(|error| unreadable(path, &error))?;
        let marked = start.starts_with(BOM);
        if marked {
            reader.consume(BOM.len());
        }
        Ok(Self { reader, path: path.to_owned(), number: 0, buffer: Vec::new(), marked })
    }

    /// Whether the file begins with a byte order mark, by which some programs know UTF-8.
    pub(super) fn is_marked(&self) -> bool {
        self.marked
    }

    /// Appends the next line with its end to `text`, which may not grow beyond the bound; its number, from 1.
    pub(super) fn append(&mut self, text: &mut String) -> Result<Option<u64>> {
        // The end of the line is not counted.
        let left = ROW_BYTES_MAX.saturating_sub(text.len()) as u64 + 2;
        self.buffer.clear();
        let read = self.reader.by_ref().take(left).read_until(b'\n', &mut self.buffer);
        if read.map_err(|error| unreadable(&self.path, &error))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let content = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        if text.len() + content.strip_suffix(b"\r").unwrap_or(content).len() > ROW_BYTES_MAX {
            return Err(self.wrong(
                self.number,
                &format!("the row is longer than {ROW_BYTES_MAX} bytes"),
                "shorten it, or close a quote that was left open",
            ));
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => text.push_str(line),
            Err(error) => {
                let found = format!("not UTF-8 at byte {} of the line", error.valid_up_to() + 1);
                return Err(self.wrong(self.number, &found, HINT_UTF8));
            }
        }
        Ok(Some(self.number))
    }

    /// What is wrong with a line, and what to do.
    pub(super) fn wrong(&self, line: u64, text: &str, hint: &str) -> Error {
        Error::Table(format!("{}, line {line}: {text}; {hint}", self.path.display()))
    }
}

/// A line without its end.
pub(super) fn trim_end(line: &mut String) {
    if line.ends_with('\n') {
        line.pop();
        if line.ends_with('\r') {
            line.pop();
        }
    }
}
