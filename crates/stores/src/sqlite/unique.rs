//! Unique keys: at most one unfinished job per (queue, kind, key), and none within the window. Kept apart from the
//! jobs, so that a window outlives the deletion of its job.

use std::time::Duration;

use longhaul_queue::job::{JobId, JobOptions, NewJob, Unique, UniquePolicy, Window};
use longhaul_queue::store::{Enqueued, InsertOutcome, refusals, rules};
use longhaul_queue::{State, Timestamp};

use super::error::DbResult;
use super::rows::{Body, JobRow, job_by_id, job_by_seq, options_of, read_optional_state, state_number};
use super::tx::Tx;

/// The job that holds the key of `job`, after the key's policy was applied to it; `None` when the key is free.
pub(super) fn holder(tx: &mut Tx<'_>, id: JobId, job: &NewJob, now: Timestamp) -> DbResult<Option<Enqueued>> {
    let Some(unique) = &job.options.unique else { return Ok(None) };
    // The same id again is a repeat of the same enqueue, not a second one.
    if job_by_id(tx.connection(), id)?.is_some() {
        return Ok(None);
    }
    let sql =
        "SELECT job_id, seq, ended, taken_until FROM lh_uniques WHERE queue = ?1 AND kind = ?2 AND key = ?3";
    let holder = tx.one(sql, (&job.queue, &job.kind, &unique.key), |row| {
        let ended = read_optional_state(row, 2)?;
        Ok((JobId::from_bytes(row.get(0)?), row.get::<_, i64>(1)?, ended, row.get::<_, Option<i64>>(3)?))
    })?;
    let Some((id, seq, ended, taken_until)) = holder else { return Ok(None) };
    if ended.is_some() && taken_until.is_none_or(|until| until <= now.as_millis()) {
        return Ok(None);
    }
    let Some(row) = job_by_seq(tx, seq)? else {
        // The window outlives the job, which was consumed.
        return Ok(Some(Enqueued {
            id,
            seq,
            state: ended.unwrap_or(State::Succeeded),
            how: InsertOutcome::Skipped,
        }));
    };
    let how = match unique.policy {
        UniquePolicy::Skip => InsertOutcome::Skipped,
        UniquePolicy::Replace => replace(tx, &row, job)?,
        UniquePolicy::Debounce { wait, cap } => debounce(tx, &row, pushed_back(&row, now + wait, cap), now)?,
    };
    let state = job_by_seq(tx, seq)?.map_or(row.state, |row| row.state);
    Ok(Some(Enqueued { id, seq, state, how }))
}

/// Later, but not past the cap; and never earlier than the job waits anyway, for a retry or a rate limit.
fn pushed_back(holder: &JobRow, to: Timestamp, cap: Duration) -> Timestamp {
    to.min(holder.created_at + cap).max(holder.run_at)
}

fn replace(tx: &mut Tx<'_>, holder: &JobRow, job: &NewJob) -> DbResult<InsertOutcome> {
    // What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
    if holder.started_at.is_some() || holder.state.is_terminal() {
        return Ok(InsertOutcome::Skipped);
    }
    let body = Body { payload: job.payload.clone(), options: options_of(tx, holder)? };
    body.write(tx, holder.seq)?;
    Ok(InsertOutcome::Replaced)
}

fn debounce(tx: &mut Tx<'_>, holder: &JobRow, run_at: Timestamp, now: Timestamp) -> DbResult<InsertOutcome> {
    match holder.state {
        State::Blocked => {
            tx.run("UPDATE lh_jobs SET run_at = ?2 WHERE seq = ?1", (holder.seq, run_at.as_millis()))?;
        }
        State::Scheduled | State::Ready => {
            let state = rules::first_state(false, run_at, now);
            tx.run(
                "UPDATE lh_jobs SET state = ?2, run_at = ?3, due_at = ?4,
                     moved_at = CASE WHEN state = ?2 THEN moved_at ELSE ?5 END
                 WHERE seq = ?1",
                (
                    holder.seq,
                    state_number(state),
                    run_at.as_millis(),
                    (state == State::Scheduled).then_some(run_at.as_millis()),
                    now.as_millis(),
                ),
            )?;
            if state != holder.state {
                tx.moved(holder.subject(), Some(holder.state), Some(state));
            }
        }
        State::Running | State::Parked | State::Succeeded | State::Failed | State::Cancelled => {
            return Ok(InsertOutcome::Skipped);
        }
    }
    Ok(InsertOutcome::Debounced)
}

/// Takes the key for a new job.
pub(super) fn hold(tx: &Tx<'_>, unique: &Unique, job: &NewJob, seq: i64, now: Timestamp) -> DbResult<()> {
    let id = job.id.map(|id| *id.as_bytes());
    tx.run(
        TAKE,
        (
            &job.queue,
            &job.kind,
            &unique.key,
            id,
            seq,
            unique.enqueue_window_end(now).map(Timestamp::as_millis),
        ),
    )?;
    Ok(())
}

const TAKE: &str =
    "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, taken_until) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
     ON CONFLICT DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq, ended = NULL,
         taken_until = excluded.taken_until";

/// Takes the key for a job that comes back to life; refused when another unfinished job has it.
pub(super) fn retake(tx: &Tx<'_>, row: &JobRow, options: &JobOptions) -> DbResult<()> {
    let Some(unique) = &options.unique else { return Ok(()) };
    let sql = "SELECT job_id FROM lh_uniques WHERE queue = ?1 AND kind = ?2 AND key = ?3 AND ended IS NULL
             AND seq <> ?4";
    let scope = (&row.queue, &row.kind, &unique.key, row.seq);
    let other = tx.one(sql, scope, |row| Ok(JobId::from_bytes(row.get(0)?)))?;
    if let Some(other) = other {
        return Err(refusals::key_taken(row.id, other, &unique.key).into());
    }
    let window_end = unique.enqueue_window_end(row.created_at).map(Timestamp::as_millis);
    tx.run(TAKE, (&row.queue, &row.kind, &unique.key, row.id.as_bytes(), row.seq, window_end))?;
    Ok(())
}

/// Frees the key of a job that has ended, unless a window keeps it.
pub(super) fn free(
    tx: &Tx<'_>,
    row: &JobRow,
    options: &JobOptions,
    state: State,
    now: Timestamp,
) -> DbResult<()> {
    let Some(unique) = &options.unique else { return Ok(()) };
    let cooldown = match unique.window {
        Some(Window::Success { length }) if state == State::Succeeded => Some((now + length).as_millis()),
        Some(Window::Success { .. } | Window::Enqueue { .. }) | None => None,
    };
    let scope = (&row.queue, &row.kind, &unique.key, row.seq);
    tx.run(
        "UPDATE lh_uniques SET ended = ?5, taken_until = coalesce(?6, taken_until)
         WHERE queue = ?1 AND kind = ?2 AND key = ?3 AND seq = ?4",
        (scope.0, scope.1, scope.2, scope.3, state_number(state), cooldown),
    )?;
    // Whether a window has passed is asked when the key is, so that a clock that steps back asks again.
    tx.run(
        "DELETE FROM lh_uniques
         WHERE queue = ?1 AND kind = ?2 AND key = ?3 AND seq = ?4 AND ended IS NOT NULL AND taken_until IS NULL",
        scope,
    )?;
    Ok(())
}
