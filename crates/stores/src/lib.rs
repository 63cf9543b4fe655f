//! Stores for `longhaul-queue`, chosen by URL: `sqlite://PATH`, `postgres://USER@HOST/DATABASE`, `memory://`.
//!
//! A store is SQL with reasons. It knows jobs and leases, and nothing of handlers, models or pipelines.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{Error, Result, Store};

mod changes;
pub mod postgres;
pub mod sqlite;

use postgres::{PostgresOptions, PostgresStore, PostgresUrl};
use sqlite::{SqliteOptions, SqliteStore};

/// Where jobs live, as a user writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A SQLite file.
    Sqlite(PathBuf),
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
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return url.parse().map(|url| Self::Postgres(Box::new(url)));
        }
        if url == "memory://" {
            return Ok(Self::Memory);
        }
        Err(Error::invalid(format!(
            "store URL {url:?} is not known; use sqlite://PATH, postgres://USER@HOST/DATABASE or memory://"
        )))
    }
}

/// Opens the store behind a URL. What the options say of files is for SQLite alone.
pub async fn connect(url: &StoreUrl, options: SqliteOptions) -> Result<Arc<dyn Store>> {
    match url {
        StoreUrl::Sqlite(path) => Ok(Arc::new(SqliteStore::open(path, options)?)),
        StoreUrl::Postgres(url) => {
            let SqliteOptions { create, clock, limits, durability: _ } = options;
            Ok(Arc::new(PostgresStore::open(url, PostgresOptions { create, clock, limits }).await?))
        }
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new())),
    }
}
