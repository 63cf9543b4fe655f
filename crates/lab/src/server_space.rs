//! A private namespace on a server, for commands that must not touch other jobs there and leave nothing behind.

use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_stores::StoreUrl;
use reqwest::Url;
use tokio_postgres::NoTls;

/// Parameters of a store's URL that the server's own clients do not know.
const STORE_PARAMETERS: [&str; 5] = ["name", "allow_eviction", "ca", "schema", "connections"];
/// How often, and how many times, a server is asked whether it has freed what was deleted.
const FREED_LOOK_EVERY: Duration = Duration::from_millis(20);
const FREED_LOOKS_MAX: usize = 500;

/// A store under a name that is unique on its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerSpace {
    /// As `--store` takes it.
    pub(crate) url: String,
    name: String,
}

impl ServerSpace {
    /// A new one on the server of this URL; `None` if it is not a server. `word` says whose it is.
    pub(crate) fn draw(url: &str, word: &str) -> Result<Option<Self>> {
        let parameter = match url.parse::<StoreUrl>()? {
            StoreUrl::Redis(_) => "name",
            StoreUrl::Postgres(_) => "schema",
            StoreUrl::Sqlite(_) | StoreUrl::Memory => return Ok(None),
        };
        let name = format!("{word}_{:016x}", fastrand::u64(..));
        let url = with_parameter(&Url::parse(url).context("the store's URL")?, parameter, &name);
        Ok(Some(Self { url, name }))
    }

    /// Removes it with all that is in it.
    pub(crate) async fn discard(&self) -> Result<()> {
        match self.url.parse::<StoreUrl>()? {
            StoreUrl::Redis(_) => discard_keys(&self.url, &self.name).await,
            StoreUrl::Postgres(_) => discard_schema(&self.url, &self.name).await,
            StoreUrl::Sqlite(_) | StoreUrl::Memory => Ok(()),
        }
    }
}

/// The URL with a parameter in the place of one of that name.
pub(crate) fn with_parameter(url: &Url, name: &str, value: &str) -> String {
    let mut url = url.clone();
    let others: Vec<(String, String)> =
        url.query_pairs().into_owned().filter(|(other, _)| other != name).collect();
    url.query_pairs_mut().clear().extend_pairs(others).append_pair(name, value);
    url.into()
}

/// Without the parameters that only a store understands.
pub(crate) fn bare_url(url: &str) -> Result<String> {
    let mut url = Url::parse(url).context("the store's URL")?;
    let others: Vec<(String, String)> = url
        .query_pairs()
        .into_owned()
        .filter(|(name, _)| !STORE_PARAMETERS.contains(&name.as_str()))
        .collect();
    url.set_query(None);
    if !others.is_empty() {
        url.query_pairs_mut().extend_pairs(others);
    }
    Ok(url.into())
}

/// How all keys of a store of this name begin.
pub(crate) fn key_prefix(name: &str) -> String {
    format!("{{longhaul:{name}}}")
}

/// A plain connection to a Postgres server.
pub(crate) async fn postgres(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(&bare_url(url)?, NoTls).await?;
    // It ends with its client; if it ends earlier, the next call gets the error.
    tokio::spawn(connection);
    Ok(client)
}

/// Removes a schema with all that is in it.
pub(crate) async fn discard_schema(url: &str, name: &str) -> Result<()> {
    let sql = format!("DROP SCHEMA IF EXISTS {name} CASCADE");
    Ok(postgres(url).await?.batch_execute(&sql).await?)
}

/// Removes all keys of a store of this name.
pub(crate) async fn discard_keys(url: &str, name: &str) -> Result<()> {
    let client = redis::Client::open(bare_url(url)?)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let pattern = format!("{}*", key_prefix(name));
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await?;
        if !keys.is_empty() {
            redis::cmd("UNLINK").arg(keys).query_async::<()>(&mut connection).await?;
        }
        if next == 0 {
            break;
        }
        cursor = next;
    }
    // Large keys are freed in the background, which would count as memory of whatever is measured next.
    for _ in 0..FREED_LOOKS_MAX {
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await?;
        if info.contains("lazyfree_pending_objects:0") {
            break;
        }
        tokio::time::sleep(FREED_LOOK_EVERY).await;
    }
    Ok(())
}
