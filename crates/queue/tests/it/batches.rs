//! Batch handlers: many jobs, one call, an outcome each.

use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::Reason;
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::testing::{Started, soon};
use longhaul_queue::{
    BatchOptions, Clock, JobContext, JobId, Json, KindOptions, NewJob, Outcome, State, Worker,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::stage::Stage;

const FIVE: BatchOptions = BatchOptions { size_max: 5, wait: Duration::from_secs(1) };

fn number(number: u32) -> NewJob {
    NewJob::new("double", Json::of(&number).unwrap())
}

/// A handler that doubles numbers, and the sizes of its batches.
fn double(worker: &mut Worker) -> UnboundedReceiver<usize> {
    let (sizes_sender, sizes) = unbounded_channel();
    worker.handle_batch("double", FIVE, move |batch: Vec<(JobContext, u32)>| {
        sizes_sender.send(batch.len()).unwrap();
        async move { batch.iter().map(|(_, number)| Outcome::Done(Json::of(&(number * 2)).unwrap())).collect() }
    });
    sizes
}

async fn enqueue(stage: &Stage, count: u32) -> Vec<JobId> {
    let jobs = (0..count).map(number).collect();
    stage.queue.enqueue_many(jobs).await.unwrap().into_iter().map(|enqueued| enqueued.id).collect()
}

#[tokio::test]
async fn batch_is_called_when_full_or_when_it_has_waited() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let mut sizes = double(&mut worker);
    let ids = enqueue(&stage, 7).await;
    let started = Started::new(worker);
    assert_eq!(soon(sizes.recv()).await, Some(5));
    stage.until(ids[4], State::Succeeded).await;
    assert_eq!(stage.get(ids[6]).await.job.state, State::Running, "claimed, and waiting for company");
    stage.clock.advance(FIVE.wait);
    assert_eq!(soon(sizes.recv()).await, Some(2));
    assert_eq!(stage.until(ids[6], State::Succeeded).await.result, Some(Json::parse("12").unwrap()));
    assert_eq!(started.drain().await.done, 7);
}

#[tokio::test]
async fn member_with_a_bad_payload_fails_alone() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let mut sizes = double(&mut worker);
    let mut jobs: Vec<_> = (0..4).map(number).collect();
    jobs.insert(1, NewJob::new("double", Json::parse("\"x\"").unwrap()));
    let ids: Vec<_> = stage.queue.enqueue_many(jobs).await.unwrap().into_iter().map(|job| job.id).collect();
    let started = Started::new(worker);
    assert_eq!(soon(sizes.recv()).await, Some(4));
    stage.until(ids[1], State::Failed).await;
    assert_eq!(stage.until(ids[4], State::Succeeded).await.result, Some(Json::parse("6").unwrap()));
    started.drain().await;
}

#[tokio::test]
async fn panic_and_wrong_number_are_every_members_failure() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle_batch("boom", FIVE, |_: Vec<(JobContext, u32)>| async { panic!("all of us") });
    worker.handle_batch("few", FIVE, |_: Vec<(JobContext, u32)>| async { vec![Outcome::Done(Json::null())] });
    let kinds = ["boom", "boom", "few", "few"];
    let jobs = kinds.map(|kind| NewJob::new(kind, Json::parse("1").unwrap())).to_vec();
    let ids: Vec<_> = stage.queue.enqueue_many(jobs).await.unwrap().into_iter().map(|job| job.id).collect();
    let started = Started::new(worker);
    stage.until(ids[3], State::Running).await;
    stage.clock.advance(FIVE.wait);
    for id in &ids[..2] {
        assert_eq!(stage.until(*id, State::Scheduled).await.job.error.unwrap().reason, Reason::Panic);
    }
    for id in &ids[2..] {
        let error = stage.until(*id, State::Scheduled).await.job.error.unwrap();
        assert!(error.text.contains("1 outcomes for 2 jobs"), "{error}");
    }
    started.drain().await;
}

#[tokio::test]
async fn time_limit_is_every_members_failure() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let options = KindOptions { run_limit: Duration::from_secs(5), ..KindOptions::default() };
    let (begun_sender, mut begun) = unbounded_channel();
    let batch = BatchOptions { size_max: 2, wait: Duration::ZERO };
    worker.handle_batch_with("slow", batch, options, move |_: Vec<(JobContext, u32)>| {
        begun_sender.send(()).unwrap();
        std::future::pending::<Vec<Outcome>>()
    });
    let jobs = vec![NewJob::new("slow", Json::parse("1").unwrap()); 2];
    let ids: Vec<_> = stage.queue.enqueue_many(jobs).await.unwrap().into_iter().map(|job| job.id).collect();
    let started = Started::new(worker);
    soon(begun.recv()).await.unwrap();
    stage.clock.advance(Duration::from_secs(5));
    for id in ids {
        assert_eq!(stage.until(id, State::Scheduled).await.job.error.unwrap().reason, Reason::RunLimit);
    }
    started.drain().await;
}

#[tokio::test]
async fn suspect_runs_in_a_batch_of_its_own() {
    let stage = Stage::new();
    let suspect = enqueue(&stage, 1).await[0];
    let request = ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("w-dead"),
        limit: 1,
        suspects_max: 0,
        lease_for: Duration::from_secs(60),
        now: stage.clock.now(),
    };
    assert_eq!(stage.store.claim(request).await.unwrap().len(), 1);
    stage.pass(Duration::from_secs(60)).await;
    stage.pass(Duration::from_secs(1)).await;
    let innocents = enqueue(&stage, 5).await;
    let mut worker = stage.worker();
    let mut sizes = double(&mut worker);
    let started = Started::new(worker);
    stage.until(suspect, State::Succeeded).await;
    for id in innocents {
        stage.until(id, State::Succeeded).await;
    }
    let mut called = [soon(sizes.recv()).await.unwrap(), soon(sizes.recv()).await.unwrap()];
    called.sort_unstable();
    assert_eq!(called, [1, 5]);
    started.drain().await;
}

#[tokio::test]
async fn stop_gives_a_waiting_batch_back() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let _sizes = double(&mut worker);
    let ids = enqueue(&stage, 2).await;
    let started = Started::new(worker);
    stage.until(ids[1], State::Running).await;
    started.shutdown.stop();
    assert_eq!(started.ended().await.released, 2);
    assert_eq!(stage.get(ids[0]).await.job.state, State::Ready);
}
