//! Which store a URL means, and how it is opened. The only file of the binary that knows the stores by name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::limits::Limits;
use longhaul_queue::{EngineStore, Store};
use longhaul_stores::StoreUrl;
use longhaul_stores::sqlite::{Db, Durability, SqliteOptions, SqliteStore};
use reqwest::Url;
use rusqlite::{Connection, OpenFlags};

use crate::config::{Settings, environment, value_bytes_max};
use crate::exit::{Code, Failure, is_outage};
use crate::moved::check_whole;
use crate::remote::{Server, TOKEN_NAME};
use crate::texts;

pub(crate) use longhaul_stores::shown;

/// Reads a store URL.
pub(crate) fn parse_url(url: &str) -> Result<StoreUrl, String> {
    url.parse().map_err(|error: longhaul_queue::Error| error.to_string())
}

/// Reads the URL of the file where pipelines keep their tables.
pub(crate) fn parse_data(url: &str) -> Result<PathBuf, String> {
    match parse_url(url)? {
        StoreUrl::Sqlite(path) => Ok(path),
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) | StoreUrl::Memory => {
            Err("expected sqlite://PATH".to_owned())
        }
    }
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

/// The server that takes the place of the store, ready to be asked.
pub(crate) fn remote(settings: &Settings) -> Result<Option<Server>> {
    let server = server(settings)?.map(|url| Server::new(url, environment(TOKEN_NAME)));
    Ok(server.transpose()?)
}

/// Opens the store of `settings` for a caller: the store itself, or the server that takes its place.
pub(crate) async fn open(settings: &Settings, missing: Missing) -> Result<Arc<dyn Store>> {
    match remote(settings)? {
        Some(server) => Ok(Arc::new(server)),
        None => Ok(open_here(settings, missing).await?),
    }
}

/// Opens the store of `settings` in this process, for those who run jobs on it.
pub(crate) async fn open_here(settings: &Settings, missing: Missing) -> Result<Arc<dyn EngineStore>> {
    let url = location(settings)?;
    if let StoreUrl::Redis(_) | StoreUrl::Postgres(_) = &url {
        // A mere question leaves no file beside the server.
        let store = connect(settings, &url).await.with_context(|| source(settings))?;
        check_whole(store.as_ref()).await.with_context(|| source(settings))?;
        return Ok(store);
    }
    Ok(open_with_data(settings, missing).await?.0)
}

/// Opens the store of `settings`, with the data store where pipelines keep their tables: the same file where the store is one,
/// and another beside a server. A store in memory has none.
pub(crate) async fn open_with_data(
    settings: &Settings,
    missing: Missing,
) -> Result<(Arc<dyn EngineStore>, Option<Db>)> {
    let url = location(settings)?;
    if let StoreUrl::Sqlite(path) = &url
        && missing == Missing::Refuse
    {
        refuse_missing(settings, path)?;
    }
    let options = SqliteOptions { create: missing == Missing::Create, ..options(settings)? };
    let opened = match &url {
        StoreUrl::Sqlite(path) => SqliteStore::open(path, options).map(|store| {
            let data = store.db().clone();
            (Arc::new(store) as Arc<dyn EngineStore>, Some(data))
        }),
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) => {
            let store = longhaul_stores::connect(&url, options).await.with_context(|| source(settings))?;
            let path = settings.read("store.data", parse_data)?;
            let data_options =
                SqliteOptions { create: missing == Missing::Create, ..self::options(settings)? };
            let data = Db::open(&path, data_options)
                .with_context(|| format!("the data beside the store, {}", path.display()))?;
            Ok((store, Some(data)))
        }
        StoreUrl::Memory => longhaul_stores::connect(&url, options).await.map(|store| (store, None)),
    };
    let (store, data) = opened.with_context(|| source(settings))?;
    check_whole(store.as_ref()).await.with_context(|| source(settings))?;
    Ok((store, data))
}

/// Opens another store than that of `settings`, made if need be, and otherwise as they say.
pub(crate) async fn connect(settings: &Settings, url: &StoreUrl) -> Result<Arc<dyn EngineStore>> {
    Ok(longhaul_stores::connect(url, options(settings)?).await?)
}

/// Where the store of `settings` is, for commands that open it themselves. Only callers go through a server.
pub(crate) fn location(settings: &Settings) -> Result<StoreUrl> {
    if let Some(url) = server(settings)? {
        let text = format!(
            "this command opens the store itself and does not work through the server at {}",
            shown(url.as_str())
        );
        return Err(Failure::new(Code::Usage, text)
            .hint("run it without --server on the machine that has the store")
            .into());
    }
    settings.read("store.url", parse_url)
}

/// The folder of the store, or of what is kept beside one that is a server, where other files stand too; `None` for one in memory.
pub(crate) fn folder(settings: &Settings) -> Result<Option<PathBuf>> {
    let path = match location(settings)? {
        StoreUrl::Sqlite(path) => path,
        StoreUrl::Redis(_) | StoreUrl::Postgres(_) => settings.read("store.data", parse_data)?,
        StoreUrl::Memory => return Ok(None),
    };
    Ok(Some(path.parent().unwrap_or(Path::new(".")).to_owned()))
}

/// How files are opened.
pub(crate) fn options(settings: &Settings) -> Result<SqliteOptions> {
    let level = |text: &str| text.parse::<Durability>().map_err(|error| error.to_string());
    let durability = settings.read("store.durability", level)?;
    Ok(SqliteOptions { durability, limits: limits(settings)?, ..SqliteOptions::default() })
}

/// What may be stored.
pub(crate) fn limits(settings: &Settings) -> Result<Limits> {
    Ok(Limits { value_bytes_max: settings.read("store.value_bytes_max", value_bytes_max)? })
}

/// The URL of the store of `settings`, as it may be shown.
pub(crate) fn shown_url(settings: &Settings) -> Result<String> {
    Ok(shown(&settings.get("store.url")?.value))
}

/// The store and where its name comes from, for errors.
pub(crate) fn source(settings: &Settings) -> String {
    settings.get("store.url").map_or_else(
        |error| error.to_string(),
        |setting| format!("the store {} (store.url from {})", shown(&setting.value), setting.origin),
    )
}

/// An error of the store that happened after it was opened, with the store's name.
pub(crate) fn named(error: anyhow::Error, settings: &Settings) -> anyhow::Error {
    let source = source(settings);
    if !is_outage(&error) || format!("{error:#}").contains(&source) || !matches!(server(settings), Ok(None)) {
        return error;
    }
    error.context(source)
}

fn refuse_missing(settings: &Settings, path: &Path) -> Result<()> {
    let what = match std::fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => "there is an empty file and no store",
        Ok(_) => return Ok(()),
        Err(_) => "there is no store",
    };
    let origin = &settings.get("store.url")?.origin;
    Err(Failure::new(
        Code::Unreachable,
        format!("{what} at {} (store.url from {origin})", path.display()),
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
            .hint("a server has backups of its own; longhaul move --to sqlite://PATH makes a file of what it holds")
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
    std::fs::metadata(path).map_err(|error| {
        texts::unreadable(&path.display().to_string(), &error)
            .hint("backups are made with: longhaul backup FILE")
    })?;
    let version = || -> rusqlite::Result<i64> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.query_row("SELECT value FROM lh_meta WHERE key = 'schema_version'", [], |row| row.get(0))
    };
    match version() {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(Failure::new(Code::Usage, format!("{} is not a longhaul store: {error}", path.display()))
                .hint("backups are made with: longhaul backup FILE")
                .into())
        }
    }
}
