//! Answers that were given before: by text, categories, prompt, model and mode. Only whole, valid ones are kept.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_queue::Timestamp;
use longhaul_stores::sqlite::DbResult;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;

use super::{Tables, parsed};
use crate::scoring::Result;

/// How long an answer is good.
pub const CACHE_TTL: Duration = Duration::from_secs(24 * 3600);
/// Most answers; the oldest go first.
pub const CACHE_ENTRIES_MAX: u64 = 10_000;
/// One put in so many looks whether there are too many.
const SWEEP_ONE_IN: u8 = 64;

/// Names an answer by everything that shapes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheKey(pub [u8; 32]);

/// A kept answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// Cells by target of the block.
    pub cells: Vec<Value>,
    /// Who answered.
    pub model: String,
}

impl Tables {
    /// Answers that are known and still good, by their key. One that cannot be read is no answer.
    pub async fn cached(&self, keys: Vec<CacheKey>, now: Timestamp) -> Result<HashMap<CacheKey, Cached>> {
        let good_since = now.as_millis() - i64::try_from(CACHE_TTL.as_millis()).unwrap_or(i64::MAX);
        self.read(move |connection| {
            let sql = "SELECT cells, model FROM score_cache WHERE key = ?1 AND at > ?2";
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = HashMap::new();
            for key in keys {
                let row =
                    statement.query_row(params![key.0, good_since], |row| Ok((row.get(0)?, row.get(1)?)));
                let row: Option<(String, String)> = row.optional()?;
                if let Some((cells, model)) = row
                    && let Ok(cells) = parsed("cells", &cells)
                {
                    found.insert(key, Cached { cells, model });
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
