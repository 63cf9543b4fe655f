//! Posts spans in batches from a task of its own. It never holds up the work: its queue is bounded, what does not fit or
//! cannot be delivered is dropped and counted, and the end waits for a short while only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use longhaul_llm::clock::{SystemWallClock, WallClock as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::otlp::{self, Anchor};
use super::spans::Closed;
use crate::config::{OTLP_URL, SERVICE_NAME, Settings};

/// Spans that wait to be posted.
const QUEUE_MAX: usize = 4096;
/// Spans in one post.
const BATCH_MAX: usize = 512;
/// How long a span may wait for others to go with it.
const GATHER: Duration = Duration::from_secs(1);
/// One post.
const POST_LIMIT: Duration = Duration::from_secs(10);
/// Waits after a post that failed: the first, and what they grow to.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long the end of the program may wait.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How often a long run says that spans are lost.
const REPORT_EVERY: Duration = Duration::from_secs(300);
/// The path that the standard adds to a collector's address.
const PATH: &str = "/v1/traces";

/// Where spans go, and under which name.
pub(super) struct Target {
    url: String,
    service_name: String,
}

impl Target {
    /// As settings say; `None` where the export is off.
    pub(super) fn of(settings: &Settings) -> Result<Option<Self>> {
        let url = settings.get(OTLP_URL)?.value.trim_end_matches('/').to_owned();
        let service_name = settings.get(SERVICE_NAME)?.value.clone();
        let url = if url.ends_with(PATH) { url } else { format!("{url}{PATH}") };
        Ok((url != PATH).then_some(Self { url, service_name }))
    }
}

/// What became of spans.
#[derive(Default)]
struct Counts {
    closed: AtomicU64,
    exported: AtomicU64,
    dropped: AtomicU64,
    reported: AtomicU64,
    /// Why a post failed last.
    problem: Mutex<Option<String>>,
}

impl Counts {
    /// Says once how many spans are lost, of which nothing was said before.
    fn report(&self, url: &str, lost: u64) {
        let dropped = lost.saturating_sub(self.reported.swap(lost, Relaxed));
        if dropped == 0 {
            return;
        }
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reason = problem.unwrap_or_else(|| "the receiver is too slow".to_owned());
        let exported = self.exported.load(Relaxed);
        warn!(dropped, exported, url, reason, "{dropped} spans could not be exported and were dropped");
    }
}

/// Where spans that are over are handed in.
pub(super) struct Exporter {
    sender: mpsc::Sender<Closed>,
    counts: Arc<Counts>,
}

impl Exporter {
    /// Never waits.
    pub(super) fn send(&self, span: Closed) {
        self.counts.closed.fetch_add(1, Relaxed);
        if self.sender.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The task that posts, and what ends it.
pub(super) struct Exporting {
    task: Option<Posting>,
    handle: Option<JoinHandle<()>>,
    ending: watch::Sender<bool>,
    counts: Arc<Counts>,
    url: String,
}

/// Makes both ends.
pub(super) fn prepare(target: Target) -> Result<(Arc<Exporter>, Exporting)> {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    let (ending, told) = watch::channel(false);
    let counts = Arc::new(Counts::default());
    let unix_nanos = u64::try_from(SystemWallClock.now_ms()).unwrap_or_default() * 1_000_000;
    let client =
        longhaul_llm::plain_client(&target.url, POST_LIMIT).context("preparing the export of spans")?;
    let url = target.url.clone();
    let post = move |body: Vec<u8>| {
        let request = client.post(&url).header("content-type", "application/json").body(body);
        async move {
            let answer =
                request.send().await.map_err(|error| Refused { text: chain(&error), again: true })?;
            let status = answer.status();
            let again = matches!(status.as_u16(), 429 | 502 | 503 | 504);
            if status.is_success() { Ok(()) } else { Err(Refused { text: format!("HTTP {status}"), again }) }
        }
    };
    let anchor = Anchor { at: Instant::now(), unix_nanos };
    let url = target.url.clone();
    let outbox = Outbox {
        receiver,
        ending: told,
        counts: Arc::clone(&counts),
        target,
        anchor,
        reported: Instant::now(),
    };
    let task: Posting = Box::pin(outbox.run(post));
    let exporting = Exporting { task: Some(task), handle: None, ending, counts: Arc::clone(&counts), url };
    Ok((Arc::new(Exporter { sender, counts }), exporting))
}

type Posting = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Exporting {
    pub(super) fn start(&mut self) {
        self.handle = self.task.take().map(tokio::spawn);
    }

    /// Posts what is there, as far as it goes within [`FLUSH_MAX`], and says what was lost.
    pub(super) async fn finish(mut self) {
        self.ending.send_replace(true);
        if let Some(handle) = &mut self.handle
            && timeout(FLUSH_MAX, &mut *handle).await.is_err()
        {
            handle.abort();
        }
        let lost = self.counts.closed.load(Relaxed) - self.counts.exported.load(Relaxed);
        self.counts.report(&self.url, lost);
    }
}

/// A post that failed, and whether it may succeed later.
struct Refused {
    text: String,
    again: bool,
}

struct Outbox {
    receiver: mpsc::Receiver<Closed>,
    ending: watch::Receiver<bool>,
    counts: Arc<Counts>,
    target: Target,
    anchor: Anchor,
    /// When lost spans were last spoken of.
    reported: Instant,
}

impl Outbox {
    async fn run<F>(mut self, post: impl Fn(Vec<u8>) -> F + Send)
    where
        F: Future<Output = Result<(), Refused>> + Send,
    {
        loop {
            let batch = self.gather().await;
            if batch.is_empty() {
                return;
            }
            let body = otlp::body(&batch, &self.target.service_name, self.anchor);
            let count = batch.len() as u64;
            let delivered = self.deliver(&post, body).await;
            let tally = if delivered { &self.counts.exported } else { &self.counts.dropped };
            tally.fetch_add(count, Relaxed);
            self.report_now_and_then();
        }
    }

    /// The next batch; empty when there will be none.
    async fn gather(&mut self) -> Vec<Closed> {
        let mut batch = Vec::new();
        while batch.is_empty() {
            tokio::select! {
                biased;
                count = self.receiver.recv_many(&mut batch, BATCH_MAX) => if count == 0 { return batch },
                () = told(&mut self.ending), if !self.receiver.is_closed() => self.receiver.close(),
            }
        }
        let full = async {
            while batch.len() < BATCH_MAX {
                let room = BATCH_MAX - batch.len();
                tokio::select! {
                    biased;
                    count = self.receiver.recv_many(&mut batch, room) => if count == 0 { return },
                    () = told(&mut self.ending), if !self.receiver.is_closed() => self.receiver.close(),
                }
            }
        };
        // Time is up: what there is goes.
        let _ = timeout(GATHER, full).await;
        batch
    }

    /// Posts until it is taken, is refused for good, or the program ends. Meanwhile others wait in the queue.
    async fn deliver<F>(&mut self, post: &impl Fn(Vec<u8>) -> F, body: Vec<u8>) -> bool
    where
        F: Future<Output = Result<(), Refused>> + Send,
    {
        let mut wait = RETRY_FIRST;
        loop {
            let Err(Refused { text, again }) = post(body.clone()).await else { return true };
            *self.counts.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            if !again || *self.ending.borrow() {
                return false;
            }
            self.report_now_and_then();
            tokio::select! {
                () = sleep(wait) => {}
                () = told(&mut self.ending) => {}
            }
            wait = (wait * 2).min(RETRY_MAX);
        }
    }

    fn report_now_and_then(&mut self) {
        if self.reported.elapsed() >= REPORT_EVERY {
            self.reported = Instant::now();
            self.counts.report(&self.target.url, self.counts.dropped.load(Relaxed));
        }
    }
}

/// Returns when the program ends; its end cannot come without a word.
async fn told(ending: &mut watch::Receiver<bool>) {
    let _ = ending.wait_for(|ending| *ending).await;
}

/// An error with its causes; the outermost alone says little.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// An address as a setting may have it. Names and passwords in it would be shown with the settings.
pub(crate) fn check_url(text: &str) -> Result<(), String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let host = rest.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || matches!(c, '@' | '?' | '#');
    match (text, host) {
        ("", _) => Ok(()),
        (_, "") => {
            Err("expected the http or https address of a collector, such as http://localhost:4318".to_owned())
        }
        _ if text.contains(odd) => {
            Err("expected an address without user, query or spaces; a collector can add headers".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
