//! A graph of jobs: two parts are counted, then a third job adds them up. `cargo run --example dag`

use std::sync::Arc;

use longhaul_queue::job::OnFailure;
use longhaul_queue::{
    Clock, Engine, Failure, JobContext, JobId, Json, NewJob, Outcome, Shutdown, State, SystemClock, Worker,
    WorkerOptions,
};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("jobs.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let queue = engine.queue();

    // Ids are drawn beforehand, so that jobs of one submission can name each other. All are stored, or none.
    let [left, right, broken, sum, skipped, always] = [(); 6].map(|()| new_id());
    queue
        .enqueue_many(vec![
            NewJob::new("count", Json::of("one two three")?).id(left),
            NewJob::new("count", Json::of("four five")?).id(right),
            NewJob::new("fail", Json::null()).id(broken),
            NewJob::new("sum", Json::null()).id(sum).after(left).after(right),
            // What a failed parent does is a policy of each edge: cancel (the default), run or hold.
            NewJob::new("sum", Json::null()).id(skipped).after(left).after(broken),
            NewJob::new("sum", Json::null()).id(always).after(left).after_with(broken, OnFailure::Run),
        ])
        .await?;
    println!("the sum is {} at first", queue.get(sum).await?.job.state);

    // A cycle is refused before anything is stored.
    let [a, b] = [(); 2].map(|()| new_id());
    let cycle = [(a, b), (b, a)].map(|(id, parent)| NewJob::new("sum", Json::null()).id(id).after(parent));
    println!("a cycle: {}", queue.enqueue_many(cycle.to_vec()).await.expect_err("a cycle cannot be run"));

    let options = WorkerOptions { until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine.clone(), options);
    worker.handle("count", |_context: JobContext, text: String| async move {
        Ok::<_, Failure>(text.split_whitespace().count())
    });
    worker.handle("fail", |_context: JobContext, _payload: Json| async move {
        Err::<Outcome, _>(Failure::fatal("this part cannot be read"))
    });
    worker.handle("sum", |context: JobContext, _payload: Json| async move {
        // The parents' results came with the claim, in the order of the edges. A failed parent has none.
        let results = context.parents().iter().filter_map(|parent| parent.result.as_ref());
        let counts = results.map(Json::to::<usize>).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Failure>(counts.iter().sum::<usize>())
    });
    worker.run(Shutdown::new()).await?;

    let sum = queue.get(sum).await?;
    println!(
        "the sum is {} at the end: {}",
        sum.job.state,
        sum.result.as_ref().ok_or("a result is missing")?
    );
    assert_eq!(sum.result, Some(Json::of(&5)?));
    assert_eq!(queue.get(skipped).await?.job.state, State::Cancelled);
    assert_eq!(queue.get(always).await?.result, Some(Json::of(&3)?));
    Ok(())
}

fn new_id() -> JobId {
    JobId::generate(SystemClock.now(), fastrand::u128(..))
}
