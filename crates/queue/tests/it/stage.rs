//! What the tests of workers share: a memory store, a clock that stands still, and ways to wait without sleeping.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::clock::{Clock, ManualClock, Timestamp};
use longhaul_queue::job::{JobDetail, JobId, NewJob};
use longhaul_queue::maintenance::Leader;
use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{
    Engine, EngineStore, Failure, Json, Queue, Result, Shutdown, State, Worker, WorkerOptions, WorkerReport,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// No test waits longer than this for something that should come at once.
const PATIENCE: Duration = Duration::from_secs(20);

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

/// A worker that runs in the background.
pub(crate) struct Started {
    pub(crate) shutdown: Shutdown,
    task: JoinHandle<Result<WorkerReport>>,
}

pub(crate) fn start(worker: Worker) -> Started {
    let shutdown = Shutdown::new();
    let task = tokio::spawn(worker.run(shutdown.clone()));
    Started { shutdown, task }
}

impl Started {
    /// Waits for the worker's own end.
    pub(crate) async fn ended(self) -> WorkerReport {
        soon(self.task).await.unwrap().unwrap()
    }

    pub(crate) async fn drain(self) -> WorkerReport {
        self.shutdown.drain();
        self.ended().await
    }

    /// As if the process had died: nothing is settled.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(soon(self.task).await.is_err());
    }
}

/// A future that must end soon; the time-out only turns a hang into a failure.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("this should have happened by now")
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
