//! Workers without work on a store that hears of changes on a runtime of its own: their claims wait there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::{Fault, FaultyStore, Started, soon};
use longhaul_queue::{EngineStore, Failure, JobContext, Json, NewJob, QueueShare, State, WorkerOptions};
use tokio::runtime::{Builder, Runtime};

use crate::stage::Stage;

/// The store's own thread.
struct Ear(Option<Runtime>);

impl Ear {
    fn new() -> Self {
        Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()))
    }

    fn store(&self) -> Arc<FaultyStore> {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        Arc::new(store.hearing_on(self.0.as_ref().unwrap().handle().clone()))
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        // Without waiting, which a test's own runtime forbids.
        self.0.take().unwrap().shutdown_background();
    }
}

#[tokio::test]
async fn an_idle_worker_takes_what_comes_and_ends_at_once() {
    let ear = Ear::new();
    let stage = Stage::with_store(ear.store());
    let mut worker = stage.worker();
    worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    let started = Started::new(worker);
    for _ in 0..200 {
        let id = stage.enqueue("job").await;
        let done = stage.until(id, State::Succeeded).await;
        assert_eq!(done.job.started_at, Some(stage.queue.clock().now()), "the time is that of the claim");
        stage.clock.advance(Duration::from_millis(7));
    }
    let report = started.drain().await;
    assert_eq!(report.done, 200);
    // Who has left takes nothing any more.
    let id = stage.enqueue("job").await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stage.get(id).await.job.state, State::Ready);
}

#[tokio::test]
async fn a_wait_ends_for_whatever_else_there_is_to_do() {
    let ear = Ear::new();
    let stage = Stage::with_store(ear.store());
    let mut worker = stage.worker();
    let control = worker.control();
    worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    let started = Started::new(worker);
    let run = async |queue: &str| {
        let id = stage.enqueue_job(NewJob::new("job", Json::null()).queue(queue)).await;
        stage.until(id, State::Succeeded).await;
    };
    run("default").await;
    control.set_queues(vec![QueueShare::from("other")]);
    run("other").await;
    control.set_concurrency(0);
    control.set_concurrency(3);
    run("other").await;
    let polled = stage.enqueue_job(NewJob::new("job", Json::null()).queue("late")).await;
    control.set_queues(vec![QueueShare::from("late")]);
    stage.until(polled, State::Succeeded).await;
    assert_eq!(started.drain().await.done, 4);
}

#[tokio::test]
async fn a_worker_that_ends_with_its_work_does_not_wait_for_more() {
    let ear = Ear::new();
    let stage = Stage::with_store(ear.store());
    let mut worker = stage.worker_with(WorkerOptions { until_empty: true, ..WorkerOptions::default() });
    worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    for _ in 0..25 {
        stage.enqueue("job").await;
    }
    assert_eq!(Started::new(worker).ended().await.done, 25);
}

#[tokio::test]
async fn workers_that_wait_together_run_each_job_once() {
    let ear = Ear::new();
    let stage = Stage::with_store(ear.store());
    let runs = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let mut worker = stage.worker_with(WorkerOptions { concurrency: 2, ..WorkerOptions::default() });
            let runs = Arc::clone(&runs);
            worker.handle("job", move |_: JobContext, (): ()| {
                runs.fetch_add(1, Ordering::Relaxed);
                async { Ok::<_, Failure>(()) }
            });
            Started::new(worker)
        })
        .collect();
    let mut ids = Vec::new();
    for _ in 0..300 {
        ids.push(stage.enqueue("job").await);
        if fastrand::u8(..) < 64 {
            stage.until(*ids.last().unwrap(), State::Succeeded).await;
        }
    }
    for id in ids {
        stage.until(id, State::Succeeded).await;
    }
    let mut done = 0;
    for worker in workers {
        done += worker.drain().await.done;
    }
    assert_eq!((done, runs.load(Ordering::Relaxed)), (300, 300));
}

#[tokio::test]
async fn a_waiting_claim_that_fails_is_made_again() {
    for fault in [Fault::Before, Fault::After] {
        for call in 1..=4 {
            let ear = Ear::new();
            let store = ear.store();
            let stage = Stage::with_store(Arc::clone(&store) as Arc<dyn EngineStore>);
            let mut worker = stage.worker();
            let control = worker.control();
            worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
            let started = Started::new(worker);
            let first = stage.enqueue("job").await;
            stage.until(first, State::Succeeded).await;
            let queue = stage.queue.clone();
            store.fail_call(store.calls() + call, fault);
            let Ok(second) = queue.enqueue(NewJob::new("job", Json::null())).await else {
                // The enqueue itself was the one that failed.
                continue;
            };
            soon(async {
                loop {
                    match queue.get(second.id).await.map(|detail| detail.job.state) {
                        Ok(State::Succeeded) => return,
                        // The claim took place and its answer was lost: the rescuer's turn.
                        Ok(State::Running) if control.running() == 0 => {
                            stage.clock.advance(Duration::from_secs(60));
                            let _ = store.rescue_expired(stage.queue.clock().now(), 10).await;
                        }
                        Ok(State::Scheduled) => {
                            stage.clock.advance(Duration::from_secs(1));
                            let _ = store.promote_due(stage.queue.clock().now(), 10).await;
                        }
                        _ => tokio::task::yield_now().await,
                    }
                }
            })
            .await;
            soon(started.drain()).await;
        }
    }
}
