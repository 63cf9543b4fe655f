//! Stores for `longhaul-queue`, chosen by URL: `sqlite://PATH`, `redis://HOST`, `postgres://USER@HOST/DATABASE`, `memory://`.
//!
//! A store is SQL, or scripts, with reasons. It knows jobs and leases, and nothing of handlers, models or pipelines.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{Error, Result, Store};

mod address;
mod changes;
mod history;
mod io;
pub mod postgres;
mod queue_row;
pub mod redis;
mod server_clock;
pub mod sqlite;

use postgres::{PostgresOptions, PostgresStore, PostgresUrl};
use redis::{RedisStore, RedisUrl};
use sqlite::{SqliteOptions, SqliteStore};

/// Where jobs live, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// A Redis server.
    Redis(RedisUrl),
    /// A schema of a Postgres database.
    Postgres(Box<PostgresUrl>),
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
        match url.split("://").next().unwrap_or_default() {
            "redis" | "rediss" => url.parse().map(Self::Redis),
            "postgres" | "postgresql" => url.parse().map(|url| Self::Postgres(Box::new(url))),
            "memory" if url == "memory://" => Ok(Self::Memory),
            _ => Err(Error::invalid(
                "there is no such store; use sqlite://PATH, redis://HOST, postgres://USER@HOST/DATABASE or memory://",
            )),
        }
    }
}

/// Opens the store behind a URL. What the options say of files is for SQLite alone.
pub async fn connect(url: &StoreUrl, options: SqliteOptions) -> Result<Arc<dyn Store>> {
    match url {
        StoreUrl::Sqlite(path) => Ok(Arc::new(SqliteStore::open(path, options)?)),
        StoreUrl::Redis(url) => Ok(Arc::new(RedisStore::connect(url).await?)),
        StoreUrl::Postgres(url) => {
            let SqliteOptions { create, clock, limits, durability: _ } = options;
            Ok(Arc::new(PostgresStore::open(url, PostgresOptions { create, clock, limits }).await?))
        }
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
    }
}
