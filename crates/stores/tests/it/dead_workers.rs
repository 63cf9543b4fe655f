//! Workers whose process is gone: their jobs come back at once, while those of the living, and of whoever left no lock, wait for
//! their leases.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::limits::SWEEP_MAX;
use longhaul_queue::state::{Reason, RunOutcome, State};
use longhaul_queue::store::{ClaimRequest, WorkerInfo};
use longhaul_queue::testing::bench::{LEASE_FOR, done, job, secs};
use longhaul_queue::{EngineStore as _, Store, Timestamp};
use longhaul_sqlite::child;
use longhaul_stores::sqlite::SqliteStore;

use crate::stage::{Stage, check_sound};

/// Nothing that should come at once takes longer than this.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Longer than two looks for dead processes are apart, and far less than a lease.
const A_LOOK_LATER: Duration = secs(3);

async fn employ(store: &SqliteStore, names: &[&str]) {
    for name in names {
        store.register_local_worker(WorkerId::new(*name)).await;
    }
}

/// Files of locks beside the database.
fn locks(stage: &Stage) -> usize {
    let entries = std::fs::read_dir(&stage.folder).expect("the folder").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("test.db-process-")).count()
}

#[tokio::test]
async fn jobs_of_a_store_that_is_gone_come_back_at_once_and_those_of_a_living_one_do_not() {
    let stage = Stage::new();
    let (first, second) = (stage.open(), stage.open());
    employ(&first, &["w1"]).await;
    employ(&second, &["w2"]).await;
    let (dying, living) = (stage.bench(&first), stage.bench(&second));
    living.add([job(1), job(2), job(3)]).await;
    let claimed = dying.start(1).await;
    living.claim_with(ClaimRequest { worker: WorkerId::new("w2"), ..living.request() }).await;
    assert_eq!(living.rescue().await.changed, 0, "both live, in one process");
    living.pass(A_LOOK_LATER);
    assert_eq!(living.rescue().await.changed, 0);
    assert_eq!(locks(&stage), 2);

    drop(dying);
    drop(first);
    assert_eq!(living.rescue().await.changed, 0, "the folder is not looked at after every change");
    living.pass(A_LOOK_LATER);
    let swept = living.rescue().await;
    assert_eq!(swept.changed, 1);
    living.expect(&[(1, State::Scheduled), (2, State::Running), (3, State::Ready)]).await;
    let detail = living.detail(1).await;
    assert_eq!(swept.next_at, living.detail(2).await.job.lease_until, "the other lease is waited for");
    // As if the lease had expired.
    assert_eq!(detail.job.error.expect("an error").reason, Reason::Crash);
    assert_eq!((detail.job.spent.attempt, detail.job.spent.crashes), (0, 1));
    assert_eq!((detail.runs.len(), detail.runs[0].outcome), (1, RunOutcome::Crash));
    assert_eq!(detail.runs[0].worker, WorkerId::new("w1"));
    assert!(detail.runs[0].ended_at < claimed.lease.until, "long before the lease's end");
    assert_eq!(locks(&stage), 1, "nobody needs the dead one's any more");
    check_sound(&second).await;
}

/// Its last sign of life is recent, and nobody takes it for a living one: neither before nor after its jobs are back.
#[tokio::test]
async fn a_worker_whose_process_is_dead_is_not_listed_any_more() {
    let stage = Stage::new();
    let (first, second) = (stage.open(), stage.open());
    let living = stage.bench(&second);
    for (store, name) in [(&first, "w1"), (&second, "w2")] {
        employ(store, &[name]).await;
        store.heartbeat(worker(name, living.now())).await.expect("heartbeat answers");
    }
    living.add([job(1)]).await;
    let listed = async || {
        let workers = second.workers(living.now()).await.expect("workers answers");
        workers.into_iter().map(|worker| worker.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, ["w1", "w2"]);
    stage.bench(&first).start(1).await;
    drop(first);
    // A process that another test starts shares the locks of this one between its fork and its exec, and there is no event for that.
    let gone = async {
        while listed().await != ["w2"] {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the dead are not listed");
    assert_eq!(living.rescue().await.changed, 1);
    assert_eq!((listed().await, locks(&stage)), (vec!["w2".to_owned()], 1));
}

fn worker(name: &str, now: Timestamp) -> WorkerInfo {
    WorkerInfo {
        id: WorkerId::new(name),
        host: "host".to_owned(),
        pid: 7,
        version: "1".to_owned(),
        queues: vec!["default".to_owned()],
        kinds: None,
        concurrency: 4,
        running: 0,
        started_at: now,
        seen_at: now,
        gone: false,
    }
}

#[tokio::test]
async fn a_store_that_leaves_nothing_running_leaves_no_lock() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1)]).await;
    assert_eq!(locks(&stage), 0, "only workers have locks");
    employ(&store, &["w1", "w2"]).await;
    assert_eq!(locks(&stage), 1, "all of an opening have one");
    bench.run(1, done("1")).await;
    drop((bench, store));
    assert_eq!(locks(&stage), 0);
}

#[tokio::test]
async fn without_a_lock_the_lease_decides() {
    let stage = Stage::new();
    let (first, second) = (stage.open(), stage.open());
    let (dying, living) = (stage.bench(&first), stage.bench(&second));
    living.add([job(1), job(2)]).await;
    // One that was never noted, such as a worker behind HTTP, beside one that was and has nothing to do.
    employ(&first, &["other"]).await;
    dying.start(1).await;
    // And one whose lock somebody took away.
    let third = stage.open();
    employ(&third, &["w3"]).await;
    let request = ClaimRequest { worker: WorkerId::new("w3"), ..living.request() };
    assert_eq!(third.claim(request).await.expect("claim answers").len(), 1);
    drop((dying, first, third));
    for entry in std::fs::read_dir(&stage.folder).expect("the folder").flatten() {
        if entry.file_name().to_string_lossy().contains("-process-") {
            std::fs::remove_file(entry.path()).expect("removed");
        }
    }
    assert_eq!(living.rescue().await.changed, 0);
    living.pass(LEASE_FOR);
    assert_eq!(living.rescue().await.changed, 2);
}

#[tokio::test]
async fn more_than_a_sweep_takes_comes_back_by_further_sweeps_before_the_lock_is_forgotten() {
    let stage = Stage::new();
    let (first, second) = (stage.open(), stage.open());
    let living = stage.bench(&second);
    living.add((1..=5).map(job)).await;
    employ(&first, &["w1"]).await;
    assert_eq!(stage.bench(&first).claim(5).await.len(), 5);
    drop(first);
    let mut rescued = Vec::new();
    for left in [1, 1, 0] {
        let swept = second.rescue_expired(living.now(), 2).await.expect("rescue answers");
        assert_eq!(swept.next_at.is_some(), left == 1, "there is more to do at once");
        rescued.push((swept.changed, locks(&stage)));
    }
    assert_eq!(rescued, [(2, 1), (2, 1), (1, 0)]);
}

/// The real thing: a process that is killed, and does nothing to be found.
#[tokio::test]
async fn jobs_of_a_killed_process_come_back_at_once() {
    if let Some((_, folder)) = child::role() {
        let stage = Stage::at(folder);
        let store = stage.open();
        employ(&store, &["killed"]).await;
        let request = ClaimRequest { worker: WorkerId::new("killed"), ..stage.bench(&store).request() };
        assert_eq!(store.claim(request).await.expect("claim answers").len(), 1);
        println!("claimed");
        std::future::pending::<()>().await;
    }
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1)]).await;
    let name = "dead_workers::jobs_of_a_killed_process_come_back_at_once";
    let mut command = child::command(name, "worker", &stage.folder);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the child starts");
    let mut said = String::new();
    let mut stdout = child.stdout.take().expect("piped");
    while !said.contains("claimed") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).expect("the child speaks"), 1, "the child ended: {said}");
        said.push(char::from(byte[0]));
    }
    assert_eq!(bench.rescue().await.changed, 0, "it lives");
    child.kill().expect("killed");
    child.wait().expect("ended");
    bench.pass(A_LOOK_LATER);
    let swept = store.rescue_expired(bench.now(), SWEEP_MAX).await.expect("rescue answers");
    assert_eq!((swept.changed, locks(&stage)), (1, 0));
    bench.expect(&[(1, State::Scheduled)]).await;
}
