//! Lines of bounded length with their numbers. A line that cannot be used is told with its number, and the next one can
//! still be read, so that one pass finds all faults.

use std::io::{BufRead as _, BufReader, Read as _};

use anyhow::Context as _;

use super::source::Tap;
use super::{Fault, Problem};

pub(super) const HINT_LONG: &str =
    "shorten it, or raise the setting store.value_bytes_max; give large pictures as https addresses";
const HINT_UTF8: &str = "save the file as UTF-8: iconv -f LATIN1 -t UTF-8 FILE";
/// Bytes that are asked of the file at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// What follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line with this number.
    Line(u64),
    /// Nothing.
    End,
}

/// Reads lines.
#[derive(Debug)]
pub(super) struct LineReader {
    reader: BufReader<Tap>,
    number: u64,
    bytes_max: usize,
    buffer: Vec<u8>,
}

impl LineReader {
    pub(super) fn new(tap: Tap, bytes_max: usize) -> Self {
        Self { reader: BufReader::with_capacity(BUFFER_BYTES, tap), number: 0, bytes_max, buffer: Vec::new() }
    }

    /// Most bytes of a line.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Reads what is left, for the digest of it.
    pub(super) fn skip_all(&mut self) -> anyhow::Result<()> {
        std::io::copy(&mut self.reader, &mut std::io::sink()).context("reading to the end").map(drop)
    }

    /// Size and digest of what was read.
    pub(super) fn digest(&self) -> (u64, String) {
        self.reader.get_ref().digest()
    }

    /// Puts the next line that is not blank into `text`, without its end.
    pub(super) fn next_line(&mut self, text: &mut String) -> Result<Next, Fault> {
        loop {
            text.clear();
            let next = self.append_line(text)?;
            if text.ends_with('\n') {
                text.truncate(text.len() - 1);
                text.truncate(text.strip_suffix('\r').map_or(text.len(), str::len));
            }
            if next == Next::End || !text.trim().is_empty() {
                return Ok(next);
            }
        }
    }

    /// Appends the next line with its end to `text`, which may not grow beyond the bound.
    pub(super) fn append_line(&mut self, text: &mut String) -> Result<Next, Fault> {
        // The end of the line is not counted.
        let left = self.bytes_max.saturating_sub(text.len()) as u64 + 2;
        self.buffer.clear();
        let read = self.reader.by_ref().take(left).read_until(b'\n', &mut self.buffer);
        if read.with_context(|| format!("reading line {}", self.number + 1))? == 0 {
            return Ok(Next::End);
        }
        self.number += 1;
        let ended = self.buffer.ends_with(b"\n");
        let content = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        if text.len() + content.strip_suffix(b"\r").unwrap_or(content).len() > self.bytes_max {
            if !ended {
                self.skip_rest()?;
            }
            let text = format!("longer than {} bytes", self.bytes_max);
            return Err(Problem::new(self.number, text, HINT_LONG).into());
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => text.push_str(line),
            Err(error) => {
                let problem = format!("not UTF-8 at byte {} of the line", error.valid_up_to() + 1);
                return Err(Problem::new(self.number, problem, HINT_UTF8).into());
            }
        }
        Ok(Next::Line(self.number))
    }

    /// Passes over the rest of a line without keeping it.
    fn skip_rest(&mut self) -> Result<(), Fault> {
        self.reader.skip_until(b'\n').with_context(|| format!("reading line {}", self.number))?;
        Ok(())
    }
}
