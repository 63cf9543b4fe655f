//! The duties: each does what is due, and sleeps until more is.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::maintenance::{Duty, Leader, Maintenance, MaintenanceOptions, Promoter, Pruner, Rescuer};
use longhaul_queue::state::Reason;
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::testing::{FaultyStore, Started, soon};
use longhaul_queue::{Clock, Engine, Failure, JobContext, Json, NewJob, State, Worker, WorkerOptions};

use crate::stage::Stage;

#[tokio::test]
async fn duties_move_what_time_moves_as_it_passes() {
    let stage = Stage::new();
    let maintenance = Maintenance::spawn(&stage.engine, MaintenanceOptions::default());
    let later = stage.clock.now() + Duration::from_secs(3);
    let scheduled = stage.enqueue_job(NewJob::new("job", Json::null()).run_at(later)).await;
    stage.clock.advance(Duration::from_secs(3));
    stage.until(scheduled, State::Ready).await;

    stage.store.claim(claim(&stage)).await.unwrap();
    stage.clock.advance(Duration::from_secs(61));
    let rescued = stage.until(scheduled, State::Scheduled).await.job;
    assert_eq!(rescued.error.unwrap().reason, Reason::Crash);
    stage.clock.advance(Duration::from_secs(1));
    stage.until(scheduled, State::Ready).await;
    soon(maintenance.stop()).await;
}

fn claim(stage: &Stage) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("w-dead"),
        limit: 1,
        suspects_max: 1,
        lease_for: Duration::from_secs(60),
        now: stage.clock.now(),
    }
}

#[tokio::test]
async fn one_sweep_says_what_it_did_and_when_to_come_back() {
    let stage = Stage::new();
    let options = MaintenanceOptions::default();
    let at = stage.clock.now() + Duration::from_secs(5);
    stage.enqueue_job(NewJob::new("job", Json::null()).run_at(at)).await;
    let promoter = Promoter::new(stage.engine.clone(), options.promoter);
    let swept = promoter.run_once().await.unwrap();
    assert_eq!((swept.changed, swept.next_at), (0, Some(at)));
    stage.clock.advance(Duration::from_secs(5));
    assert_eq!(promoter.run_once().await.unwrap().changed, 1);
    assert_eq!(Rescuer::new(stage.engine.clone(), options.rescuer).run_once().await.unwrap().changed, 0);
    assert_eq!(Pruner::new(stage.engine.clone(), options.pruner).run_once().await.unwrap().changed, 0);
}

#[tokio::test]
async fn bare_worker_tries_failed_jobs_again() {
    let stage = Stage::new();
    let mut worker = Worker::new(stage.engine.clone(), WorkerOptions::default());
    worker.handle("job", |context: JobContext, (): ()| async move {
        if context.attempt() == 0 { Err(Failure::retry("not yet")) } else { Ok("done") }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("job").await;
    stage.until(id, State::Scheduled).await;
    stage.clock.advance(Duration::from_secs(2));
    stage.until(id, State::Succeeded).await;
    assert_eq!(started.drain().await.retried, 1);
}

#[tokio::test]
async fn maintenance_ends_with_a_worker_whose_future_is_dropped() {
    let stage = Stage::new();
    let mut worker = Worker::new(stage.engine.clone(), WorkerOptions::default());
    worker.handle("job", |_: JobContext, (): ()| async { Ok::<_, Failure>("done") });
    let started = Started::new(worker);
    let before = stage.enqueue("job").await;
    stage.until(before, State::Succeeded).await;
    started.kill().await;
    let later = stage.clock.now() + Duration::from_secs(1);
    let id = stage.enqueue_job(NewJob::new("job", Json::null()).run_at(later)).await;
    stage.clock.advance(Duration::from_secs(60));
    // Aborted tasks go at their next turn, and no other task is left that could promote the job.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stage.get(id).await.job.state, State::Scheduled);
}

#[tokio::test]
async fn one_process_leads_and_another_takes_over_when_it_dies() {
    let stage = Stage::new();
    let options = MaintenanceOptions::default();
    let first = Maintenance::spawn_as("first".to_owned(), &stage.engine, options);
    stage.until_leader("first").await;
    let calls = Arc::new(FaultyStore::new(Arc::clone(&stage.store)));
    let engine = Engine::new(calls.clone()).with_clock(stage.clock.clone());
    let second = Maintenance::spawn_as("second".to_owned(), &engine, options);
    for _ in 0..200 {
        let at = stage.clock.now() + Duration::from_millis(10);
        let id = stage.enqueue_job(NewJob::new("job", Json::null()).run_at(at)).await;
        stage.clock.advance(Duration::from_millis(10));
        stage.until(id, State::Ready).await;
    }
    // Each change woke the leader; the other looked when it began, and hardly ever since.
    assert!(calls.calls() < 50, "the follower made {} calls", calls.calls());
    drop(first);
    let at = stage.clock.now() + Duration::from_secs(1);
    let id = stage.enqueue_job(NewJob::new("job", Json::null()).run_at(at)).await;
    stage.clock.advance(Duration::from_secs(60));
    stage.until(id, State::Ready).await;
    stage.until_leader("second").await;
    soon(second.stop()).await;
    assert_eq!(Leader::of(&stage.engine).await.unwrap(), None, "who leaves gives up the lead");
}
