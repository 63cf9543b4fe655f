//! What claims trust, against the jobs: maintained counters, and which queues have fair keys. `doctor` does not trust.

use rusqlite::Connection;

use super::error::DbResult;

/// Differences named at most.
const NAMED_MAX: usize = 20;

/// What each counter should say and does not. Reads every job: for `doctor`, not for a hot path.
pub(super) fn counters(connection: &Connection) -> DbResult<Vec<String>> {
    let sql = "WITH actual AS (SELECT queue, kind, state, count(*) AS jobs FROM lh_jobs GROUP BY queue, kind, state)
         SELECT coalesce(c.queue, a.queue), coalesce(c.kind, a.kind), coalesce(c.state, a.state),
                coalesce(c.jobs, 0), coalesce(a.jobs, 0)
         FROM lh_counts c FULL JOIN actual a ON a.queue = c.queue AND a.kind = c.kind AND a.state = c.state
         WHERE coalesce(c.jobs, 0) <> coalesce(a.jobs, 0) LIMIT ?1";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([NAMED_MAX], |row| {
        let (queue, kind): (String, String) = (row.get(0)?, row.get(1)?);
        let (state, counted, actual): (i64, i64, i64) = (row.get(2)?, row.get(3)?, row.get(4)?);
        Ok(format!(
            "the counter of queue {queue}, kind {kind}, state {state} says {counted}, there are {actual}"
        ))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Queues whose claims would miss jobs, because they do not look for fair keys. Index lh_jobs_turns, from end to end.
pub(super) fn keys(connection: &Connection) -> DbResult<Vec<String>> {
    let sql = "SELECT DISTINCT queue FROM lh_jobs WHERE fair_key IS NOT NULL AND state = 2
         AND queue NOT IN (SELECT name FROM lh_queues WHERE last_key IS NOT NULL) LIMIT ?1";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([NAMED_MAX], |row| {
        let queue: String = row.get(0)?;
        Ok(format!(
            "queue {queue} has jobs with fair keys, and its claims do not know; enqueue one more such job"
        ))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
