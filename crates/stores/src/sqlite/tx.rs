//! One transaction of the writer: statements, and the bookkeeping that every change of a job carries along. It is
//! written once a group, not once a job.

use std::cell::RefCell;
use std::collections::HashMap;

use longhaul_queue::job::Progress;
use longhaul_queue::{Error, State, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row};

use super::error::{DbError, DbResult, corrupt};
use super::event_buffer::{self, EventRow};
use super::process;
use super::rows::state_number;
use super::settings::{queue_columns, read_queue, whole_queue};
use crate::changes::{Changes, JobKey, ProcessDelta};
use crate::queue_row::QueueRow;

/// The transaction that a command runs in.
pub(super) struct Tx<'a> {
    connection: &'a Connection,
    statements: RefCell<Vec<(&'static str, CachedStatement<'a>)>>,
    locked_at: Timestamp,
    next_seq: Option<i64>,
    queues: HashMap<String, QueueRow>,
    standings: HashMap<String, Standing>,
    /// Of the command that runs now; forgotten when it fails.
    own: Changes,
    /// Of the commands before it.
    kept: Changes,
    changed: bool,
    forgets_events: bool,
}

/// Whether a process is done, and whether that matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// A job waits for it.
    pub(super) awaited: bool,
    sealed: bool,
    /// Helpers left out.
    unfinished: i64,
}

impl Standing {
    /// Whether nobody needs to wait for it any more.
    pub(super) fn is_done(self) -> bool {
        self.sealed && self.unfinished == 0
    }
}

impl<'a> Tx<'a> {
    pub(super) fn new(connection: &'a Connection, locked_at: Timestamp) -> Self {
        Self {
            connection,
            statements: RefCell::new(Vec::with_capacity(16)),
            locked_at,
            next_seq: None,
            queues: HashMap::new(),
            standings: HashMap::new(),
            own: Changes::default(),
            kept: Changes::default(),
            changed: false,
            forgets_events: false,
        }
    }

    /// The connection, for a caller's own tables. Leave transactions and savepoints to the writer.
    pub(super) fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// When the write lock was held: leases count from here, not from when the caller asked.
    pub(super) fn locked_at(&self) -> Timestamp {
        self.locked_at
    }

    /// Runs a statement and says how many rows it changed.
    pub(super) fn run(&self, sql: &'static str, params: impl Params) -> DbResult<usize> {
        self.with_statement(sql, |statement| statement.execute(params))
    }

    /// Uses a prepared statement. Most commands run a few statements hundreds of times, so they are kept at hand by
    /// the address of their text: hashing the text each time would cost a tenth of the whole transaction.
    fn with_statement<T>(
        &self,
        sql: &'static str,
        work: impl FnOnce(&mut CachedStatement<'a>) -> rusqlite::Result<T>,
    ) -> DbResult<T> {
        let mut statements = self.statements.borrow_mut();
        let known = statements.iter().position(|(text, _)| std::ptr::eq(*text, sql));
        let index = match known {
            Some(index) => index,
            None => {
                statements.push((sql, self.connection.prepare_cached(sql)?));
                statements.len() - 1
            }
        };
        Ok(work(&mut statements[index].1)?)
    }

    /// The statements that were run, how often, and in how many of SQLite's steps.
    #[cfg(test)]
    pub(super) fn costs(&self) -> Vec<(&'static str, i32, i32)> {
        use rusqlite::StatementStatus::{Run, VmStep};
        let statements = self.statements.borrow();
        let cost = |(sql, statement): &(&'static str, CachedStatement<'_>)| {
            (*sql, statement.get_status(Run), statement.get_status(VmStep))
        };
        statements.iter().map(cost).collect()
    }

    /// The first row, if any.
    pub(super) fn one<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> DbResult<Option<T>> {
        self.with_statement(sql, |statement| statement.query_row(params, read).optional())
    }

    /// All rows.
    pub(super) fn all<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> DbResult<Vec<T>> {
        self.with_statement(sql, |statement| statement.query_map(params, read)?.collect())
    }

    /// The next place in submission order.
    pub(super) fn next_seq(&mut self) -> DbResult<i64> {
        let next = match self.next_seq {
            Some(next) => next,
            None => self
                .one(
                    "SELECT 1 + max(value, (SELECT coalesce(max(seq), 0) FROM lh_jobs))
                     FROM lh_meta WHERE key = 'deleted_seq'",
                    [],
                    |row| row.get(0),
                )?
                .ok_or_else(|| corrupt("deleted_seq", "it is missing"))?,
        };
        self.next_seq = Some(next);
        Ok(next)
    }

    /// That place is taken.
    pub(super) fn take_seq(&mut self, seq: i64) {
        self.next_seq = Some(seq + 1);
    }

    /// Jobs were stored at places of their own.
    pub(super) fn forget_seq(&mut self) {
        self.next_seq = None;
    }

    /// Remembers the place of a job that is deleted, if it is the last one, so that it is never given again.
    /// Cursors depend on that; and it spares every enqueue the upkeep of a counter.
    pub(super) fn retire_seq(&self, seq: i64) -> DbResult<()> {
        self.run(
            "UPDATE lh_meta SET value = ?1
             WHERE key = 'deleted_seq' AND value < ?1 AND ?1 >= (SELECT max(seq) FROM lh_jobs)",
            [seq],
        )?;
        Ok(())
    }

    /// A queue's settings, read once a transaction.
    pub(super) fn queue(&mut self, name: &str) -> DbResult<QueueRow> {
        if let Some(queue) = self.queues.get(name) {
            return Ok(*queue);
        }
        let sql = concat!("SELECT ", queue_columns!(), " FROM lh_queues WHERE name = ?1");
        let row = self.one(sql, [name], read_queue)?;
        let queue = row.map_or_else(|| Ok(QueueRow::default()), whole_queue)?;
        self.queues.insert(name.to_owned(), queue);
        Ok(queue)
    }

    /// Forgets settings that this transaction has changed.
    pub(super) fn forget_settings(&mut self) {
        self.queues.clear();
    }

    /// Books a job's move: `None` is "not stored".
    pub(super) fn moved(&mut self, subject: JobKey<'_>, from: Option<State>, to: Option<State>) {
        self.own.moved(subject, from, to);
    }

    /// Books a job that comes from another store as it is: it is counted, but it is no news and has not ended here.
    pub(super) fn moved_in(&mut self, subject: JobKey<'_>, state: State) {
        let mut arrival = Changes::default();
        arrival.moved(subject, None, Some(state));
        let Changes { counts, processes, .. } = arrival;
        self.own.absorb(Changes { counts, processes, ..Changes::default() });
    }

    /// Adds an event.
    pub(super) fn tell(&mut self, subject: JobKey<'_>, state: State, progress: Option<Progress>) {
        self.own.tell(subject, state, progress);
    }

    /// Says that something else changed that others may wait for.
    pub(super) fn touch(&mut self) {
        self.changed = true;
    }

    /// Runs `work` in a savepoint of its own: when the queue's rules refuse it, nothing of it remains and the error is
    /// the answer.
    pub(super) fn attempt<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> DbResult<T>,
    ) -> DbResult<Result<T, Error>> {
        let before = self.own.clone();
        self.run("SAVEPOINT attempt", [])?;
        match work(self) {
            Ok(value) => {
                self.run("RELEASE attempt", [])?;
                Ok(Ok(value))
            }
            Err(DbError::Queue(error)) => {
                self.run("ROLLBACK TO attempt", [])?;
                self.run("RELEASE attempt", [])?;
                self.own = before;
                self.rolled_back();
                Ok(Err(error))
            }
            // The whole command fails, and may have taken the transaction along: nothing is left to undo here.
            Err(error @ (DbError::File(_) | DbError::Caller(_))) => Err(error),
        }
    }

    /// What was read since may have been undone: places of jobs are free again, settings and seals as they were.
    fn rolled_back(&mut self) {
        self.next_seq = None;
        self.queues.clear();
        self.standings.clear();
    }

    /// Jobs of a queue in a state that this command has booked but not written.
    pub(super) fn booked(&self, queue: &str, state: State) -> i64 {
        self.own.counts.in_queue(queue, state).map(|(_, jobs)| jobs).sum()
    }

    /// Kinds of a queue that have become ready in this command.
    pub(super) fn booked_kinds(&self, queue: &str) -> impl Iterator<Item = &str> {
        let ready = self.own.counts.in_queue(queue, State::Ready).filter(|(_, jobs)| *jobs > 0);
        ready.map(|(kind, _)| kind)
    }

    /// Jobs of a process that are booked but not written.
    pub(super) fn booked_total(&self, process: &str) -> i64 {
        self.booked_in(process).flatten().flatten().sum()
    }

    fn booked_in(&self, process: &str) -> impl Iterator<Item = &ProcessDelta> {
        [self.own.processes.get(process), self.kept.processes.get(process)].into_iter().flatten()
    }

    /// How a process stands now, with what is booked. What the tables say is read once a transaction: jobs of one
    /// process often end by the hundred.
    pub(super) fn process_standing(&mut self, process: &str) -> DbResult<Standing> {
        let written = match self.standings.get(process) {
            Some(standing) => *standing,
            None => {
                let sql = "SELECT EXISTS (SELECT 1 FROM lh_waiters WHERE process = ?1 AND satisfied = 0),
                               coalesce((SELECT sealed FROM lh_processes WHERE id = ?1), 1),
                               (SELECT coalesce(sum(jobs), 0) FROM lh_process_counts
                                WHERE process = ?1 AND helper = 0 AND state < 5)";
                let read = |row: &Row<'_>| {
                    Ok(Standing { awaited: row.get(0)?, sealed: row.get(1)?, unfinished: row.get(2)? })
                };
                let standing = self.one(sql, [process], read)?;
                let standing = standing.ok_or_else(|| corrupt("a process", "no answer"))?;
                self.standings.insert(process.to_owned(), standing);
                standing
            }
        };
        let unfinished = |(state, jobs): (&State, i64)| if state.is_terminal() { 0 } else { jobs };
        let booked = self.booked_in(process).flat_map(|delta| State::ALL.iter().zip(delta[0]));
        let booked: i64 = booked.map(unfinished).sum();
        Ok(Standing { unfinished: written.unfinished + booked, ..written })
    }

    /// The tables say something else of a process now.
    pub(super) fn forget_standing(&mut self, process: &str) {
        self.standings.remove(process);
    }

    /// Looks before the commit whether a process is empty, though none of its jobs moved.
    pub(super) fn recheck_process(&mut self, process: &str) {
        self.own.processes.entry(process.to_owned()).or_default();
    }

    /// Keeps or forgets what the command that just ended has booked.
    pub(super) fn keep_changes(&mut self, keep: bool) {
        let own = std::mem::take(&mut self.own);
        if keep {
            self.kept.absorb(own);
        } else {
            self.rolled_back();
        }
    }

    /// Writes the counters of the commands so far, so that the next one reads them.
    pub(super) fn flush_counts(&mut self) -> DbResult<()> {
        for (queue, kind, state, jobs) in std::mem::take(&mut self.kept.counts).iter() {
            self.run(
                "INSERT INTO lh_counts (queue, state, kind, jobs) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs",
                (queue, state_number(state), kind, jobs),
            )?;
        }
        self.standings.clear();
        for (process, delta) in &std::mem::take(&mut self.kept.processes) {
            self.write_process(process, delta)?;
            let by_state = || delta.iter().flatten();
            // It can only be empty now if jobs went, or if what came went again.
            if by_state().sum::<i64>() < 0 || by_state().all(|jobs| *jobs == 0) {
                process::drop_if_empty(self, process)?;
            }
        }
        Ok(())
    }

    fn write_process(&self, process: &str, delta: &ProcessDelta) -> DbResult<()> {
        for (helper, by_state) in delta.iter().enumerate() {
            for (state, jobs) in by_state.iter().enumerate().filter(|(_, jobs)| **jobs != 0) {
                self.run(
                    "INSERT INTO lh_process_counts (process, helper, state, jobs) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs",
                    (process, helper, state, jobs),
                )?;
            }
        }
        Ok(())
    }

    /// Writes all bookkeeping before the commit.
    pub(super) fn finish(&mut self) -> DbResult<()> {
        self.flush_counts()?;
        if self.forgets_events {
            event_buffer::forget(self.connection)?;
        }
        let day = self.locked_at.day();
        for (queue, kind, state, jobs) in self.kept.ledger.iter() {
            self.run(
                "INSERT INTO lh_ledger (day, queue, kind, state, jobs) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs",
                (day, queue, kind, state_number(state), jobs),
            )?;
        }
        Ok(())
    }

    /// Jobs were deleted: events that name no other go too, once a transaction.
    pub(super) fn forget_events(&mut self) {
        self.forgets_events = true;
    }

    /// What to tell after the commit: whether others should look, and what has changed.
    pub(super) fn outcome(self) -> (bool, Option<EventRow>) {
        let Changes { events: changes, more_events: more, .. } = self.kept;
        let story = (!changes.is_empty()).then_some(EventRow { at: self.locked_at, changes, more });
        (self.changed || story.is_some(), story)
    }
}
