//! The response cache: an answer that was paid for once is given again for the same request. It never stands in the way of
//! work: what goes wrong with it is a miss, and one warning.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::error::{Class, Error, Result};
use crate::file::{FileError, FileResult, LlmFile};
use crate::types::{Answer, Dialect, Request, Stop};
use crate::wire::translated;

mod flights;

pub use flights::{Flights, Flown};

/// Part of each key: raised when keys or answers change their meaning, so that old entries are no longer found.
const KEY_VERSION: &str = "1";
/// Bytes of an answer that is worth keeping.
const ENTRY_BYTES_MAX: usize = 1024 * 1024;
/// What a row costs besides its answer, roughly.
const ENTRY_BYTES_EXTRA: usize = 128;
/// A hit notes the time of use when the note is older than this. So a hit is seldom a write, and the least recently used
/// is known to within an hour.
const TOUCH_EVERY_MS: i64 = 60 * 60 * 1_000;
/// Once full, the cache is emptied to this many hundredths, so that not each put has to evict.
const EVICT_TO_PERCENT: u64 = 90;
/// Entries evicted in one statement, and statements in one put: bounds how long others wait for it.
const EVICT_ROWS_MAX: i64 = 64;
const EVICT_ROUNDS_MAX: usize = 32;
/// After so many puts the oldest entries are looked through for expired ones.
const SWEEP_EVERY_PUTS: u64 = 256;

/// Whether a request may be answered from the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheMode {
    /// From the cache where it can, from the provider otherwise.
    #[default]
    Auto,
    /// Neither asked nor filled.
    Off,
    /// From the cache or not at all: nothing is paid for.
    Only,
}

impl std::str::FromStr for CacheMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "only" => Ok(Self::Only),
            _ => Err(format!("cache mode {text:?} is not known; use auto, off or only")),
        }
    }
}

/// How long and how much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// How long an answer is good; 30 days by default.
    pub ttl: Duration,
    /// Bytes of all answers; 1 GB by default. The file is a little larger, and does not shrink.
    pub bytes_max: u64,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30 * 24 * 60 * 60), bytes_max: 1024 * 1024 * 1024 }
    }
}

/// Names a request by everything that shapes its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a request to a provider.
    pub fn new(dialect: &str, base_url: &str, request: &Request) -> Self {
        let mut hash = HashWriter(Sha256::new());
        // Lengths keep neighbours apart: "ab" + "c" is not "a" + "bc".
        for text in [KEY_VERSION, dialect, base_url.trim_end_matches('/')] {
            hash.0.update((text.len() as u64).to_le_bytes());
            hash.0.update(text.as_bytes());
        }
        // What stays behind on the way to the provider shapes nothing.
        let sent = match (request, Dialect::named(dialect)) {
            (Request::Chat(chat), Some(dialect)) => translated(chat, dialect).ok(),
            _ => None,
        };
        // Plain data always becomes JSON; and hashing it cannot fail.
        let value = match &sent {
            Some(chat) => serde_json::to_value(&**chat),
            None => serde_json::to_value(request),
        };
        let value = value.unwrap_or_default();
        let _ = canonical(&value, &mut hash);
        Self(hash.0.finalize().into())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

struct HashWriter(Sha256);

impl Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// JSON with the fields of each object in the order of their names, but for the properties of a schema: a model writes its answer
/// in their order, so another order is another question.
fn canonical(value: &Value, out: &mut HashWriter) -> serde_json::Result<()> {
    let mark = |out: &mut HashWriter, mark: &str| out.0.update(mark);
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            mark(out, "{");
            for (name, value) in sorted {
                serde_json::to_writer(&mut *out, name)?;
                mark(out, ":");
                canonical(value, out)?;
                mark(out, ",");
            }
            if let Some(Value::Object(properties)) = fields.get("properties") {
                properties.keys().try_for_each(|name| serde_json::to_writer(&mut *out, name))?;
            }
            mark(out, "}");
        }
        Value::Array(items) => {
            mark(out, "[");
            for item in items {
                canonical(item, out)?;
                mark(out, ",");
            }
            mark(out, "]");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            serde_json::to_writer(&mut *out, value)?;
        }
    }
    Ok(())
}

/// An answer from the cache. It cost nothing now; its usage tells what it once cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Cached {
    /// The answer.
    pub answer: Answer,
    /// When it was stored.
    pub stored_at_ms: i64,
}

/// The cache of a file. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    file: Option<LlmFile>,
    options: CacheOptions,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    warned: AtomicBool,
    puts: AtomicU64,
    written: AtomicU64,
    expired: AtomicU64,
}

/// What this process did with its cache. How many requests it answered is in the ledger, for all processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Answers that were put into it.
    pub written: u64,
    /// Answers that were there and too old.
    pub expired: u64,
}

impl Cache {
    /// The cache of a file.
    pub fn new(file: LlmFile, options: CacheOptions) -> Self {
        Self { file: Some(file), options, state: Arc::default() }
    }

    /// A cache that keeps nothing, for work that must go on without its file.
    pub fn none() -> Self {
        Self { file: None, options: CacheOptions::default(), state: Arc::default() }
    }

    /// The answer to a request, if it is known and not too old. An error only where [`CacheMode::Only`] misses.
    pub async fn get(&self, mode: CacheMode, key: &Key, now_ms: i64) -> Result<Option<Cached>> {
        if mode == CacheMode::Off {
            return Ok(None);
        }
        let found = match &self.file {
            Some(file) => self.find(file, *key, now_ms).await.unwrap_or_else(|error| self.warn_once(&error)),
            None => None,
        };
        if found.is_none() && mode == CacheMode::Only {
            let message = "the answer is not in the cache, and only the cache may be asked";
            return Err(Error::new(Class::CacheMiss, message));
        }
        Ok(found)
    }

    /// Keeps an answer. Only for one that the caller has checked; a cut-off or declined one is not kept in any case.
    pub async fn put(&self, mode: CacheMode, key: &Key, answer: &Answer, now_ms: i64) {
        let complete = matches!(answer.stop, Stop::End | Stop::ToolCalls);
        let (Some(file), true) = (&self.file, complete && mode != CacheMode::Off) else { return };
        let Ok(json) = serde_json::to_string(answer) else { return };
        if json.len() > ENTRY_BYTES_MAX {
            return;
        }
        let sweep =
            self.state.puts.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY_PUTS == SWEEP_EVERY_PUTS - 1;
        let entry = Entry {
            key: key.0,
            json,
            now_ms,
            bytes_max: i64::try_from(self.options.bytes_max).unwrap_or(i64::MAX),
            expired_before: sweep.then(|| self.expired_before(now_ms)),
        };
        match file.write(move |tx| entry.store(tx.connection)).await {
            Ok(_) => _ = self.state.written.fetch_add(1, Ordering::Relaxed),
            Err(error) => _ = self.warn_once::<Cached>(&error),
        }
    }

    /// What was done with it.
    pub fn counts(&self) -> CacheCounts {
        let State { written, expired, .. } = &*self.state;
        CacheCounts { written: written.load(Ordering::Relaxed), expired: expired.load(Ordering::Relaxed) }
    }

    async fn find(&self, file: &LlmFile, key: Key, now_ms: i64) -> FileResult<Option<Cached>> {
        let found = file
            .read(move |connection| {
                let find = "SELECT stored_at, used_at, answer FROM answers WHERE key = ?1";
                let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?));
                Ok(connection.prepare_cached(find)?.query_row([key.0], row).optional()?)
            })
            .await?;
        let Some((stored_at_ms, used_at_ms, json)) = found else { return Ok(None) };
        if stored_at_ms <= self.expired_before(now_ms) {
            self.state.expired.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let answer = serde_json::from_str(&json)
            .map_err(|error| FileError::corrupt(format!("a cached answer cannot be read: {error}")))?;
        if now_ms.saturating_sub(used_at_ms) > TOUCH_EVERY_MS {
            file.write(move |tx| {
                let touch = "UPDATE answers SET used_at = max(used_at, ?2) WHERE key = ?1";
                tx.connection.prepare_cached(touch)?.execute((key.0, now_ms))?;
                Ok(())
            })
            .await
            // It is an answer all the same.
            .unwrap_or_else(|error| _ = self.warn_once::<()>(&error));
        }
        Ok(Some(Cached { answer, stored_at_ms }))
    }

    fn expired_before(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(i64::try_from(self.options.ttl.as_millis()).unwrap_or(i64::MAX))
    }

    /// Says once that the cache does not work; each further time it is a miss without a word.
    fn warn_once<T>(&self, error: &FileError) -> Option<T> {
        if !self.state.warned.swap(true, Ordering::Relaxed) {
            warn!(%error, "the response cache does not work; going on without it");
        }
        None
    }
}

/// What a put writes.
struct Entry {
    key: [u8; 32],
    json: String,
    now_ms: i64,
    bytes_max: i64,
    /// Set when it is time to look for entries stored before this.
    expired_before: Option<i64>,
}

impl Entry {
    fn store(&self, connection: &Connection) -> FileResult<()> {
        let bytes = i64::try_from(self.json.len() + ENTRY_BYTES_EXTRA).unwrap_or(i64::MAX);
        let delete = "DELETE FROM answers WHERE key = ?1 RETURNING bytes";
        let replaced = deleted_bytes(connection, delete, [self.key])?;
        connection
            .prepare_cached(
                "INSERT INTO answers (key, stored_at, used_at, bytes, answer) VALUES (?1, ?2, ?2, ?3, ?4)",
            )?
            .execute((self.key, self.now_ms, bytes, &self.json))?;
        let mut freed = replaced;
        if let Some(expired_before) = self.expired_before {
            let sweep = "DELETE FROM answers WHERE stored_at <= ?1
                             AND number IN (SELECT number FROM answers ORDER BY number LIMIT ?2)
                         RETURNING bytes";
            freed += deleted_bytes(connection, sweep, (expired_before, SWEEP_EVERY_PUTS))?;
        }
        let total = add_bytes(connection, bytes - freed)?;
        if total > self.bytes_max {
            evict(connection, total, self.bytes_max)?;
        }
        Ok(())
    }
}

fn evict(connection: &Connection, total: i64, bytes_max: i64) -> FileResult<()> {
    let keep = bytes_max / 100 * i64::try_from(EVICT_TO_PERCENT).unwrap_or(100);
    let mut freed = 0;
    for _ in 0..EVICT_ROUNDS_MAX {
        let least_used = "DELETE FROM answers WHERE number IN
                              (SELECT number FROM answers ORDER BY used_at, number LIMIT ?1)
                          RETURNING bytes";
        let bytes = deleted_bytes(connection, least_used, [EVICT_ROWS_MAX])?;
        freed += bytes;
        if bytes == 0 || total - freed <= keep {
            break;
        }
    }
    add_bytes(connection, -freed)?;
    Ok(())
}

/// Runs a statement that deletes entries: the bytes they had.
fn deleted_bytes(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> FileResult<i64> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(values)?;
    let mut sum = 0_i64;
    while let Some(row) = rows.next()? {
        sum += row.get::<_, i64>(0)?;
    }
    Ok(sum)
}

/// Keeps the sum of all entries, so that nobody has to count them.
fn add_bytes(connection: &Connection, bytes: i64) -> FileResult<i64> {
    let add = "UPDATE meta SET value = value + ?1 WHERE key = 'cache_bytes' RETURNING value";
    Ok(connection.prepare_cached(add)?.query_row([bytes], |row| row.get(0))?)
}

#[cfg(test)]
mod tests;
