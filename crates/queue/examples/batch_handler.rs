//! A handler that takes many jobs at once, for work that is cheaper together. `cargo run --example batch_handler`

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_queue::{
    BatchOptions, Engine, Failure, JobContext, Json, NewJob, Outcome, ProcessId, Shutdown, State, Worker,
    WorkerOptions,
};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

const JOBS: u32 = 100;

/// One answer for each job, in their order. One bad member does not fail its neighbours.
fn embed(batch: &[(JobContext, String)]) -> Vec<Outcome> {
    let answer = |text: &str| match text.len() {
        0 => Outcome::from(Failure::fatal("an empty text has no embedding")),
        length => Json::of(&[length]).map_or_else(|error| Failure::from(error).into(), Outcome::Done),
    };
    batch.iter().map(|(_context, text)| answer(text)).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("jobs.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let queue = engine.queue();

    let process = ProcessId::from("embeddings");
    let jobs = (0..JOBS).map(|number| {
        let text = if number == 7 { String::new() } else { format!("text {number}") };
        Ok(NewJob::new("embed", Json::of(&text)?).process(process.clone()))
    });
    queue.enqueue_many(jobs.collect::<Result<_, longhaul_queue::Error>>()?).await?;

    // A batch is bounded by its size, by the wait for more jobs, and by the worker's slots: each member takes one.
    let options = WorkerOptions { until_empty: true, concurrency: 50, ..WorkerOptions::default() };
    let batch = BatchOptions { size_max: 25, wait: Duration::from_millis(20) };
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let mut worker = Worker::new(engine.clone(), options);
    worker.handle_batch("embed", batch, move |batch: Vec<(JobContext, String)>| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move { embed(&batch) }
    });
    let report = worker.run(Shutdown::new()).await?;

    let calls = calls.load(Ordering::Relaxed);
    println!("{} jobs in {calls} calls: {} done, {} failed", report.total(), report.done, report.failed);
    assert!(calls < 20, "batches of 25 should need few calls");
    assert_eq!((report.done, report.failed), (u64::from(JOBS) - 1, 1));
    let failed = &queue.results(&process, 7, 1).await?.items[0];
    println!("the eighth: {}", failed.error.as_ref().ok_or("an error is missing")?);
    assert_eq!(failed.state, State::Failed);
    Ok(())
}
