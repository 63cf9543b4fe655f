//! Asking the server for its time.

use std::sync::Arc;
use std::time::Instant;

use longhaul_queue::{Result, Timestamp};
use tokio_postgres::Client;
use tracing::debug;

use super::db::gone;
use super::error::from_sql;
use super::pool::Pool;
use crate::server_clock::{ASK_EVERY, FIRST_READINGS, Reading, ServerClock};

/// A clock that goes by the server of this connection.
pub(super) async fn measure(client: &Client) -> Result<Arc<ServerClock>> {
    let first = read(client).await?;
    let mut others = Vec::new();
    while others.len() + 1 < FIRST_READINGS {
        others.push(read(client).await?);
    }
    Ok(Arc::new(ServerClock::new(first, &others)))
}

/// Asks again every minute, as long as the pool's runtime lives.
pub(super) fn keep(pool: &Pool, clock: &Arc<ServerClock>) {
    let (asking, clock) = (pool.clone(), Arc::clone(clock));
    pool.io().spawn(async move {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            match ask(&asking).await {
                Ok(reading) => clock.hear(reading),
                Err(error) => debug!(%error, "the server's time is not known better; asking again later"),
            }
        }
    });
}

async fn ask(pool: &Pool) -> Result<Reading> {
    let mut pooled = pool.get().await?;
    let reading = read(&pooled.session().ok_or_else(gone)?.client).await?;
    pooled.rests();
    Ok(reading)
}

async fn read(client: &Client) -> Result<Reading> {
    let asked = Instant::now();
    // By the simple protocol: preparing it would be a second trip.
    let sql = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let answer = client.simple_query(sql).await.map_err(|error| from_sql(&error))?;
    let answered = Instant::now();
    let millis = answer.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    });
    let server = millis.map(Timestamp::from_millis).ok_or_else(gone)?;
    Ok(Reading { server, asked, answered })
}
