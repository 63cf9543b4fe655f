//! Maintained counters: sums over what was folded and what transactions have added since. See the migration for why.

use longhaul_queue::State;

use super::error::DbResult;
use super::rows::read_state;
use super::tx::Tx;

/// `what`: jobs by queue, kind and state.
pub(super) const QUEUE: i16 = 0;
/// `what`: jobs by process and state.
pub(super) const PROCESS: i16 = 1;
/// `what`: ended jobs by day, queue, kind and state.
pub(super) const LEDGER: i16 = 2;

/// The jobs of a process by state, helpers apart, with what this transaction has booked.
pub(super) async fn of_process(tx: &Tx<'_>, process: &str) -> DbResult<[[i64; 8]; 2]> {
    let sql = "SELECT part, state, sum(jobs)::bigint FROM (
             SELECT part, state, jobs FROM lh_totals WHERE what = 1 AND name = $1
             UNION ALL SELECT part, state, jobs FROM lh_deltas WHERE what = 1 AND name = $1) counted
         GROUP BY part, state";
    let mut counts = tx.booked(process);
    for row in tx.all(sql, &[&process]).await? {
        let helper = usize::from(row.try_get::<_, i64>(0)? != 0);
        counts[helper][read_state(&row, 1)? as usize] += row.try_get::<_, i64>(2)?;
    }
    Ok(counts)
}

/// Jobs of a queue that run, with what this transaction has booked.
pub(super) async fn running_in(tx: &Tx<'_>, queue: &str) -> DbResult<i64> {
    let sql = "SELECT coalesce(sum(jobs), 0)::bigint FROM (
             SELECT jobs FROM lh_totals WHERE what = 0 AND name = $1 AND part = 0 AND state = 3
             UNION ALL SELECT jobs FROM lh_deltas WHERE what = 0 AND name = $1 AND state = 3) counted";
    let counted: i64 = tx.one(sql, &[&queue]).await?.map_or(Ok(0), |row| row.try_get(0))?;
    Ok(counted + tx.booked_in_queue(queue, State::Running))
}
