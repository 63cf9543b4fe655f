//! What people do to jobs: cancel, unhold, edit, run now, unpark.

use longhaul_queue::graph::{Edge, edge};
use longhaul_queue::job::{JobChange, JobId};
use longhaul_queue::limits::SIGNAL_KEPT;
use longhaul_queue::state::JobError;
use longhaul_queue::store::{CancelReply, Signal, UnparkRequest, UnparkTarget, Unparked, refusals, rules};
use longhaul_queue::{Error, Json, State, Timestamp};

use super::error::DbResult;
use super::graph;
use super::rows::{
    JobRow, by_ids, job_by_id, job_by_seq, job_columns, options_text, read_on_failure, read_state,
    state_number, to_text, uuids,
};
use super::settle::{apply, cancel_waiting};
use super::tx::Tx;

/// Cancels waiting jobs and asks running ones to end.
pub(super) async fn cancel(tx: &mut Tx<'_>, ids: &[JobId], now: Timestamp) -> DbResult<Vec<CancelReply>> {
    let error = JobError::cancelled();
    let mut replies = Vec::with_capacity(ids.len());
    for id in ids {
        let Some(row) = job_by_id(tx, *id).await? else {
            replies.push(CancelReply::NotFound);
            continue;
        };
        replies.push(match row.state {
            State::Blocked | State::Scheduled | State::Ready | State::Parked => {
                cancel_waiting(tx, &row, &error, now).await?;
                graph::ended(tx, &JobRow { state: State::Cancelled, ..row }, None, now).await?;
                CancelReply::Cancelled
            }
            State::Running => {
                tx.run("UPDATE lh_jobs SET cancel = true WHERE seq = $1", &[&row.seq]).await?;
                tx.touch();
                CancelReply::Requested
            }
            ended @ (State::Succeeded | State::Failed | State::Cancelled) => CancelReply::Ended(ended),
        });
    }
    Ok(replies)
}

/// Drops the edges from failed parents that hold a job.
pub(super) async fn unhold(tx: &mut Tx<'_>, id: JobId, now: Timestamp) -> DbResult<State> {
    let Some(row) = job_by_id(tx, id).await? else {
        return Err(refusals::no_job(id).into());
    };
    if row.state != State::Blocked {
        return Err(Error::wrong_state(id, row.state, "released from a hold").into());
    }
    let sql = "SELECT position, ended, on_failure FROM lh_edges
         WHERE child = $1 AND NOT satisfied AND ended IS NOT NULL ORDER BY position";
    let mut holding = Vec::new();
    for row in tx.all(sql, &[&row.seq]).await? {
        let (position, ended) = (row.try_get::<_, i32>(0)?, read_state(&row, 1)?);
        if edge(ended, read_on_failure(&row, 2)?) == Edge::Holds {
            holding.push((position, ended));
        }
    }
    if holding.is_empty() {
        return Err(refusals::not_held(id).into());
    }
    for (position, ended) in holding {
        graph::satisfy(tx, row.seq, position, ended, None).await?;
        graph::one_less(tx, row.seq, now).await?;
    }
    tx.touch();
    Ok(job_by_seq(tx, row.seq).await?.map_or(row.state, |row| row.state))
}

/// Changes a job that neither runs nor has succeeded.
pub(super) async fn edit(tx: &mut Tx<'_>, id: JobId, change: &JobChange) -> DbResult<State> {
    let Some(row) = job_by_id(tx, id).await? else {
        return Err(refusals::no_job(id).into());
    };
    change.check(id, row.state, row.started_at.is_some())?;
    let priority = change.priority.unwrap_or(row.priority);
    let options = options_text(&change.of_options(row.options()?))?;
    let payload = change.payload.as_ref().map(Json::as_str);
    let sql = "UPDATE lh_jobs SET priority = $2, options = $3, payload = coalesce($4, payload),
             data = CASE WHEN $4 IS NULL THEN data END
         WHERE seq = $1";
    tx.run(sql, &[&row.seq, &priority, &options, &payload]).await?;
    tx.touch();
    Ok(row.state)
}

/// Starts a scheduled job before its time.
pub(super) async fn run_now(tx: &mut Tx<'_>, id: JobId, now: Timestamp) -> DbResult<State> {
    let Some(row) = job_by_id(tx, id).await? else {
        return Err(refusals::no_job(id).into());
    };
    if row.state != State::Scheduled {
        return Err(Error::wrong_state(id, row.state, "started now").into());
    }
    let sql = "UPDATE lh_jobs SET state = $2, run_at = $3, due_at = NULL, moved_at = $3 WHERE seq = $1";
    tx.run(sql, &[&row.seq, &state_number(State::Ready), &now.as_millis()]).await?;
    tx.moved(row.subject(), Some(row.state), Some(State::Ready));
    Ok(State::Ready)
}

/// Ends the wait of parked jobs.
pub(super) async fn unpark(tx: &mut Tx<'_>, request: &UnparkRequest) -> DbResult<Unparked> {
    let UnparkRequest { target, signal, now, jitter } = request;
    let rows = match target {
        UnparkTarget::Key(key) => {
            if !first_signal(tx, key, signal, *now).await? {
                return Ok(Unparked::default());
            }
            // Index lh_jobs_park.
            let sql = concat!(
                "SELECT ",
                job_columns!(),
                " FROM lh_jobs WHERE park_key IS NOT NULL AND park_key = $1 AND state = 4 ORDER BY seq"
            );
            tx.all(sql, &[key]).await?
        }
        UnparkTarget::Ids(ids) => {
            let sql = concat!(
                "SELECT ",
                job_columns!(),
                " FROM lh_jobs WHERE ",
                by_ids!(),
                " AND state = 4 ORDER BY seq"
            );
            tx.all(sql, &[&uuids(ids)]).await?
        }
        UnparkTarget::Waiting { key, ids } => {
            let sql = concat!(
                "SELECT ",
                job_columns!(),
                " FROM lh_jobs WHERE ",
                by_ids!(),
                " AND state = 4 AND park_key = $2 ORDER BY seq"
            );
            tx.all(sql, &[&uuids(ids), key]).await?
        }
    };
    let mut jobs = Vec::with_capacity(rows.len());
    for row in &rows {
        let seq: i64 = row.try_get(0)?;
        // As it stands now: the end of an earlier one may have reached it.
        let Some(row) = job_by_seq(tx, seq).await?.filter(|row| row.state == State::Parked) else { continue };
        jobs.push(row.id);
        let (settlement, wake) = rules::woken(&row.options()?, row.spent, signal.clone(), *now, *jitter);
        apply(tx, row, &settlement, wake, *now).await?;
    }
    Ok(Unparked { kept: jobs.is_empty() && matches!(target, UnparkTarget::Key(_)), jobs })
}

async fn first_signal(tx: &Tx<'_>, key: &str, signal: &Signal, now: Timestamp) -> DbResult<bool> {
    let written = tx
        .run(
            "INSERT INTO lh_signals AS s (key, signal, expires_at) VALUES ($1, $2, $3)
             ON CONFLICT (key) DO UPDATE SET signal = excluded.signal, expires_at = excluded.expires_at
             WHERE s.expires_at <= $4",
            &[&key, &to_text("a signal", signal)?, &(now + SIGNAL_KEPT).as_millis(), &now.as_millis()],
        )
        .await?;
    Ok(written > 0)
}
