//! Bytes of a body into lines, however the network cut them. A line may end in LF, CR or CRLF, as event streams allow;
//! JSON lines hold no bare CR, so the same rule serves them.

use crate::error::{Class, Error, Result};

/// Gathers bytes and hands out whole lines.
#[derive(Debug)]
pub struct LineSplitter {
    buffer: Vec<u8>,
    /// What stands before has been looked at and holds no end of a line.
    scanned: usize,
    /// The last line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
    line_bytes_max: usize,
}

impl LineSplitter {
    /// With a bound for one line.
    pub fn new(line_bytes_max: usize) -> Self {
        Self { buffer: Vec::new(), scanned: 0, after_cr: false, line_bytes_max }
    }

    /// Takes what the network brought and adds the lines that are now whole to `lines`.
    pub fn push(&mut self, bytes: &[u8], lines: &mut Vec<String>) -> Result<()> {
        let Some(first) = bytes.first() else { return Ok(()) };
        let follows_cr = std::mem::take(&mut self.after_cr) && *first == b'\n';
        self.buffer.extend_from_slice(if follows_cr { &bytes[1..] } else { bytes });
        let mut start = 0;
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        while let Some(found) = self.buffer[self.scanned..].iter().position(is_end) {
            let end = self.scanned + found;
            lines.push(self.line(start, end)?);
            start = end + 1;
            if self.buffer[end] == b'\r' {
                match self.buffer.get(start) {
                    Some(b'\n') => start += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.scanned = start;
        }
        self.buffer.drain(..start);
        self.scanned = self.buffer.len();
        if self.buffer.len() > self.line_bytes_max { Err(self.too_long()) } else { Ok(()) }
    }

    /// The last line, if the body did not end in a line break.
    pub fn finish(&mut self) -> Result<Option<String>> {
        let end = self.buffer.len();
        let line = if end == 0 { None } else { Some(self.line(0, end)?) };
        self.buffer.clear();
        self.scanned = 0;
        Ok(line)
    }

    fn line(&self, start: usize, end: usize) -> Result<String> {
        if end - start > self.line_bytes_max {
            return Err(self.too_long());
        }
        // Whole lines only: a character that the network cut in two has been joined again.
        Ok(String::from_utf8_lossy(&self.buffer[start..end]).into_owned())
    }

    fn too_long(&self) -> Error {
        let message = format!("a line of the answer is longer than {} bytes", self.line_bytes_max);
        Error::new(Class::Network, message).maybe_billed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<String> {
        let mut splitter = LineSplitter::new(64);
        let mut lines = Vec::new();
        for chunk in chunks {
            splitter.push(chunk, &mut lines).expect("within the bound");
        }
        lines.extend(splitter.finish().expect("within the bound"));
        lines
    }

    #[test]
    fn every_end_of_line_counts_once() {
        let cases: [(&[&[u8]], &[&str]); 7] = [
            (&[b"a\nb\n"], &["a", "b"]),
            (&[b"a\r\nb\r\n"], &["a", "b"]),
            (&[b"a\rb\r"], &["a", "b"]),
            (&[b"a\r", b"\nb"], &["a", "b"]),
            (&[b"a\r", b"", b"\n", b"\nb"], &["a", "", "b"]),
            (&[b"a", b"b\n\nc"], &["ab", "", "c"]),
            (&[], &[]),
        ];
        for (chunks, expected) in cases {
            assert_eq!(split(chunks), expected, "{chunks:?}");
        }
    }

    #[test]
    fn a_cut_character_is_joined_again() {
        let text = "né 日本\nend".as_bytes();
        for cut in 0..text.len() {
            assert_eq!(split(&[&text[..cut], &text[cut..]]), ["né 日本", "end"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut splitter = LineSplitter::new(8);
        let mut lines = Vec::new();
        splitter.push(b"12345678", &mut lines).expect("at the bound");
        assert!(splitter.push(b"9", &mut lines).unwrap_err().message.contains("longer than 8 bytes"));
        assert!(LineSplitter::new(8).push(b"123456789\n", &mut lines).is_err());
    }
}
