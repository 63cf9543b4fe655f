//! The database file: opening, migrations, readers, backup, and transactions that a caller's own tables share with
//! jobs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_queue::limits::Limits;
use longhaul_queue::store::Enqueued;
use longhaul_queue::{Clock, Error, Lease, NewJob, Queue, Result, SystemClock, Timestamp};
use longhaul_sqlite::private;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::committer::{Treatment, wait_for_lock};
use super::error::{DbError, DbResult, corrupt, is_busy, of_caller};
use super::tx::Tx;
use super::workers::Workers;
use super::writer::{Opened, Writer};
use super::{holder, insert, settle};

/// Forward migrations, in order. A new one is a new file; old ones are never edited.
const MIGRATIONS: [&str; 3] = [
    include_str!("migrations/0001_jobs.sql"),
    include_str!("migrations/0002_turns.sql"),
    include_str!("migrations/0003_ends.sql"),
];
#[expect(clippy::cast_possible_wrap, reason = "they are few")]
const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;
/// How long opening waits for other processes that open the same file.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(10);
/// Page cache of each reader.
const READER_CACHE_KIB: i64 = 1_024;
/// The write-ahead log's file is cut back to this when it is used anew.
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

impl Durability {
    /// What survives what, in a sentence.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Fsync => "fsync: what was enqueued, saved or settled survives a power cut",
            Self::Relaxed => "relaxed: a commit survives kill -9; a power cut may lose the last ones",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "fsync" => Ok(Self::Fsync),
            "relaxed" => Ok(Self::Relaxed),
            _ => Err(Error::invalid(format!("durability {text:?} is not known; use fsync or relaxed"))),
        }
    }
}

/// How to open a database.
#[derive(Clone)]
pub struct SqliteOptions {
    /// What a commit promises.
    pub durability: Durability,
    /// Make the file and its folder when they are missing.
    pub create: bool,
    /// The clock that leases count by.
    pub clock: Arc<dyn Clock>,
    /// What an enqueue inside a caller's transaction accepts.
    pub limits: Limits,
    /// Page cache of the writing connection while the store is in use, in KiB. Default: 16 MiB.
    pub writer_cache_kib: u32,
    /// Read-only connections kept open while the store is in use; more are opened for a moment when needed. Default: 4.
    pub readers_kept_max: usize,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            create: true,
            clock: Arc::new(SystemClock),
            limits: Limits::default(),
            writer_cache_kib: 16_384,
            readers_kept_max: 4,
        }
    }
}

/// Read-only connections between two reads.
#[derive(Clone)]
pub(super) struct Readers {
    kept: Arc<Mutex<Vec<Connection>>>,
    kept_max: usize,
}

impl Readers {
    fn take(&self) -> Option<Connection> {
        self.kept().pop()
    }

    fn keep(&self, connection: Connection) {
        let mut kept = self.kept();
        if kept.len() < self.kept_max {
            kept.push(connection);
        }
    }

    /// Closes those that are not in use.
    pub(super) fn close(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open database file. Cheap to clone; the file is closed with the last clone.
#[derive(Clone)]
pub struct Db {
    path: Arc<PathBuf>,
    durability: Durability,
    clock: Arc<dyn Clock>,
    limits: Limits,
    pub(super) workers: Arc<Workers>,
    readers: Readers,
    pub(super) writer: Writer,
}

impl Db {
    /// Opens the file, brings its schema up to date and starts the writer.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self> {
        let place = |error: Error| name_file(error, path);
        if options.create {
            create_folder(path)?;
        } else if !path.exists() {
            return Err(Error::not_found(format!("there is no store at {}", path.display())));
        }
        let connection =
            open_writer(path, &options).map_err(|error| place(holder::told(error, Some(path))))?;
        let workers = Arc::new(Workers::beside(path.to_owned()));
        let readers = Readers { kept: Arc::default(), kept_max: options.readers_kept_max };
        let writer = Writer::new(Opened {
            connection,
            path: path.to_owned(),
            durability: options.durability,
            clock: Arc::clone(&options.clock),
            workers: Arc::clone(&workers),
            readers: readers.clone(),
        })?;
        Ok(Self {
            path: Arc::new(path.to_owned()),
            durability: options.durability,
            clock: options.clock,
            limits: options.limits,
            workers,
            readers,
            writer,
        })
    }

    /// Gives up this handle. The last one closes the file, after what is queued, and that is waited for without blocking the
    /// runtime; dropping it would block the caller's thread.
    pub async fn close(self) {
        // If the runtime ended during the close, there is no receiver left.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a commit promises.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Runs a caller's statements and enqueues in one transaction: both are stored, or neither. Workers are woken
    /// after the commit. The work runs on the writer thread, so keep it short.
    ///
    /// ```
    /// # use longhaul_stores::sqlite::{Db, SqliteOptions};
    /// # use longhaul_queue::{Json, NewJob};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// let db = Db::open(&folder.path().join("app.db"), SqliteOptions::default())?;
    /// db.transaction(|tx| {
    ///     tx.connection().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    ///     tx.connection().execute("INSERT INTO orders (id) VALUES (7)", [])?;
    ///     tx.enqueue(vec![NewJob::new("invoice", Json::of(&7)?)])?;
    ///     Ok(())
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_, '_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (now, limits) = (self.clock.now(), self.limits);
        self.writer
            .write(Treatment::default(), move |tx| {
                work(&mut Transaction { tx, now, limits }).map_err(of_caller)
            })
            .await
    }

    /// Runs a read on a read-only connection, beside the writer.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        // A transaction, so that several statements see one state: a job may be consumed between them.
        self.with_reader(move |connection| {
            let snapshot = connection.unchecked_transaction()?;
            let value = work(&snapshot)?;
            snapshot.finish()?;
            Ok(value)
        })
        .await
    }

    async fn with_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let db = self.clone();
        let read = tokio::task::spawn_blocking(move || db.read_now(work));
        read.await.unwrap_or_else(|error| Err(Error::Unavailable(format!("a read was cut off: {error}"))))
    }

    fn read_now<T>(&self, work: impl FnOnce(&Connection) -> DbResult<T>) -> Result<T> {
        let connection = match self.readers.take() {
            Some(connection) => connection,
            None => {
                open_reader(&self.path).map_err(|error| name_file(DbError::from(error).into(), &self.path))?
            }
        };
        let value = work(&connection)?;
        self.readers.keep(connection);
        Ok(value)
    }

    /// Writes a consistent, compact copy while work goes on. Refuses to overwrite.
    pub async fn backup_to(&self, target: &Path) -> Result<()> {
        if target.exists() {
            return Err(Error::invalid(format!("{} exists; choose another name", target.display())));
        }
        let target = target.to_owned();
        self.with_reader(move |connection| {
            // SQLite takes an empty file too. This one is nobody else's, and may be removed.
            let unmade = |error| DbError::caller(format!("{} cannot be made: {error}", target.display()));
            let file = private::new_file().open(&target).map_err(unmade)?;
            let made = connection.execute("VACUUM INTO ?1", [target.to_string_lossy()]);
            let synced = made.map_err(DbError::from).and_then(|_| {
                let unsynced =
                    |error| DbError::caller(format!("{} cannot be synced: {error}", target.display()));
                file.sync_all().map_err(unsynced)
            });
            if synced.is_err() {
                // Half a copy is none, and would be in the way of the next.
                let _ = std::fs::remove_file(&target);
            }
            synced
        })
        .await
    }
}

/// A transaction shared by a caller's own tables and jobs.
pub struct Transaction<'t, 'c> {
    tx: &'t mut Tx<'c>,
    now: Timestamp,
    limits: Limits,
}

impl Transaction<'_, '_> {
    /// The connection, for the caller's own tables. Leave BEGIN, COMMIT and savepoints to the writer.
    pub fn connection(&self) -> &Connection {
        self.tx.connection()
    }

    /// Refuses with [`Error::LostLease`] unless the lease still holds, so that nothing of this transaction is stored by a handler
    /// that was taken for dead, cancelled or out of time. A write transaction is the only one: what holds here holds until the commit.
    pub fn hold(&self, lease: &Lease) -> DbResult<()> {
        match settle::held(self.tx, lease)? {
            Some(_) => Ok(()),
            None => Err(DbError::Queue(Error::LostLease(lease.job_id))),
        }
    }

    /// Enqueues jobs, to be stored with the rest or not at all.
    pub fn enqueue(&mut self, jobs: Vec<NewJob>) -> DbResult<Vec<Enqueued>> {
        let jobs = Queue::prepare_jobs(jobs, &self.limits, self.now)?;
        // A caller that goes on after a refusal must not keep half of the submission.
        let now = self.now;
        self.tx.attempt(|tx| insert::insert(tx, jobs, now))?.map_err(DbError::Queue)
    }
}

fn create_folder(path: &Path) -> Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    private::create_folder(folder).map_err(|error| {
        Error::Unavailable(format!("the folder {} cannot be made: {error}", folder.display()))
    })
}

fn name_file(error: Error, path: &Path) -> Error {
    let named = |text: String| format!("{}: {text}", path.display());
    match error {
        Error::Unavailable(text) => Error::Unavailable(named(text)),
        Error::Corrupt(text) => Error::Corrupt(named(text)),
        Error::Invalid(text) => Error::Invalid(named(text)),
        other @ (Error::NotFound(_) | Error::LostLease(_) | Error::Denied(_)) => other,
    }
}

/// Opens the writing connection. Processes that make the same file together meet here, and SQLite does not ask the
/// busy handler while it changes the journal mode; so this waits by itself.
fn open_writer(path: &Path, options: &SqliteOptions) -> DbResult<Connection> {
    let started_at = Instant::now();
    loop {
        match try_open_writer(path, options) {
            Err(DbError::Sql(error)) if is_busy(&error) && started_at.elapsed() < OPEN_WAIT_MAX => {
                wait_for_lock(0);
            }
            outcome => return outcome,
        }
    }
}

fn try_open_writer(path: &Path, options: &SqliteOptions) -> DbResult<Connection> {
    let create = options.create;
    if create {
        // Where this fails, SQLite fails too, and says why.
        let _ = private::create_file(path);
    }
    let mut connection = Connection::open(path)?;
    prepare_connection(&mut connection)?;
    check_form(&connection)?;
    // A question must not make a store of somebody else's database.
    if !create && schema_version(&connection)?.is_none() {
        return Err(Error::invalid("it is a SQLite file, but no Longhaul store").into());
    }
    // SQLite falls back to reading where it may not write; a worker would then try for ever.
    if create && connection.is_readonly(rusqlite::MAIN_DB)? {
        let text = "the database is read-only; check the permissions of the file and its folder";
        return Err(Error::Unavailable(text.to_owned()).into());
    }
    // Asked and read back: a misspelt or refused journal mode would cost every commit several fsyncs.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(corrupt("the journal mode", format!("SQLite answers {mode:?} instead of \"wal\"")));
    }
    connection.pragma_update(None, "cache_size", -i64::from(options.writer_cache_kib))?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    sync_fully(&connection)?;
    // A write-ahead log that grew behind a long reader shrinks again.
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    migrate(&mut connection)?;
    Ok(connection)
}

/// Opens the connection that copies the write-ahead log and does nothing else.
pub(super) fn open_checkpointer(path: &Path) -> rusqlite::Result<Connection> {
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

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let mut connection = Connection::open_with_flags(path, flags)?;
    prepare_connection(&mut connection)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
    Ok(connection)
}

fn prepare_connection(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_lock))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Without this SQLite parses a statement anew at each binding that might suit a partial index: that costs more
    // than the statement itself, and our plans must not depend on values anyway.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

pub(super) fn schema_version(connection: &Connection) -> DbResult<Option<i64>> {
    let exists = connection
        .query_row("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'lh_meta'", [], |_| Ok(()))
        .optional()?;
    if exists.is_none() {
        return Ok(None);
    }
    Ok(connection
        .query_row("SELECT value FROM lh_meta WHERE key = 'schema_version'", [], |row| row.get(0))
        .optional()?)
}

/// Refuses a file of an early build before anything is written to it: the tables of version 1 changed until the first
/// release under the same number. Every form before the last lacks these columns.
fn check_form(connection: &Connection) -> DbResult<()> {
    if !matches!(schema_version(connection)?, Some(1..=SCHEMA_VERSION)) {
        return Ok(());
    }
    let found: i64 = connection.query_row(
        "SELECT count(*) FROM pragma_table_info('lh_jobs') WHERE name IN ('options', 'payload')",
        [],
        |row| row.get(0),
    )?;
    if found == 2 {
        return Ok(());
    }
    Err(DbError::Queue(Error::invalid(
        "an early build wrote this file, before the first release, in a form that this longhaul cannot read; nothing in \
         it was changed. Finish and consume its jobs with the build that wrote it, or move the file away, or name \
         another with --store sqlite://PATH",
    )))
}

/// Applies what is missing, under the write lock, so that two processes starting together do it once.
fn migrate(connection: &mut Connection) -> DbResult<()> {
    let known = SCHEMA_VERSION;
    if schema_version(connection)? == Some(known) {
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let version = schema_version(&transaction)?.unwrap_or(0);
    if version > known {
        return Err(DbError::Queue(Error::Invalid(format!(
            "its schema is version {version}, this program knows versions up to {known}; use a newer longhaul"
        ))));
    }
    if version == 0 {
        transaction.execute_batch(
            "CREATE TABLE IF NOT EXISTS lh_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;",
        )?;
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    transaction.execute(
        "INSERT INTO lh_meta (key, value) VALUES ('schema_version', ?1) ON CONFLICT DO UPDATE SET value = excluded.value",
        [known],
    )?;
    transaction.commit()?;
    Ok(())
}
