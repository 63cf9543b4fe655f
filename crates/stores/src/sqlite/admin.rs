//! What people do to jobs: cancel, retry, unhold, edit, run now, unpark, delete.

use std::collections::VecDeque;

use longhaul_queue::graph::{Edge, comes_back, edge};
use longhaul_queue::job::{JobChange, JobId};
use longhaul_queue::limits::SIGNAL_KEPT;
use longhaul_queue::state::JobError;
use longhaul_queue::store::{
    CancelReply, Deleted, RetryRequest, Signal, UnparkRequest, UnparkTarget, Unparked, refusals, rules,
};
use longhaul_queue::{Error, Result, State, Timestamp};

use super::error::{DbError, DbResult};
use super::rows::{
    Body, JobRow, flag, job_by_id, job_by_seq, options_of, read_error, read_on_failure, read_state,
    state_number, to_text,
};
use super::settle::{apply, cancel_waiting, write_success};
use super::tx::Tx;
use super::{graph, sweep, unique};

/// Cancels waiting jobs and asks running ones to end.
pub(super) fn cancel(tx: &mut Tx<'_>, ids: &[JobId], now: Timestamp) -> DbResult<Vec<CancelReply>> {
    let error = JobError::cancelled();
    let mut replies = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(row) = job_by_id(tx.connection(), *id)? else {
            replies.push(CancelReply::NotFound);
            continue;
        };
        replies.push(match row.state {
            State::Blocked | State::Scheduled | State::Ready | State::Parked => {
                cancel_waiting(tx, &row, &error, now)?;
                graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now)?;
                CancelReply::Cancelled
            }
            State::Running => {
                tx.run("UPDATE lh_jobs SET cancel = 1 WHERE seq = ?1", [row.seq])?;
                tx.run(
                    "INSERT INTO lh_cancels (worker, seq) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                    (row.worker.as_deref().unwrap_or(""), row.seq),
                )?;
                tx.touch();
                CancelReply::Requested
            }
            ended @ (State::Succeeded | State::Failed | State::Cancelled) => CancelReply::Ended(ended),
        });
    }
    Ok(replies)
}

/// Puts failed and cancelled jobs back.
pub(super) fn retry(tx: &mut Tx<'_>, request: &RetryRequest) -> DbResult<Vec<Result<State>>> {
    let mut replies = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        replies.push(tx.attempt(|tx| retry_one(tx, *id, request))?);
    }
    Ok(replies)
}

fn retry_one(tx: &mut Tx<'_>, id: JobId, request: &RetryRequest) -> DbResult<State> {
    let Some(row) = job_by_id(tx.connection(), id)? else {
        return Err(refusals::no_job(id).into());
    };
    if !matches!(row.state, State::Failed | State::Cancelled) {
        return Err(Error::wrong_state(id, row.state, "retried").into());
    }
    unique::retake(tx, &row, &options_of(tx, &row)?)?;
    if !request.keep_data {
        forget_data(tx, &row)?;
    }
    // Who retries a child does not want to wait for parents that have failed. Unfinished ones still count.
    tx.run("UPDATE lh_edges SET satisfied = 1 WHERE child = ?1 AND ended IS NOT NULL", [row.seq])?;
    tx.run("UPDATE lh_jobs SET run_at = ?2 WHERE seq = ?1", (row.seq, request.now.as_millis()))?;
    let state = revive(tx, &JobRow { run_at: request.now, ..row.clone() }, request.now)?;
    revive_children(tx, &row, request.now)?;
    Ok(state)
}

/// Brings a job back: blocked by its open edges, or ready.
fn revive(tx: &mut Tx<'_>, row: &JobRow, now: Timestamp) -> DbResult<State> {
    let mut row = row.clone();
    if row.state == State::Succeeded {
        write_success(tx, &mut row)?;
    }
    let sql = "SELECT (SELECT count(*) FROM lh_edges WHERE child = ?1 AND satisfied = 0)
                    + (SELECT count(*) FROM lh_waiters WHERE child = ?1 AND satisfied = 0)";
    let waits_for: u32 = tx.one(sql, [row.seq], |row| row.get(0))?.unwrap_or(0);
    let state = rules::first_state(waits_for > 0, row.run_at, now);
    let due_at = (state == State::Scheduled).then_some(row.run_at.as_millis());
    // A job that has expired would be cancelled again before it could run.
    let expires_at = row.expires_at.filter(|expires_at| *expires_at > now);
    tx.run(
        "UPDATE lh_jobs SET state = ?2, waits_for = ?3, attempt = 0, crashes = 0, throttles = 0, finished_at = NULL,
             due_at = ?4, expires_at = ?5, moved_at = ?6, flags = flags | ?7
         WHERE seq = ?1",
        (
            row.seq,
            state_number(state),
            waits_for,
            due_at,
            expires_at.map(Timestamp::as_millis),
            now.as_millis(),
            row.flags & flag::RUNS,
        ),
    )?;
    tx.run("DELETE FROM lh_results WHERE seq = ?1", [row.seq])?;
    // One that has waited until now has a reminder of an expiry that may have gone.
    sweep::forget(tx, &row)?;
    if let (Some(expires_at), None) = (expires_at, row.started_at) {
        sweep::remind_at(tx, expires_at, row.seq)?;
    }
    tx.moved(row.subject(), Some(row.state), Some(state));
    Ok(state)
}

/// Revives the children that a failed parent had taken along, or that ran because it failed, unless another failed parent still
/// forbids it.
fn revive_children(tx: &mut Tx<'_>, parent: &JobRow, now: Timestamp) -> DbResult<()> {
    // Breadth first, like the cascade that took them along: it decides who gets a unique key that two of them had.
    let mut revived = VecDeque::from([parent.clone()]);
    while let Some(parent) = revived.pop_front() {
        if !parent.has(flag::CHILDREN) {
            continue;
        }
        // A run edge is satisfied by a failure; ended: 6 failed, 7 cancelled.
        let sql = "SELECT child, on_failure, satisfied FROM lh_edges
             WHERE parent = ?1 AND (satisfied = 0 OR on_failure = 1 AND ended >= 6) ORDER BY child, position";
        let edges = tx.all(sql, [parent.seq], |row| {
            Ok((row.get::<_, i64>(0)?, read_on_failure(row, 1)?, row.get(2)?))
        })?;
        for (child, on_failure, was_told) in edges {
            let Some(row) = job_by_seq(tx, child)? else { continue };
            // A child that works on what it was told is left to it.
            if was_told && matches!(row.state, State::Running | State::Parked) {
                continue;
            }
            reopen_edge(tx, &row, &parent, was_told)?;
            let reason = read_error(tx.connection(), child)?.map(|error| error.reason);
            if comes_back(on_failure, row.state, reason) && !forbidden(tx, child)? {
                let options = options_of(tx, &row)?;
                match unique::retake(tx, &row, &options) {
                    Ok(()) => {
                        revive(tx, &row, now)?;
                        revived.push_back(row);
                    }
                    // A key taken in the meantime leaves the child as it is.
                    Err(DbError::Queue(_)) => {}
                    Err(error @ (DbError::File(_) | DbError::Caller(_))) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Lets a child wait for its parent again; `was_told` of an end that had satisfied the edge.
fn reopen_edge(tx: &Tx<'_>, child: &JobRow, parent: &JobRow, was_told: bool) -> DbResult<()> {
    let sql = "UPDATE lh_edges SET satisfied = 0, ended = NULL, result = NULL, error = NULL
         WHERE child = ?1 AND parent = ?2";
    tx.run(sql, (child.seq, parent.seq))?;
    if was_told {
        tx.run("UPDATE lh_jobs SET waits_for = waits_for + 1 WHERE seq = ?1", [child.seq])?;
    }
    Ok(())
}

/// Whether a failed parent still cancels this child.
fn forbidden(tx: &Tx<'_>, child: i64) -> DbResult<bool> {
    let sql =
        "SELECT 1 FROM lh_edges WHERE child = ?1 AND satisfied = 0 AND on_failure = 0 AND ended IS NOT NULL";
    Ok(tx.one(sql, [child], |_| Ok(()))?.is_some())
}

/// Drops the edges from failed parents that hold a job.
pub(super) fn unhold(tx: &mut Tx<'_>, id: JobId, now: Timestamp) -> DbResult<State> {
    let Some(row) = job_by_id(tx.connection(), id)? else {
        return Err(refusals::no_job(id).into());
    };
    let sql = "SELECT position, ended, on_failure FROM lh_edges WHERE child = ?1 AND satisfied = 0 AND ended IS NOT NULL";
    let edges = tx.all(sql, [row.seq], |row| {
        Ok((row.get::<_, usize>(0)?, read_state(row, 1)?, read_on_failure(row, 2)?))
    })?;
    let holding: Vec<_> =
        edges.into_iter().filter(|(_, ended, policy)| edge(*ended, *policy) == Edge::Holds).collect();
    if row.state != State::Blocked {
        return Err(Error::wrong_state(id, row.state, "released from a hold").into());
    }
    if holding.is_empty() {
        return Err(refusals::not_held(id).into());
    }
    for (position, ended, _) in holding {
        graph::satisfy(tx, row.seq, position, ended, None)?;
        graph::one_less(tx, row.seq, now)?;
    }
    Ok(job_by_seq(tx, row.seq)?.map_or(row.state, |row| row.state))
}

/// Changes a job that neither runs nor has succeeded.
pub(super) fn edit(tx: &mut Tx<'_>, id: JobId, change: JobChange) -> DbResult<State> {
    let Some(row) = job_by_id(tx.connection(), id)? else {
        return Err(refusals::no_job(id).into());
    };
    change.check(id, row.state, row.started_at.is_some())?;
    let priority = change.priority.unwrap_or(row.priority);
    tx.run("UPDATE lh_jobs SET priority = ?2 WHERE seq = ?1", (row.seq, priority))?;
    if change.payload.is_some() {
        forget_data(tx, &row)?;
    }
    // A large payload is not written again for a priority.
    if change.title.is_some() || change.payload.is_some() {
        let body = Body::read(tx.connection(), &row)?;
        let options = change.of_options(body.options);
        Body { options, payload: change.payload.unwrap_or(body.payload) }.write(tx, row.seq)?;
    }
    tx.touch();
    Ok(row.state)
}

fn forget_data(tx: &Tx<'_>, row: &JobRow) -> DbResult<()> {
    if row.has(flag::DATA) {
        tx.run("DELETE FROM lh_data WHERE seq = ?1", [row.seq])?;
        tx.run("UPDATE lh_jobs SET flags = flags & ~?2 WHERE seq = ?1", (row.seq, flag::DATA))?;
    }
    Ok(())
}

/// Starts a scheduled job before its time.
pub(super) fn run_now(tx: &mut Tx<'_>, id: JobId, now: Timestamp) -> DbResult<State> {
    let Some(row) = job_by_id(tx.connection(), id)? else {
        return Err(refusals::no_job(id).into());
    };
    if row.state != State::Scheduled {
        return Err(Error::wrong_state(id, row.state, "started now").into());
    }
    let ready = "UPDATE lh_jobs SET state = ?2, run_at = ?3, due_at = NULL, moved_at = ?3 WHERE seq = ?1";
    tx.run(ready, (row.seq, state_number(State::Ready), now.as_millis()))?;
    tx.moved(row.subject(), Some(row.state), Some(State::Ready));
    Ok(State::Ready)
}

/// Ends the wait of parked jobs.
pub(super) fn unpark(tx: &mut Tx<'_>, request: UnparkRequest) -> DbResult<Unparked> {
    let UnparkRequest { target, signal, now, jitter } = request;
    let rows = match &target {
        UnparkTarget::Key(key) => {
            if !first_signal(tx, key, &signal, now)? {
                return Ok(Unparked::default());
            }
            // Index lh_parks_key.
            let seqs =
                tx.all("SELECT seq FROM lh_parks WHERE key = ?1 ORDER BY seq", [key], |row| row.get(0))?;
            seqs.into_iter().map(|seq: i64| job_by_seq(tx, seq)).collect::<DbResult<Vec<_>>>()?
        }
        UnparkTarget::Ids(ids) | UnparkTarget::Waiting { ids, .. } => {
            ids.iter().map(|id| job_by_id(tx.connection(), *id)).collect::<DbResult<Vec<_>>>()?
        }
    };
    let mut rows: Vec<JobRow> = rows.into_iter().flatten().filter(|row| row.state == State::Parked).collect();
    rows.sort_unstable_by_key(|row| row.seq);
    rows.dedup_by_key(|row| row.seq);
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        if let UnparkTarget::Waiting { key, .. } = &target
            && !waits_for(tx, row.seq, key)?
        {
            continue;
        }
        jobs.push(row.id);
        let (settlement, wake) = rules::woken(&options_of(tx, &row)?, row.spent, signal.clone(), now, jitter);
        apply(tx, row, &settlement, wake, now)?;
    }
    Ok(Unparked { kept: jobs.is_empty() && matches!(target, UnparkTarget::Key(_)), jobs })
}

fn waits_for(tx: &Tx<'_>, seq: i64, key: &str) -> DbResult<bool> {
    let sql = "SELECT 1 FROM lh_parks WHERE seq = ?1 AND key = ?2";
    Ok(tx.one(sql, (seq, key), |_| Ok(()))?.is_some())
}

fn first_signal(tx: &Tx<'_>, key: &str, signal: &Signal, now: Timestamp) -> DbResult<bool> {
    let written = tx.run(
        "INSERT INTO lh_signals (key, signal, expires_at) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET signal = excluded.signal, expires_at = excluded.expires_at WHERE expires_at <= ?4",
        (key, to_text("a signal", signal)?, (now + SIGNAL_KEPT).as_millis(), now.as_millis()),
    )?;
    Ok(written > 0)
}

/// Deletes ended jobs for good.
pub(super) fn delete(tx: &mut Tx<'_>, ids: &[JobId]) -> DbResult<Deleted> {
    let mut deleted = Deleted::default();
    for id in ids {
        let Some(row) = job_by_id(tx.connection(), *id)? else { continue };
        let refusal = if row.state.is_terminal() {
            held_child(tx, &row)?.map(|child| refusals::holds_child(row.id, row.state, child))
        } else {
            Some(Error::wrong_state(*id, row.state, "deleted"))
        };
        match refusal {
            Some(error) => deleted.refused.push((*id, error)),
            None => {
                delete_row(tx, &row)?;
                deleted.deleted += 1;
            }
        }
    }
    if deleted.deleted > 0 {
        tx.forget_events();
    }
    Ok(deleted)
}

/// A blocked child that waits for this failed job to be retried.
pub(super) fn held_child(tx: &Tx<'_>, row: &JobRow) -> DbResult<Option<JobId>> {
    if !row.has(flag::CHILDREN) || row.state == State::Succeeded {
        return Ok(None);
    }
    let sql = "SELECT j.id FROM lh_edges e JOIN lh_jobs j ON j.seq = e.child
               WHERE e.parent = ?1 AND e.satisfied = 0 AND e.on_failure = 2 AND j.state = 0 LIMIT 1";
    tx.one(sql, [row.seq], |row| Ok(JobId::from_bytes(row.get(0)?)))
}

/// Removes a job with everything that is its own. The flags say where to look.
pub(super) fn delete_row(tx: &mut Tx<'_>, row: &JobRow) -> DbResult<()> {
    if row.has(flag::TAGS) {
        for tag in options_of(tx, row)?.tags {
            tx.run("DELETE FROM lh_tags WHERE tag = ?1 AND seq = ?2", (tag, row.seq))?;
        }
    }
    let side_tables: [(i32, &[&'static str]); 8] = [
        (flag::BODY, &["DELETE FROM lh_bodies WHERE seq = ?1"]),
        (flag::PARENTS, &["DELETE FROM lh_edges WHERE child = ?1"]),
        (flag::AFTER, &["DELETE FROM lh_waiters WHERE child = ?1"]),
        (flag::DATA, &["DELETE FROM lh_data WHERE seq = ?1"]),
        (flag::PARK, &["DELETE FROM lh_parks WHERE seq = ?1"]),
        (flag::RESULT, &["DELETE FROM lh_results WHERE seq = ?1"]),
        (flag::RUNS, &["DELETE FROM lh_runs WHERE seq = ?1"]),
        (flag::NOTES, &["DELETE FROM lh_progress WHERE seq = ?1", "DELETE FROM lh_logs WHERE seq = ?1"]),
    ];
    for (_, statements) in side_tables.iter().filter(|(flag, _)| row.has(*flag)) {
        for sql in *statements {
            tx.run(sql, [row.seq])?;
        }
    }
    tx.retire_seq(row.seq)?;
    tx.run("DELETE FROM lh_jobs WHERE seq = ?1", [row.seq])?;
    tx.moved(row.subject(), Some(row.state), None);
    tx.touch();
    Ok(())
}
