//! Unique keys: at most one unfinished job per (queue, kind, key), and none within the window. Kept apart from the
//! jobs, so that a window outlives the deletion of its job.

use longhaul_queue::job::{JobId, JobOptions, NewJob, Unique, UniquePolicy, Window};
use longhaul_queue::store::{Enqueued, How};
use longhaul_queue::{Error, State, Timestamp};

use super::error::{DbError, DbResult};
use super::insert::start_state;
use super::rows::{JobRow, job_by_id, job_by_seq, state_number};
use super::tx::Tx;

/// The job that holds the key of `job`, after the key's policy was applied to it; `None` when the key is free.
pub(super) fn holder(tx: &mut Tx<'_>, id: JobId, job: &NewJob, now: Timestamp) -> DbResult<Option<Enqueued>> {
    let Some(unique) = &job.options.unique else { return Ok(None) };
    // The same id again is a repeat of the same enqueue, not a second one.
    if job_by_id(tx.connection(), id)?.is_some() {
        return Ok(None);
    }
    let sql = "SELECT job_id, seq, held, expires_at FROM lh_uniques WHERE queue = ?1 AND kind = ?2 AND key = ?3";
    let holder = tx.one(sql, (&job.queue, &job.kind, &unique.key), |row| {
        Ok((JobId::from_bytes(row.get(0)?), row.get::<_, i64>(1)?, row.get::<_, bool>(2)?, row.get::<_, Option<i64>>(3)?))
    })?;
    let Some((id, seq, held, expires_at)) = holder else { return Ok(None) };
    if !held && expires_at.is_none_or(|expires_at| expires_at <= now.as_millis()) {
        return Ok(None);
    }
    let Some(row) = job_by_seq(tx.connection(), seq)? else {
        // The window outlives the job, which was consumed: it can only have succeeded or been given up.
        return Ok(Some(Enqueued { id, seq, state: State::Succeeded, how: How::Skipped }));
    };
    let how = match unique.policy {
        UniquePolicy::Skip => How::Skipped,
        UniquePolicy::Replace => replace(tx, &row, job)?,
        UniquePolicy::Debounce { wait, cap } => debounce(tx, &row, (now + wait).min(row.created_at + cap), now)?,
    };
    let state = job_by_seq(tx.connection(), seq)?.map_or(row.state, |row| row.state);
    Ok(Some(Enqueued { id, seq, state, how }))
}

fn replace(tx: &mut Tx<'_>, holder: &JobRow, job: &NewJob) -> DbResult<How> {
    if holder.state == State::Running || holder.state.is_terminal() {
        return Ok(How::Skipped);
    }
    tx.run("UPDATE lh_bodies SET payload = ?2 WHERE seq = ?1", (holder.seq, job.payload.as_str()))?;
    Ok(How::Replaced)
}

fn debounce(tx: &mut Tx<'_>, holder: &JobRow, run_at: Timestamp, now: Timestamp) -> DbResult<How> {
    match holder.state {
        State::Blocked => {
            tx.run("UPDATE lh_jobs SET run_at = ?2 WHERE seq = ?1", (holder.seq, run_at.as_millis()))?;
        }
        State::Scheduled | State::Ready => {
            let state = start_state(false, run_at, now);
            tx.run(
                "UPDATE lh_jobs SET state = ?2, run_at = ?3, wake_at = ?4 WHERE seq = ?1",
                (
                    holder.seq,
                    state_number(state),
                    run_at.as_millis(),
                    (state == State::Scheduled).then_some(run_at.as_millis()),
                ),
            )?;
            if state != holder.state {
                tx.moved(holder.subject(), Some(holder.state), Some(state));
            }
        }
        State::Running | State::Parked | State::Succeeded | State::Failed | State::Cancelled => {
            return Ok(How::Skipped);
        }
    }
    Ok(How::Debounced)
}

/// Takes the key for a new job.
pub(super) fn hold(tx: &Tx<'_>, unique: &Unique, job: &NewJob, seq: i64, now: Timestamp) -> DbResult<()> {
    let expires_at = match unique.window {
        Some(Window::Enqueue { length }) => Some((now + length).as_millis()),
        Some(Window::Success { .. }) | None => None,
    };
    tx.run(
        "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, held, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6)
         ON CONFLICT DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq, held = 1, expires_at = excluded.expires_at",
        (&job.queue, &job.kind, &unique.key, job.id.map(|id| *id.as_bytes()), seq, expires_at),
    )?;
    Ok(())
}

/// Takes the key for a job that comes back to life; refused when another unfinished job holds it.
pub(super) fn retake(tx: &Tx<'_>, row: &JobRow, options: &JobOptions) -> DbResult<()> {
    let Some(unique) = &options.unique else { return Ok(()) };
    let sql = "SELECT job_id FROM lh_uniques WHERE queue = ?1 AND kind = ?2 AND key = ?3 AND held = 1 AND seq <> ?4";
    let other = tx.one(sql, (&row.queue, &row.kind, &unique.key, row.seq), |row| Ok(JobId::from_bytes(row.get(0)?)))?;
    if let Some(other) = other {
        let text = format!("job {} cannot run again: job {other} holds its unique key {:?}", row.id, unique.key);
        return Err(DbError::Queue(Error::Invalid(text)));
    }
    tx.run(
        "INSERT INTO lh_uniques (queue, kind, key, job_id, seq, held, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, 1, NULL)
         ON CONFLICT DO UPDATE SET job_id = excluded.job_id, seq = excluded.seq, held = 1",
        (&row.queue, &row.kind, &unique.key, row.id.as_bytes(), row.seq),
    )?;
    Ok(())
}

/// Frees the key of a job that has ended, or keeps it for its window.
pub(super) fn free(tx: &Tx<'_>, row: &JobRow, options: &JobOptions, state: State, now: Timestamp) -> DbResult<()> {
    let Some(unique) = &options.unique else { return Ok(()) };
    let cooldown = match unique.window {
        Some(Window::Success { length }) if state == State::Succeeded => Some((now + length).as_millis()),
        Some(Window::Success { .. } | Window::Enqueue { .. }) | None => None,
    };
    tx.run(
        "UPDATE lh_uniques SET held = 0, expires_at = coalesce(?5, expires_at, 0)
         WHERE queue = ?1 AND kind = ?2 AND key = ?3 AND seq = ?4",
        (&row.queue, &row.kind, &unique.key, row.seq, cooldown),
    )?;
    Ok(())
}

