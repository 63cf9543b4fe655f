//! What time moves: due, expired, abandoned and old rows. Each sweep has an index of its own and a limit, and asks
//! before it takes the write lock.

use longhaul_queue::job::Wake;
use longhaul_queue::limits::{EVENTS_KEPT_MAX, WORKER_KEPT};
use longhaul_queue::state::{Event, JobError, OnTimeout, Outcome, Policy, Settlement, settle as judge};
use longhaul_queue::store::Swept;
use longhaul_queue::{State, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::admin::{delete_row, held_child};
use super::error::DbResult;
use super::graph;
use super::rows::{Body, JobRow, flag, job_by_seq, job_columns, read_park, state_number};
use super::settle::{WakeColumn, apply, cancel_waiting, write_run};
use super::tx::Tx;

const DAY_MS: i64 = 24 * 3600 * 1000;

/// The earliest of each sweep's index, or nothing.
const NEXT_WAKE: &str = "SELECT min(wake_at) FROM lh_jobs WHERE wake_at IS NOT NULL";
const NEXT_EXPIRY: &str =
    "SELECT min(expires_at) FROM lh_jobs WHERE expires_at IS NOT NULL AND state IN (0, 1, 2, 4)";
const NEXT_LEASE: &str = "SELECT min(lease_until) FROM lh_jobs WHERE state = 3";
const NEXT_DELETE: &str = "SELECT min(delete_at) FROM lh_jobs WHERE delete_at IS NOT NULL";

fn next(connection: &Connection, sql: &str) -> DbResult<Option<Timestamp>> {
    let millis: Option<Option<i64>> = connection.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
    Ok(millis.flatten().map(Timestamp::from_millis))
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
    Ok(nothing_due(earlier(next(connection, NEXT_WAKE)?, next(connection, NEXT_EXPIRY)?), now))
}

/// Scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.
pub(super) fn promote(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let mut changed = 0;
    // Expiry first: a job that is due and expired is not run. Index lh_jobs_expiry.
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE expires_at IS NOT NULL AND state IN (0, 1, 2, 4) AND expires_at <= ?1
          ORDER BY expires_at, seq LIMIT ?2"
    );
    for row in tx.all(sql, (now.as_millis(), limit), JobRow::read)? {
        // One that ended with its parent a moment ago needs nothing more.
        if job_by_seq(tx.connection(), row.seq)?.is_some_and(|row| !row.state.is_terminal()) {
            cancel_waiting(tx, &row, &JobError::expired(), now)?;
            graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now)?;
        }
        changed += 1;
    }
    // Index lh_jobs_wake.
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE wake_at IS NOT NULL AND wake_at <= ?1 ORDER BY wake_at, seq LIMIT ?2"
    );
    for row in tx.all(sql, (now.as_millis(), limit.saturating_sub(changed)), JobRow::read)? {
        if row.state == State::Parked {
            park_timed_out(tx, row, now)?;
        } else {
            let ready = "UPDATE lh_jobs SET state = ?2, wake_at = NULL WHERE seq = ?1";
            tx.run(ready, (row.seq, state_number(State::Ready)))?;
            tx.moved(row.subject(), Some(row.state), Some(State::Ready));
        }
        changed += 1;
    }
    let next_at = earlier(next(tx.connection(), NEXT_WAKE)?, next(tx.connection(), NEXT_EXPIRY)?);
    Ok(Swept { changed: changed as u64, next_at: next_at.map(|at| if changed >= limit { at.min(now) } else { at }) })
}

fn park_timed_out(tx: &mut Tx<'_>, row: JobRow, now: Timestamp) -> DbResult<()> {
    let park = read_park(tx.connection(), row.seq)?;
    let (key, on_timeout) = park.map(|park| (park.key, park.on_timeout)).unwrap_or_default();
    let policy = Policy::default().with(&Body::read(tx.connection(), row.seq)?.options);
    let error = JobError::park_timeout(&key);
    let (event, wake) = match on_timeout {
        OnTimeout::Resume => (Event::Release, WakeColumn::Set(Wake::TimedOut)),
        OnTimeout::Retry => (Event::Outcome(Outcome::Retry { error, after: None, data: None }), WakeColumn::Clear),
        OnTimeout::Fail => (Event::Outcome(Outcome::Fail(error)), WakeColumn::Clear),
    };
    let settlement = judge(event, row.spent, &policy, now, 0.5);
    apply(tx, row, settlement, wake, now)?;
    Ok(())
}

/// Whether `rescue` has anything to do.
pub(super) fn rescue_idle(connection: &Connection, now: Timestamp) -> DbResult<Option<Swept>> {
    Ok(nothing_due(next(connection, NEXT_LEASE)?, now))
}

/// Takes expired leases away. The job goes back with its checkpoint, and a normal claim resumes it.
pub(super) fn rescue(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    // Index lh_jobs_lease.
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE state = 3 AND lease_until <= ?1 ORDER BY lease_until, seq LIMIT ?2"
    );
    let rows = tx.all(sql, (now.as_millis(), limit), JobRow::read)?;
    let changed = rows.len();
    for mut row in rows {
        let policy = Policy::default().with(&Body::read(tx.connection(), row.seq)?.options);
        let mut settlement: Settlement = judge(Event::Crash, row.spent, &policy, now, 0.5);
        if row.cancel {
            settlement = settlement.under_cancel();
        }
        write_run(tx, &mut row, &settlement, now)?;
        apply(tx, row, settlement, WakeColumn::Keep, now)?;
    }
    let next_at = next(tx.connection(), NEXT_LEASE)?;
    Ok(Swept { changed: changed as u64, next_at: next_at.map(|at| if changed >= limit { at.min(now) } else { at }) })
}

/// Whether `prune` has anything to do that cannot wait.
pub(super) fn prune_idle(connection: &Connection, now: Timestamp) -> DbResult<Option<Swept>> {
    let next_at = next(connection, NEXT_DELETE)?;
    let housekeeping = "SELECT EXISTS (SELECT 1 FROM lh_uniques WHERE held = 0 AND expires_at <= ?1)
             OR EXISTS (SELECT 1 FROM lh_signals WHERE expires_at <= ?1)
             OR (SELECT max(id) - min(id) >= ?2 FROM lh_events)
             OR EXISTS (SELECT 1 FROM lh_workers WHERE seen_at <= ?3)";
    let kept = i64::try_from(EVENTS_KEPT_MAX).unwrap_or(i64::MAX);
    let params = (now.as_millis(), kept, (now - WORKER_KEPT).as_millis());
    let needed: Option<bool> = connection.prepare_cached(housekeeping)?.query_row(params, |row| row.get(0))?;
    Ok(if needed == Some(true) { None } else { nothing_due(next_at, now) })
}

/// Deletes what retention no longer keeps.
pub(super) fn prune(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    // Index lh_jobs_prune.
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE delete_at IS NOT NULL AND delete_at <= ?1 ORDER BY delete_at, seq LIMIT ?2"
    );
    let rows = tx.all(sql, (now.as_millis(), limit), JobRow::read)?;
    let found = rows.len();
    let mut changed = 0;
    for row in rows {
        if row.has(flag::CHILDREN) && held_child(tx, &row)?.is_some() {
            // A child waits for this one to be retried: look again tomorrow.
            tx.run("UPDATE lh_jobs SET delete_at = ?2 WHERE seq = ?1", (row.seq, now.as_millis() + DAY_MS))?;
        } else {
            delete_row(tx, &row)?;
            changed += 1;
        }
    }
    changed += tx.run("DELETE FROM lh_uniques WHERE held = 0 AND expires_at <= ?1", [now.as_millis()])?;
    changed += tx.run("DELETE FROM lh_signals WHERE expires_at <= ?1", [now.as_millis()])?;
    let kept = i64::try_from(EVENTS_KEPT_MAX).unwrap_or(i64::MAX);
    changed += tx.run("DELETE FROM lh_events WHERE id <= (SELECT max(id) FROM lh_events) - ?1", [kept])?;
    changed += tx.run("DELETE FROM lh_workers WHERE seen_at <= ?1", [(now - WORKER_KEPT).as_millis()])?;
    let next_at = next(tx.connection(), NEXT_DELETE)?;
    Ok(Swept { changed: changed as u64, next_at: next_at.map(|at| if found >= limit { at.min(now) } else { at }) })
}
