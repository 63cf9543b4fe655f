//! A worker: claims jobs, runs their handlers, settles what they answer. It knows handlers and the store; what an
//! outcome means is [`crate::state`]'s to say, and signals are the program's to catch.

use std::future::Future;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::clock::Timestamp;
use crate::context::JobContext;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::handler::{self, BatchOptions, Handler, IntoOutcome, KindOptions, Registered, Registry};
use crate::heartbeat::{Alarm, Heartbeat, HeartbeatOptions};
use crate::job::WorkerId;
use crate::json::Json;
use crate::live_run::{LiveRuns, Services, Stop};
use crate::maintenance::Maintenance;
use crate::notes::Flusher;
use crate::shutdown::Shutdown;
use crate::state::Outcome;
use crate::store::WorkerInfo;

mod batch_builder;
mod cancels;
mod claim_loop;
mod options;
mod settling;

pub use options::{QueueShare, WorkerOptions, WorkerReport};

/// Runs jobs: register handlers, then [`Worker::run`].
///
/// ```no_run
/// # async fn example(engine: longhaul_queue::Engine) -> longhaul_queue::Result<()> {
/// use longhaul_queue::{Failure, JobContext, Shutdown, Worker, WorkerOptions};
///
/// let mut worker = Worker::new(engine, WorkerOptions::default());
/// worker.handle("greet", |_context: JobContext, name: String| async move {
///     Ok::<_, Failure>(format!("hello {name}"))
/// });
/// let report = worker.run(Shutdown::new()).await?;
/// # Ok(()) }
/// ```
pub struct Worker {
    engine: Engine,
    options: WorkerOptions,
    registry: Registry,
    id: WorkerId,
    runs: Arc<LiveRuns>,
    concurrency: watch::Sender<usize>,
    queues: watch::Sender<Vec<QueueShare>>,
}

/// What stays the same over a worker's life.
struct Identity {
    id: WorkerId,
    options: WorkerOptions,
    kinds: Option<Vec<String>>,
    registry: Registry,
    services: Arc<Services>,
}

impl Worker {
    /// A worker without handlers, under a new random name.
    pub fn new(engine: Engine, options: WorkerOptions) -> Self {
        let concurrency = watch::Sender::new(options.concurrency);
        let queues = watch::Sender::new(options.queues.clone());
        Self {
            engine,
            options,
            registry: Registry::default(),
            id: random_id(),
            runs: Arc::default(),
            concurrency,
            queues,
        }
    }

    /// Runs jobs of `kind` with `handler`. The payload is read as `T`; the answer is a value in a `Result`, or an
    /// [`Outcome`].
    pub fn handle<F, T, Fut>(&mut self, kind: impl Into<String>, handler: F) -> &mut Self
    where
        F: Fn(JobContext, T) -> Fut + Send + Sync + 'static,
        T: DeserializeOwned + Send + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.handle_with(kind, KindOptions::default(), handler)
    }

    /// Like [`Worker::handle`], with limits for the kind; a job's own options go before them.
    pub fn handle_with<F, T, Fut>(
        &mut self,
        kind: impl Into<String>,
        options: KindOptions,
        handler: F,
    ) -> &mut Self
    where
        F: Fn(JobContext, T) -> Fut + Send + Sync + 'static,
        T: DeserializeOwned + Send + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        let handler = Handler::One(handler::typed(handler));
        self.registry.insert(kind.into(), Registered { policy: options.into(), handler });
        self
    }

    /// Runs many jobs of `kind` in one call, which answers one outcome each in their order. A panic or a time-out is
    /// every member's. A job whose worker died runs alone.
    pub fn handle_batch<F, T, Fut>(
        &mut self,
        kind: impl Into<String>,
        batch: BatchOptions,
        handler: F,
    ) -> &mut Self
    where
        F: Fn(Vec<(JobContext, T)>) -> Fut + Send + Sync + 'static,
        T: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Vec<Outcome>> + Send + 'static,
    {
        self.handle_batch_with(kind, batch, KindOptions::default(), handler)
    }

    /// Like [`Worker::handle_batch`], with limits for the kind.
    pub fn handle_batch_with<F, T, Fut>(
        &mut self,
        kind: impl Into<String>,
        batch: BatchOptions,
        options: KindOptions,
        handler: F,
    ) -> &mut Self
    where
        F: Fn(Vec<(JobContext, T)>) -> Fut + Send + Sync + 'static,
        T: DeserializeOwned + Send + 'static,
        Fut: Future<Output = Vec<Outcome>> + Send + 'static,
    {
        let handler = Handler::Batch(batch, handler::typed_batch(handler));
        self.registry.insert(kind.into(), Registered { policy: options.into(), handler });
        self
    }

    /// Runs jobs of every kind without a handler of its own.
    pub fn handle_any<F, Fut>(&mut self, options: KindOptions, handler: F) -> &mut Self
    where
        F: Fn(JobContext, Json) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.registry
            .insert_any(Registered { policy: options.into(), handler: Handler::One(handler::raw(handler)) });
        self
    }

    /// Its name: random, so that a restart on the same host is somebody else.
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// A handle on the worker while it runs.
    pub fn control(&self) -> WorkerControl {
        WorkerControl {
            id: self.id.clone(),
            concurrency: self.concurrency.clone(),
            queues: self.queues.clone(),
            runs: Arc::clone(&self.runs),
        }
    }

    /// Claims, runs and settles until `shutdown` asks for the end (or nothing is left, if the options say so). Moves
    /// what time moves meanwhile, unless the options say otherwise.
    /// Dropping the future is like a crash: nothing is settled, and the rescuer finds the jobs.
    pub async fn run(self, shutdown: Shutdown) -> Result<WorkerReport> {
        let Self { engine, options, registry, id, runs, concurrency, queues } = self;
        engine.limits().check()?;
        let kinds = registry.kinds(options.kinds.as_deref());
        if kinds.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::invalid("the worker has no handler for any kind that it is to serve"));
        }
        if queues.borrow().is_empty() {
            return Err(Error::invalid("the worker has no queue to serve"));
        }
        let services = Arc::new(Services {
            engine,
            flusher: Flusher::default(),
            alarm: Alarm::default(),
            cancel_grace: options.cancel_grace,
        });
        let identity = Arc::new(Identity { id, options, kinds, registry, services });
        info!(worker = %identity.id, concurrency = *concurrency.borrow(), "worker starts");
        identity.services.engine.store().register_local_worker(identity.id.clone()).await;
        let heartbeat = start_heartbeat(&identity, &runs, &concurrency, &queues)?;
        // Ends with this future, also when it is dropped.
        let maintenance = identity.options.maintenance.map(|options| {
            Maintenance::spawn_as(identity.id.to_string(), &identity.services.engine, options)
        });

        // Dropped in reverse order: the tasks go first, then what still runs is stopped.
        let _stop_runs = StopRunsOnDrop(Arc::clone(&runs));
        let mut tasks = JoinSet::new();
        let services = Arc::clone(&identity.services);
        tasks.spawn(async move { services.flusher.run(&services.engine).await });
        tasks.spawn(cancels::watch(Arc::clone(&identity), Arc::clone(&runs)));
        // A task of its own: jobs spawned from inside the runtime start faster than from a thread that blocks on it.
        let mut serving = JoinSet::new();
        let orders = (concurrency.subscribe(), queues.subscribe());
        serving.spawn(claim_loop::run(Arc::clone(&identity), runs, orders, shutdown));
        let report = match serving.join_next().await {
            Some(Ok(report)) => report,
            Some(Err(error)) => Err(Error::Corrupt(format!("the claim loop ended early: {error}"))),
            None => Err(Error::Corrupt("the claim loop was never started".to_owned())),
        };
        if let Some(maintenance) = maintenance {
            maintenance.stop().await;
        }
        heartbeat.finish().await;
        // Joined, not only aborted: they hold the store, which a caller may want to close right after this.
        tasks.shutdown().await;
        info!(worker = %identity.id, ok = report.is_ok(), "worker ends");
        report
    }
}

/// A handle on a worker while it runs. Cheap to clone.
#[derive(Clone)]
pub struct WorkerControl {
    id: WorkerId,
    concurrency: watch::Sender<usize>,
    queues: watch::Sender<Vec<QueueShare>>,
    runs: Arc<LiveRuns>,
}

impl WorkerControl {
    /// The worker's name.
    pub fn id(&self) -> &WorkerId {
        &self.id
    }

    /// Changes how many jobs run at once. What runs goes on; zero starts nothing more.
    pub fn set_concurrency(&self, concurrency: usize) {
        self.concurrency.send_replace(concurrency);
    }

    /// Changes what is served; what runs goes on. An empty list claims nothing more.
    pub fn set_queues(&self, queues: Vec<QueueShare>) {
        self.queues.send_if_modified(|current| {
            let changes = *current != queues;
            *current = queues;
            changes
        });
    }

    /// How many jobs may run at once.
    pub fn concurrency(&self) -> usize {
        *self.concurrency.borrow()
    }

    /// Jobs that it holds right now.
    pub fn running(&self) -> usize {
        self.runs.len()
    }
}

/// However the worker ends, its handlers do not outlive it.
struct StopRunsOnDrop(Arc<LiveRuns>);

impl Drop for StopRunsOnDrop {
    fn drop(&mut self) {
        self.0.all().iter().for_each(|run| run.stop(Stop::Release));
    }
}

fn start_heartbeat(
    identity: &Arc<Identity>,
    runs: &Arc<LiveRuns>,
    concurrency: &watch::Sender<usize>,
    queues: &watch::Sender<Vec<QueueShare>>,
) -> Result<Heartbeat> {
    let started_at = identity.services.engine.clock().now();
    let (of_info, running, slots, queues) =
        (Arc::clone(identity), Arc::clone(runs), concurrency.clone(), queues.clone());
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let info = move |now: Timestamp| WorkerInfo {
        id: of_info.id.clone(),
        host: of_info.options.host.clone(),
        pid: std::process::id(),
        version: of_info.options.version.clone(),
        queues: queues.borrow().iter().map(|share| share.name.clone()).collect(),
        kinds: of_info.kinds.clone(),
        concurrency: count(*slots.borrow()),
        running: count(running.len()),
        started_at,
        seen_at: now,
        gone: false,
    };
    Heartbeat::start(HeartbeatOptions {
        services: Arc::clone(&identity.services),
        runs: Arc::clone(runs),
        lease: identity.options.lease,
        info: Box::new(info),
    })
}

fn random_id() -> WorkerId {
    const BASE32: &[u8] = b"abcdefghijklmnopqrstuvwxyz234567";
    let letters = (0..10).map(|_| char::from(BASE32[fastrand::usize(..BASE32.len())]));
    WorkerId::new(format!("w-{}", letters.collect::<String>()))
}
