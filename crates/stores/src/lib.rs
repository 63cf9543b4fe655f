//! Stores for `longhaul-queue`, chosen by URL: `sqlite://PATH`, `redis://HOST`, `memory://`.
//!
//! A store is SQL with reasons. It knows jobs and leases, and nothing of handlers, models or pipelines.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{Error, Result, Store};

pub mod redis;
pub mod sqlite;

use redis::{RedisStore, RedisUrl};
use sqlite::{SqliteOptions, SqliteStore};

/// Where jobs live, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A Redis server.
    Redis(RedisUrl),
    /// This process's memory; gone when it ends.
    Memory,
}

impl std::str::FromStr for StoreUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            if path.is_empty() {
                return Err(Error::invalid("store URL sqlite:// names no file; write sqlite://PATH"));
            }
            return Ok(Self::Sqlite(PathBuf::from(path)));
        }
        if url.starts_with("redis://") || url.starts_with("rediss://") {
            return url.parse().map(Self::Redis);
        }
        if url == "memory://" {
            return Ok(Self::Memory);
        }
        Err(Error::invalid(format!(
            "store URL {url:?} is not known; use sqlite://PATH, redis://HOST or memory://"
        )))
    }
}

/// Opens the store behind a URL.
pub async fn connect(url: &StoreUrl, options: SqliteOptions) -> Result<Arc<dyn Store>> {
    match url {
        StoreUrl::Sqlite(path) => Ok(Arc::new(SqliteStore::open(path, options)?)),
        StoreUrl::Redis(url) => Ok(Arc::new(RedisStore::connect(url).await?)),
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
    }
}
