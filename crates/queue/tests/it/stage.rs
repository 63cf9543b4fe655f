//! What the tests of workers share: a memory store, a clock that stands still, and ways to wait without sleeping.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::clock::{Clock, ManualClock, Timestamp};
use longhaul_queue::job::{JobDetail, JobId, NewJob};
use longhaul_queue::maintenance::Leader;
use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::soon;
use longhaul_queue::{Engine, EngineStore, Failure, Json, Queue, Result, State, Worker, WorkerOptions};
use tokio::sync::Notify;

/// What a handler of these tests answers.
pub(crate) type Answer = Result<String, Failure>;

pub(crate) struct Stage {
    pub(crate) store: Arc<dyn EngineStore>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) engine: Engine,
    pub(crate) queue: Queue,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with_store(Arc::new(MemoryStore::new()))
    }

    pub(crate) fn with_store(store: Arc<dyn EngineStore>) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_800_000_000_000)));
        let engine = Engine::new(Arc::clone(&store)).with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let queue = engine.queue().clone();
        Self { store, clock, engine, queue }
    }

    pub(crate) fn worker(&self) -> Worker {
        self.worker_with(WorkerOptions::default())
    }

    /// Without maintenance: [`Stage::pass`] says when time moves what.
    pub(crate) fn worker_with(&self, options: WorkerOptions) -> Worker {
        Worker::new(self.engine.clone(), WorkerOptions { maintenance: None, ..options })
    }

    pub(crate) async fn enqueue(&self, kind: &str) -> JobId {
        self.enqueue_job(NewJob::new(kind, Json::null())).await
    }

    pub(crate) async fn enqueue_job(&self, job: NewJob) -> JobId {
        self.queue.enqueue(job).await.unwrap().id
    }

    /// Moves the clock and does what the rescuer and the promoter would do then.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.store.rescue_expired(self.clock.now(), 1000).await.unwrap();
        self.store.promote_due(self.clock.now(), 1000).await.unwrap();
    }

    pub(crate) async fn get(&self, id: JobId) -> JobDetail {
        self.queue.get(id).await.unwrap()
    }

    /// Waits until a job is in `state`.
    pub(crate) async fn until(&self, id: JobId, state: State) -> JobDetail {
        let mut changes = self.store.watch();
        soon(async {
            loop {
                let detail = self.get(id).await;
                if detail.job.state == state {
                    return detail;
                }
                changes.changed().await.unwrap();
            }
        })
        .await
    }

    /// Waits until `holder` leads the duties. A record wakes nobody, so this asks again at each turn of the tasks.
    pub(crate) async fn until_leader(&self, holder: &str) {
        let leads =
            async || Leader::of(&self.engine).await.unwrap().is_some_and(|leader| leader.holder == holder);
        soon(async {
            while !leads().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// A point in a handler that the test waits for.
#[derive(Clone, Default)]
pub(crate) struct Mark(Arc<Notify>);

impl Mark {
    pub(crate) fn reach(&self) {
        self.0.notify_one();
    }

    pub(crate) async fn reached(&self) {
        soon(self.0.notified()).await;
    }
}
