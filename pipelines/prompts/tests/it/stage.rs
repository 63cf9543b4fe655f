//! What the tests share: a store, a simulator in the test's hand, a clock that follows tokio's paused time, workers that
//! can be killed, and ways to wait without sleeping.

use longhaul_pipeline::testing::{
    Double, LEASE, MODEL, PROFILE, PausedClock, Point, SEED, llm_options, options,
};
use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::types::Dialect;
use longhaul_llm::{Endpoint, Llm, LlmFile, NanoUsd, Scope, Totals};
use longhaul_pipeline::{Found, Hold, Pipeline as _, RunId, RunState, Status};
use longhaul_prompts::request::{RequestResult, compose};
use longhaul_prompts::{AtProvider, Details, Mode, NewRequest, Prompts, RunSettings, Source, Submission};
use longhaul_queue::job::JobResult;
use longhaul_queue::memory::MemoryStore;
use longhaul_queue::store::{Filter, ListRequest, ProcessInfo};
use longhaul_queue::testing::{Started, patient, soon};
use longhaul_queue::{Clock, Engine, EngineStore, JobDetail, QueueShare, State, Worker, WorkerOptions};
use longhaul_sim::{Door, SimCore, SimOptions, Stats, answer_key};
use serde_json::json;

/// The status of a run of prompts, as flat as assertions like it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Progress {
    pub(crate) id: String,
    pub(crate) status: RunState,
    pub(crate) held: Option<Hold>,
    pub(crate) message: Option<String>,
    pub(crate) total: u64,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    pub(crate) running: u64,
    pub(crate) parked: u64,
    pub(crate) at_provider: Option<AtProvider>,
    pub(crate) is_over: bool,
}

impl Progress {
    pub(crate) fn of(status: Status) -> Self {
        let Details { parked, at_provider, .. } = Details::of(&status).unwrap();
        let (is_over, units) = (status.is_over(), status.standing.units);
        Self {
            id: status.id,
            status: status.standing.state,
            held: status.standing.hold,
            message: status.standing.message,
            total: units.total,
            completed: units.done,
            failed: units.failed,
            cancelled: units.cancelled,
            running: units.running,
            parked,
            at_provider,
            is_over,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(crate) fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled
    }
}

/// One store, one provider, one file of spending: what outlives a process.
pub(crate) struct Stage {
    /// As the test sees it.
    pub(crate) store: Arc<dyn EngineStore>,
    /// As the processes see it.
    seen: Arc<dyn EngineStore>,
    pub(crate) core: Arc<SimCore>,
    pub(crate) double: Double,
    pub(crate) pipeline: Prompts,
    clock: PausedClock,
    file: LlmFile,
}

impl Stage {
    pub(crate) fn new(options: SimOptions) -> Self {
        Self::with_store(Arc::new(MemoryStore::new()), options)
    }

    pub(crate) fn with_store(store: Arc<dyn EngineStore>, options: SimOptions) -> Self {
        Self::with_file(store, LlmFile::in_memory().unwrap(), options)
    }

    pub(crate) fn with_file(store: Arc<dyn EngineStore>, file: LlmFile, options: SimOptions) -> Self {
        let clock = PausedClock::start();
        let core = SimCore::with_clock(SimOptions { seed: SEED, ..options }, Arc::new(clock)).unwrap();
        let double = Double::new(Arc::clone(&core));
        let pipeline = process(&store, &file, &double, clock);
        Self { seen: Arc::clone(&store), store, core, double, pipeline, clock, file }
    }

    /// The processes see the store through this.
    pub(crate) fn seen_through(mut self, seen: Arc<dyn EngineStore>) -> Self {
        self.seen = seen;
        self.pipeline = self.other_process();
        self
    }

    /// What another process, or this one after a restart, would have.
    pub(crate) fn other_process(&self) -> Prompts {
        process(&self.seen, &self.file, &self.double, self.clock)
    }

    /// Kills a worker and lets its leases run out.
    pub(crate) async fn kill(&self, worker: Started) {
        worker.kill().await;
        let later = self.clock.now() + 2 * LEASE;
        self.store.rescue_expired(later, 1000).await.unwrap();
        self.store.promote_due(later + LEASE, 1000).await.unwrap();
    }

    /// Starts a worker of a new process for some runs.
    pub(crate) fn work(&self, runs: &[&RunId]) -> Started {
        work((&self.engine(), &self.other_process()), runs, options())
    }

    /// What jobs run on, as the processes see it.
    pub(crate) fn engine(&self) -> Engine {
        Engine::new(Arc::clone(&self.seen)).with_clock(Arc::new(self.clock))
    }

    pub(crate) async fn submit(&self, settings: &RunSettings, requests: &[NewRequest]) -> RunId {
        submit(&self.pipeline, settings, requests).await
    }

    pub(crate) async fn process(&self, run: &RunId) -> ProcessInfo {
        self.store.process(run.process()).await.unwrap().expect("the process is there")
    }

    /// Waits until a run has ended, with all of its helpers.
    pub(crate) async fn ended(&self, run: &RunId) {
        self.until(run, |info| {
            let helpers = State::ALL.iter().zip(info.helpers);
            let idle = helpers.filter(|(state, _)| !state.is_terminal()).all(|(_, count)| count == 0);
            info.sealed && info.unfinished() == 0 && idle
        })
        .await;
    }

    /// Waits until a run's counts are as wanted.
    pub(crate) async fn until(&self, run: &RunId, wanted: impl Fn(&ProcessInfo) -> bool) {
        let mut changes = self.store.watch();
        let waiting = async {
            loop {
                changes.mark_unchanged();
                if wanted(&self.process(run).await) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        if !patient(waiting).await {
            let progress = self.progress(run).await;
            panic!("{progress:?}\n{:?}\n{:#?}", self.core.stats(), self.unfinished(run).await);
        }
    }

    /// Waits until a run's progress is as wanted.
    pub(crate) async fn until_progress(&self, run: &RunId, wanted: impl Fn(&Progress) -> bool) -> Progress {
        let mut changes = self.store.watch();
        soon(async {
            loop {
                changes.mark_unchanged();
                let progress = self.progress(run).await;
                if wanted(&progress) {
                    return progress;
                }
                changes.changed().await.unwrap();
            }
        })
        .await
    }

    /// Waits until the provider's newest batch has so many answers.
    pub(crate) async fn until_batch_completed(&self, count: u64) {
        self.until_true(|| {
            let batches = self.core.list_batches(Door::Native);
            batches.first().is_some_and(|batch| self.core.view_batch(batch).completed >= count)
        })
        .await;
    }

    /// Waits until the provider was called so often.
    pub(crate) async fn until_calls(&self, point: Point, count: u64) {
        self.until_true(|| self.double.calls(point) >= count).await;
    }

    /// Waits for something that is not in the store, as paused time passes.
    async fn until_true(&self, wanted: impl Fn() -> bool) {
        soon(async {
            while !wanted() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        })
        .await;
    }

    async fn unfinished(&self, run: &RunId) -> Vec<JobDetail> {
        let states = State::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
        let filter = Filter { process_id: Some(run.process()), states, ..Filter::default() };
        let page = self.store.list(ListRequest { filter, newest_first: true, cursor: None, limit: 5 });
        let ids = page.await.unwrap().items.iter().map(|job| job.id).collect();
        self.store.get(ids).await.unwrap()
    }

    pub(crate) async fn progress(&self, run: &RunId) -> Progress {
        Progress::of(self.found(run).await.status().await.unwrap())
    }

    /// The run as a person has it.
    pub(crate) async fn found(&self, run: &RunId) -> Found {
        let run = longhaul_pipeline::Run::get(self.pipeline.queue(), run).await.unwrap();
        Found { pipeline: Arc::new(self.pipeline.clone()), run }
    }

    /// What a run has spent.
    pub(crate) async fn spent(&self, run: &RunId) -> Totals {
        self.pipeline.llm().ledger().totals(&Scope::run(run.as_str())).await.unwrap()
    }

    pub(crate) async fn cap(&self, run: &RunId, nanos: u64) {
        self.pipeline.llm().ledger().set_cap(&Scope::run(run.as_str()), Some(NanoUsd(nanos))).await.unwrap();
    }

    /// The most that a request can cost.
    pub(crate) async fn ceiling(&self, settings: &RunSettings, request: &NewRequest) -> u64 {
        let route = self.pipeline.llm().route(&settings.profile, &settings.model).await.unwrap();
        let request = compose(request.body.clone(), Dialect::OpenAi, settings).unwrap();
        route.ceiling(&request, longhaul_llm::Billing::Sync).unwrap().0
    }

    pub(crate) fn stats(&self) -> Stats {
        self.core.stats()
    }

    /// How the requests of a run ended, in order.
    pub(crate) async fn results(&self, run: &RunId) -> Vec<JobResult> {
        let mut results = Vec::new();
        let mut after = 0;
        loop {
            // Small pages, so that their seams are met.
            let page = self.store.results(run.process(), after, 97).await.unwrap();
            results.extend(page.items);
            match page.next {
                Some(next) => after = next,
                None => return results,
            }
        }
    }

    /// All answers of a run, in order; each request must have one.
    pub(crate) async fn answers(&self, run: &RunId) -> Vec<RequestResult> {
        let results = self.results(run).await;
        results
            .into_iter()
            .map(|result| match result.result {
                Some(value) => value.to().unwrap(),
                None => panic!("{:?}", result.error),
            })
            .collect()
    }

    /// Each request has its own right answer, in the order of submission.
    pub(crate) async fn all_right(&self, run: &RunId, settings: &RunSettings, requests: &[NewRequest]) {
        let answers = self.answers(run).await;
        assert_eq!(answers.len(), requests.len());
        for (answer, request) in answers.iter().zip(requests) {
            assert_right(answer, settings, request);
        }
    }
}

pub(crate) fn assert_right(answer: &RequestResult, settings: &RunSettings, request: &NewRequest) {
    assert_eq!(answer.custom_id, request.custom_id);
    let asked = compose(request.body.clone(), Dialect::OpenAi, settings).unwrap();
    let key = answer_key(SEED, asked.as_chat().expect("a chat"));
    match &answer.json {
        Some(json) => assert_eq!(json.to_string(), key, "{:?}", request.custom_id),
        None => assert_eq!(answer.answer.text, key, "{:?}", request.custom_id),
    }
}

fn process(store: &Arc<dyn EngineStore>, file: &LlmFile, double: &Double, clock: PausedClock) -> Prompts {
    let engine = Engine::new(Arc::clone(store)).with_clock(Arc::new(clock));
    Prompts::new(engine.queue().clone(), Llm::new(llm_options(file, double.clone(), clock)))
}

/// Starts a worker for some runs.
pub(crate) fn work(
    (engine, pipeline): (&Engine, &Prompts),
    runs: &[&RunId],
    options: WorkerOptions,
) -> Started {
    let queues = runs.iter().map(|run| QueueShare { name: run.to_string(), weight: Some(1) }).collect();
    let options = WorkerOptions { queues, ..options };
    let mut worker = Worker::new(engine.clone(), options);
    pipeline.register(&mut worker);
    Started::new(worker)
}

pub(crate) async fn submit(pipeline: &Prompts, settings: &RunSettings, requests: &[NewRequest]) -> RunId {
    let mut submission = Submission::begin(pipeline, settings.clone()).await.unwrap();
    for request in requests {
        submission.push(request.clone()).await.unwrap();
    }
    submission.finish().await.unwrap()
}

/// Requests that differ.
pub(crate) fn prompts(count: usize) -> Vec<NewRequest> {
    (0..count).map(|number| prompt(number, &format!("Question {number} about rivers"))).collect()
}

pub(crate) fn prompt(number: usize, text: &str) -> NewRequest {
    let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 200 });
    NewRequest { custom_id: Some(format!("c{number}")), body, ..NewRequest::default() }
}

/// Settings of a run of the simulator. The name makes it another run.
pub(crate) fn settings(mode: Mode, name: &str) -> RunSettings {
    RunSettings {
        profile: PROFILE.to_owned(),
        model: MODEL.to_owned(),
        endpoint: Endpoint::Chat,
        defaults: serde_json::Map::new(),
        schema: None,
        fallback_model: None,
        mode,
        mode_note: None,
        switch_at: None,
        cache: CacheMode::Off,
        tags: Vec::new(),
        source: Source { name: name.to_owned(), sha256: name.to_owned(), ..Source::default() },
        expected: None,
    }
}
