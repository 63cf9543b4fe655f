//! Answers that were given before: by text, categories, prompt, model and mode. Only whole, valid ones are kept.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_queue::Timestamp;
use longhaul_stores::sqlite::DbResult;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;

use super::{Tables, parsed};
use crate::Result;
use crate::gauges::Gauges;

/// How long an answer is good.
pub const CACHE_TTL: Duration = Duration::from_secs(24 * 3600);
/// Most answers; the oldest go first.
pub const CACHE_ENTRIES_MAX: u64 = 10_000;
/// One put in so many looks whether there are too many.
const SWEEP_ONE_IN: u8 = 64;

/// Names an answer by everything that shapes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(pub [u8; 32]);

/// What the cache has of the answers that were asked for.
#[derive(Debug, Default)]
pub struct Found {
    answers: HashMap<CacheKey, Vec<Value>>,
    /// Keys whose answer is there and too old.
    pub expired: u64,
    asked: u64,
    hits: u64,
}

impl Found {
    /// The cells of an answer.
    pub fn get(&self, key: &CacheKey) -> Option<&[Value]> {
        self.answers.get(key).map(Vec::as_slice)
    }

    /// Counts them.
    pub(crate) fn note(&self, gauges: &Gauges) {
        let hits = self.answers.len() as u64;
        gauges.cache_hits.add(hits);
        gauges.cache_misses.add(self.asked.saturating_sub(hits));
        gauges.cache_expired.add(self.expired);
    }
}

impl Tables {
    /// Answers that are known and still good, by their key and their number of cells. One that cannot be read or has another
    /// shape does not count.
    pub async fn cached(&self, keys: Vec<(CacheKey, usize)>, now: Timestamp) -> Result<Found> {
        let good_since = now.as_millis() - i64::try_from(CACHE_TTL.as_millis()).unwrap_or(i64::MAX);
        self.read(move |connection| {
            let mut statement =
                connection.prepare_cached("SELECT cells, at FROM score_cache WHERE key = ?1")?;
            let mut found = Found { asked: keys.len() as u64, ..Found::default() };
            for (key, width) in keys {
                let row = statement.query_row(params![key.0], |row| Ok((row.get(0)?, row.get(1)?)));
                let row: Option<(String, i64)> = row.optional()?;
                match row {
                    Some((_, at)) if at <= good_since => found.expired += 1,
                    Some((cells, _)) => {
                        let cells = parsed("cells", &cells).ok();
                        if let Some(cells) = cells.filter(|cells: &Vec<Value>| cells.len() == width) {
                            found.hits += 1;
                            found.answers.insert(key, cells);
                        }
                    }
                    None => {}
                }
            }
            Ok(found)
        })
        .await
    }
}

/// Keeps an answer. Which one sweeps depends on its key alone, so that it needs no counter.
pub(super) fn put(
    connection: &Connection,
    key: &CacheKey,
    cells: &str,
    model: &str,
    now: Timestamp,
) -> DbResult<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO score_cache (key, cells, model, at) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![key.0, cells, model, now.as_millis()])?;
    if key.0[0].is_multiple_of(SWEEP_ONE_IN) {
        sweep(connection, now)?;
    }
    Ok(())
}

fn sweep(connection: &Connection, now: Timestamp) -> DbResult<()> {
    let good_since = now.as_millis() - i64::try_from(CACHE_TTL.as_millis()).unwrap_or(i64::MAX);
    connection.prepare_cached("DELETE FROM score_cache WHERE at <= ?1")?.execute([good_since])?;
    connection
        .prepare_cached(
            "DELETE FROM score_cache WHERE key IN
             (SELECT key FROM score_cache ORDER BY at DESC LIMIT -1 OFFSET ?1)",
        )?
        .execute([CACHE_ENTRIES_MAX])?;
    Ok(())
}
