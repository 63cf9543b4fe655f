//! What time moves: due, expired, abandoned and old rows. Each sweep has an index of its own and a limit, and asks
//! before it takes the write lock.

use std::collections::HashSet;
use std::time::Duration;

use longhaul_queue::limits::{SWEEP_MAX, WORKER_KEPT};
use longhaul_queue::state::JobError;
use longhaul_queue::store::Swept;
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::{State, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::admin::{delete_row, held_child};
use super::error::DbResult;
use super::graph;
use super::rows::{JobRow, flag, job_by_seq, job_columns, options_of, read_park, state_number};
use super::settle::{apply, cancel_waiting, forget_cancel, write_run};
use super::tx::Tx;
use super::workers::running_of;

/// How long a removal waits that a held child forbids.
const HELD_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// Days that the ledger remembers.
const LEDGER_KEPT_DAYS: i64 = 400;
const FORGET_UNIQUES: &str = "DELETE FROM lh_uniques WHERE (queue, kind, key) IN (
     SELECT queue, kind, key FROM lh_uniques WHERE ended IS NOT NULL AND taken_until <= ?1 LIMIT ?2)";
const FORGET_SIGNALS: &str = "DELETE FROM lh_signals WHERE key IN (
     SELECT key FROM lh_signals WHERE expires_at <= ?1 LIMIT ?2)";
const FORGET_COUNTS: &str = "DELETE FROM lh_counts WHERE (queue, state, kind) IN (
     SELECT queue, state, kind FROM lh_counts WHERE jobs = 0 LIMIT ?1)";
/// States that the promoter ends by time.
const WAITING: [State; 2] = [State::Scheduled, State::Parked];
const ENDED: [State; 3] = [State::Succeeded, State::Failed, State::Cancelled];

/// Index lh_jobs_due.
pub(super) const DUE: &str = concat!(
    "SELECT ",
    job_columns!(),
    " FROM lh_jobs WHERE due_at IS NOT NULL AND state = ?1 AND due_at <= ?2 ORDER BY due_at, seq LIMIT ?3"
);

fn due(tx: &Tx<'_>, state: State, now: Timestamp, limit: usize) -> DbResult<Vec<JobRow>> {
    tx.all(DUE, (state_number(state), now.as_millis(), limit), JobRow::read)
}

/// The earliest row of a state that a sweep must look at. Index lh_jobs_due.
fn next_due(connection: &Connection, states: &[State]) -> DbResult<Option<Timestamp>> {
    let mut statement = connection
        .prepare_cached("SELECT min(due_at) FROM lh_jobs WHERE due_at IS NOT NULL AND state = ?1")?;
    let mut next_at = None;
    for state in states {
        let millis: Option<i64> = statement.query_row([state_number(*state)], |row| row.get(0))?;
        next_at = earlier(next_at, millis.map(Timestamp::from_millis));
    }
    Ok(next_at)
}

/// When there is next something to do, for a claim or for any sweep: `now` where a job is ready in a queue that is not paused.
pub(super) fn next_work(connection: &Connection, now: Timestamp) -> DbResult<Option<Timestamp>> {
    let ready = "SELECT EXISTS (SELECT 1 FROM lh_counts AS c LEFT JOIN lh_queues AS q ON q.name = c.queue
                                WHERE c.state = ?1 AND c.jobs > 0 AND NOT coalesce(q.paused, 0))";
    if connection.prepare_cached(ready)?.query_row([state_number(State::Ready)], |row| row.get(0))? {
        return Ok(Some(now));
    }
    let mut schedules = connection.prepare_cached("SELECT min(next_at) FROM lh_schedules")?;
    let firing: Option<i64> = schedules.query_row([], |row| row.get(0))?;
    let swept = earlier(next_promotion(connection)?, next_due(connection, &[State::Running])?);
    let pruned = earlier(next_due(connection, &ENDED)?, firing.map(Timestamp::from_millis));
    Ok(earlier(swept, pruned).map(|at| at.max(now)))
}

fn next_promotion(connection: &Connection) -> DbResult<Option<Timestamp>> {
    let sql = "SELECT look_at FROM lh_expiries ORDER BY look_at LIMIT 1";
    let expiry: Option<i64> = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(earlier(next_due(connection, &WAITING)?, expiry.map(Timestamp::from_millis)))
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

/// The answer when nothing is due; `None` when there is work.
fn nothing_due(next_at: Option<Timestamp>, now: Timestamp) -> Option<Swept> {
    let due = next_at.is_some_and(|next_at| next_at <= now);
    (!due).then_some(Swept { changed: 0, next_at })
}

/// Whether `promote` has anything to do.
pub(super) fn promote_idle(connection: &Connection, now: Timestamp) -> DbResult<Option<Swept>> {
    Ok(nothing_due(next_promotion(connection)?, now))
}

/// Scheduled jobs to ready, parked ones as their park says, expired ones to cancelled. Expiries come first: a job that
/// is due and expired is not run.
pub(super) fn promote(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let expired = "SELECT seq FROM lh_expiries WHERE look_at <= ?1 ORDER BY look_at, seq LIMIT ?2";
    let mut found = tx.all(expired, (now.as_millis(), limit + 1), |row| row.get::<_, i64>(0))?;
    let mut starts = Vec::new();
    for state in WAITING {
        starts.append(&mut due(tx, state, now, limit + 1)?);
    }
    starts.retain(|row| !row.is_expired(now));
    found.extend(starts.iter().map(|row| row.seq));
    let cut = found.len() > limit;
    let mut changed = 0;
    for seq in found.into_iter().take(limit) {
        changed += u64::from(promote_one(tx, seq, now)?);
    }
    let next_at = if cut { Some(now) } else { next_promotion(tx.connection())? };
    Ok(Swept { changed, next_at })
}

/// False when an earlier one's cascade has settled this one.
fn promote_one(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> DbResult<bool> {
    let Some(row) = job_by_seq(tx, seq)?.filter(|row| !row.state.is_terminal()) else { return Ok(false) };
    if row.is_expired(now) {
        cancel_waiting(tx, &row, &JobError::expired(), now)?;
        graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now)?;
    } else if row.state == State::Parked {
        park_timed_out(tx, row, now)?;
    } else {
        let ready = "UPDATE lh_jobs SET state = ?2, due_at = NULL, moved_at = ?3 WHERE seq = ?1";
        tx.run(ready, (row.seq, state_number(State::Ready), now.as_millis()))?;
        tx.moved(row.subject(), Some(row.state), Some(State::Ready));
    }
    Ok(true)
}

/// Reminds the promoter of a waiting job's expiry.
pub(super) fn remind_at(tx: &Tx<'_>, expires_at: Timestamp, seq: i64) -> DbResult<()> {
    let sql = "INSERT INTO lh_expiries (look_at, seq) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    tx.run(sql, (expires_at.as_millis(), seq))?;
    Ok(())
}

/// A job has started, or ended without.
pub(super) fn forget(tx: &Tx<'_>, row: &JobRow) -> DbResult<()> {
    if let Some(expires_at) = row.expires_at {
        let sql = "DELETE FROM lh_expiries WHERE look_at = ?1 AND seq = ?2";
        tx.run(sql, (expires_at.as_millis(), row.seq))?;
    }
    Ok(())
}

fn park_timed_out(tx: &mut Tx<'_>, row: JobRow, now: Timestamp) -> DbResult<()> {
    let park = read_park(tx.connection(), row.seq)?.unwrap_or_default();
    let (settlement, wake) = rules::park_timed_out(&park, &options_of(tx, &row)?, row.spent, now);
    apply(tx, row, &settlement, wake, now)?;
    Ok(())
}

/// Whether `rescue` has anything to do.
pub(super) fn rescue_idle(
    connection: &Connection,
    dead: &HashSet<String>,
    now: Timestamp,
) -> DbResult<Option<Rescued>> {
    if !running_of(connection, dead, 1)?.is_empty() {
        return Ok(None);
    }
    let idle = nothing_due(next_due(connection, &[State::Running])?, now);
    Ok(idle.map(|swept| Rescued { swept, cut: false }))
}

/// What a rescue did.
pub(super) struct Rescued {
    pub(super) swept: Swept,
    /// More is left to rescue than the limit allowed.
    pub(super) cut: bool,
}

/// Takes leases away that have expired or whose worker is known to be dead. The job goes back with its checkpoint, and a
/// normal claim resumes it.
pub(super) fn rescue(
    tx: &mut Tx<'_>,
    dead: &HashSet<String>,
    now: Timestamp,
    limit: usize,
) -> DbResult<Rescued> {
    let limit = limit.min(SWEEP_MAX);
    let mut rows = due(tx, State::Running, now, limit + 1)?;
    let expired: HashSet<i64> = rows.iter().map(|row| row.seq).collect();
    for seq in running_of(tx.connection(), dead, limit + 1)? {
        if !expired.contains(&seq) {
            rows.extend(job_by_seq(tx, seq)?);
        }
    }
    let cut = rows.len() > limit;
    let mut changed = 0;
    for mut row in rows.into_iter().take(limit) {
        changed += 1;
        let settlement = rules::crashed(&options_of(tx, &row)?, row.spent, row.cancel, now);
        forget_cancel(tx, &row)?;
        write_run(tx, &mut row, &settlement, now)?;
        apply(tx, row, &settlement, WakeChange::Keep, now)?;
    }
    let next_at = if cut { Some(now) } else { next_due(tx.connection(), &[State::Running])? };
    Ok(Rescued { swept: Swept { changed, next_at }, cut })
}

/// Whether `prune` has anything to do that cannot wait.
pub(super) fn prune_idle(connection: &Connection, now: Timestamp) -> DbResult<Option<Swept>> {
    let next_at = next_due(connection, &ENDED)?;
    let housekeeping =
        "SELECT EXISTS (SELECT 1 FROM lh_uniques WHERE ended IS NOT NULL AND taken_until <= ?1)
             OR EXISTS (SELECT 1 FROM lh_signals WHERE expires_at <= ?1)
             OR EXISTS (SELECT 1 FROM lh_workers WHERE seen_at <= ?2)";
    let params = (now.as_millis(), (now - WORKER_KEPT).as_millis());
    let needed: Option<bool> =
        connection.prepare_cached(housekeeping)?.query_row(params, |row| row.get(0))?;
    Ok(if needed == Some(true) { None } else { nothing_due(next_at, now) })
}

/// Deletes what retention no longer keeps.
pub(super) fn prune(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let mut rows = Vec::new();
    for state in ENDED {
        rows.append(&mut due(tx, state, now, limit + 1)?);
    }
    rows.sort_unstable_by_key(|row| (row.due_at, row.seq));
    let cut = rows.len() > limit;
    let mut changed = 0;
    for row in rows.into_iter().take(limit) {
        if row.has(flag::CHILDREN) && held_child(tx, &row)?.is_some() {
            // A child waits for this one to be retried: look again tomorrow.
            tx.run(
                "UPDATE lh_jobs SET due_at = ?2 WHERE seq = ?1",
                (row.seq, (now + HELD_AGAIN).as_millis()),
            )?;
        } else {
            delete_row(tx, &row)?;
            changed += 1;
        }
    }
    let mut cut = cut;
    for sql in [FORGET_UNIQUES, FORGET_SIGNALS] {
        let forgotten = tx.run(sql, (now.as_millis(), limit))?;
        cut |= forgotten == limit;
        changed += forgotten;
    }
    changed += tx.run("DELETE FROM lh_workers WHERE seen_at <= ?1", [(now - WORKER_KEPT).as_millis()])?;
    // Counters of queues and kinds that are no more.
    tx.run(FORGET_COUNTS, [limit])?;
    let oldest_day = now.day() - LEDGER_KEPT_DAYS;
    tx.run("DELETE FROM lh_ledger WHERE day < ?1", [oldest_day])?;
    let next_at = if cut { Some(now) } else { next_due(tx.connection(), &ENDED)? };
    Ok(Swept { changed: changed as u64, next_at })
}
