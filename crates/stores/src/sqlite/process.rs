//! Processes: who waits for one is released by the end of its last job or by its seal, and an empty one is forgotten.

use longhaul_queue::{ProcessId, Timestamp};

use super::error::DbResult;
use super::graph;
use super::rows::JobRow;
use super::tx::Tx;

/// Opens or seals a process. Sealing one that does not exist changes nothing.
pub(super) fn seal(tx: &mut Tx<'_>, id: &ProcessId, sealed: bool, now: Timestamp) -> DbResult<()> {
    let process = id.as_str();
    if sealed {
        tx.run("UPDATE lh_processes SET sealed = 1 WHERE id = ?1", [process])?;
    } else {
        tx.run(
            "INSERT INTO lh_processes (id, sealed) VALUES (?1, 0) ON CONFLICT DO UPDATE SET sealed = 0",
            [process],
        )?;
    }
    tx.forget_standing(process);
    tx.recheck_process(process);
    tx.touch();
    release_waiters(tx, process, now)
}

/// Makes a new job wait for a process, unless that is done already; false when there is no such process.
pub(super) fn wait_for(tx: &mut Tx<'_>, child: i64, process: &str) -> DbResult<bool> {
    let sealed: Option<bool> =
        tx.one("SELECT sealed FROM lh_processes WHERE id = ?1", [process], |row| row.get(0))?;
    let Some(sealed) = sealed else { return Ok(false) };
    // One that has just been emptied goes with the commit.
    if sealed && total(tx, process)? + tx.booked_total(process) == 0 {
        return Ok(false);
    }
    let satisfied = tx.process_standing(process)?.is_done();
    tx.run(
        "INSERT INTO lh_waiters (child, process, satisfied) VALUES (?1, ?2, ?3)",
        (child, process, satisfied),
    )?;
    tx.forget_standing(process);
    Ok(true)
}

/// Whether a job still waits for a process.
pub(super) fn is_awaited_by(tx: &Tx<'_>, child: i64) -> DbResult<bool> {
    Ok(tx.one("SELECT 1 FROM lh_waiters WHERE child = ?1 AND satisfied = 0", [child], |_| Ok(()))?.is_some())
}

/// A job has ended: if it was the last one of its process, who waits for that may start.
pub(super) fn job_ended(tx: &mut Tx<'_>, row: &JobRow, now: Timestamp) -> DbResult<()> {
    row.process.as_deref().map_or(Ok(()), |process| release_waiters(tx, process, now))
}

/// Releases who waits for a process, once it is done.
fn release_waiters(tx: &mut Tx<'_>, process: &str, now: Timestamp) -> DbResult<()> {
    let standing = tx.process_standing(process)?;
    if !standing.awaited || !standing.is_done() {
        return Ok(());
    }
    // Index lh_waiters_process.
    let sql = "SELECT child FROM lh_waiters WHERE process = ?1 AND satisfied = 0 ORDER BY child";
    for child in tx.all(sql, [process], |row| row.get::<_, i64>(0))? {
        tx.run("UPDATE lh_waiters SET satisfied = 1 WHERE child = ?1", [child])?;
        graph::one_less(tx, child, now)?;
    }
    tx.forget_standing(process);
    Ok(())
}

/// Forgets a process that has no jobs and expects none. Its counters must be written.
pub(super) fn drop_if_empty(tx: &Tx<'_>, process: &str) -> DbResult<()> {
    let sealed = tx.one("SELECT 1 FROM lh_processes WHERE id = ?1 AND sealed = 1", [process], |_| Ok(()))?;
    if sealed.is_some() && total(tx, process)? == 0 {
        tx.run("DELETE FROM lh_process_counts WHERE process = ?1", [process])?;
        tx.run("DELETE FROM lh_processes WHERE id = ?1", [process])?;
    }
    Ok(())
}

fn total(tx: &Tx<'_>, process: &str) -> DbResult<i64> {
    let sql = "SELECT coalesce(sum(jobs), 0) FROM lh_process_counts WHERE process = ?1";
    Ok(tx.one(sql, [process], |row| row.get(0))?.unwrap_or(0))
}
