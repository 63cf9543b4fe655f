//! The journal as it grows.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::super::journal::Line;

/// Reads what has come since the last look.
pub(super) struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The start of a line whose end has not come yet.
    rest: String,
    /// Bytes so far.
    pub(super) bytes: u64,
}

impl Tail {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, rest: String::new(), bytes: 0 }
    }

    /// New lines. What cannot be read is left to the check at the end.
    pub(super) fn lines(&mut self) -> io::Result<Vec<Line>> {
        if self.file.is_none() && self.path.exists() {
            self.file = Some(File::open(&self.path)?);
        }
        let Some(file) = &mut self.file else { return Ok(Vec::new()) };
        self.bytes += file.read_to_string(&mut self.rest)? as u64;
        let whole = self.rest.rfind('\n').map_or(0, |end| end + 1);
        let lines = self.rest[..whole].lines().filter_map(|line| line.parse().ok()).collect();
        self.rest.drain(..whole);
        Ok(lines)
    }
}
