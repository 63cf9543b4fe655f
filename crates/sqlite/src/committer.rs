//! Runs commands in transactions on the only writing connection of this process.
//!
//! Each command of a group runs in a savepoint of its own, so one that fails undoes only itself; then all commit together. Some
//! failures, such as a full disk, undo the whole transaction: then each command that may be repeated runs once more, alone. Replies
//! go out after the commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use rusqlite::Connection;
use tokio::sync::watch;
use tracing::debug;

use crate::checkpointer::checkpoint;
use crate::command::Command;
use crate::connection::{Durability, wait_for_lock};
use crate::error::{FileError, FileErrorKind, FileResult};
use crate::lock_holder;
use crate::session::{CommandError as _, Session};

/// Pages in the write-ahead log before it is copied into the database: 16 MB.
const CHECKPOINT_PAGES: usize = 4_000;
/// Pages in it before writers wait for that.
const LOG_PAGES_MAX: usize = 2 * CHECKPOINT_PAGES;

/// The writing connection and what belongs to its transactions.
pub(crate) struct Committer<S> {
    connection: Connection,
    session: S,
    durability: Durability,
    /// Counts the commits that others should look at.
    changed: Arc<watch::Sender<u64>>,
    /// The level that the connection is set to, once known.
    full_sync: Option<bool>,
    /// When deferred rows were written last.
    deferred_at: Instant,
    /// Pages in the write-ahead log, as the last commit found it.
    wal_pages: Arc<AtomicUsize>,
    /// Whether a transaction waits for other processes.
    patient: Arc<AtomicBool>,
}

impl<S: Session> Committer<S> {
    pub(crate) fn new(
        mut connection: Connection,
        session: S,
        durability: Durability,
        changed: Arc<watch::Sender<u64>>,
    ) -> FileResult<Self> {
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
            session,
            durability,
            changed,
            full_sync: None,
            deferred_at: Instant::now(),
            wal_pages,
            patient,
        })
    }

    /// A number that changes when another process has written; our own commits do not change it.
    pub(crate) fn foreign_version(&self) -> Option<i64> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version").ok()?;
        statement.query_row([], |row| row.get(0)).ok()
    }

    /// Runs commands at once if no other process is in the way; else gives them back.
    pub(crate) fn commit_now(
        &mut self,
        group: Vec<Box<dyn Command<S>>>,
    ) -> Result<(), Vec<Box<dyn Command<S>>>> {
        if group.is_empty() {
            return Ok(());
        }
        self.patient.store(false, Ordering::Relaxed);
        let begun = self.begin(is_volatile(&group));
        self.patient.store(true, Ordering::Relaxed);
        if begun.as_ref().is_err_and(|error| error.kind == FileErrorKind::Busy) {
            return Err(group);
        }
        self.commit_begun(group, begun);
        Ok(())
    }

    /// Runs commands that came together and commits them together.
    pub(crate) fn commit_group(&mut self, group: Vec<Box<dyn Command<S>>>) {
        let mut pending = Vec::with_capacity(group.len());
        for mut command in group {
            // A probe does not see what earlier commands of the group are about to write, so only the first is asked.
            if pending.is_empty() && command.probe(&self.connection) {
                command.reply(Ok(()));
            } else {
                pending.push(command);
            }
        }
        if pending.is_empty() {
            return;
        }
        let begun = self.begin(is_volatile(&pending));
        self.commit_begun(pending, begun);
    }

    fn commit_begun(&mut self, mut group: Vec<Box<dyn Command<S>>>, begun: FileResult<()>) {
        let deferred =
            self.deferred_is_due() || group.iter().any(|command| command.options().writes_deferred);
        let several = group.len() > 1;
        let mut outcomes = Vec::with_capacity(group.len());
        let committed = self.transact(begun, &mut group, deferred, &mut outcomes);
        let failure = committed.as_ref().err();
        // A command that failed on its own keeps its own reason.
        let undecided = std::iter::repeat_with(|| Ok(()));
        for (mut command, outcome) in group.into_iter().zip(outcomes.into_iter().chain(undecided)) {
            let outcome = match failure.filter(|_| outcome.is_ok()) {
                None => outcome,
                Some(failure) if several && command.is_repeatable() && may_spare_others(failure) => {
                    self.commit_alone(&mut command)
                }
                Some(failure) => Err(failure.clone()),
            };
            command.reply(outcome);
        }
        if let Ok(committed) = committed {
            self.tell(committed, deferred);
        }
    }

    /// Runs a command again, without the deferred rows: they may be what did not fit.
    fn commit_alone(&mut self, command: &mut Box<dyn Command<S>>) -> Result<(), S::Error> {
        let begun = self.begin(command.options().volatile);
        let committed = self.transact(begun, std::slice::from_mut(command), false, &mut Vec::new())?;
        self.tell(committed, false);
        Ok(())
    }

    /// Runs commands in a transaction, which is ended in any case.
    fn transact(
        &self,
        begun: FileResult<()>,
        group: &mut [Box<dyn Command<S>>],
        deferred: bool,
        outcomes: &mut Vec<Result<(), S::Error>>,
    ) -> Result<S::Committed, S::Error> {
        let committed = begun.map_err(S::Error::from).and_then(|()| {
            let mut tx = self.session.begin(&self.connection);
            self.run_group(group, &mut tx, outcomes)?;
            let committed = self.session.finish(tx, deferred)?;
            self.execute("COMMIT")?;
            Ok(committed)
        });
        committed.map_err(|error| {
            // A full disk ends the transaction by itself.
            if !self.connection.is_autocommit() {
                let _ = self.execute("ROLLBACK");
            }
            let Some(of_file) = error.file_error() else { return error };
            // Each caller is told, and tries again or reports it.
            debug!(error = %of_file, commands = group.len(), "a group of commands was not committed");
            match self.connection.path() {
                Some(path) if of_file.kind == FileErrorKind::Busy => {
                    lock_holder::name_holder(of_file.clone(), Path::new(path)).into()
                }
                _ => error,
            }
        })
    }

    fn run_group(
        &self,
        group: &mut [Box<dyn Command<S>>],
        tx: &mut S::Tx<'_>,
        outcomes: &mut Vec<Result<(), S::Error>>,
    ) -> Result<(), S::Error> {
        // A lone command needs no savepoint: its failure is the transaction's.
        if let [command] = group {
            run_guarded(command.as_mut(), tx)?;
            S::command_ended(tx, true);
            return Ok(());
        }
        // Looked up once per group: hashing their text for each command would cost as much as running them.
        let prepare = |sql| self.connection.prepare_cached(sql).map_err(FileError::from);
        let (mut savepoint, mut release) = (prepare("SAVEPOINT command")?, prepare("RELEASE command")?);
        for command in group {
            if command.options().flush_first {
                S::flush(tx)?;
            }
            savepoint.execute([]).map_err(FileError::from)?;
            let outcome = run_guarded(command.as_mut(), tx);
            if let Err(error) = &outcome {
                // A full disk, for one, undoes the whole transaction: then it is everybody's error.
                if self.connection.is_autocommit() {
                    return Err(error.clone());
                }
                self.execute("ROLLBACK TO command")?;
            }
            release.execute([]).map_err(FileError::from)?;
            S::command_ended(tx, outcome.is_ok());
            outcomes.push(outcome);
        }
        Ok(())
    }

    fn tell(&mut self, committed: S::Committed, deferred: bool) {
        if deferred {
            self.deferred_at = Instant::now();
        }
        if self.session.committed(committed) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn has_deferred(&self) -> bool {
        self.session.has_deferred()
    }

    /// Whether deferred rows have waited long enough.
    pub(crate) fn deferred_is_due(&self) -> bool {
        self.session.has_deferred() && self.deferred_at.elapsed() >= S::DEFERRED_EVERY
    }

    /// Writes deferred rows that no other commit took along.
    pub(crate) fn write_deferred(&mut self) {
        if !self.session.has_deferred() {
            return;
        }
        let begun = self.begin(true);
        // If it fails, they wait on.
        if let Ok(committed) = self.transact(begun, &mut [], true, &mut Vec::new()) {
            self.tell(committed, true);
            // A watcher that looked when they were booked has missed them.
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Writes what is left. No handle remains.
    pub(crate) fn close(&mut self) {
        self.write_deferred();
        self.session.close(&self.connection);
    }

    /// Gives back what the connection keeps for the next statement. A file at rest may never run one.
    pub(crate) fn release_memory(&self) {
        self.connection.flush_prepared_statement_cache();
        if let Err(error) = self.execute("PRAGMA shrink_memory") {
            debug!(%error, "memory was not released");
        }
    }

    /// Whether the write-ahead log has grown long.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.wal_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES
    }

    /// Whether it grows faster than it is copied.
    pub(crate) fn log_is_full(&self) -> bool {
        self.wal_pages.load(Ordering::Relaxed) >= LOG_PAGES_MAX
    }

    /// Copies the write-ahead log into the database as far as no reader needs it.
    pub(crate) fn checkpoint(&self) {
        self.wal_pages.store(0, Ordering::Relaxed);
        checkpoint(&self.connection);
    }

    fn begin(&mut self, volatile: bool) -> FileResult<()> {
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

    fn execute(&self, sql: &str) -> FileResult<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

fn is_volatile<S: Session>(group: &[Box<dyn Command<S>>]) -> bool {
    group.iter().all(|command| command.options().volatile)
}

fn may_spare_others(error: &impl crate::session::CommandError) -> bool {
    error.file_error().is_some_and(FileError::may_spare_others)
}

/// A panic in a caller's work must not end the writer.
fn run_guarded<S: Session>(command: &mut dyn Command<S>, tx: &mut S::Tx<'_>) -> Result<(), S::Error> {
    catch_unwind(AssertUnwindSafe(|| command.run(tx))).unwrap_or_else(|_| {
        Err(FileError::invalid("the work of a transaction panicked; nothing of it is stored").into())
    })
}
