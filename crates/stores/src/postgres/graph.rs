//! Dependencies: released, cancelled or held inside the transaction that ends the parent, which runs alone.

use std::collections::VecDeque;

use longhaul_queue::graph::{Edge, edge};
use longhaul_queue::job::{JobId, OnFailure};
use longhaul_queue::state::JobError;
use longhaul_queue::store::rules;
use longhaul_queue::{Json, State, Timestamp};

use super::error::{DbResult, corrupt};
use super::process;
use super::rows::{JobRow, flag, job_by_seq, millis, read_on_failure, read_state, state_number};
use super::settle::cancel_waiting;
use super::tx::Tx;

/// An edge from a parent that has not satisfied it.
struct OpenEdge {
    child: i64,
    position: i32,
    on_failure: OnFailure,
}

/// Tells the children that a job has ended, and theirs in turn when that cancels them; and who waits for a process, when
/// that was its last job.
pub(super) async fn ended(
    tx: &mut Tx<'_>,
    parent: &JobRow,
    result: Option<&Json>,
    now: Timestamp,
) -> DbResult<()> {
    // Breadth first, so that the nearest parent is the one that a child's error names; a list, because chains may be
    // long.
    let mut cancelled = VecDeque::new();
    tell_children(tx, parent, result, now, &mut cancelled).await?;
    process::job_ended(tx, parent, now).await?;
    while let Some(child) = cancelled.pop_front() {
        tell_children(tx, &child, None, now, &mut cancelled).await?;
        process::job_ended(tx, &child, now).await?;
    }
    Ok(())
}

async fn tell_children(
    tx: &mut Tx<'_>,
    parent: &JobRow,
    result: Option<&Json>,
    now: Timestamp,
    cancelled: &mut VecDeque<JobRow>,
) -> DbResult<()> {
    if !parent.has(flag::CHILDREN) {
        return Ok(());
    }
    // Index lh_edges_parent.
    let sql = "SELECT child, position, on_failure FROM lh_edges
         WHERE parent = $1 AND NOT satisfied ORDER BY child, position";
    for row in tx.all(sql, &[&parent.seq]).await? {
        let open = OpenEdge {
            child: row.try_get(0)?,
            position: row.try_get(1)?,
            on_failure: read_on_failure(&row, 2)?,
        };
        match edge(parent.state, open.on_failure) {
            Edge::Open => {}
            Edge::Satisfied => {
                satisfy(tx, open.child, open.position, parent.state, result).await?;
                one_less(tx, open.child, now).await?;
            }
            Edge::Cancels => {
                mark_ended(tx, open.child, open.position, parent.state).await?;
                let child = stored(tx, open.child).await?;
                if child.state == State::Blocked {
                    cancelled.push_back(cancel_child(tx, child, parent.id, parent.state, now).await?);
                }
            }
            Edge::Holds => mark_ended(tx, open.child, open.position, parent.state).await?,
        }
    }
    Ok(())
}

/// Why the parent of an edge did not succeed: written before its children are told.
macro_rules! parent_error {
    () => {
        "(SELECT j.error FROM lh_jobs j WHERE j.seq = parent)"
    };
}

/// Notes a parent's end that does not satisfy its edge.
async fn mark_ended(tx: &Tx<'_>, child: i64, position: i32, state: State) -> DbResult<()> {
    tx.run(
        concat!(
            "UPDATE lh_edges SET ended = $3, error = ",
            parent_error!(),
            " WHERE child = $1 AND position = $2"
        ),
        &[&child, &position, &state_number(state)],
    )
    .await?;
    Ok(())
}

/// Satisfies an edge and copies the parent's end to it.
pub(super) async fn satisfy(
    tx: &Tx<'_>,
    child: i64,
    position: i32,
    state: State,
    result: Option<&Json>,
) -> DbResult<()> {
    tx.run(
        concat!(
            "UPDATE lh_edges SET satisfied = true, ended = $3, result = $4, error = ",
            parent_error!(),
            " WHERE child = $1 AND position = $2"
        ),
        &[&child, &position, &state_number(state), &result.map(Json::as_str)],
    )
    .await?;
    Ok(())
}

/// Takes one dependency off a job and releases it when that was the last.
pub(super) async fn one_less(tx: &mut Tx<'_>, child: i64, now: Timestamp) -> DbResult<()> {
    let sql = "UPDATE lh_jobs SET waits_for = waits_for - 1 WHERE seq = $1 RETURNING waits_for, state";
    let Some(row) = tx.one(sql, &[&child]).await? else { return Ok(()) };
    if row.try_get::<_, i32>(0)? == 0 && read_state(&row, 1)? == State::Blocked {
        release(tx, child, now).await?;
    }
    Ok(())
}

/// Lets a blocked job go: ready, or scheduled when its time has not come.
async fn release(tx: &mut Tx<'_>, child: i64, now: Timestamp) -> DbResult<()> {
    let row = stored(tx, child).await?;
    let state = rules::first_state(false, row.run_at, now);
    let due_at = millis(Some(row.run_at).filter(|_| state == State::Scheduled));
    tx.run(
        "UPDATE lh_jobs SET state = $2, waits_for = 0, due_at = $3, moved_at = $4 WHERE seq = $1",
        &[&child, &state_number(state), &due_at, &now.as_millis()],
    )
    .await?;
    tx.moved(row.subject(), Some(row.state), Some(state));
    Ok(())
}

/// Cancels a new job whose parent had failed before, and what depends on it.
pub(super) async fn cancel_by_parent(
    tx: &mut Tx<'_>,
    child: i64,
    parent: JobId,
    parent_state: State,
    now: Timestamp,
) -> DbResult<()> {
    let row = stored(tx, child).await?;
    // Another parent of the same submission may have taken it along already.
    if row.state == State::Blocked {
        let row = cancel_child(tx, row, parent, parent_state, now).await?;
        ended(tx, &row, None, now).await?;
    }
    Ok(())
}

async fn cancel_child(
    tx: &mut Tx<'_>,
    child: JobRow,
    parent: JobId,
    parent_state: State,
    now: Timestamp,
) -> DbResult<JobRow> {
    let error = JobError::dependency(parent, parent_state);
    cancel_waiting(tx, &child, &error, now).await?;
    Ok(JobRow { state: State::Cancelled, ..child })
}

async fn stored(tx: &Tx<'_>, seq: i64) -> DbResult<JobRow> {
    job_by_seq(tx, seq).await?.ok_or_else(|| corrupt("an edge", format!("job number {seq} is missing")))
}
