//! Whether the file is sound, in SQLite's words; and what claims trust, against the jobs: maintained counters, and which queues
//! have fair keys. `doctor` does not trust.

use longhaul_queue::Result;
use rusqlite::Connection;

use super::db::{Db, SCHEMA};
use super::error::{DbResult, is_damage};

/// Differences named at most.
const NAMED_MAX: usize = 20;

/// What `doctor` wants to know of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DbCheck {
    /// Of the tables.
    pub schema_version: i64,
    /// Must be `wal`.
    pub journal_mode: String,
    /// Size of the file.
    pub bytes: i64,
    /// Damage in SQLite's words, and counters and fair keys that do not match their jobs; empty when sound.
    pub problems: Vec<String>,
}

impl Db {
    /// What is wrong with the file, looked for in every row and every entry of an index. Slower than [`Db::check`], which would not
    /// see that an index has lost entries.
    pub(super) async fn faults(&self) -> Result<Vec<String>> {
        self.read(|connection| {
            let found = damage(connection, "PRAGMA integrity_check(20)")?;
            if found.is_empty() { counters(connection) } else { Ok(found) }
        })
        .await
    }

    /// Facts for `doctor`, and what SQLite itself finds wrong with the file.
    pub async fn check(&self) -> Result<DbCheck> {
        self.read(|connection| {
            let text = |sql| connection.query_row(sql, [], |row| row.get::<_, String>(0));
            let number = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
            let mut problems = damage(connection, "PRAGMA quick_check(20)")?;
            // Of a damaged file the counters say nothing.
            if problems.is_empty() {
                problems = counters(connection)?;
                problems.append(&mut keys(connection)?);
            }
            Ok(DbCheck {
                schema_version: SCHEMA.version(connection)?.unwrap_or(0),
                journal_mode: text("PRAGMA journal_mode")?,
                bytes: number("PRAGMA page_count")? * number("PRAGMA page_size")?,
                problems,
            })
        })
        .await
    }
}

/// What SQLite finds wrong with the file. Where the damage ends the search itself, that is the last finding.
fn damage(connection: &Connection, pragma: &str) -> DbResult<Vec<String>> {
    let mut found = Vec::new();
    let mut statement = connection.prepare(pragma)?;
    for line in statement.query_map([], |row| row.get::<_, String>(0))? {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => found.push(line),
            Err(error) if is_damage(&error) => {
                found.push(error.to_string());
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// What each counter should say and does not. Reads every job: for `doctor`, not for a hot path.
fn counters(connection: &Connection) -> DbResult<Vec<String>> {
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
fn keys(connection: &Connection) -> DbResult<Vec<String>> {
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
