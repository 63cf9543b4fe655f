//! A worker on each store: what its settlements make ready comes before less urgent jobs that wait.

use std::sync::{Arc, Mutex};

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::bench::id;
use longhaul_queue::{
    Engine, EngineStore, Failure, JobContext, Json, NewJob, Outcome, Shutdown, Worker, WorkerOptions,
};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::{Server, shared};
use crate::servers::redis;
use crate::stage::Stage;

/// Steps of the urgent job, and length of the urgent chain.
const STEPS: u32 = 30;
/// Jobs that wait meanwhile.
const LOW_JOBS: usize = 40;

/// Drains a store with one worker of one slot, and answers which kinds ran, in their order.
async fn drained(store: Arc<dyn EngineStore>, urgent: Vec<NewJob>) -> Vec<String> {
    let engine = Engine::new(store);
    let low = (0..LOW_JOBS).map(|_| NewJob::new("low", Json::null()).priority(5));
    engine.enqueue_many(urgent.into_iter().chain(low).collect()).await.expect("enqueued");
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let options = WorkerOptions { concurrency: 1, until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine, options);
    for kind in ["steps", "link", "follow", "low"] {
        let ran = Arc::clone(&ran);
        worker.handle(kind, move |context: JobContext, number: Option<u32>| {
            ran.lock().expect("no panic").push(kind.to_owned());
            async move { run(kind, number.unwrap_or(1), &context) }
        });
    }
    worker.run(Shutdown::new()).await.expect("the worker drains");
    let ran = ran.lock().expect("no panic");
    ran.clone()
}

fn run(kind: &str, number: u32, context: &JobContext) -> Result<Outcome, Failure> {
    let step = context.data()?.unwrap_or(0) + 1;
    if kind == "steps" && step < STEPS {
        return Ok(Outcome::Continue { after: None, data: Some(Json::of(&step)?) });
    }
    if kind == "follow" && number < STEPS {
        context.enqueue(NewJob::new(kind, Json::of(&(number + 1))?))?;
    }
    Ok(Outcome::Done(Json::null()))
}

/// Each way in which a settlement makes something ready.
async fn check(store: impl AsyncFn() -> Arc<dyn EngineStore>) {
    let steps = vec![NewJob::new("steps", Json::null())];
    let chain = (1..=u64::from(STEPS)).map(|number| {
        let link = NewJob::new("link", Json::null()).id(id(number));
        if number == 1 { link } else { link.after(id(number - 1)) }
    });
    let follow = vec![NewJob::new("follow", Json::null())];
    for urgent in [steps, chain.collect(), follow] {
        let ran = drained(store().await, urgent).await;
        let first_low = ran.iter().position(|kind| kind == "low").expect("all of them run");
        assert_eq!(first_low, STEPS as usize, "a job of low priority came between: {ran:?}");
        assert_eq!(ran.len(), STEPS as usize + LOW_JOBS);
    }
}

#[tokio::test]
async fn no_low_job_runs_between_urgent_steps_on_memory() {
    check(async || Arc::new(MemoryStore::new()) as _).await;
}

#[tokio::test]
async fn no_low_job_runs_between_urgent_steps_on_sqlite() {
    let stages = [Stage::new(), Stage::new(), Stage::new()];
    let unused = Mutex::new(stages.iter());
    check(async || unused.lock().expect("no panic").next().expect("one for each").open() as _).await;
}

#[tokio::test]
async fn no_low_job_runs_between_urgent_steps_on_redis() {
    check(async || Arc::new(redis::store().await) as _).await;
}

#[tokio::test]
async fn no_low_job_runs_between_urgent_steps_on_postgres() {
    check(async || {
        let store = PostgresStore::open(&shared().url(&Server::schema()), PostgresOptions::default()).await;
        Arc::new(store.expect("the store opens")) as _
    })
    .await;
}
