//! Wake by notification, be correct by polling. One connection of a store listens to the others. What this one has
//! changed is told after the commit, on the same trip to the server: a NOTIFY inside the transaction would make all
//! transactions commit one after another, because Postgres orders notifications under one lock. In a rush the listening
//! connection tells of many commits at once.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Connection, Socket};
use tracing::{debug, warn};

use super::pool::{Door, open};
use super::tls::TlsStream;

/// Least time between two notifications of one store.
const NOTIFY_GAP: Duration = Duration::from_millis(2);
/// Wait before a broken connection is made anew: doubled from the first up to the second.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Listens until it is dropped.
pub(super) struct Listener {
    changes: watch::Sender<u64>,
    wanted: Arc<Notify>,
    notify: String,
    last_at: Mutex<Option<Instant>>,
    task: AbortHandle,
}

impl Listener {
    /// Begins to listen. What others change after this has returned is heard.
    pub(super) async fn start(door: Door, channel: String, io: &Handle) -> Self {
        let changes = watch::Sender::new(0);
        let wanted = Arc::new(Notify::new());
        let (begun, has_begun) = oneshot::channel();
        let name = format!("{:016x}", fastrand::u64(..));
        let notify = format!("NOTIFY {channel}, '{name}'");
        let mut ear = Ear {
            begun: Some(begun),
            door,
            channel,
            name,
            notify: notify.clone(),
            changes: changes.clone(),
            wanted: Arc::clone(&wanted),
        };
        let task = io.spawn(async move { ear.run().await }).abort_handle();
        // Without an answer the connection broke at once, and is being made anew.
        let _ = has_begun.await;
        Self { changes, wanted, notify, last_at: Mutex::new(None), task }
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What a commit should send along to tell other stores; `None` when one did so a moment ago.
    pub(super) fn notice(&self) -> Option<&str> {
        let mut last_at = self.last_at.lock().unwrap_or_else(PoisonError::into_inner);
        if last_at.is_some_and(|last_at| last_at.elapsed() < NOTIFY_GAP) {
            return None;
        }
        *last_at = Some(Instant::now());
        Some(&self.notify)
    }

    /// This store has changed something: those who watch it here know at once, others soon.
    pub(super) fn tell(&self, notified: bool) {
        bump(&self.changes);
        if !notified {
            self.wanted.notify_one();
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn bump(changes: &watch::Sender<u64>) {
    changes.send_modify(|changes| *changes = changes.wrapping_add(1));
}

struct Ear {
    /// Tells once that the first attempt was made.
    begun: Option<oneshot::Sender<()>>,
    door: Door,
    channel: String,
    /// Marks this store's own notifications, of which it need not be told.
    name: String,
    notify: String,
    changes: watch::Sender<u64>,
    wanted: Arc<Notify>,
}

impl Ear {
    async fn run(&mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            match open(&self.door).await {
                Ok((client, connection)) => {
                    if self.listen(client, connection).await {
                        backoff = BACKOFF_MIN;
                    }
                    warn!("the connection that listens to other processes broke; it is made anew");
                }
                Err(error) => debug!(%error, "no connection to listen on"),
            }
            self.begun.take();
            // Whatever happened meanwhile was not heard.
            bump(&self.changes);
            tokio::time::sleep(backoff.mul_f64(0.5 + fastrand::f64())).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Listens and tells until the connection breaks; says whether it was ever good.
    async fn listen(&mut self, client: Client, connection: Connection<Socket, TlsStream<Socket>>) -> bool {
        let first = self.begun.take();
        let hear = self.hear(connection);
        let speak = async {
            if client.batch_execute(&format!("LISTEN {}", self.channel)).await.is_err() {
                return false;
            }
            match first {
                Some(first) => drop(first),
                None => bump(&self.changes),
            }
            loop {
                self.wanted.notified().await;
                tokio::time::sleep(NOTIFY_GAP).await;
                if client.batch_execute(&self.notify).await.is_err() {
                    // It goes out with the next connection.
                    self.wanted.notify_one();
                    return true;
                }
            }
        };
        tokio::select! {
            () = hear => true,
            good = speak => good,
        }
    }

    async fn hear(&self, mut connection: Connection<Socket, TlsStream<Socket>>) {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(heard))) if heard.payload() != self.name => {
                    bump(&self.changes);
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            }
        }
    }
}
