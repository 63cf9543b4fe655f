//! What time moves: due, expired, abandoned and old rows. Each sweep has an index of its own and a limit, runs alone, and
//! looks before whether there is anything to do.

use std::time::Duration;

use longhaul_queue::limits::{SWEEP_MAX, WORKER_KEPT};
use longhaul_queue::state::JobError;
use longhaul_queue::store::Swept;
use longhaul_queue::store::rules::{self, WakeChange};
use longhaul_queue::{Error, State, Timestamp};
use tokio_postgres::Row;
use tracing::error;

use super::delete::{delete_rows, held_child};
use super::error::{DbError, DbResult};
use super::graph;
use super::rows::{JobRow, job_by_seq, job_columns, state_number, stored_limit};
use super::settle::{apply, cancel_waiting, write_run};
use super::tx::Tx;

/// How long a removal waits that a held child forbids.
const HELD_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// How long a row is left alone that cannot be read.
const UNREADABLE_AGAIN: Duration = Duration::from_secs(24 * 3600);
/// Days that the ledger remembers.
const LEDGER_KEPT_DAYS: i64 = 400;
/// States that the promoter ends by time.
const WAITING: [State; 2] = [State::Scheduled, State::Parked];
const ENDED: [State; 3] = [State::Succeeded, State::Failed, State::Cancelled];

/// Index lh_jobs_due.
const DUE: &str = concat!(
    "SELECT ",
    job_columns!(),
    " FROM lh_jobs WHERE due_at IS NOT NULL AND state = $1 AND due_at <= $2 ORDER BY due_at, seq LIMIT $3"
);

async fn due(tx: &Tx<'_>, state: State, now: Timestamp, limit: usize) -> DbResult<Vec<JobRow>> {
    let rows = tx.all(DUE, &[&state_number(state), &now.as_millis(), &stored_limit(limit)]).await?;
    readable(tx, &rows, now).await
}

/// The rows that can be read.
async fn readable(tx: &Tx<'_>, rows: &[Row], now: Timestamp) -> DbResult<Vec<JobRow>> {
    let mut readable = Vec::with_capacity(rows.len());
    for row in rows {
        match JobRow::read(row) {
            Ok(row) => readable.push(row),
            Err(error) => set_aside(tx, row.try_get(0)?, &error.into(), now).await?,
        }
    }
    Ok(readable)
}

/// A row that cannot be read is reported and looked at again later: it must not keep the sweep from all others.
async fn set_aside(tx: &Tx<'_>, seq: i64, error: &Error, now: Timestamp) -> DbResult<()> {
    error!(seq, %error, "a job cannot be read and is left as it is; look at this row of lh_jobs");
    let sql = "UPDATE lh_jobs SET due_at = CASE WHEN due_at <= $2 THEN $3 ELSE due_at END,
             expires_at = CASE WHEN expires_at <= $2 THEN $3 ELSE expires_at END
         WHERE seq = $1";
    tx.run(sql, &[&seq, &now.as_millis(), &(now + UNREADABLE_AGAIN).as_millis()]).await?;
    Ok(())
}

/// What a sweep does with one job.
#[derive(Clone, Copy)]
enum Step {
    Rescue,
    EndWait,
}

/// Does it; false when there was nothing to do, or when what is stored of the job or its children cannot be read.
async fn step(tx: &mut Tx<'_>, step: Step, row: JobRow, now: Timestamp) -> DbResult<bool> {
    let seq = row.seq;
    let before = tx.attempt().await?;
    let done = match step {
        Step::Rescue => rescue_one(tx, row, now).await.map(|()| true),
        Step::EndWait => end_wait(tx, seq, now).await,
    };
    match done {
        Ok(done) => {
            tx.attempted(None).await?;
            Ok(done)
        }
        Err(DbError::Queue(error @ Error::Corrupt(_))) => {
            tx.attempted(Some(before)).await?;
            set_aside(tx, seq, &error, now).await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The earliest row of some states that a sweep must look at. Index lh_jobs_due.
async fn next_due(tx: &Tx<'_>, states: &[State]) -> DbResult<Option<Timestamp>> {
    let sql = "SELECT min(next) FROM unnest($1::smallint[]) AS s (s_state) CROSS JOIN LATERAL (
             SELECT due_at AS next FROM lh_jobs WHERE due_at IS NOT NULL AND state = s_state ORDER BY due_at LIMIT 1) AS d";
    let states: Vec<i16> = states.iter().copied().map(state_number).collect();
    time_of(tx, sql, &[&states]).await
}

async fn time_of(
    tx: &Tx<'_>,
    sql: &'static str,
    params: super::tx::Params<'_>,
) -> DbResult<Option<Timestamp>> {
    let row = tx.one(sql, params).await?;
    let millis = row.map(|row| row.try_get::<_, Option<i64>>(0)).transpose()?;
    Ok(millis.flatten().map(Timestamp::from_millis))
}

async fn next_promotion(tx: &Tx<'_>) -> DbResult<Option<Timestamp>> {
    // Index lh_jobs_expiry.
    let sql = "SELECT expires_at FROM lh_jobs
         WHERE expires_at IS NOT NULL AND started_at IS NULL AND state < 3 ORDER BY expires_at LIMIT 1";
    let expiry = time_of(tx, sql, &[]).await?;
    Ok([next_due(tx, &WAITING).await?, expiry].into_iter().flatten().min())
}

/// The answer when nothing is due; `None` when there is work.
fn nothing_due(next_at: Option<Timestamp>, now: Timestamp) -> Option<Swept> {
    let due = next_at.is_some_and(|next_at| next_at <= now);
    (!due).then_some(Swept { changed: 0, next_at })
}

/// Whether `promote` has anything to do.
pub(super) async fn promote_idle(tx: &Tx<'_>, now: Timestamp) -> DbResult<Option<Swept>> {
    Ok(nothing_due(next_promotion(tx).await?, now))
}

/// Scheduled jobs to ready, parked ones as their park says, expired ones to cancelled. Expiries come first: a job that
/// is due and expired is not run.
pub(super) async fn promote(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let sql = concat!(
        "SELECT ",
        job_columns!(),
        " FROM lh_jobs WHERE expires_at IS NOT NULL AND started_at IS NULL AND state < 3 AND expires_at <= $1
         ORDER BY expires_at, seq LIMIT $2"
    );
    let expired = tx.all(sql, &[&now.as_millis(), &stored_limit(limit + 1)]).await?;
    let mut found = readable(tx, &expired, now).await?;
    for state in WAITING {
        found.extend(due(tx, state, now, limit + 1).await?.into_iter().filter(|row| !row.is_expired(now)));
    }
    let cut = found.len() > limit;
    found.truncate(limit);
    let mut changed = 0;
    let mut starts = Vec::new();
    for row in found {
        if row.state == State::Scheduled && !row.is_expired(now) {
            starts.push(row);
        } else {
            changed += u64::from(step(tx, Step::EndWait, row, now).await?);
        }
    }
    changed += start(tx, &starts, now).await?;
    let next_at = if cut { Some(now) } else { next_promotion(tx).await? };
    Ok(Swept { changed, next_at })
}

/// Lets jobs go whose time has come: all of them at once, because nobody else is concerned.
async fn start(tx: &mut Tx<'_>, rows: &[JobRow], now: Timestamp) -> DbResult<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
    let sql = "UPDATE lh_jobs SET state = 2, due_at = NULL, moved_at = $2 WHERE seq = ANY ($1) AND state = 1";
    let started = tx.run(sql, &[&seqs, &now.as_millis()]).await?;
    for row in rows {
        tx.moved(row.subject(), Some(State::Scheduled), Some(State::Ready));
    }
    Ok(started)
}

/// Ends a wait that has lasted too long; false when an earlier one's cascade has done so.
async fn end_wait(tx: &mut Tx<'_>, seq: i64, now: Timestamp) -> DbResult<bool> {
    let Some(row) = job_by_seq(tx, seq).await?.filter(|row| !row.state.is_terminal()) else {
        return Ok(false);
    };
    if row.is_expired(now) {
        cancel_waiting(tx, &row, &JobError::expired(), now).await?;
        graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now).await?;
    } else {
        park_timed_out(tx, row, now).await?;
    }
    Ok(true)
}

async fn park_timed_out(tx: &mut Tx<'_>, row: JobRow, now: Timestamp) -> DbResult<()> {
    let park = row.park()?.unwrap_or_default();
    let (settlement, wake) = rules::park_timed_out(&park, &row.options()?, row.spent, now);
    apply(tx, row, &settlement, wake, now).await?;
    Ok(())
}

/// Whether `rescue` has anything to do.
pub(super) async fn rescue_idle(tx: &Tx<'_>, now: Timestamp) -> DbResult<Option<Swept>> {
    Ok(nothing_due(next_due(tx, &[State::Running]).await?, now))
}

/// Takes expired leases away. The job goes back with its checkpoint, and a normal claim resumes it.
pub(super) async fn rescue(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let rows = due(tx, State::Running, now, limit + 1).await?;
    let cut = rows.len() > limit;
    let mut changed = 0;
    for row in rows.into_iter().take(limit) {
        changed += u64::from(step(tx, Step::Rescue, row, now).await?);
    }
    let next_at = if cut { Some(now) } else { next_due(tx, &[State::Running]).await? };
    Ok(Swept { changed, next_at })
}

async fn rescue_one(tx: &mut Tx<'_>, mut row: JobRow, now: Timestamp) -> DbResult<()> {
    let settlement = rules::crashed(&row.options()?, row.spent, row.cancel, now);
    write_run(tx, &mut row, &settlement, now).await?;
    apply(tx, row, &settlement, WakeChange::Keep, now).await?;
    Ok(())
}

/// Whether `prune` has anything to do that cannot wait.
pub(super) async fn prune_idle(tx: &Tx<'_>, now: Timestamp) -> DbResult<Option<Swept>> {
    let next_at = next_due(tx, &ENDED).await?;
    let sql = "SELECT EXISTS (SELECT 1 FROM lh_uniques WHERE ended IS NOT NULL AND taken_until <= $1)
             OR EXISTS (SELECT 1 FROM lh_signals WHERE expires_at <= $1)
             OR EXISTS (SELECT 1 FROM lh_workers WHERE seen_at <= $2)
             OR EXISTS (SELECT 1 FROM lh_totals WHERE jobs = 0)";
    let row = tx.one(sql, &[&now.as_millis(), &(now - WORKER_KEPT).as_millis()]).await?;
    let needed: bool = row.map_or(Ok(false), |row| row.try_get(0))?;
    Ok(if needed { None } else { nothing_due(next_at, now) })
}

const FORGET_UNIQUES: &str = "DELETE FROM lh_uniques WHERE (queue, kind, key) IN (
     SELECT queue, kind, key FROM lh_uniques WHERE ended IS NOT NULL AND taken_until <= $1 LIMIT $2)";
const FORGET_SIGNALS: &str = "DELETE FROM lh_signals WHERE key IN (
     SELECT key FROM lh_signals WHERE expires_at <= $1 LIMIT $2)";
/// Counters of queues, kinds and processes that are no more. Whoever folds may bring one back meanwhile: then its row
/// is locked, and it is no longer 0 when it is looked at again.
const FORGET_TOTALS: &str = "DELETE FROM lh_totals WHERE jobs = 0 AND ctid = ANY (ARRAY(
     SELECT ctid FROM lh_totals WHERE jobs = 0 LIMIT $1))";

/// Deletes what retention no longer keeps.
pub(super) async fn prune(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> DbResult<Swept> {
    let limit = limit.min(SWEEP_MAX);
    let mut rows = Vec::new();
    for state in ENDED {
        rows.append(&mut due(tx, state, now, limit + 1).await?);
    }
    rows.sort_unstable_by_key(|row| (row.due_at, row.seq));
    let mut cut = rows.len() > limit;
    let mut gone = Vec::with_capacity(rows.len());
    for row in rows.into_iter().take(limit) {
        if held_child(tx, &row).await?.is_some() {
            // A child waits for this one to be retried: look again tomorrow.
            let again = (now + HELD_AGAIN).as_millis();
            tx.run("UPDATE lh_jobs SET due_at = $2 WHERE seq = $1", &[&row.seq, &again]).await?;
        } else {
            gone.push(row);
        }
    }
    delete_rows(tx, &gone).await?;
    let mut changed = gone.len() as u64;
    for sql in [FORGET_UNIQUES, FORGET_SIGNALS] {
        let forgotten = tx.run(sql, &[&now.as_millis(), &stored_limit(limit)]).await?;
        cut |= forgotten >= limit as u64;
        changed += forgotten;
    }
    let silent = (now - WORKER_KEPT).as_millis();
    changed += tx.run("DELETE FROM lh_workers WHERE seen_at <= $1", &[&silent]).await?;
    tx.run(FORGET_TOTALS, &[&stored_limit(limit)]).await?;
    let oldest_day = now.day() - LEDGER_KEPT_DAYS;
    tx.run("DELETE FROM lh_totals WHERE what = 2 AND part < $1", &[&oldest_day]).await?;
    let next_at = if cut { Some(now) } else { next_due(tx, &ENDED).await? };
    Ok(Swept { changed, next_at })
}
