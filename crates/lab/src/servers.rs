//! Temporary servers as the instruments want them.

use anyhow::{Context as _, Result};
use longhaul_stores::temporary::{Kind, Server};

use crate::Refusal;

/// What a server is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be killed: what it has answered to is on disk.
    Faults,
    /// To be measured, set up as one that works hard is: a Redis that writes to its disk once a second, and a Postgres with durable
    /// commits and more than the few megabytes that it takes by default.
    Speed,
}

/// Starts a server, if one is asked for.
pub(crate) async fn start(own: Option<Kind>, purpose: Purpose) -> Result<Option<Server>> {
    let Some(kind) = own else { return Ok(None) };
    let settings: &[&str] = match (kind, purpose) {
        (_, Purpose::Faults) => &[],
        (Kind::Redis, Purpose::Speed) => &["--appendfsync", "everysec"],
        (Kind::Postgres, Purpose::Speed) => &["-c", "shared_buffers=512MB", "-c", "max_wal_size=4GB"],
    };
    let started = tokio::task::spawn_blocking(move || Server::start(kind, settings)).await?;
    Ok(Some(started.map_err(|error| match kind {
        _ if error.kind() != std::io::ErrorKind::NotFound => anyhow::Error::from(error),
        Kind::Redis => missing("redis-server", "redis-server", error),
        Kind::Postgres => missing("Postgres", "postgresql", error),
    })?))
}

fn missing(program: &'static str, package: &'static str, error: std::io::Error) -> anyhow::Error {
    Refusal::NotInstalled { program, package, error }.into()
}

/// Ends a server as a crash would, and starts it again on what it left on disk.
pub(crate) fn restart(server: &mut Server) -> Result<()> {
    tokio::task::block_in_place(|| server.crash().and_then(|()| server.restart()))
        .context("restarting the server")
}
