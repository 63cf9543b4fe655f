//! Runs of prompts: any number of prompts, each answered once, in order, one by one or in provider batches.
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

use async_trait::async_trait;
use longhaul_llm::{Llm, Route, schema};
use longhaul_pipeline::{About, Listener, Part, Pipeline, Results, Retry, Standing, unit_jobs};
use longhaul_queue::{JobContext, KindOptions, Outcome, Queue, TraceContext, Worker};

pub mod batch;
mod collect;
pub mod draft;
pub mod estimate;
mod eta;
mod hold;
pub mod manage;
mod parts;
pub mod plan;
pub mod process;
pub mod request;
mod results;
pub mod run;
pub mod sdk_batches;
mod standing;
pub mod submit;

pub use draft::{Defaults, Draft};
pub use estimate::{Basis, Estimate};
use hold::Openings;
pub use longhaul_pipeline::{Error, Result, RunId};
pub use run::{Expected, Mode, Run, RunSettings, Source};
pub use sdk_batches::SdkBatches;
pub use standing::{AtProvider, Details};
pub use submit::{NewRequest, Submission};

/// The names of this pipeline.
pub const ABOUT: About = About {
    name: "prompts",
    prefix: "run-",
    kind_prefix: "llm.",
    queues: &[sdk_batches::QUEUE],
    manifest: run::KIND,
    unit: "request",
};

/// The pipeline: what its handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Prompts {
    inner: Arc<Inner>,
    /// W3C `traceparent` for runs that are submitted here.
    trace: Option<Arc<str>>,
    /// Hears of the end of each run, and of each job that is held.
    listener: Arc<dyn Listener>,
}

struct Inner {
    queue: Queue,
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

impl Prompts {
    /// The pipeline on a queue and the models.
    pub fn new(queue: Queue, llm: Llm) -> Self {
        let inner = Arc::new(Inner { queue, llm, runs: Mutex::default() });
        Self { inner, trace: None, listener: Arc::new(()) }
    }

    /// Runs that are submitted from here on belong to the caller's trace; without one each begins a trace of its own.
    pub fn with_trace(self, traceparent: impl Into<Arc<str>>) -> Self {
        Self { trace: Some(traceparent.into()), ..self }
    }

    /// Tells this of the ends of runs and of their holds.
    pub fn with_listener(self, listener: Arc<dyn Listener>) -> Self {
        Self { listener, ..self }
    }

    /// The trace of a run that is submitted now.
    fn trace(&self) -> String {
        self.trace.as_ref().map_or_else(|| TraceContext::draw().to_string(), |trace| (**trace).to_owned())
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    /// The models.
    pub fn llm(&self) -> &Llm {
        &self.inner.llm
    }

    /// Ends a run: its last word is what it did and cost.
    async fn finish(&self, context: &JobContext) -> Result<Outcome> {
        if let Some(process) = &context.job().process_id {
            self.forget(&RunId::named(process.as_str()));
        }
        unit_jobs::end(self, &*self.listener, context).await
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

#[async_trait]
impl Pipeline for Prompts {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn register(&self, worker: &mut Worker) {
        let prompts = self.clone();
        worker.handle_with(request::KIND, request::options(), move |context, payload| {
            request::run(prompts.clone(), context, payload)
        });
        let prompts = self.clone();
        worker.handle_with(batch::KIND, batch::options(), move |context, payload| {
            batch::run(prompts.clone(), context, payload)
        });
        let prompts = self.clone();
        worker.handle_with(run::KIND, KindOptions::default(), move |context, _: RunSettings| {
            let prompts = prompts.clone();
            async move { prompts.finish(&context).await }
        });
    }

    fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    fn llm(&self) -> Option<&Llm> {
        Some(&self.inner.llm)
    }

    async fn standing(&self, run: &longhaul_pipeline::Run) -> Result<Standing> {
        standing::standing(self, &Run::read(run.clone())?).await
    }

    async fn cancel(&self, run: &longhaul_pipeline::Run) -> Result<u64> {
        manage::cancel(self, &run.id).await
    }

    async fn resume(&self, run: &longhaul_pipeline::Run) -> Result<u64> {
        manage::resume(self, &run.id).await
    }

    async fn retry(&self, run: &longhaul_pipeline::Run, which: Retry) -> Result<u64> {
        match which {
            Retry::Failed => manage::retry(self, &run.id).await,
            Retry::Part(_) => Err(which.unknown_to(&ABOUT)),
        }
    }

    async fn remove(&self, run: &longhaul_pipeline::Run) -> Result<u64> {
        manage::remove(self, &run.id).await
    }

    async fn go_on(&self, run: &longhaul_pipeline::Run) -> Result<u64> {
        manage::go_on(self, &run.id).await
    }

    fn results_are_answers(&self) -> bool {
        true
    }

    async fn parts(&self, run: &longhaul_pipeline::Run, first: u64, limit: usize) -> Result<Vec<Part>> {
        let parts = parts::parts(self, &run.id).await?.into_iter();
        Ok(parts.skip(first as usize).take(limit).collect())
    }

    async fn results(&self, run: &longhaul_pipeline::Run, after: i64, limit: usize) -> Result<Results> {
        results::page(self, &run.id, after, limit).await
    }
}

/// The programs in the documents compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library-prompts.md")]
struct Documents;
