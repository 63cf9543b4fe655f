//! What can go wrong between processes and the server of their store: connections that break, and a server that is gone for a
//! while and comes back with what it had on disk.

use std::net::{SocketAddr, ToSocketAddrs as _};

use anyhow::{Context as _, Result};
use longhaul_stores::temporary::Server;
use reqwest::Url;

use super::Crash;
use super::proxy::Proxy;
use crate::{Refusal, Scratch, servers};

/// Every so many faults a server of our own is restarted; the others are cuts.
const RESTART_EVERY: u64 = 5;

/// See the module.
pub(super) struct Faults {
    proxy: Option<Proxy>,
    server: Option<Server>,
    left: u64,
    /// Times that all connections were cut.
    pub(super) cuts: u64,
    /// Times that the server was ended as by a crash, and started again.
    pub(super) restarts: u64,
}

impl Faults {
    /// Puts a proxy between the scratch's processes and their store, if there are to be faults.
    pub(super) async fn prepare(args: &Crash, scratch: &mut Scratch, server: Option<Server>) -> Result<Self> {
        let mut faults = Self { proxy: None, server, left: u64::from(args.faults), cuts: 0, restarts: 0 };
        if faults.left == 0 {
            return Ok(faults);
        }
        if scratch.sqlite_file().is_some() {
            let text = "--faults are those of a server, and a SQLite file has none";
            let hint = "name a server with --store URL, or have one started: --own redis, --own postgres";
            return Err(Refusal::usage(text, hint).into());
        }
        let mut url = Url::parse(scratch.url()).context("the store's URL")?;
        let proxy = Proxy::start(address(&url)?).await?;
        let led = url.set_host(Some("127.0.0.1")).is_ok() && url.set_port(Some(proxy.port())).is_ok();
        anyhow::ensure!(led, "the URL {url} takes no host and port");
        scratch.lead_to(url.into());
        faults.proxy = Some(proxy);
        Ok(faults)
    }

    /// How many are still to come.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Cuts all connections, or restarts the server.
    pub(super) async fn strike(&mut self) -> Result<()> {
        let Some(proxy) = &self.proxy else { return Ok(()) };
        self.left = self.left.saturating_sub(1);
        match &mut self.server {
            Some(server) if self.left.is_multiple_of(RESTART_EVERY) => {
                servers::restart(server)?;
                self.restarts += 1;
            }
            _ => {
                proxy.cut();
                self.cuts += 1;
            }
        }
        Ok(())
    }
}

fn address(url: &Url) -> Result<SocketAddr> {
    let host = url.host_str().with_context(|| format!("{url} names no host"))?;
    let usual = if url.scheme().starts_with("redis") { 6379 } else { 5432 };
    let found = (host, url.port().unwrap_or(usual)).to_socket_addrs();
    found
        .with_context(|| format!("looking for {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))
}
