//! Which store a URL means, and how it is opened. The only file of the binary that knows the stores by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::Store;
use longhaul_queue::memory::MemoryStore;

use crate::config::{Settings, Setting};
use crate::exit::{Code, Failure};

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// A SQLite file.
    Sqlite(PathBuf),
    /// This process's memory.
    Memory,
}

impl Location {
    /// Reads a store URL.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            return if path.is_empty() { Err("sqlite:// needs a path: sqlite://.longhaul/longhaul.db".to_owned()) } else { Ok(Self::Sqlite(path.into())) };
        }
        if url == "memory://" {
            return Ok(Self::Memory);
        }
        if url.starts_with("redis://") || url.starts_with("postgres://") {
            return Err("this build has no such store; use sqlite://PATH".to_owned());
        }
        Err("expected sqlite://PATH or memory://".to_owned())
    }
}

/// Whether a store that is not there is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Make it.
    Create,
    /// Say that it is not there: a question must not leave an empty store behind.
    Refuse,
}

/// Opens the store of `settings`.
pub(crate) async fn open(settings: &Settings, missing: Missing) -> Result<Arc<dyn Store>> {
    match location(settings)? {
        Location::Memory => Ok(Arc::new(MemoryStore::new())),
        Location::Sqlite(path) => {
            prepare(settings.get("store.url")?, &path, missing)?;
            open_sqlite(settings, &path).await
        }
    }
}

/// Where the store of `settings` is.
pub(crate) fn location(settings: &Settings) -> Result<Location> {
    settings.read("store.url", Location::parse)
}

fn prepare(url: &Setting, path: &Path, missing: Missing) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    if missing == Missing::Refuse {
        let text = format!("there is no store at {} (store.url from {})", path.display(), url.origin);
        return Err(Failure::new(Code::Unreachable, text)
            .hint("make one with a first job: longhaul enqueue echo '{\"hello\":1}'; or name another with --store URL")
            .into());
    }
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(directory).with_context(|| format!("making the directory {} for the store", directory.display()))
}

async fn open_sqlite(_settings: &Settings, _path: &Path) -> Result<Arc<dyn Store>> {
    anyhow::bail!("this build has no SQLite store yet")
}

/// Writes a consistent copy of the store to `file`.
pub(crate) async fn backup(_settings: &Settings, _file: &Path) -> Result<()> {
    anyhow::bail!("this build has no SQLite store yet")
}

/// Checks the store's integrity and says what it is.
pub(crate) async fn check(_settings: &Settings) -> Result<String> {
    anyhow::bail!("this build has no SQLite store yet")
}

/// Refuses a file that is not a sound store of a version that this build can read.
pub(crate) async fn check_file(_settings: &Settings, _file: &Path) -> Result<()> {
    anyhow::bail!("this build has no SQLite store yet")
}
