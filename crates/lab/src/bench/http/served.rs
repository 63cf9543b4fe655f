//! The server under measure: this program as another process.

use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::bench::Bench;
use crate::bench::child::memory_mb;
use crate::bench::place::{Level, Place};

/// Whether it runs jobs as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workers {
    /// It does.
    Some,
    /// It only serves.
    None,
}

/// `longhaul up` on a free port. It is killed when this goes: its store goes too.
pub(super) struct Served {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Served {
    /// Starts it on a store, files at this level, and waits until it listens.
    pub(super) async fn start(
        bench: &Bench<'_>,
        place: &Place,
        level: Level,
        workers: Workers,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["up", "--port", "0", "--host", "127.0.0.1", "--quiet", "--output", "text"]);
        if workers == Workers::None {
            command.arg("--no-workers");
        }
        // A benchmark that is killed takes its server along.
        (bench.host.die_with_parent)(&mut command);
        let mut child = command
            // By its environment: everybody can read the arguments of a process.
            .env("LONGHAUL_STORE__URL", &place.url)
            .env(
                "LONGHAUL_STORE__DATA",
                format!("sqlite://{}", bench.folder.path().join("data.db").display()),
            )
            .env("LONGHAUL_STORE__DURABILITY", if level == Level::Relaxed { "relaxed" } else { "fsync" })
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a server")?;
        let mut lines = BufReader::new(child.stdout.take().context("a server without stdout")?).lines();
        let url = lines.next_line().await?.context("a server that did not start")?;
        let address = url.trim_start_matches("http://").parse();
        let address = address.with_context(|| format!("a server that said {url:?}"))?;
        Ok(Self { child, address })
    }

    /// Its memory, by Linux' name for it.
    pub(super) fn memory_mb(&self, field: &str) -> f64 {
        self.child.id().map_or(0.0, |id| memory_mb(&id.to_string(), field))
    }
}
