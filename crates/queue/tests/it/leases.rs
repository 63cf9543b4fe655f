//! Leases, limits and crashes: who may run a job, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use longhaul_queue::job::{Lease, WorkerId};
use longhaul_queue::state::{Reason, RunOutcome};
use longhaul_queue::store::ClaimRequest;
use longhaul_queue::testing::{Started, soon};
use longhaul_queue::{
    Clock, Failure, JobContext, JobId, Json, KindOptions, NewJob, State, Worker, WorkerOptions,
};

use crate::stage::{Mark, Stage};

const LEASE: Duration = Duration::from_secs(60);

/// A handler that never answers, and a mark for its start.
fn hang(worker: &mut Worker, kind: &str, options: KindOptions) -> Mark {
    let mark = Mark::default();
    let begun = mark.clone();
    worker.handle_with(kind, options, move |_: JobContext, (): ()| {
        begun.reach();
        std::future::pending::<Result<(), Failure>>()
    });
    mark
}

#[tokio::test]
async fn run_limit_ends_a_run_as_a_failure() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let options = KindOptions { run_limit: Duration::from_secs(5), ..KindOptions::default() };
    let begun = hang(&mut worker, "slow", options);
    let started = Started::new(worker);
    let id = stage.enqueue("slow").await;
    begun.reached().await;
    stage.clock.advance(Duration::from_secs(5));
    let job = stage.until(id, State::Scheduled).await.job;
    assert_eq!((job.error.unwrap().reason, job.spent.attempt), (Reason::RunLimit, 1));
    started.drain().await;
}

#[tokio::test]
async fn idle_limit_counts_from_the_last_sign_of_life() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let options = KindOptions { idle_limit: Some(Duration::from_secs(5)), ..KindOptions::default() };
    let (begun, speak, spoken) = (Mark::default(), Mark::default(), Mark::default());
    let marks = (begun.clone(), speak.clone(), spoken.clone());
    worker.handle_with("quiet", options, move |context: JobContext, (): ()| {
        let (begun, speak, spoken) = marks.clone();
        async move {
            begun.reach();
            speak.reached().await;
            context.progress(1, 2);
            spoken.reach();
            std::future::pending::<Result<(), Failure>>().await
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("quiet").await;
    begun.reached().await;
    stage.clock.advance(Duration::from_secs(4));
    speak.reach();
    spoken.reached().await;
    stage.clock.advance(Duration::from_secs(4));
    assert_eq!(stage.get(id).await.job.state, State::Running, "8 s after the start, 4 s after the report");
    stage.clock.advance(Duration::from_secs(1));
    let job = stage.until(id, State::Scheduled).await.job;
    assert_eq!(job.error.unwrap().reason, Reason::IdleLimit);
    started.drain().await;
}

#[tokio::test]
async fn lost_lease_stops_the_handler_and_drops_its_outcome() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let begun = hang(&mut worker, "slow", KindOptions::default());
    let started = Started::new(worker);
    let id = stage.enqueue("slow").await;
    begun.reached().await;
    // Somebody takes the job away although the worker lives: a rescue by a clock that is ahead.
    let ahead = stage.clock.now() + 2 * LEASE;
    assert_eq!(stage.store.rescue_expired(ahead, 10).await.unwrap().changed, 1);
    let before = stage.get(id).await.job;
    stage.clock.advance(LEASE / 3);
    let report = started.drain().await;
    assert_eq!((report.lost_leases, report.total()), (1, 1));
    assert_eq!(stage.get(id).await.job, before, "the late run changed nothing");
}

#[test]
fn blocked_runtime_keeps_its_lease() {
    let stage = Arc::new(Stage::new());
    let (begun_sender, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let mut worker = stage.worker();
    worker.handle("block", move |context: JobContext, (): ()| {
        begun_sender.send(context.fence()).unwrap();
        released.lock().unwrap().recv().unwrap();
        async { Ok::<_, Failure>(()) }
    });
    let of_worker = Arc::clone(&stage);
    let worker_thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let id = of_worker.enqueue("block").await;
            let started = Started::new(worker);
            let detail = of_worker.until(id, State::Succeeded).await;
            (detail, started.drain().await)
        })
    });
    assert_eq!(begun.recv().unwrap(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..9 {
            stage.clock.advance(LEASE / 3);
            let renewed = stage.clock.now() + LEASE;
            while running(&stage).await < Some(renewed) {
                std::thread::yield_now();
            }
            assert_eq!(stage.store.rescue_expired(stage.clock.now(), 10).await.unwrap().changed, 0);
        }
    });
    release.send(()).unwrap();
    let (detail, report) = worker_thread.join().unwrap();
    assert_eq!((detail.job.fence, report.done, report.lost_leases), (1, 1, 0));
}

async fn running(stage: &Stage) -> Option<longhaul_queue::Timestamp> {
    let page = stage
        .queue
        .list(longhaul_queue::store::ListRequest { limit: 10, ..Default::default() })
        .await
        .unwrap();
    page.items[0].lease_until
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_blocks_past_its_run_limit_loses_its_lease() {
    let stage = Stage::new();
    let (told_sender, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let begun = Mark::default();
    let mark = begun.clone();
    let mut worker = stage.worker();
    let options = KindOptions { run_limit: Duration::from_secs(5), ..KindOptions::default() };
    worker.handle_with("block", options, move |context: JobContext, (): ()| {
        mark.reach();
        while !context.is_cancelled() {
            std::thread::yield_now();
        }
        told_sender.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        async { Ok::<_, Failure>(()) }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("block").await;
    begun.reached().await;
    stage.clock.advance(LEASE);
    // The heartbeat renews before it tells, so by now it has passed this lease over.
    soon(told.recv()).await.unwrap();
    assert_eq!(stage.store.rescue_expired(stage.clock.now(), 10).await.unwrap().changed, 1);
    release.send(()).unwrap();
    let report = started.drain().await;
    assert_eq!((report.lost_leases, report.total()), (1, 1));
    assert_eq!(stage.get(id).await.job.spent.crashes, 1);
}

/// Claims as a worker that is never heard of again.
async fn claim_and_die(stage: &Stage, limit: usize) -> Vec<Lease> {
    let claimed = stage.store.claim(ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("w-dead"),
        limit,
        suspects_max: limit,
        lease_for: LEASE,
        now: stage.clock.now(),
    });
    claimed.await.unwrap().into_iter().map(|claimed| claimed.lease).collect()
}

#[tokio::test]
async fn poison_job_ends_after_three_crashes_and_its_neighbours_survive() {
    let stage = Stage::new();
    let poison = stage.enqueue("poison").await;
    let neighbours = [stage.enqueue("fine").await, stage.enqueue("fine").await];
    // All three run when the first worker dies, so all three are suspects.
    assert_eq!(claim_and_die(&stage, 10).await.len(), 3);
    stage.pass(LEASE).await;
    for round in 2..=3 {
        stage.pass(Duration::from_secs(60)).await;
        let mut worker = stage.worker();
        let begun = hang(&mut worker, "poison", KindOptions::default());
        worker.handle("fine", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
        let started = Started::new(worker);
        begun.reached().await;
        assert_eq!(stage.get(poison).await.job.fence, round);
        started.kill().await;
        stage.pass(LEASE).await;
    }
    let job = stage.get(poison).await.job;
    assert_eq!((job.state, job.error.unwrap().reason), (State::Failed, Reason::Poison));
    let mut worker = stage.worker();
    worker.handle("fine", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    let started = Started::new(worker);
    stage.pass(Duration::from_secs(60)).await;
    for neighbour in neighbours {
        let job = stage.until(neighbour, State::Succeeded).await.job;
        assert!(job.spent.crashes <= 2, "{job:?}");
    }
    started.drain().await;
}

#[tokio::test]
async fn suspects_run_one_at_a_time_beside_others() {
    let stage = Stage::new();
    for _ in 0..3 {
        stage.enqueue("job").await;
    }
    assert_eq!(claim_and_die(&stage, 3).await.len(), 3);
    stage.pass(LEASE).await;
    stage.pass(Duration::from_secs(10)).await;
    let (at_once, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (counting, highest) = (Arc::clone(&at_once), Arc::clone(&most));
    let (suspect, innocent, release) = (Mark::default(), Mark::default(), Mark::default());
    let marks = (suspect.clone(), innocent.clone(), release.clone());
    let mut worker = stage.worker();
    worker.handle("job", move |context: JobContext, (): ()| {
        let (suspect, innocent, release) = marks.clone();
        let (counting, highest) = (Arc::clone(&counting), Arc::clone(&highest));
        async move {
            if context.job().spent.crashes == 0 {
                innocent.reach();
                return Ok::<_, Failure>(());
            }
            highest.fetch_max(counting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            suspect.reach();
            release.reached().await;
            counting.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let started = Started::new(worker);
    for _ in 0..3 {
        suspect.reached().await;
        // There is room: an innocent job passes while the suspect runs.
        stage.enqueue("job").await;
        innocent.reached().await;
        release.reach();
    }
    let report = started.drain().await;
    assert_eq!((report.done, most.load(Ordering::SeqCst)), (6, 1));
}

#[tokio::test]
async fn durable_progress_clears_the_crashes() {
    let stage = Stage::new();
    let id = stage.enqueue("job").await;
    claim_and_die(&stage, 1).await;
    stage.pass(LEASE).await;
    stage.pass(Duration::from_secs(1)).await;
    let mut worker = stage.worker();
    worker.handle("job", |context: JobContext, (): ()| async move {
        context.save(&1).await?;
        Err::<(), _>(Failure::retry("later"))
    });
    let started = Started::new(worker);
    let detail = stage.until(id, State::Scheduled).await;
    assert_eq!((detail.job.spent.crashes, detail.job.spent.attempt), (0, 1));
    assert_eq!(
        detail.runs.iter().map(|run| run.outcome).collect::<Vec<_>>(),
        [RunOutcome::Crash, RunOutcome::Retry]
    );
    started.drain().await;
}

#[tokio::test]
async fn every_start_is_somebody_else() {
    let stage = Stage::new();
    let (first, second) = (stage.worker(), stage.worker());
    assert_ne!(first.id(), second.id());
    assert!(first.id().as_str().starts_with("w-"));
}

#[tokio::test]
async fn worker_is_listed_while_it_runs() {
    let stage = Stage::new();
    let mut worker = stage.worker_with(WorkerOptions { host: "here".to_owned(), ..WorkerOptions::default() });
    let id = worker.id().clone();
    let begun = hang(&mut worker, "slow", KindOptions::default());
    let started = Started::new(worker);
    let job: JobId = stage.enqueue_job(NewJob::new("slow", Json::null())).await;
    begun.reached().await;
    // A sign of life is no change that a store tells of.
    soon(async {
        while stage.store.workers(stage.clock.now()).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let listed = stage.store.workers(stage.clock.now()).await.unwrap();
    assert_eq!((&listed[0].id, listed[0].host.as_str()), (&id, "here"));
    started.shutdown.stop();
    started.ended().await;
    assert!(stage.store.workers(stage.clock.now()).await.unwrap().is_empty(), "it said goodbye");
    assert_eq!(stage.get(job).await.job.state, State::Ready);
}
