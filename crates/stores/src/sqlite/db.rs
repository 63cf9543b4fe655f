//! The database file: its tables, how it is opened, and transactions that a caller's own tables share with jobs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_queue::limits::Limits;
use longhaul_queue::store::Enqueued;
use longhaul_queue::{Clock, Error, Lease, NewJob, Queue, Result, SystemClock, Timestamp};
use longhaul_sqlite::{Durability, FileError, FileOptions, FileResult, Schema, SqliteFile, WriteOptions};
use rusqlite::Connection;

use super::error::{DbError, DbResult, of_caller};
use super::event_buffer::News;
use super::session::JobSession;
use super::tx::Tx;
use super::workers::Workers;
use super::{insert, settle};

/// The tables. A new migration is a new file; old ones are never edited.
pub(super) const SCHEMA: Schema = Schema {
    version_table: "lh_meta",
    version_key: "schema_version",
    migrations: &[
        include_str!("migrations/0001_jobs.sql"),
        include_str!("migrations/0002_turns.sql"),
        include_str!("migrations/0003_ends.sql"),
    ],
    is_alone: false,
};

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

/// An open database file. Cheap to clone; the file is closed with the last clone.
#[derive(Clone)]
pub struct Db {
    path: Arc<PathBuf>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    pub(super) workers: Arc<Workers>,
    pub(super) file: SqliteFile<JobSession>,
}

impl Db {
    /// Opens the file, brings its schema up to date and prepares its writer.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self> {
        let SqliteOptions { durability, create, clock, limits, writer_cache_kib, readers_kept_max } = options;
        if !create && !path.exists() {
            return Err(Error::not_found(format!("there is no store at {}", path.display())));
        }
        let workers = Arc::new(Workers::beside(path.to_owned()));
        let session =
            JobSession { clock: Arc::clone(&clock), workers: Arc::clone(&workers), news: News::default() };
        let options = FileOptions {
            durability,
            create,
            writer_cache_kib,
            readers_kept_max,
            check: refuse_early_build,
            ..FileOptions::new(SCHEMA)
        };
        let file = SqliteFile::open(path, &options, session).map_err(DbError::from)?;
        Ok(Self { path: Arc::new(path.to_owned()), clock, limits, workers, file })
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
        self.file.durability()
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
        self.file
            .write(WriteOptions::default(), move |tx| {
                work(&mut Transaction { tx, now, limits }).map_err(of_caller)
            })
            .await
    }

    /// Runs a read on a read-only connection, beside the writer.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        self.file.read(work).await
    }

    /// Writes a consistent, compact copy while work goes on. Refuses to overwrite.
    pub async fn backup_to(&self, target: &Path) -> Result<()> {
        self.file.back_up(target).await
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

/// Refuses a file of an early build before anything is written to it: the tables of version 1 changed until the first
/// release under the same number. Every form before the last lacks these columns.
fn refuse_early_build(connection: &Connection) -> FileResult<()> {
    if !SCHEMA.version(connection)?.is_some_and(|version| (1..=SCHEMA.newest()).contains(&version)) {
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
    Err(FileError::invalid(
        "an early build wrote this file, before the first release, in a form that this longhaul cannot read; nothing in \
         it was changed. Finish and consume its jobs with the build that wrote it, or move the file away, or name \
         another with --store sqlite://PATH",
    ))
}
