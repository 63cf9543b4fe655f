//! One of the processes that share a store.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::{CancelReply, Filter, ListRequest};
use longhaul_queue::{
    JobContext, JobId, Json, NewJob, Outcome, ProcessId, Queue, Shutdown, Worker, WorkerOptions,
};
use serde::{Deserialize, Serialize};

use super::Shared;
use crate::Host;

/// A caller waits with more when so many of its jobs are not consumed yet.
const OPEN_MAX: usize = 2_000;
/// For the rest to be run by whoever gets it.
const REST_WAIT_MAX: Duration = Duration::from_secs(60);
/// Between two looks at the rest.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Errors that are told.
const ERRORS_MAX: usize = 20;

/// The process.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Share {
    /// For so long.
    pub(super) seconds: u64,
    /// Which of the processes.
    pub(super) number: u32,
}

impl Share {
    pub(in super::super) async fn run(&self, host: &Host) -> Result<()> {
        let engine = super::super::engine(host).await?;
        let mut worker =
            Worker::new(engine.clone(), WorkerOptions { concurrency: 4, ..WorkerOptions::default() });
        worker.handle("echo", |_: JobContext, payload: Json| async move { Outcome::Done(payload) });
        let shutdown = Shutdown::new();
        let working = tokio::spawn(worker.run(shutdown.clone()));
        let process = ProcessId::new(format!("share-{}", self.number));
        let queue = engine.queue().clone();
        let mut caller = Caller { queue, process, open: HashSet::new(), shared: Shared::default() };
        let until = Instant::now() + Duration::from_secs(self.seconds);
        while Instant::now() < until {
            caller.call().await;
        }
        caller.finish().await;
        shutdown.drain();
        if let Err(error) = working.await? {
            caller.shared.errors.push(format!("the worker: {error}"));
        }
        println!("{}", serde_json::to_string(&caller.shared)?);
        Ok(())
    }
}

struct Caller {
    queue: Queue,
    process: ProcessId,
    /// Enqueued and not yet consumed.
    open: HashSet<JobId>,
    shared: Shared,
}

impl Caller {
    /// One call of a kind drawn at random. Errors are kept, and work goes on.
    async fn call(&mut self) {
        let started = Instant::now();
        let (name, result) = match fastrand::u8(0..10) {
            0..3 if self.open.len() < OPEN_MAX => ("enqueue", self.enqueue(1).await),
            3 if self.open.len() < OPEN_MAX => ("enqueue many", self.enqueue(fastrand::usize(10..100)).await),
            4 => ("cancel", self.cancel().await),
            5 => ("list", self.list().await),
            6 => ("show", self.show().await),
            7 => ("counts", self.counts().await),
            _ => ("results and consume", self.consume().await),
        };
        self.shared.calls += 1;
        let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.shared.slowest_ms = self.shared.slowest_ms.max(elapsed);
        if let Err(error) = result
            && self.shared.errors.len() < ERRORS_MAX
        {
            self.shared.errors.push(format!("{name}: {error}"));
        }
    }

    async fn enqueue(&mut self, count: usize) -> longhaul_queue::Result<()> {
        let job = |_| {
            let echo = NewJob::new("echo", Json::trusted("{\"hello\":\"world\"}"));
            echo.process(self.process.clone()).priority(fastrand::i32(0..3))
        };
        let enqueued = self.queue.enqueue_many((0..count).map(job).collect()).await?;
        self.shared.enqueued += enqueued.len() as u64;
        self.open.extend(enqueued.iter().map(|enqueued| enqueued.id));
        Ok(())
    }

    async fn cancel(&mut self) -> longhaul_queue::Result<()> {
        let Some(id) = self.open.iter().next().copied() else { return Ok(()) };
        let reply = self.queue.cancel(id).await?;
        self.shared.cancelled += u64::from(matches!(reply, CancelReply::Cancelled | CancelReply::Requested));
        Ok(())
    }

    async fn list(&self) -> longhaul_queue::Result<()> {
        let request = ListRequest { filter: Filter::default(), newest_first: true, cursor: None, limit: 50 };
        self.queue.list(request).await.map(drop)
    }

    async fn show(&self) -> longhaul_queue::Result<()> {
        let Some(id) = self.open.iter().next().copied() else { return Ok(()) };
        self.queue.explain(id).await.map(drop)
    }

    async fn counts(&self) -> longhaul_queue::Result<()> {
        self.queue.store().counts().await?;
        self.queue.store().queues().await.map(drop)
    }

    async fn consume(&mut self) -> longhaul_queue::Result<()> {
        let page = self.queue.results(&self.process, 0, PAGE_MAX).await?;
        let ids: Vec<JobId> = page.items.iter().map(|item| item.id).collect();
        let deleted = self.queue.consume(ids.clone()).await?;
        self.shared.consumed += deleted.deleted;
        ids.iter().for_each(|id| {
            self.open.remove(id);
        });
        match deleted.refused.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits until everything of this caller has been run by somebody, and consumes it.
    async fn finish(&mut self) {
        let until = Instant::now() + REST_WAIT_MAX;
        while !self.open.is_empty() && Instant::now() < until {
            if let Err(error) = self.consume().await {
                self.shared.errors.push(format!("the rest: {error}"));
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        if !self.open.is_empty() {
            self.shared.errors.push(format!("{} jobs have not ended", self.open.len()));
        }
    }
}
