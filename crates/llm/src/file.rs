//! `llm.db`, this crate's own SQLite file: the response cache, the ledger and what was learnt of rate limits.
//!
//! Its commits survive `kill -9`. A power cut may lose the last seconds of them, though it never damages the file: a
//! commit is not synced to the disk, which would cost more than all else in it. Several processes may share the file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_sqlite::process_lock::{self, DeadProcess, ProcessLock};
use longhaul_sqlite::{Durability, FileOptions, Schema, SqliteFile, WriteOptions};
use rusqlite::Connection;
use tokio::sync::watch;

use crate::ledger::Event;

mod events;
mod learnt;
mod outage;
mod session;

pub use longhaul_sqlite::{FileError, FileErrorKind, FileResult};
pub(crate) use session::Tx;

use events::Events;
use outage::Outage;
use session::LedgerSession;

/// The tables. A new migration is a new file; old ones are never edited.
const SCHEMA: Schema = Schema {
    version_table: "meta",
    version_key: "schema_version",
    migrations: &[
        include_str!("file/schema.sql"),
        include_str!("file/schema_2.sql"),
        include_str!("file/schema_3.sql"),
        include_str!("file/schema_4.sql"),
    ],
    is_alone: true,
};
/// How long the writer waits for more commands in a crowd. A call to a model takes a hundred times as long, and a commit costs
/// nearly as much for one command as for twenty.
const GATHER_WAIT: Duration = Duration::from_millis(2);
/// Page cache of the writing connection: SQLite's own default.
const WRITER_CACHE_KIB: u32 = 2_000;

/// The open file. Cheap to clone; it is closed with the last clone.
#[derive(Clone)]
pub struct LlmFile {
    inner: Arc<Inner>,
}

struct Inner {
    events: Arc<Events>,
    outage: Outage,
    file: SqliteFile<LedgerSession>,
    // Dropped after the file: until then calls of this process may still be written.
    /// Which process this is, to others. None in memory, and on file systems without locks: calls of this process then count as
    /// abandoned when they are very old.
    process_lock: Option<ProcessLock>,
}

impl LlmFile {
    /// Opens the file; creates it, and its folder, where they are missing.
    pub fn open(path: &Path) -> FileResult<Self> {
        let events = Arc::new(Events::default());
        let file = SqliteFile::open(path, &options(), LedgerSession::new(&events)).map_err(with_hint)?;
        // A process without a lock is dead, with a file or without one.
        process_lock::dead_processes(path).into_iter().for_each(DeadProcess::remove);
        Ok(Self::new(file, events, ProcessLock::claim(path)))
    }

    /// A file that is gone with the last clone; for tests and for runs that keep nothing.
    pub fn in_memory() -> FileResult<Self> {
        let events = Arc::new(Events::default());
        let file = SqliteFile::in_memory(&options(), LedgerSession::new(&events))?;
        Ok(Self::new(file, events, None))
    }

    fn new(file: SqliteFile<LedgerSession>, events: Arc<Events>, process_lock: Option<ProcessLock>) -> Self {
        Self { inner: Arc::new(Inner { events, outage: Outage::default(), file, process_lock }) }
    }

    /// Where it is; none in memory.
    pub fn path(&self) -> Option<&Path> {
        self.inner.file.path()
    }

    /// The name of this process to others that share the file.
    pub(crate) fn owner(&self) -> &str {
        self.inner.process_lock.as_ref().map_or("", ProcessLock::name)
    }

    /// Whether another process that shared the file is gone; its file is looked at, so not from async code.
    pub(crate) fn is_dead(path: &Path, owner: &str) -> bool {
        process_lock::is_gone(path, owner)
    }

    /// Runs `work` in a transaction, shared with what else is queued, and answers after its commit. It may run twice.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> FileResult<T> + Send + 'static,
    ) -> FileResult<T> {
        let written = self.inner.file.write_repeatable(WriteOptions::default(), work).await;
        self.learn(written)
    }

    /// The last error, for as long as the file cannot be written. Who watches tells people of it, and the log leaves
    /// that to them.
    pub fn outage(&self) -> watch::Receiver<Option<String>> {
        self.inner.outage.watch()
    }

    /// Runs a read beside the writer; its statements see one state.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> FileResult<T> + Send + 'static,
    ) -> FileResult<T> {
        self.inner.file.read(work).await.map_err(|error| self.told(error))
    }

    /// Counts an event, to be written within a second.
    pub(crate) fn count(&self, scope: &str, event: Event, count: u64) {
        self.inner.events.add(scope, event, count);
        self.inner.file.wake();
    }

    /// Writes the events that wait, for a reader that wants to see its own.
    pub(crate) async fn flush_events(&self) -> FileResult<()> {
        if self.inner.events.is_empty() {
            return Ok(());
        }
        let written = self.inner.file.flush_deferred().await;
        self.learn(written)
    }

    /// Notes whether the file can be written.
    fn learn<T>(&self, written: FileResult<T>) -> FileResult<T> {
        let written = written.map_err(|error| self.told(error));
        self.inner.outage.learn(&written);
        written
    }

    fn told(&self, error: FileError) -> FileError {
        let error = with_hint(error);
        match self.path() {
            Some(path) => error.at(path),
            None => error,
        }
    }
}

fn options() -> FileOptions {
    FileOptions {
        durability: Durability::Relaxed,
        writer_cache_kib: WRITER_CACHE_KIB,
        gather_wait: GATHER_WAIT,
        ..FileOptions::new(SCHEMA)
    }
}

fn with_hint(mut error: FileError) -> FileError {
    if error.kind == FileErrorKind::Corrupt {
        error.message +=
            "; move it away, and a new one is made: what was cached, learnt and spent is then unknown";
    }
    error
}

#[cfg(test)]
mod tests;
