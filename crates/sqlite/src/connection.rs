//! The connections to a file and their settings, and who waits for whom while it is opened.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::{FileError, FileErrorKind, FileResult};
use crate::schema::Schema;
use crate::{lock_holder, private};

/// How long opening waits for other processes that open the same file.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a statement asks for a lock before it gives up: about ten seconds.
const BUSY_TRIES_MAX: i32 = 5_000;
/// Page cache of each reader.
const READER_CACHE_KIB: i64 = 1_024;
/// A write-ahead log that grew behind a long reader is cut back to this when it is reused.
const WAL_BYTES_KEPT: i64 = 64 * 1024 * 1024;
const STATEMENTS_CACHED: usize = 128;

/// What a commit promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// On disk before the caller is told: survives a power cut. The default.
    #[default]
    Fsync,
    /// Survives a crash of the process; a power cut may lose the last commits, never damage the file.
    Relaxed,
}

impl std::str::FromStr for Durability {
    type Err = FileError;

    fn from_str(text: &str) -> FileResult<Self> {
        match text {
            "fsync" => Ok(Self::Fsync),
            "relaxed" => Ok(Self::Relaxed),
            _ => Err(FileError::invalid(format!("durability {text:?} is not known; use fsync or relaxed"))),
        }
    }
}

/// How to open a file.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Its tables.
    pub schema: Schema,
    /// What a commit promises.
    pub durability: Durability,
    /// Create the file and its folder when they are missing, and refuse a file that cannot be written. Otherwise only a file that
    /// has the schema's tables is opened, if need be for reading only.
    pub create: bool,
    /// Page cache of the writing connection while the file is in use, in KiB.
    pub writer_cache_kib: u32,
    /// Read-only connections kept open while the file is in use; more are opened for a moment when needed.
    pub readers_kept_max: usize,
    /// How long the writer waits for more commands after a group of several. Zero unless replies may be late: in a crowd, larger
    /// groups cost less.
    pub gather_wait: Duration,
    /// Refuses a file, before anything in it is changed.
    pub check: fn(&Connection) -> FileResult<()>,
}

impl FileOptions {
    /// The defaults, for a file with these tables: fsync, 16 MiB of cache, four readers.
    pub fn new(schema: Schema) -> Self {
        Self {
            schema,
            durability: Durability::default(),
            create: true,
            writer_cache_kib: 16_384,
            readers_kept_max: 4,
            gather_wait: Duration::ZERO,
            check: |_| Ok(()),
        }
    }
}

fn create_folder(path: &Path) -> FileResult<()> {
    let folder = private::folder_of(path);
    private::create_folder(folder).map_err(|error| {
        FileError::unavailable(format!("the folder {} cannot be created: {error}", folder.display()))
    })
}

/// Opens the writing connection. Processes that create the same file together meet here, and SQLite does not call the busy
/// handler while it changes the journal mode; so this waits by itself.
pub(crate) fn open_writer(path: &Path, options: &FileOptions) -> FileResult<Connection> {
    if options.create {
        create_folder(path)?;
    }
    let started_at = Instant::now();
    loop {
        match try_open_writer(path, options) {
            Err(error) if error.kind == FileErrorKind::Busy && started_at.elapsed() < OPEN_WAIT_MAX => {
                wait_for_lock(0);
            }
            outcome => return outcome.map_err(|error| lock_holder::name_holder(error, path)),
        }
    }
}

fn try_open_writer(path: &Path, options: &FileOptions) -> FileResult<Connection> {
    if options.create {
        // Where this fails, SQLite fails too, and says why.
        let _ = private::create_file(path);
    }
    let mut connection = Connection::open(path)?;
    prepare(&mut connection)?;
    (options.check)(&connection)?;
    // A question must not turn another program's database into one of ours.
    if !options.create && options.schema.version(&connection)?.is_none() {
        return Err(FileError::invalid("it is a SQLite file, but not a Longhaul store"));
    }
    // SQLite falls back to reading where it cannot write; every commit would then fail.
    if options.create && connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(FileError::read_only());
    }
    // Asked and read back: a refused journal mode would cost every commit several fsyncs.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(FileError::unavailable(format!(
            "SQLite answers journal mode {mode:?} instead of \"wal\"; is the file on a network drive?"
        )));
    }
    connection.pragma_update(None, "cache_size", -i64::from(options.writer_cache_kib))?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    sync_fully(&connection)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    options.schema.migrate(&mut connection)?;
    Ok(connection)
}

/// Opens a database in memory, which has no other connection.
pub(crate) fn open_in_memory(options: &FileOptions) -> FileResult<Connection> {
    let mut connection = Connection::open_in_memory()?;
    prepare(&mut connection)?;
    options.schema.migrate(&mut connection)?;
    Ok(connection)
}

/// Opens a connection that only reads.
pub(crate) fn open_reader(path: &Path) -> FileResult<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut connection = Connection::open_with_flags(path, flags)?;
    prepare(&mut connection)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    Ok(connection)
}

/// Opens the connection that copies the write-ahead log and does nothing else.
pub(crate) fn open_checkpointer(path: &Path) -> FileResult<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_for_lock))?;
    sync_fully(&connection)?;
    Ok(connection)
}

/// Where fsync alone leaves data in the drive's cache (macOS); elsewhere this changes nothing.
fn sync_fully(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)
}

/// Settings of every connection.
fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_lock))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Without this SQLite parses a statement anew at each binding that might suit a partial index: that costs more than the
    // statement itself, and our plans must not depend on values anyway.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Short, jittered waits: SQLite's own handler sleeps up to 100 ms, during which the lock stands idle.
pub(crate) fn wait_for_lock(tries: i32) -> bool {
    if tries >= BUSY_TRIES_MAX {
        return false;
    }
    let longest_us = if tries < 20 { 400 } else { 4_000 };
    std::thread::sleep(Duration::from_micros(fastrand::u64(50..longest_us)));
    true
}
