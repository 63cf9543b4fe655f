//! Stores for `longhaul-queue`, chosen by URL: `sqlite://PATH`, `redis://HOST`, `postgres://USER@HOST/DATABASE`, `memory://`.
//!
//! A store is SQL, or scripts, with reasons. It knows jobs and leases, and nothing of handlers, models or pipelines.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{EngineStore, Error, Result};

mod address;
mod changes;
mod history;
mod insert_batcher;
mod io;
pub mod postgres;
mod queue_row;
pub mod redis;
mod row_flags;
mod server_clock;
mod settle_order;
mod shown;
pub mod sqlite;
#[cfg(feature = "temporary")]
pub mod temporary;
mod url_hint;

pub use shown::shown;

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
        match url.split_once("://") {
            Some(("sqlite", ":memory:")) => {
                Err(no_such_store("a database of SQLite in memory is no store", url))
            }
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(PathBuf::from(path))),
            Some(("redis" | "rediss", _)) => url.parse().map(Self::Redis),
            Some(("postgres" | "postgresql", _)) => url.parse().map(|url| Self::Postgres(Box::new(url))),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("sqlite", _)) => Err(no_such_store("this store URL names no file", url)),
            Some(("http" | "https", _)) => Err(Error::invalid(format!(
                "this is a server's address and no store; through a running server goes --server; {FORMS}"
            ))),
            Some(_) => Err(no_such_store("there is no such store", url)),
            None if url.trim().is_empty() => Err(no_such_store("the store URL is empty", url)),
            None => Err(no_such_store("this is no store URL", url)),
        }
    }
}

/// The forms of a store URL.
const FORMS: &str =
    "a store is sqlite://PATH, redis://HOST:PORT, postgres://USER:PASSWORD@HOST:PORT/DATABASE or memory://";

fn no_such_store(problem: &str, url: &str) -> Error {
    match url_hint::meant(url) {
        Some(meant) => Error::invalid(format!("{problem}; did you mean {meant}? {FORMS}")),
        None => Error::invalid(format!("{problem}; {FORMS}")),
    }
}

/// Opens the store behind a URL. What the options say of files is for SQLite alone.
pub async fn connect(url: &StoreUrl, options: SqliteOptions) -> Result<Arc<dyn EngineStore>> {
    match url {
        StoreUrl::Sqlite(path) => Ok(Arc::new(SqliteStore::open(path, options)?)),
        StoreUrl::Redis(url) => Ok(Arc::new(RedisStore::connect(url).await?)),
        StoreUrl::Postgres(url) => {
            let SqliteOptions { create, clock, limits, .. } = options;
            Ok(Arc::new(PostgresStore::open(url, PostgresOptions { create, clock, limits }).await?))
        }
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
    }
}
