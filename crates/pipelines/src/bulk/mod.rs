//! Bulk runs: any number of prompts, each answered once, in order, one by one or in provider batches.
//!
//! **Kinds.** `llm.request` is one prompt; its result is its answer. `llm.batch` is one provider batch, a helper of the
//! run. `llm.run` holds the run's settings and waits for all requests to end.
//!
//! **Flow.** A run is a process with a queue of its own. [`submit`] stores its requests; in batch mode each chunk is
//! stored in one transaction with the `llm.batch` job that will send it, so the intent is durable before anything is
//! uploaded, and a request belongs to one batch for ever. In sync mode a worker runs each request under the rate control.
//! In batch mode a request parks until its batch tells it the answer. Either way the request's own handler judges the
//! answer: schema, repair, failure. Results are read in submission order, then consumed.
//!
//! **Decisions.**
//! - Ids of jobs are derived from the run, and the run from its input and settings: submitting again after a crash, or
//!   running the same command again, stores nothing twice.
//! - A batch whose creation was not confirmed is looked for by its tag before anything is sent again. Where a provider
//!   keeps no tags and the answer is not certain, the batch is held as `ambiguous` until a person decides.
//! - What stops a whole run (budget, key, quota, outage) parks its requests at a gate ([`gate`]) instead of failing them: when
//!   the cause is gone, `resume` lets them through. An outage is over when one of them is answered, and costs no request a retry.
//! - Between polls a batch job is parked with a time limit rather than scheduled, so that a cancel or a
//!   deadline can wake it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_llm::{Llm, Route, schema};
use longhaul_queue::{Engine, JobContext, KindOptions, Outcome, Queue, Timestamp, TraceContext, Worker};

pub mod batch;
pub mod draft;
pub mod estimate;
pub mod eta;
pub mod gate;
mod harvest;
pub mod manage;
pub mod plan;
pub mod process;
pub mod progress;
pub mod request;
pub mod run;
pub mod submit;

pub use draft::{Defaults, Draft};
pub use estimate::{Basis, Estimate};
pub use gate::HeldRun;
use gate::Openings;
pub use progress::Progress;
pub use run::{Expected, Mode, Run, RunId, RunSettings, Source};
pub use submit::{NewRequest, Submission};

/// What can go wrong before a job can say so itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue refused.
    #[error(transparent)]
    Queue(#[from] longhaul_queue::Error),
    /// The models' side refused.
    #[error(transparent)]
    Llm(#[from] longhaul_llm::Error),
    /// There is no run of this name.
    #[error("there is no run {0}: it was never submitted, or was consumed")]
    NoRun(String),
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
}

/// A result of this slice.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The slice: what its handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Bulk {
    inner: Arc<Inner>,
    /// W3C `traceparent` for runs that are submitted here.
    trace: Option<Arc<str>>,
    /// Hears of the end of each run.
    ended: Option<Arc<Ended>>,
    /// Hears of each job that is held.
    held: Option<Arc<HeldHook>>,
}

/// What is called at the end of a run. Jobs that it enqueues through the context are stored in one transaction with the end.
type Ended = dyn Fn(&JobContext, &Progress, Timestamp) + Send + Sync;

/// What is called when a job of a run is held; jobs that it enqueues through the context are stored with that.
type HeldHook = dyn Fn(&JobContext, &HeldRun<'_>, Timestamp) + Send + Sync;

struct Inner {
    engine: Engine,
    llm: Llm,
    /// Runs by name, read once: their settings never change.
    runs: Mutex<HashMap<String, Arc<LiveRun>>>,
}

/// A run as its handlers need it.
pub(crate) struct LiveRun {
    pub(crate) id: RunId,
    pub(crate) settings: RunSettings,
    pub(crate) route: Route,
    pub(crate) fallback: Option<Route>,
    pub(crate) schema: Option<Arc<schema::Compiled>>,
    /// The openings of its gate that this process has heard of.
    pub(crate) openings: Mutex<Openings>,
    /// Requests wait for the end of an outage.
    pub(crate) in_outage: AtomicBool,
}

impl LiveRun {
    /// Whether nobody would answer now.
    pub(crate) fn is_out(&self) -> bool {
        self.route.is_out() && self.fallback.as_ref().is_none_or(Route::is_out)
    }
}

/// Runs kept in memory; beyond it all are read again.
const LIVE_RUNS_MAX: usize = 1_000;

impl Bulk {
    /// The slice on an engine and the models.
    pub fn new(engine: Engine, llm: Llm) -> Self {
        let inner = Arc::new(Inner { engine, llm, runs: Mutex::default() });
        Self { inner, trace: None, ended: None, held: None }
    }

    /// Runs that are submitted from here on belong to the caller's trace; without one each begins a trace of its own.
    pub fn with_trace(self, traceparent: impl Into<Arc<str>>) -> Self {
        Self { trace: Some(traceparent.into()), ..self }
    }

    /// Calls this at the end of each run, with the time of it.
    pub fn with_ended(
        self,
        ended: impl Fn(&JobContext, &Progress, Timestamp) + Send + Sync + 'static,
    ) -> Self {
        Self { ended: Some(Arc::new(ended)), ..self }
    }

    /// Calls this for each job of a run that is held, with the time of it.
    pub fn with_held(
        self,
        held: impl Fn(&JobContext, &HeldRun<'_>, Timestamp) + Send + Sync + 'static,
    ) -> Self {
        Self { held: Some(Arc::new(held)), ..self }
    }

    /// The trace of a run that is submitted now.
    fn trace(&self) -> String {
        self.trace.as_ref().map_or_else(|| TraceContext::draw().to_string(), |trace| (**trace).to_owned())
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        self.inner.engine.queue()
    }

    /// What its jobs run on.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The models.
    pub fn llm(&self) -> &Llm {
        &self.inner.llm
    }

    /// Registers the handlers of this slice.
    pub fn register(&self, worker: &mut Worker) {
        let bulk = self.clone();
        worker.handle_with(request::KIND, request::options(), move |context, payload| {
            request::run(bulk.clone(), context, payload)
        });
        let bulk = self.clone();
        worker.handle_with(batch::KIND, batch::options(), move |context, payload| {
            batch::run(bulk.clone(), context, payload)
        });
        let bulk = self.clone();
        worker.handle_with(run::KIND, KindOptions::default(), move |context, settings: RunSettings| {
            let bulk = bulk.clone();
            async move { bulk.finish(&context, settings).await }
        });
    }

    /// Ends a run: its last word is what it did and cost.
    async fn finish(&self, context: &JobContext, settings: RunSettings) -> Result<Outcome> {
        let Some(process) = &context.job().process_id else {
            return Err(Error::Invalid("a run's job belongs to its process".to_owned()));
        };
        let id = RunId::named(process.as_str());
        self.forget(&id);
        let progress = Progress::of(self, &id, &settings).await?;
        if let Some(ended) = &self.ended {
            ended(context, &progress, self.queue().clock().now());
        }
        Ok(Outcome::Done(longhaul_queue::Json::of(&progress)?))
    }

    /// A run's settings with what they need to work.
    pub(crate) async fn live(&self, id: &RunId) -> Result<Arc<LiveRun>> {
        if let Some(live) = self.runs().get(id.as_str()) {
            return Ok(Arc::clone(live));
        }
        let settings = Run::get(self.queue(), id).await?.settings;
        let route = self.llm().route(&settings.profile, &settings.model).await?;
        let fallback = match &settings.fallback_model {
            Some(model) => Some(self.llm().route(&settings.profile, model).await?),
            None => None,
        };
        let schema = settings.schema.as_ref().map(schema::Compiled::new).transpose()?.map(Arc::new);
        let live = Arc::new(LiveRun {
            id: id.clone(),
            settings,
            route,
            fallback,
            schema,
            openings: Mutex::default(),
            in_outage: AtomicBool::new(false),
        });
        let mut runs = self.runs();
        if runs.len() >= LIVE_RUNS_MAX {
            runs.clear();
        }
        runs.insert(id.as_str().to_owned(), Arc::clone(&live));
        Ok(live)
    }

    fn forget(&self, id: &RunId) {
        self.runs().remove(id.as_str());
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<LiveRun>>> {
        self.inner.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
