//! Which store a URL means, and how it is opened. The only file of the binary that knows the stores by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::Store;
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::{Db, Durability, SqliteOptions, SqliteStore};
use reqwest::Url;
use rusqlite::{Connection, OpenFlags};

use crate::config::{Settings, environment};
use crate::exit::{Code, Failure};
use crate::remote::{Server, TOKEN_NAME};

/// Reads a store URL.
pub(crate) fn parse_url(url: &str) -> Result<StoreUrl, String> {
    if url.starts_with("redis://") || url.starts_with("postgres://") {
        return Err("this build has no such store; use sqlite://PATH".to_owned());
    }
    url.parse().map_err(|error: longhaul_queue::Error| error.to_string())
}

/// Reads the address of a server; an empty text is none.
pub(crate) fn parse_server(url: &str) -> Result<Option<Url>, String> {
    if url.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(url).map_err(|error| format!("{error}; write http://HOST:PORT"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("expected http://HOST:PORT or https://HOST".to_owned());
    }
    Ok(Some(url))
}

/// The server that takes the place of the store.
pub(crate) fn server(settings: &Settings) -> Result<Option<Url>> {
    settings.read("store.server", parse_server)
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
pub(crate) fn open(settings: &Settings, missing: Missing) -> Result<Arc<dyn Store>> {
    if let Some(url) = server(settings)? {
        return Ok(Arc::new(Server::new(url, environment(TOKEN_NAME))?));
    }
    Ok(open_with_data(settings, missing)?.0)
}

/// Opens the store of `settings`, with the data store where slices keep what is their own; one in memory has none.
pub(crate) fn open_with_data(settings: &Settings, missing: Missing) -> Result<(Arc<dyn Store>, Option<Db>)> {
    let url = location(settings)?;
    if let StoreUrl::Sqlite(path) = &url
        && missing == Missing::Refuse
    {
        refuse_missing(settings, path)?;
    }
    let options = SqliteOptions { create: missing == Missing::Create, ..options(settings)? };
    let opened = || -> longhaul_queue::Result<(Arc<dyn Store>, Option<Db>)> {
        let StoreUrl::Sqlite(path) = &url else {
            return Ok((longhaul_stores::connect(&url, options)?, None));
        };
        let store = SqliteStore::open(path, options)?;
        let data = store.db().clone();
        Ok((Arc::new(store), Some(data)))
    };
    opened().with_context(|| source(settings))
}

/// Opens another store than that of `settings`, made if need be, and otherwise as they say.
pub(crate) fn connect(settings: &Settings, url: &StoreUrl) -> Result<Arc<dyn Store>> {
    Ok(longhaul_stores::connect(url, options(settings)?)?)
}

/// Where the store of `settings` is, if it is opened here.
pub(crate) fn location(settings: &Settings) -> Result<StoreUrl> {
    if let Some(url) = server(settings)? {
        let text = format!("this works on the machine of the store, and not through the server at {url}");
        return Err(Failure::new(Code::Usage, text)
            .hint("leave --server out; what the server offers beside jobs is at /api/v1: docs/api.md")
            .into());
    }
    settings.read("store.url", parse_url)
}

/// The folder of the store, where files that belong to it stand too; `None` for one in memory.
pub(crate) fn folder(settings: &Settings) -> Result<Option<PathBuf>> {
    Ok(match location(settings)? {
        StoreUrl::Sqlite(path) => Some(path.parent().unwrap_or(Path::new(".")).to_owned()),
        StoreUrl::Memory => None,
    })
}

fn options(settings: &Settings) -> Result<SqliteOptions> {
    let durability: Durability = settings.read("store.durability", |text| {
        text.parse().map_err(|error: longhaul_queue::Error| error.to_string())
    })?;
    Ok(SqliteOptions { durability, ..SqliteOptions::default() })
}

/// The store and where its name comes from, for errors.
pub(crate) fn source(settings: &Settings) -> String {
    settings.get("store.url").map_or_else(
        |error| error.to_string(),
        |setting| format!("the store {} (store.url from {})", setting.value, setting.origin),
    )
}

fn refuse_missing(settings: &Settings, path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let origin = &settings.get("store.url")?.origin;
    Err(Failure::new(
        Code::Unreachable,
        format!("there is no store at {} (store.url from {origin})", path.display()),
    )
    .hint(
        "make one with a first job: longhaul enqueue echo '{\"hello\":1}'; or name another with --store URL",
    )
    .into())
}

/// The SQLite file of `settings`, which must exist.
pub(crate) fn open_sqlite(settings: &Settings) -> Result<SqliteStore> {
    let StoreUrl::Sqlite(path) = location(settings)? else {
        return Err(Failure::new(Code::Usage, "this works with SQLite stores only")
            .hint("name one with --store sqlite://PATH")
            .into());
    };
    refuse_missing(settings, &path)?;
    open_file(settings, &path)
}

/// A SQLite file that exists.
pub(crate) fn open_file(settings: &Settings, path: &Path) -> Result<SqliteStore> {
    let options = SqliteOptions { create: false, ..options(settings)? };
    SqliteStore::open(path, options).with_context(|| format!("the store {}", path.display()))
}

/// Refuses a file that is no store of ours, before anything is done with it. Looks only: opening a backup as a store
/// would write to it.
pub(crate) fn check_is_store(path: &Path) -> Result<()> {
    let version = || -> rusqlite::Result<i64> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.query_row("SELECT value FROM lh_meta WHERE key = 'schema_version'", [], |row| row.get(0))
    };
    match version() {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(Failure::new(Code::Failure, format!("{} is not a longhaul store: {error}", path.display()))
                .hint("backups are made with: longhaul backup FILE")
                .into())
        }
    }
}
