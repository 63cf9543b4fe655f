//! Read-only connections, kept between two reads.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use crate::connection::open_reader;
use crate::error::FileResult;

/// Read-only connections of one file.
pub(crate) struct Readers {
    path: PathBuf,
    kept: Mutex<Vec<Connection>>,
    kept_max: usize,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, kept_max: usize) -> Self {
        Self { path, kept: Mutex::default(), kept_max }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A connection to read with, to be kept afterwards. One whose read failed is dropped instead.
    pub(crate) fn take(&self) -> FileResult<Connection> {
        let kept = self.kept().pop();
        kept.map_or_else(|| open_reader(&self.path).map_err(|error| error.at(&self.path)), Ok)
    }

    pub(crate) fn keep(&self, connection: Connection) {
        let mut kept = self.kept();
        if kept.len() < self.kept_max {
            kept.push(connection);
        }
    }

    /// Closes those that are not in use.
    pub(crate) fn close(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
