//! How many jobs a second the engine itself can run: no-op handlers on the memory store.
//!
//! `cargo run --release -p longhaul-queue --example worker_speed -- 200000 200`

use std::sync::Arc;
use std::time::Instant;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{
    Error, Failure, JobContext, Json, NewJob, Queue, Result, Shutdown, Worker, WorkerOptions,
};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default)).map_err(Error::invalid);
    let (jobs, concurrency) = (next(100_000)?, next(200)?);
    let queue = Queue::new(Arc::new(MemoryStore::new()));
    for first in (0..jobs).step_by(10_000) {
        let count = (jobs - first).min(10_000);
        queue.enqueue_many(vec![NewJob::new("noop", Json::null()); count]).await?;
    }
    let mut worker =
        Worker::new(queue, WorkerOptions { concurrency, until_empty: true, ..WorkerOptions::default() });
    worker.handle("noop", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    let started = Instant::now();
    let report = worker.run(Shutdown::new()).await?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{} jobs in {seconds:.2} s: {:.0} a second", report.done, report.done as f64 / seconds);
    Ok(())
}
