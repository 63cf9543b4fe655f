//! `llm.db`, this crate's own SQLite file: the response cache, the ledger and what was learnt of rate limits.
//!
//! Its commits survive `kill -9`. A power cut may lose the last seconds of them, though it never damages the file: a
//! commit is not synced to the disk, which would cost more than all else in it. Several processes may share the file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_sqlite::private;
use longhaul_sqlite::process_lock::{self, DeadProcess, ProcessLock};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use tokio::sync::watch;

use crate::ledger::Event;

mod error;
mod events;
mod learnt;
mod outage;
mod writer;

pub use error::{FileError, FileErrorKind, FileResult};
pub(crate) use writer::Tx;

use events::Events;
use outage::Outage;
use writer::Writer;

/// The tables, step by step: each version of the schema is one more. Old ones are never changed.
const MIGRATIONS: [&str; 4] = [
    include_str!("file/schema.sql"),
    include_str!("file/schema_2.sql"),
    include_str!("file/schema_3.sql"),
    include_str!("file/schema_4.sql"),
];
const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;
/// How long opening waits for other processes that open the same file.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a statement asks for a lock before it gives up: about ten seconds.
const BUSY_TRIES_MAX: i32 = 5_000;
/// Read-only connections kept open; more are opened for a moment when needed.
const READERS_KEPT_MAX: usize = 4;
/// The write-ahead log's file is cut back to this when it is used anew.
const WAL_BYTES_KEPT: i64 = 16 * 1024 * 1024;
const STATEMENTS_CACHED: usize = 64;

/// The open file. Cheap to clone; it is closed with the last clone.
#[derive(Clone)]
pub struct LlmFile {
    inner: Arc<Inner>,
}

struct Inner {
    /// None: in memory.
    path: Option<PathBuf>,
    // Fields are dropped in this order. The writer goes last: only a connection that may write can fold the log into the
    // file and remove it.
    readers: Mutex<Vec<Connection>>,
    events: Arc<Events>,
    outage: Outage,
    writer: Writer,
    // After the writer: until then calls of this process may still be written.
    /// Which process this is, to others. None in memory, and where locks are not to be had: its calls are then taken for dead when
    /// they are very old.
    process_lock: Option<ProcessLock>,
}

impl LlmFile {
    /// Opens the file; makes it, and its folder, where they are missing.
    pub fn open(path: &Path) -> FileResult<Self> {
        let place = |error: FileError| error.at(Some(path));
        create_folder(path).map_err(place)?;
        let connection = open_writer(path).map_err(place)?;
        // A process without a lock is dead, with a file or without one.
        process_lock::dead_processes(path).into_iter().for_each(DeadProcess::remove);
        Self::start(connection, Some(path.to_owned()), ProcessLock::claim(path)).map_err(place)
    }

    /// A file that is gone with the last clone; for tests and for runs that keep nothing.
    pub fn in_memory() -> FileResult<Self> {
        let mut connection = Connection::open_in_memory()?;
        prepare(&mut connection)?;
        migrate(&mut connection)?;
        Self::start(connection, None, None)
    }

    fn start(
        connection: Connection,
        path: Option<PathBuf>,
        process_lock: Option<ProcessLock>,
    ) -> FileResult<Self> {
        let events = Arc::new(Events::default());
        let writer = Writer::spawn(connection, Arc::clone(&events))?;
        Ok(Self {
            inner: Arc::new(Inner {
                path,
                readers: Mutex::default(),
                events,
                outage: Outage::default(),
                writer,
                process_lock,
            }),
        })
    }

    /// Where it is; none in memory.
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
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
        let written = self.inner.writer.write(work).await.map_err(|error| error.at(self.path()));
        self.inner.outage.learn(&written);
        written
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
        let Some(path) = self.path() else {
            // What is in memory has one connection.
            let mut work = Some(work);
            let once = move |tx: &mut Tx<'_>| {
                work.take().map_or_else(|| Err(FileError::stopped()), |work| work(tx.connection))
            };
            return self.write(once).await;
        };
        let (inner, path) = (Arc::clone(&self.inner), path.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            inner.read_now(&path, work).map_err(|error| error.at(Some(&path)))
        });
        read.await.unwrap_or_else(|_| Err(FileError::stopped()))
    }

    /// Counts an event, to be written within a second.
    pub(crate) fn count(&self, scope: &str, event: Event, count: u64) {
        self.inner.events.add(scope, event, count);
    }

    /// Writes the events that wait, for a reader that wants to see its own.
    pub(crate) async fn flush_events(&self) -> FileResult<()> {
        if self.inner.events.is_empty() { Ok(()) } else { self.write(|_| Ok(())).await }
    }
}

impl Inner {
    fn read_now<T>(&self, path: &Path, work: impl FnOnce(&Connection) -> FileResult<T>) -> FileResult<T> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open_reader(path)?,
        };
        let snapshot = connection.unchecked_transaction()?;
        let value = work(&snapshot)?;
        snapshot.finish()?;
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS_KEPT_MAX {
            readers.push(connection);
        }
        Ok(value)
    }
}

fn create_folder(path: &Path) -> FileResult<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    private::create_folder(folder).map_err(|error| {
        FileError::new(FileErrorKind::Unavailable, format!("its folder cannot be made: {error}"))
    })
}

/// Processes that make the same file together meet here, and SQLite does not ask the busy handler while it changes the
/// journal mode; so this waits by itself.
fn open_writer(path: &Path) -> FileResult<Connection> {
    let started_at = Instant::now();
    loop {
        match try_open_writer(path) {
            Err(error) if error.kind == FileErrorKind::Busy && started_at.elapsed() < OPEN_WAIT_MAX => {
                wait_for_lock(0);
            }
            outcome => return outcome,
        }
    }
}

fn try_open_writer(path: &Path) -> FileResult<Connection> {
    // Where this fails, SQLite fails too, and says why.
    let _ = private::create_file(path);
    let mut connection = Connection::open(path)?;
    prepare(&mut connection)?;
    // SQLite falls back to reading where it may not write; every commit would then fail.
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let message = "it is read-only; check the permissions of the file and its folder";
        return Err(FileError::new(FileErrorKind::ReadOnly, message));
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let message =
            format!("SQLite answers journal mode {mode:?} instead of \"wal\"; is it on a network drive?");
        return Err(FileError::new(FileErrorKind::Unavailable, message));
    }
    // With a write-ahead log this keeps the file sound through anything, and commits through the death of the process.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    migrate(&mut connection)?;
    Ok(connection)
}

fn open_reader(path: &Path) -> FileResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    prepare(&mut connection)?;
    Ok(connection)
}

fn prepare(connection: &mut Connection) -> FileResult<()> {
    connection.busy_handler(Some(wait_for_lock))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Without this SQLite parses a statement anew at each binding that might suit a partial index.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Short, jittered waits: SQLite's own handler sleeps up to 100 ms, during which the lock stands idle.
fn wait_for_lock(tries: i32) -> bool {
    if tries >= BUSY_TRIES_MAX {
        return false;
    }
    let longest_us = if tries < 20 { 400 } else { 4_000 };
    std::thread::sleep(Duration::from_micros(fastrand::u64(50..longest_us)));
    true
}

/// Makes the tables, under the write lock, so that two processes starting together do it once.
fn migrate(connection: &mut Connection) -> FileResult<()> {
    if schema_version(connection)? == Some(SCHEMA_VERSION) {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = match schema_version(&transaction)? {
        Some(SCHEMA_VERSION) => return Ok(()),
        Some(version) if version > SCHEMA_VERSION => {
            let message = format!(
                "its schema is version {version}, this program knows versions up to {SCHEMA_VERSION}; use a newer longhaul"
            );
            return Err(FileError::new(FileErrorKind::Newer, message));
        }
        Some(version) => usize::try_from(version)
            .ok()
            .filter(|version| *version > 0)
            .ok_or_else(|| FileError::corrupt(format!("its schema has no version {version}")))?,
        None => {
            refuse_foreign(&transaction)?;
            transaction.execute_batch(
                "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID",
            )?;
            0
        }
    };
    for step in MIGRATIONS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    let version = "INSERT OR REPLACE INTO meta (key, value) VALUES ('schema_version', ?1)";
    transaction.execute(version, [SCHEMA_VERSION])?;
    transaction.commit()?;
    Ok(())
}

/// A path that was mistyped must not fill somebody else's database with our tables.
fn refuse_foreign(connection: &Connection) -> FileResult<()> {
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(());
    }
    Err(FileError::invalid("it is a SQLite file of something else; name another path"))
}

fn schema_version(connection: &Connection) -> FileResult<Option<i64>> {
    let table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta'";
    if connection.query_row(table, [], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let version = "SELECT value FROM meta WHERE key = 'schema_version'";
    Ok(connection.query_row(version, [], |row| row.get(0)).optional()?)
}

#[cfg(test)]
mod tests;
