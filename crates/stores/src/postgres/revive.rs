//! Retry: puts ended jobs back, with the children that fell with them.

use std::collections::VecDeque;

use longhaul_queue::graph::comes_back;
use longhaul_queue::job::JobId;
use longhaul_queue::store::{RetryRequest, refusals, rules};
use longhaul_queue::{Error, Result, State, Timestamp};

use super::error::{DbError, DbResult};
use super::rows::{JobRow, flag, job_by_id, job_by_seq, millis, read_on_failure, state_number, stored_fence};
use super::tx::Tx;
use super::unique;
use super::updates::Runs;

/// Puts failed and cancelled jobs back.
pub(super) async fn retry(tx: &mut Tx<'_>, request: &RetryRequest) -> DbResult<Vec<Result<State>>> {
    let mut replies = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        let before = tx.attempt().await?;
        replies.push(match retry_one(tx, *id, request).await {
            Ok(state) => {
                tx.attempted(None).await?;
                Ok(state)
            }
            Err(DbError::Queue(error)) => {
                tx.attempted(Some(before)).await?;
                Err(error)
            }
            Err(error @ (DbError::Sql(_) | DbError::Alone)) => return Err(error),
        });
    }
    Ok(replies)
}

async fn retry_one(tx: &mut Tx<'_>, id: JobId, request: &RetryRequest) -> DbResult<State> {
    let Some(row) = job_by_id(tx, id).await? else {
        return Err(refusals::no_job(id).into());
    };
    if !matches!(row.state, State::Failed | State::Cancelled) {
        return Err(Error::wrong_state(id, row.state, "retried").into());
    }
    unique::retake(tx, &row).await?;
    // Who retries a child does not want to wait for parents that have failed. Unfinished ones still count.
    let sql = "UPDATE lh_edges SET satisfied = true WHERE child = $1 AND ended IS NOT NULL";
    tx.run(sql, &[&row.seq]).await?;
    let sql = "UPDATE lh_jobs SET run_at = $2, data = CASE WHEN $3 THEN data END WHERE seq = $1";
    tx.run(sql, &[&row.seq, &request.now.as_millis(), &request.keep_data]).await?;
    let state = revive(tx, &JobRow { run_at: request.now, ..row.clone() }, request.now).await?;
    revive_children(tx, &row, request.now).await?;
    Ok(state)
}

/// Brings a job back: blocked by its open edges, or ready.
async fn revive(tx: &mut Tx<'_>, row: &JobRow, now: Timestamp) -> DbResult<State> {
    let mut row = row.clone();
    write_success(tx, &mut row).await?;
    let sql = "SELECT ((SELECT count(*) FROM lh_edges WHERE child = $1 AND NOT satisfied)
                     + (SELECT count(*) FROM lh_waiters WHERE child = $1 AND NOT satisfied))::integer";
    let waits_for: i32 = tx.one(sql, &[&row.seq]).await?.map_or(Ok(0), |row| row.try_get(0))?;
    let state = rules::first_state(waits_for > 0, row.run_at, now);
    let due_at = millis(Some(row.run_at).filter(|_| state == State::Scheduled));
    // A job that has expired would be cancelled again before it could run.
    let expires_at = row.expires_at.filter(|expires_at| *expires_at > now);
    tx.run(
        "UPDATE lh_jobs SET state = $2, waits_for = $3, attempt = 0, crashes = 0, throttles = 0, finished_at = NULL,
             due_at = $4, expires_at = $5, error = NULL, result = NULL, moved_at = $6,
             flags = flags | $7
         WHERE seq = $1",
        &[
            &row.seq,
            &state_number(state),
            &waits_for,
            &due_at,
            &millis(expires_at),
            &now.as_millis(),
            &(row.flags & flag::RUNS),
        ],
    )
    .await?;
    tx.moved(row.subject(), Some(row.state), Some(state));
    Ok(state)
}

/// Before a success runs again, the history takes over what its row alone tells.
async fn write_success(tx: &Tx<'_>, row: &mut JobRow) -> DbResult<()> {
    let Some(ended_at) = row.finished_at.filter(|_| row.state == State::Succeeded) else { return Ok(()) };
    // A job that a signal ended has its last run in the history already.
    let sql = "SELECT 1 FROM lh_runs WHERE seq = $1 AND fence = $2";
    if tx.one(sql, &[&row.seq, &stored_fence(row.fence)]).await?.is_some() {
        return Ok(());
    }
    let mut runs = Runs::default();
    runs.add_success(row, ended_at)?;
    runs.write(tx).await
}

/// Revives the children that a failed parent had taken along, or that ran because it failed, unless another failed parent still
/// forbids it.
async fn revive_children(tx: &mut Tx<'_>, parent: &JobRow, now: Timestamp) -> DbResult<()> {
    // Breadth first, like the cascade that took them along: it decides who gets a unique key that two of them had.
    let mut revived = VecDeque::from([parent.clone()]);
    while let Some(parent) = revived.pop_front() {
        if !parent.has(flag::CHILDREN) {
            continue;
        }
        // A run edge is satisfied by a failure; ended: 6 failed, 7 cancelled.
        let sql = "SELECT child, on_failure, satisfied FROM lh_edges
             WHERE parent = $1 AND (NOT satisfied OR on_failure = 1 AND ended >= 6) ORDER BY child, position";
        for edge in tx.all(sql, &[&parent.seq]).await? {
            let (child, on_failure) = (edge.try_get::<_, i64>(0)?, read_on_failure(&edge, 1)?);
            let was_told: bool = edge.try_get(2)?;
            let Some(row) = job_by_seq(tx, child).await? else { continue };
            // A child that works on what it was told is left to it.
            if was_told && matches!(row.state, State::Running | State::Parked) {
                continue;
            }
            reopen_edge(tx, &row, &parent, was_told).await?;
            let reason = row.error()?.map(|error| error.reason);
            if !comes_back(on_failure, row.state, reason) || forbidden(tx, child).await? {
                continue;
            }
            match unique::retake(tx, &row).await {
                Ok(()) => {
                    revive(tx, &row, now).await?;
                    revived.push_back(row);
                }
                // A key taken in the meantime leaves the child as it is.
                Err(DbError::Queue(_)) => {}
                Err(error @ (DbError::Sql(_) | DbError::Alone)) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Lets a child wait for its parent again; `was_told` of an end that had satisfied the edge.
async fn reopen_edge(tx: &Tx<'_>, child: &JobRow, parent: &JobRow, was_told: bool) -> DbResult<()> {
    let sql = "UPDATE lh_edges SET satisfied = false, ended = NULL, result = NULL, error = NULL
         WHERE child = $1 AND parent = $2";
    tx.run(sql, &[&child.seq, &parent.seq]).await?;
    if was_told {
        tx.run("UPDATE lh_jobs SET waits_for = waits_for + 1 WHERE seq = $1", &[&child.seq]).await?;
    }
    Ok(())
}

/// Whether a failed parent still cancels this child.
async fn forbidden(tx: &Tx<'_>, child: i64) -> DbResult<bool> {
    let sql = "SELECT 1 FROM lh_edges WHERE child = $1 AND NOT satisfied AND on_failure = 0 AND ended IS NOT NULL LIMIT 1";
    Ok(tx.one(sql, &[&child]).await?.is_some())
}
