//! Settle: the only way a running job changes. Every item is guarded by its fence; the job's end, its children, its
//! unique key, its follow-ups and its counters change in one transaction.
//!
//! Settlements that concern nobody but their jobs are written all at once, beside those of others. As soon as one of
//! them has children, follow-ups or somebody who waits for its process, the call runs alone and takes them one by one.

use std::collections::{HashMap, HashSet};

use longhaul_queue::job::{Removal, Retention};
use longhaul_queue::state::{JobError, Settlement};
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::store::{SettleItem, Settled, Signal};
use longhaul_queue::{Lease, State, Timestamp};

use super::delete::delete_rows;
use super::error::{DbError, DbResult};
use super::rows::{JobRow, flag, from_text, job_by_seq, job_columns, millis, state_number, to_text};
use super::settle_fast::{self, Habit};
use super::tx::Tx;
use super::updates::{Runs, Updates};
use super::{graph, insert, process, unique};
use crate::settle_order::PendingSettle;

/// What the store has learnt from settlements before, and what claims wait for in this one.
type Known<'k> = (&'k Habit, &'k PendingSettle);

/// Applies settlements and answers each.
pub(super) async fn settle(
    tx: &mut Tx<'_>,
    items: &[SettleItem],
    now: Timestamp,
    known: Known<'_>,
) -> DbResult<Vec<Settled>> {
    if !tx.is_alone() {
        return settle_among_others(tx, items, now, known).await;
    }
    let mut replies = Vec::with_capacity(items.len());
    for item in items {
        replies.push(settle_one(tx, item, now).await?);
    }
    Ok(replies)
}

/// Locks the rows in the order of their places, so that two settlements never wait for each other crosswise.
const LOCK_ROWS: &str =
    concat!("SELECT ", job_columns!(), " FROM lh_jobs WHERE seq = ANY ($1) ORDER BY seq FOR UPDATE");

async fn settle_among_others(
    tx: &mut Tx<'_>,
    items: &[SettleItem],
    now: Timestamp,
    (habit, pending): Known<'_>,
) -> DbResult<Vec<Settled>> {
    if items.iter().any(|item| !item.follow_ups.is_empty()) {
        return Err(DbError::Alone);
    }
    let replies = settle_fast::finish(tx, items, now, habit).await?;
    let left = items.iter().zip(&replies).filter(|(_, reply)| reply.is_none()).map(|(item, _)| item);
    let left: Vec<&SettleItem> = left.collect();
    if left.is_empty() {
        // No job waits for plain successes, so the next claim may go out beside their commit.
        pending.makes_nothing_ready();
    }
    let mut settled = settle_rest(tx, &left, now, habit).await?.into_iter();
    let reply = |reply: Option<Settled>| reply.or_else(|| settled.next()).unwrap_or(Settled::LostLease);
    Ok(replies.into_iter().map(reply).collect())
}

/// Settlements of every kind that concern nobody but their jobs.
async fn settle_rest(
    tx: &mut Tx<'_>,
    items: &[&SettleItem],
    now: Timestamp,
    habit: &Habit,
) -> DbResult<Vec<Settled>> {
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let seqs: Vec<i64> = items.iter().map(|item| item.lease.seq).collect();
    let mut rows = HashMap::with_capacity(seqs.len());
    for row in tx.all(LOCK_ROWS, &[&seqs]).await? {
        let row = JobRow::read(&row)?;
        rows.insert(row.seq, row);
    }
    let ending = |row: &JobRow| row.has(flag::CHILDREN);
    if rows.values().any(ending) {
        return Err(DbError::Alone);
    }
    let processes: HashSet<&str> = rows.values().filter_map(|row| row.process.as_deref()).collect();
    if process::any_awaited(tx, &processes.into_iter().collect::<Vec<_>>()).await? {
        return Err(DbError::Alone);
    }
    let mut batch = Batch::default();
    let mut replies = Vec::with_capacity(items.len());
    for item in items {
        let Some(row) = rows.get(&item.lease.seq).filter(|row| is_held(row, &item.lease)) else {
            replies.push(Settled::LostLease);
            continue;
        };
        let removed_before = batch.removed.len();
        let reply = batch.add(tx, row.clone(), item.settlement.clone(), now).await?;
        if let Some(removed) = batch.removed.get(removed_before) {
            habit.learn_from(item, removed);
        }
        // A lease that is named twice is lost the second time.
        if matches!(reply, Settled::Applied(_)) {
            rows.remove(&item.lease.seq);
        }
        replies.push(reply);
    }
    batch.write(tx).await?;
    Ok(replies)
}

/// Settlements that concern nobody else, gathered to be written at once.
#[derive(Default)]
struct Batch {
    updates: Updates,
    runs: Runs,
    removed: Vec<JobRow>,
}

impl Batch {
    async fn add(
        &mut self,
        tx: &mut Tx<'_>,
        mut row: JobRow,
        settlement: Settlement,
        now: Timestamp,
    ) -> DbResult<Settled> {
        let settlement = if row.cancel { settlement.under_cancel() } else { settlement };
        if let Err(error) = settlement.check() {
            return Ok(Settled::Refused(error));
        }
        self.runs.add(&mut row, &settlement, now)?;
        let (settlement, wake) = take_signal(tx, &row, settlement, now).await?;
        let (from, state) = (row.state, settlement.state);
        let removal = removal(tx, &row, state, now).await?;
        if removal == Removal::Now && row.process.is_some() {
            // It may have been the last of its process, which then goes too.
            return Err(DbError::Alone);
        }
        tx.moved(row.subject(), Some(from), Some(state));
        if state.is_terminal() {
            unique::free(tx, &row, state, now).await?;
        }
        if removal == Removal::Now {
            row.state = state;
            self.removed.push(row);
        } else {
            self.updates.add(&row, &settlement, wake, removal, now)?;
        }
        Ok(Settled::Applied(state))
    }

    async fn write(self, tx: &mut Tx<'_>) -> DbResult<()> {
        self.runs.write(tx).await?;
        self.updates.write(tx).await?;
        delete_rows(tx, &self.removed).await
    }
}

async fn settle_one(tx: &mut Tx<'_>, item: &SettleItem, now: Timestamp) -> DbResult<Settled> {
    let SettleItem { lease, settlement, follow_ups } = item;
    let Some(mut row) = held(tx, lease).await? else { return Ok(Settled::LostLease) };
    let cancelled = row.cancel && !settlement.state.is_terminal();
    let settlement = if cancelled { settlement.clone().under_cancel() } else { settlement.clone() };
    if let Err(error) = settlement.check() {
        return Ok(Settled::Refused(error));
    }
    // What the handler planned before it was cancelled is not to happen. Otherwise follow-ups come first: they belong
    // to the process before this job's end could complete it.
    if !follow_ups.is_empty() && !cancelled {
        let before = tx.attempt().await?;
        match insert::insert(tx, follow_ups, now).await {
            Ok(_) => tx.attempted(None).await?,
            Err(DbError::Queue(error)) => {
                tx.attempted(Some(before)).await?;
                return Ok(Settled::Refused(error));
            }
            Err(error @ (DbError::Sql(_) | DbError::Alone)) => return Err(error),
        }
        // One of them may depend on this job.
        row = held(tx, lease).await?.unwrap_or(row);
    }
    write_run(tx, &mut row, &settlement, now).await?;
    let (settlement, wake) = take_signal(tx, &row, settlement, now).await?;
    apply(tx, row, &settlement, wake, now).await.map(Settled::Applied)
}

/// Adds one run to the history.
pub(super) async fn write_run(
    tx: &Tx<'_>,
    row: &mut JobRow,
    settlement: &Settlement,
    now: Timestamp,
) -> DbResult<()> {
    let mut runs = Runs::default();
    runs.add(row, settlement, now)?;
    runs.write(tx).await
}

/// The row, if it is still this holder's: running, and not claimed again since.
pub(super) async fn held(tx: &Tx<'_>, lease: &Lease) -> DbResult<Option<JobRow>> {
    Ok(job_by_seq(tx, lease.seq).await?.filter(|row| is_held(row, lease)))
}

/// The worker is compared too: a server that has lost its last commits may give a fence a second time.
pub(super) fn is_held(row: &JobRow, lease: &Lease) -> bool {
    row.id == lease.job_id
        && row.state == State::Running
        && row.fence == lease.fence
        && row.worker.as_deref() == Some(lease.worker.as_str())
}

/// A park whose signal came first does not wait.
async fn take_signal(
    tx: &Tx<'_>,
    row: &JobRow,
    settlement: Settlement,
    now: Timestamp,
) -> DbResult<(Settlement, WakeChange)> {
    let Some(park) = settlement.park.as_ref() else {
        let wake = WakeChange::after(settlement.outcome);
        return Ok((settlement, wake));
    };
    let sql = "SELECT signal FROM lh_signals WHERE key = $1 AND expires_at > $2";
    let signal = tx.one(sql, &[&park.key, &now.as_millis()]).await?;
    let signal = signal.map(|row| row.try_get::<_, String>(0)).transpose()?;
    let Some(signal) = from_text::<Signal>("a signal", signal)? else {
        return Ok((settlement, WakeChange::Clear));
    };
    Ok(rules::woken_at_once(settlement, &row.options()?, signal, now))
}

/// Writes a settlement to a running or parked job, with all that follows from it. For a call that runs alone.
pub(super) async fn apply(
    tx: &mut Tx<'_>,
    mut row: JobRow,
    settlement: &Settlement,
    wake: WakeChange,
    now: Timestamp,
) -> DbResult<State> {
    let (from, state) = (row.state, settlement.state);
    let removal = removal(tx, &row, state, now).await?;
    let mut updates = Updates::default();
    updates.add(&row, settlement, wake, removal, now)?;
    updates.write(tx).await?;
    tx.moved(row.subject(), Some(from), Some(state));
    if state.is_terminal() {
        row.state = state;
        unique::free(tx, &row, state, now).await?;
        graph::ended(tx, &row, settlement.result.as_ref(), now).await?;
        if removal == Removal::Now {
            delete_rows(tx, &[row]).await?;
        }
    }
    Ok(state)
}

/// Ends a job that is not running: cancelled on request, by expiry or with its parent. Its children are the caller's.
pub(super) async fn cancel_waiting(
    tx: &mut Tx<'_>,
    row: &JobRow,
    error: &JobError,
    now: Timestamp,
) -> DbResult<()> {
    let due_at = removal(tx, row, State::Cancelled, now).await?.pruned_at();
    tx.run(
        "UPDATE lh_jobs SET state = $2, finished_at = $3, due_at = $4, error = $5, park_key = NULL, park = NULL,
             wake = NULL
         WHERE seq = $1",
        &[
            &row.seq,
            &state_number(State::Cancelled),
            &now.as_millis(),
            &millis(due_at),
            &to_text("an error", error)?,
        ],
    )
    .await?;
    unique::free(tx, row, State::Cancelled, now).await?;
    tx.moved(row.subject(), Some(row.state), Some(State::Cancelled));
    Ok(())
}

/// When an ended job's row goes: by its own rule, its queue's, or the default.
async fn removal(tx: &mut Tx<'_>, row: &JobRow, state: State, now: Timestamp) -> DbResult<Removal> {
    if !state.is_terminal() {
        return Ok(Removal::Never);
    }
    let own = if row.has(flag::RETENTION) { row.options()?.retention } else { None };
    let rule = match own {
        Some(own) => own,
        None => {
            let queue = tx.queue(&row.queue).await?.settings.retention;
            queue.unwrap_or_else(|| Retention::default_for(row.process.is_some()))
        }
    };
    Ok(rule.removal(state, now))
}
