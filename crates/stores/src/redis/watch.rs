//! Hears of changes: one connection of its own that listens to the channel on which every writing script says so. It is
//! made again when it breaks, and whatever was missed meanwhile counts as a change.

use std::time::Duration;

use futures_util::StreamExt;
use longhaul_queue::{Error, Result};
use redis::aio::{PubSub, PubSubSink};
use redis::{Client, ErrorKind, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::warn;

use super::link::{CONNECT_TIMEOUT, failed};

/// How often a silent connection is asked whether anybody is there: a peer that vanished says nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Listens until it is dropped.
pub(super) struct Watcher {
    changes: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Starts to listen; the first subscription is made before this returns, so that no change after it is missed.
    pub(super) async fn start(client: Client, channel: String, io: &Handle) -> Result<Self> {
        let changes = watch::Sender::new(0);
        let (ready, subscribed) = oneshot::channel();
        let told = changes.clone();
        let task = io.spawn(async move {
            let subscription = match subscribe(&client, &channel).await {
                Ok(subscription) => subscription,
                Err(error) => return drop(ready.send(Err(failed(&error)))),
            };
            if ready.send(Ok(())).is_ok() {
                listen(client, channel, subscription, told).await;
            }
        });
        let gone = |_| Error::Unavailable("the connection to Redis was closed with its store".to_owned());
        subscribed.await.map_err(gone)??;
        Ok(Self { changes, task })
    }

    pub(super) fn receiver(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn subscribe(client: &Client, channel: &str) -> RedisResult<PubSub> {
    let subscribing = async {
        let mut subscription = client.get_async_pubsub().await?;
        subscription.subscribe(channel).await?;
        Ok(subscription)
    };
    let late = |_| RedisError::from((ErrorKind::Io, "no answer in time"));
    tokio::time::timeout(CONNECT_TIMEOUT, subscribing).await.map_err(late)?
}

async fn listen(client: Client, channel: String, mut subscription: PubSub, changes: watch::Sender<u64>) {
    loop {
        let (mut sink, mut messages) = subscription.split();
        loop {
            match tokio::time::timeout(KEEP_ALIVE, messages.next()).await {
                Ok(Some(_)) => changes.send_modify(|number| *number += 1),
                Ok(None) => break,
                Err(_) => {
                    if !is_alive(&mut sink, &channel).await {
                        break;
                    }
                }
            }
        }
        subscription = again(&client, &channel).await;
        changes.send_modify(|number| *number += 1);
    }
}

/// To subscribe twice changes nothing, and is answered.
async fn is_alive(sink: &mut PubSubSink, channel: &str) -> bool {
    matches!(tokio::time::timeout(CONNECT_TIMEOUT, sink.subscribe(channel)).await, Ok(Ok(())))
}

/// Subscribes again, however long it takes: without it, everybody still polls.
async fn again(client: &Client, channel: &str) -> PubSub {
    let mut delay = DELAY_MIN;
    loop {
        match subscribe(client, channel).await {
            Ok(subscription) => return subscription,
            Err(error) => {
                warn!(%error, retry_in_ms = delay.as_millis(), "cannot listen to Redis for changes");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(DELAY_MAX);
            }
        }
    }
}
