//! Runs commands in transactions on the only writing connection of this process.
//!
//! Each command of a group runs in a savepoint of its own, so one that fails undoes only itself; then all commit
//! together. Replies go out after the commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_queue::{Clock, Error, Result};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Durability;
use super::checkpointer::checkpoint;
use super::error::{DbError, DbResult};
use super::holder;
use super::news::{News, Story};
use super::tx::Tx;

/// Pages in the write-ahead log before it is copied into the database: 16 MB.
const CHECKPOINT_PAGES: usize = 4_000;
/// Pages in it before writers wait for that.
const LOG_PAGES_MAX: usize = 2 * CHECKPOINT_PAGES;
/// How long a write waits for another process before it gives up with `Unavailable`: about ten seconds.
const BUSY_TRIES_MAX: i32 = 5_000;

/// How a command wants to be treated.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Treatment {
    /// Needs no fsync of its own. For claims and signs of life: a power cut that loses one also ended its holder.
    pub(super) volatile: bool,
    /// Reads the maintained counters, so what the group has changed so far must be in the tables.
    pub(super) reads_counts: bool,
    /// Takes the events that wait along.
    pub(super) writes_events: bool,
    /// Does not wait in line when thousands do.
    pub(super) urgent: bool,
}

/// A unit of work.
pub(super) trait Command: Send {
    fn treatment(&self) -> Treatment;
    /// Tries to answer without a transaction; true when it did.
    fn probe(&mut self, connection: &Connection) -> bool;
    fn run(&mut self, tx: &mut Tx<'_>) -> DbResult<()>;
    /// Answers the caller, after the commit.
    fn reply(self: Box<Self>, outcome: Result<()>);
}

/// The writing connection and what belongs to its transactions.
pub(super) struct Committer {
    connection: Connection,
    durability: Durability,
    clock: Arc<dyn Clock>,
    changed: Arc<watch::Sender<u64>>,
    /// The level that the connection is set to, once known.
    full_sync: Option<bool>,
    pub(super) news: News,
    /// Pages in the write-ahead log, as the last commit found it.
    wal_pages: Arc<AtomicUsize>,
    /// Whether a transaction waits for other processes.
    patient: Arc<AtomicBool>,
}

/// What a commit did.
struct Committed {
    /// Whether others should look, and what has changed.
    outcome: (bool, Option<Story>),
    /// The events that waited went with it.
    with_news: bool,
}

impl Committer {
    pub(super) fn new(
        mut connection: Connection,
        durability: Durability,
        clock: Arc<dyn Clock>,
        changed: Arc<watch::Sender<u64>>,
    ) -> rusqlite::Result<Self> {
        let wal_pages = Arc::new(AtomicUsize::new(0));
        let pages_seen = Arc::clone(&wal_pages);
        // Instead of SQLite's own checkpoint, which would run inside a commit while its caller waits.
        connection.wal_hook(Some(move |_: &mut _, pages| {
            pages_seen.store(usize::try_from(pages).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        let patient = Arc::new(AtomicBool::new(true));
        let waits = Arc::clone(&patient);
        connection.busy_handler(Some(move |tries| waits.load(Ordering::Relaxed) && wait_for_lock(tries)))?;
        Ok(Self {
            connection,
            durability,
            clock,
            changed,
            full_sync: None,
            news: News::new(),
            wal_pages,
            patient,
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// A number that changes when another process has written; our own commits do not change it.
    pub(super) fn foreign_version(&self) -> Option<i64> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version").ok()?;
        statement.query_row([], |row| row.get(0)).ok()
    }

    /// Runs commands at once if no other process is in the way; else gives them back.
    pub(super) fn commit_now(&mut self, group: Vec<Box<dyn Command>>) -> Result<(), Vec<Box<dyn Command>>> {
        if group.is_empty() {
            return Ok(());
        }
        self.patient.store(false, Ordering::Relaxed);
        let begun = self.begin(group.iter().all(|command| command.treatment().volatile));
        self.patient.store(true, Ordering::Relaxed);
        if let Err(DbError::Sql(error)) = &begun
            && error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
        {
            return Err(group);
        }
        self.commit_begun(group, begun);
        Ok(())
    }

    /// Runs commands that came together and commits them together.
    pub(super) fn commit_group(&mut self, group: Vec<Box<dyn Command>>) {
        let mut pending = Vec::with_capacity(group.len());
        for mut command in group {
            // A probe does not see what the commands before it are about to write, so it speaks only for the first of a group.
            if pending.is_empty() && command.probe(&self.connection) {
                command.reply(Ok(()));
            } else {
                pending.push(command);
            }
        }
        if pending.is_empty() {
            return;
        }
        let volatile = pending.iter().all(|command| command.treatment().volatile);
        let begun = self.begin(volatile);
        self.commit_begun(pending, begun);
    }

    fn commit_begun(&mut self, mut group: Vec<Box<dyn Command>>, begun: DbResult<()>) {
        let mut outcomes = Vec::with_capacity(group.len());
        let committed = begun
            .and_then(|()| self.run_group(&mut group, &mut outcomes))
            .map_err(|error| holder::told(error, self.connection.path().map(Path::new)));
        // A full disk ends the transaction by itself.
        if committed.is_err() && !self.connection.is_autocommit() {
            let _ = self.execute("ROLLBACK");
        }
        match &committed {
            // Each caller hears of it, and tries again for as long as it lasts.
            Err(error @ Error::Unavailable(_)) => {
                debug!(%error, commands = group.len(), "a group of commands was not committed");
            }
            Err(error @ Error::Corrupt(_)) => {
                warn!(%error, commands = group.len(), "a group of commands was not committed");
            }
            Err(Error::LostLease(_) | Error::NotFound(_) | Error::Invalid(_) | Error::Denied(_)) | Ok(_) => {}
        }
        // A command that failed on its own keeps its own reason.
        let undecided = std::iter::repeat_with(|| Ok(()));
        for (command, outcome) in group.into_iter().zip(outcomes.into_iter().chain(undecided)) {
            let failed = committed.as_ref().err().cloned();
            command.reply(outcome.and_then(|()| failed.map_or(Ok(()), Err)));
        }
        if let Ok(committed) = committed {
            self.tell(committed);
        }
    }

    fn run_group(
        &self,
        group: &mut [Box<dyn Command>],
        outcomes: &mut Vec<Result<()>>,
    ) -> DbResult<Committed> {
        let mut tx = Tx::new(&self.connection, self.clock.now());
        // A lone command needs no savepoint: its failure is the transaction's.
        let alone = group.len() == 1;
        for command in group.iter_mut() {
            if command.treatment().reads_counts {
                tx.flush_counts()?;
            }
            if alone {
                run_guarded(command.as_mut(), &mut tx)?;
                tx.keep_changes(true);
                break;
            }
            tx.run("SAVEPOINT command", [])?;
            let outcome = run_guarded(command.as_mut(), &mut tx);
            match outcome {
                Ok(()) => outcomes.push(Ok(())),
                // A full disk, for one, undoes the whole transaction: then it is everybody's error.
                Err(error) if self.connection.is_autocommit() => return Err(error),
                Err(error) => {
                    tx.run("ROLLBACK TO command", [])?;
                    outcomes.push(Err(error.into()));
                }
            }
            tx.run("RELEASE command", [])?;
            tx.keep_changes(outcomes.last().is_some_and(Result::is_ok));
        }
        tx.finish()?;
        let asked = group.iter().any(|command| command.treatment().writes_events);
        let with_news = self.news.is_due() || asked;
        if with_news {
            self.news.write(&self.connection)?;
        }
        tx.run("COMMIT", [])?;
        Ok(Committed { outcome: tx.outcome(), with_news })
    }

    fn tell(&mut self, committed: Committed) {
        if committed.with_news {
            self.news.written();
        }
        let (changed, story) = committed.outcome;
        if let Some(story) = story {
            self.news.add(story);
        }
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Writes events that no other commit took along.
    pub(super) fn write_news(&mut self) {
        if self.news.is_empty() {
            return;
        }
        let written = self.begin(true).and_then(|()| {
            let written = self.news.write(&self.connection);
            self.execute(if written.is_ok() { "COMMIT" } else { "ROLLBACK" }).and(written)
        });
        if let Err(error) = written {
            debug!(%error, "events were not written");
            return;
        }
        self.news.written();
        // Whoever looked when the change was made may have missed its event.
        self.changed.send_modify(|count| *count += 1);
    }

    /// Gives back what the connection keeps for the next statement. A store at rest may never see one.
    pub(super) fn release_memory(&self) {
        self.connection.flush_prepared_statement_cache();
        if let Err(error) = self.execute("PRAGMA shrink_memory") {
            debug!(%error, "memory was not released");
        }
    }

    /// Whether the write-ahead log has grown long.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES
    }

    /// Whether it grows faster than it is copied.
    pub(super) fn log_is_full(&self) -> bool {
        self.wal_pages.load(Ordering::Relaxed) >= LOG_PAGES_MAX
    }

    /// Copies the write-ahead log into the database as far as no reader needs it.
    pub(super) fn checkpoint(&self) {
        self.wal_pages.store(0, Ordering::Relaxed);
        checkpoint(&self.connection);
    }

    fn begin(&mut self, volatile: bool) -> DbResult<()> {
        let full = self.durability == Durability::Fsync && !volatile;
        if self.full_sync != Some(full) {
            // SQLite compiles this pragma's effect in, and expires the statement with it, so the cache does no harm.
            self.execute(if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })?;
            self.full_sync = Some(full);
        }
        // Left over by a panic between two commands.
        if !self.connection.is_autocommit() {
            self.execute("ROLLBACK")?;
        }
        // Takes the write lock at once: a transaction that began as a reader could not wait for it.
        self.execute("BEGIN IMMEDIATE")
    }

    fn execute(&self, sql: &str) -> DbResult<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

/// A caller's work may panic; the writer must not go with it.
fn run_guarded(command: &mut dyn Command, tx: &mut Tx<'_>) -> DbResult<()> {
    catch_unwind(AssertUnwindSafe(|| command.run(tx))).unwrap_or_else(|_| {
        Err(DbError::caller("the work of a transaction panicked; nothing of it is stored"))
    })
}

/// Short, jittered waits: SQLite's own handler sleeps up to 100 ms, during which the lock stands idle.
pub(super) fn wait_for_lock(tries: i32) -> bool {
    if tries >= BUSY_TRIES_MAX {
        return false;
    }
    let longest_us = if tries < 20 { 400 } else { 4_000 };
    std::thread::sleep(Duration::from_micros(fastrand::u64(50..longest_us)));
    true
}
