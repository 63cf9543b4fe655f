//! Processes: who waits for one is released by the end of its last job or by its seal, and an empty one is forgotten.
//! All of it by calls that run alone; a call among others only looks whether somebody waits.

use longhaul_queue::{ProcessId, State, Timestamp};

use super::error::DbResult;
use super::rows::JobRow;
use super::tx::Tx;
use super::{graph, totals};

/// Opens or seals a process. Sealing one that does not exist changes nothing.
pub(super) async fn seal(tx: &mut Tx<'_>, id: &ProcessId, sealed: bool, now: Timestamp) -> DbResult<()> {
    let process = id.as_str();
    if sealed {
        tx.run("UPDATE lh_processes SET sealed = true WHERE id = $1", &[&process]).await?;
    } else {
        tx.run(
            "INSERT INTO lh_processes (id, sealed) VALUES ($1, false) ON CONFLICT (id) DO UPDATE SET sealed = false",
            &[&process],
        )
        .await?;
    }
    tx.recheck_process(process);
    tx.touch();
    release_waiters(tx, process, now).await
}

/// Whether a process is stored and nobody need wait for it any more; `None` when there is no such process.
pub(super) async fn is_done(tx: &Tx<'_>, process: &str) -> DbResult<Option<bool>> {
    let row = tx.one("SELECT sealed FROM lh_processes WHERE id = $1", &[&process]).await?;
    let Some(row) = row else { return Ok(None) };
    let sealed: bool = row.try_get(0)?;
    let counts = totals::of_process(tx, process).await?;
    // One that has just been emptied goes with the commit.
    if sealed && counts.iter().flatten().sum::<i64>() == 0 {
        return Ok(None);
    }
    Ok(Some(sealed && unfinished(&counts) == 0))
}

/// Jobs that have not ended, helpers left out.
fn unfinished(counts: &[[i64; 8]; 2]) -> i64 {
    State::ALL.iter().zip(counts[0]).filter(|(state, _)| !state.is_terminal()).map(|(_, jobs)| jobs).sum()
}

/// Whether a job still waits for any of these processes.
pub(super) async fn any_awaited(tx: &Tx<'_>, processes: &[&str]) -> DbResult<bool> {
    if processes.is_empty() {
        return Ok(false);
    }
    let sql = "SELECT 1 FROM lh_waiters WHERE process = ANY ($1) AND NOT satisfied LIMIT 1";
    Ok(tx.one(sql, &[&processes]).await?.is_some())
}

/// A job has ended: if it was the last one of its process, who waits for that may start.
pub(super) async fn job_ended(tx: &mut Tx<'_>, row: &JobRow, now: Timestamp) -> DbResult<()> {
    match &row.process {
        Some(process) => release_waiters(tx, process, now).await,
        None => Ok(()),
    }
}

/// Releases who waits for a process, once it is done.
async fn release_waiters(tx: &mut Tx<'_>, process: &str, now: Timestamp) -> DbResult<()> {
    // Index lh_waiters_process.
    let sql = "SELECT child FROM lh_waiters WHERE process = $1 AND NOT satisfied ORDER BY child";
    let waiters = tx.all(sql, &[&process]).await?;
    if waiters.is_empty() || is_done(tx, process).await? == Some(false) {
        return Ok(());
    }
    for row in waiters {
        let child: i64 = row.try_get(0)?;
        tx.run("UPDATE lh_waiters SET satisfied = true WHERE child = $1", &[&child]).await?;
        graph::one_less(tx, child, now).await?;
    }
    Ok(())
}

/// Forgets a process that has no jobs and expects none.
pub(super) async fn drop_if_empty(tx: &Tx<'_>, process: &str) -> DbResult<()> {
    if totals::of_process(tx, process).await?.iter().flatten().sum::<i64>() == 0 {
        tx.run("DELETE FROM lh_processes WHERE id = $1 AND sealed", &[&process]).await?;
    }
    Ok(())
}
