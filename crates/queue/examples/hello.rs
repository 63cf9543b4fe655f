//! The five verbs: enqueue, claim, run, settle, consume. `cargo run --example hello`

use std::sync::Arc;

use longhaul_queue::{Engine, Failure, JobContext, Json, NewJob, ProcessId, Shutdown, Worker, WorkerOptions};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("jobs.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let queue = engine.queue();

    // Enqueue: once this returns, the jobs are on disk. A process groups the jobs of one caller.
    let process = ProcessId::from("greetings");
    for name in ["Ada", "Grace", "Katherine"] {
        queue.enqueue(NewJob::new("greet", Json::of(name)?).process(process.clone())).await?;
    }

    // Claim, run, settle: the worker's part. The payload arrives as the type that the handler asks for.
    let options = WorkerOptions { until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine.clone(), options);
    worker.handle("greet", |_context: JobContext, name: String| async move {
        Ok::<_, Failure>(format!("hello {name}"))
    });
    let report = worker.run(Shutdown::new()).await?;
    println!("the worker finished {} jobs", report.done);

    // Results come in submission order, whoever finished first.
    let page = queue.results(&process, 0, 100).await?;
    for item in &page.items {
        println!("{} {:?}", item.state, item.result.as_ref().ok_or("a result is missing")?.to::<String>()?);
    }
    assert_eq!(page.items.len(), 3);
    assert_eq!(page.items[0].result, Some(Json::of("hello Ada")?));

    // Consume: keep the results first, then acknowledge them. Their rows are gone for good.
    let consumed = queue.consume(page.items.iter().map(|item| item.id).collect()).await?;
    assert_eq!(consumed.deleted, 3);
    assert!(queue.results(&process, 0, 100).await?.items.is_empty());
    println!("consumed {}, nothing is left", consumed.deleted);
    Ok(())
}
