//! Asking the server for its time. Functions get the time as an argument; this is where a queue has it from.

use std::sync::Arc;
use std::time::Instant;

use longhaul_queue::{Result, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::debug;

use super::link::Link;
use crate::server_clock::{ASK_EVERY, FIRST_READINGS, Reading, ServerClock};

/// The server's clock, asked again every minute until it is dropped.
pub(super) struct ServerTime {
    pub(super) clock: Arc<ServerClock>,
    asking: JoinHandle<()>,
}

impl ServerTime {
    /// A clock that goes by the server of this link.
    pub(super) async fn start(link: &Arc<Link>, io: &Handle) -> Result<Self> {
        let first = read(link).await?;
        let mut others = Vec::new();
        while others.len() + 1 < FIRST_READINGS {
            others.push(read(link).await?);
        }
        let clock = Arc::new(ServerClock::new(first, &others));
        let asking = io.spawn(keep(Arc::clone(link), Arc::clone(&clock)));
        Ok(Self { clock, asking })
    }
}

impl Drop for ServerTime {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

async fn keep(link: Arc<Link>, clock: Arc<ServerClock>) {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        match read(&link).await {
            Ok(reading) => clock.hear(reading),
            Err(error) => debug!(%error, "the server's time is not known better; asking again later"),
        }
    }
}

async fn read(link: &Link) -> Result<Reading> {
    let asked = Instant::now();
    let (seconds, micros): (i64, i64) = link.ask(&redis::cmd("TIME")).await?;
    let server = Timestamp::from_millis(seconds.saturating_mul(1_000).saturating_add(micros / 1_000));
    Ok(Reading { server, asked, answered: Instant::now() })
}
