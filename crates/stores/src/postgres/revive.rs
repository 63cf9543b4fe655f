//! Retry: puts ended jobs back, with the children that fell with them.

use std::collections::VecDeque;

use longhaul_queue::job::JobId;
use longhaul_queue::state::Reason;
use longhaul_queue::store::RetryRequest;
use longhaul_queue::{Error, Result, State, Timestamp};

use super::error::{DbError, DbResult};
use super::insert::start_state;
use super::rows::{JobRow, flag, job_by_id, job_by_seq, millis, state_number};
use super::tx::Tx;
use super::unique;

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
        return Err(Error::not_found(format!("there is no job {id}")).into());
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

/// Brings an ended job back: blocked by its open edges, or ready.
async fn revive(tx: &mut Tx<'_>, row: &JobRow, now: Timestamp) -> DbResult<State> {
    let sql = "SELECT ((SELECT count(*) FROM lh_edges WHERE child = $1 AND NOT satisfied)
                     + (SELECT count(*) FROM lh_waiters WHERE child = $1 AND NOT satisfied))::integer";
    let waits_for: i32 = tx.one(sql, &[&row.seq]).await?.map_or(Ok(0), |row| row.try_get(0))?;
    let state = start_state(waits_for > 0, row.run_at, now);
    let due_at = millis(Some(row.run_at).filter(|_| state == State::Scheduled));
    // A job that has expired would be cancelled again before it could run.
    let expires_at = row.expires_at.filter(|expires_at| *expires_at > now);
    tx.run(
        "UPDATE lh_jobs SET state = $2, waits_for = $3, attempt = 0, crashes = 0, throttles = 0, finished_at = NULL,
             due_at = $4, expires_at = $5, error = NULL, result = NULL
         WHERE seq = $1",
        &[&row.seq, &state_number(state), &waits_for, &due_at, &millis(expires_at)],
    )
    .await?;
    tx.moved(row.subject(), Some(row.state), Some(state));
    Ok(state)
}

/// Revives the children that a failed parent had taken along, unless another failed parent still forbids it.
async fn revive_children(tx: &mut Tx<'_>, parent: &JobRow, now: Timestamp) -> DbResult<()> {
    // Breadth first, like the cascade that took them along: it decides who gets a unique key that two of them had.
    let mut revived = VecDeque::from([parent.clone()]);
    while let Some(parent) = revived.pop_front() {
        if !parent.has(flag::CHILDREN) {
            continue;
        }
        let sql = "UPDATE lh_edges SET ended = NULL WHERE parent = $1 AND NOT satisfied";
        tx.run(sql, &[&parent.seq]).await?;
        let sql = "SELECT child FROM lh_edges WHERE parent = $1 AND NOT satisfied AND on_failure = 0 ORDER BY child";
        for child in tx.all(sql, &[&parent.seq]).await? {
            let child: i64 = child.try_get(0)?;
            let Some(row) = job_by_seq(tx, child).await? else { continue };
            if !fell_with_parent(&row)? || forbidden(tx, child).await? {
                continue;
            }
            match unique::retake(tx, &row).await {
                Ok(()) => {
                    revive(tx, &row, now).await?;
                    revived.push_back(row);
                }
                // A key taken in the meantime leaves the child cancelled.
                Err(DbError::Queue(_)) => {}
                Err(error @ (DbError::Sql(_) | DbError::Alone)) => return Err(error),
            }
        }
    }
    Ok(())
}

fn fell_with_parent(row: &JobRow) -> DbResult<bool> {
    let reason = row.error()?.map(|error| error.reason);
    Ok(row.state == State::Cancelled && reason == Some(Reason::Dependency))
}

/// Whether a failed parent still cancels this child.
async fn forbidden(tx: &Tx<'_>, child: i64) -> DbResult<bool> {
    let sql = "SELECT 1 FROM lh_edges WHERE child = $1 AND NOT satisfied AND on_failure = 0 AND ended IS NOT NULL LIMIT 1";
    Ok(tx.one(sql, &[&child]).await?.is_some())
}
