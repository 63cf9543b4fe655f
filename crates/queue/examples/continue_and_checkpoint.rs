//! Long work in short runs: a handler goes on where it was. `cargo run --example continue_and_checkpoint`

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::{
    Engine, Failure, JobContext, Json, NewJob, Outcome, RetryPolicy, Shutdown, Worker, WorkerOptions,
};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};
use serde::{Deserialize, Serialize};

const PAGES: u32 = 6;
const PAGES_PER_RUN: u32 = 2;

/// The checkpoint: small, and enough to go on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Place {
    pages_read: u32,
    words: u32,
}

/// Reads a few pages, then answers `Continue`: the slot is free for others, and no attempt is spent.
async fn read_book(context: JobContext, _title: String) -> Result<Outcome, Failure> {
    let mut place: Place = context.data()?.unwrap_or_default();
    let stop_at = (place.pages_read + PAGES_PER_RUN).min(PAGES);
    while place.pages_read < stop_at {
        place.pages_read += 1;
        place.words += 100 * place.pages_read;
        context.progress(u64::from(place.pages_read), u64::from(PAGES));
        // Once this returns, these pages are never read again: not after a failure, not after kill -9.
        context.save(&place).await?;
        if place.pages_read == 3 && context.attempt() == 0 {
            return Err(Failure::retry("the lamp went out on page 3"));
        }
    }
    if place.pages_read < PAGES {
        return Ok(Outcome::Continue { after: None, data: None });
    }
    Ok(Outcome::Done(Json::of(&place.words)?))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(&folder.path().join("jobs.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let queue = engine.queue();
    let retry = RetryPolicy::fixed(Duration::from_millis(50));
    let job = queue.enqueue(NewJob::new("read", Json::of("Moby-Dick")?).retry(retry)).await?;

    // The worker also moves what time moves: here it makes the failed job ready again after its 50 ms.
    let options = WorkerOptions { until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine.clone(), options);
    worker.handle("read", read_book);
    let report = worker.run(Shutdown::new()).await?;

    let book = queue.get(job.id).await?;
    println!("{} runs: {} continued, {} retried", report.total(), report.continued, report.retried);
    println!(
        "{} failure, checkpoint {}",
        book.job.spent.attempt,
        book.data.ok_or("a checkpoint is missing")?
    );
    assert_eq!((report.done, report.continued, report.retried), (1, 2, 1));
    // Each page was counted once.
    assert_eq!(book.result, Some(Json::of(&2100)?));
    Ok(())
}
