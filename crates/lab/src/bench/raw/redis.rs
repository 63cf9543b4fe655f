//! Raw Redis: a stream with a consumer group.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline};
use tokio::task::JoinSet;

use super::super::per_second;
use super::super::pickup::GAP;
use super::{BULK, Raw};

const CLAIM: usize = 100;
/// The longest that a reader is blocked, in milliseconds.
const BLOCK_MS: usize = 10_000;

/// A bare queue.
pub(in super::super) struct Redis {
    client: Client,
    connection: MultiplexedConnection,
    /// The stream, and the channel of notices.
    stream: String,
}

impl Redis {
    pub(in super::super) async fn open(client: &Client, prefix: &str) -> Result<Self> {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let stream = format!("{prefix}:raw");
        let group = ["CREATE", &stream, "g", "0", "MKSTREAM"];
        redis::cmd("XGROUP").arg(&group).query_async::<()>(&mut connection).await?;
        Ok(Self { client: client.clone(), connection, stream })
    }

    fn add<'p>(&self, pipe: &'p mut Pipeline, payload: &str) -> &'p mut Pipeline {
        pipe.cmd("XADD").arg(&[&self.stream, "*", "p", payload]).ignore()
    }

    /// Reads up to so many entries; their ids.
    async fn read(
        &self,
        connection: &mut MultiplexedConnection,
        count: usize,
        block: bool,
    ) -> Result<Vec<String>> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg(&["GROUP", "g", "w", "COUNT"]).arg(count);
        if block {
            read.arg("BLOCK").arg(BLOCK_MS);
        }
        type Entries = Vec<(String, Vec<(String, String)>)>;
        let streams: Option<Vec<(String, Entries)>> =
            read.arg(&["STREAMS", &self.stream, ">"]).query_async(connection).await?;
        Ok(streams.into_iter().flatten().flat_map(|(_, entries)| entries).map(|(id, _)| id).collect())
    }

    async fn delete(&self, connection: &mut MultiplexedConnection, ids: &[String]) -> Result<()> {
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg(&[&self.stream, "g"]).arg(ids).ignore();
        pipe.cmd("XDEL").arg(&self.stream).arg(ids).ignore();
        Ok(pipe.query_async(connection).await?)
    }

    /// Takes the one entry that is there, or comes; when that was.
    async fn take(
        &self,
        connection: &mut MultiplexedConnection,
        block: bool,
    ) -> Result<(Instant, Vec<String>)> {
        let ids = self.read(connection, 1, block).await?;
        let at = Instant::now();
        ensure!(!ids.is_empty(), "a raw reader of Redis found nothing");
        Ok((at, ids))
    }
}

#[async_trait]
impl Raw for Redis {
    async fn bulk(&mut self, jobs: usize, payload: &str) -> Result<f64> {
        let started = Instant::now();
        for first in (0..jobs).step_by(BULK) {
            let mut pipe = redis::pipe();
            for _ in first..jobs.min(first + BULK) {
                self.add(&mut pipe, payload);
            }
            pipe.query_async::<()>(&mut self.connection).await?;
        }
        Ok(per_second(jobs, started.elapsed().as_secs_f64()))
    }

    async fn singles(&mut self, callers: usize, jobs: usize, payload: &str) -> Result<f64> {
        let mut add = redis::cmd("XADD");
        add.arg(&[&format!("{}:single", self.stream), "*", "p", payload]);
        let started = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..callers {
            let (mut connection, add) = (self.connection.clone(), add.clone());
            all.spawn(async move {
                for _ in 0..jobs / callers {
                    add.query_async::<()>(&mut connection).await?;
                }
                Ok::<_, redis::RedisError>(())
            });
        }
        while let Some(ended) = all.join_next().await {
            ended??;
        }
        Ok(per_second(jobs / callers * callers, started.elapsed().as_secs_f64()))
    }

    async fn drain(&mut self, jobs: usize) -> Result<f64> {
        let mut connection = self.connection.clone();
        let started = Instant::now();
        let mut drained = 0;
        while drained < jobs {
            let ids = self.read(&mut connection, CLAIM, false).await?;
            if ids.is_empty() {
                break;
            }
            self.delete(&mut connection, &ids).await?;
            drained += ids.len();
        }
        Ok(per_second(drained, started.elapsed().as_secs_f64()))
    }

    async fn pickups(&mut self, jobs: usize) -> Result<Vec<(&'static str, Vec<f64>)>> {
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut reader = self.client.get_multiplexed_async_connection_with_config(&patient).await?;
        let mut subscription = self.client.get_async_pubsub().await?;
        subscription.subscribe(&self.stream).await?;
        let mut heard = subscription.into_on_message();
        let (mut told, mut blocked) = (Vec::new(), Vec::new());
        for _ in 0..jobs {
            tokio::time::sleep(GAP).await;
            let mut add = redis::pipe();
            self.add(&mut add, "0").cmd("PUBLISH").arg(&[&self.stream, "1"]).ignore();
            let (started, mut producer) = (Instant::now(), self.connection.clone());
            let (added, taken) = tokio::join!(add.query_async::<()>(&mut producer), async {
                heard.next().await.context("the subscription ended")?;
                self.take(&mut reader, false).await
            });
            added?;
            told.push((started, taken?));

            let mut add = redis::pipe();
            self.add(&mut add, "0");
            let (taken, added) = tokio::join!(self.take(&mut reader, true), async {
                tokio::time::sleep(GAP).await;
                let started = Instant::now();
                add.query_async::<()>(&mut producer).await.map(|()| started)
            });
            blocked.push((added?, taken?));
        }
        let ids: Vec<String> = told.iter().chain(&blocked).flat_map(|(_, (_, ids))| ids.clone()).collect();
        self.delete(&mut reader, &ids).await?;
        let waits = |all: Vec<(Instant, (Instant, Vec<String>))>| {
            all.into_iter().map(|(from, (to, _))| (to - from).as_secs_f64() * 1e3).collect()
        };
        Ok(vec![("notice and read", waits(told)), ("blocked read", waits(blocked))])
    }
}
