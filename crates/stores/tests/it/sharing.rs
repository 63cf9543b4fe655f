//! Several stores on one file, in one process and in several: no error reaches a caller, no job is handed out twice,
//! and everybody hears of everybody's changes.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, State, settle};
use longhaul_queue::store::{ClaimRequest, SettleItem, Settled};
use longhaul_queue::testing::bench::{LEASE_FOR, done, id, job};
use longhaul_queue::{Claimed, Clock, EngineStore as _, Store, SystemClock};
use longhaul_sqlite::child;
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::watch;

use crate::stage::{Stage, check_sound};

/// Nothing that should come at once takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);
const PEERS: u64 = 4;
const JOBS_EACH: u64 = 150;

fn open(stage: &Stage) -> Arc<SqliteStore> {
    let options = SqliteOptions { clock: Arc::new(SystemClock), ..stage.options() };
    Arc::new(SqliteStore::open(&stage.path(), options).expect("the store opens"))
}

async fn changed(changes: &mut watch::Receiver<u64>) {
    let change = tokio::time::timeout(PATIENCE, changes.changed()).await;
    change.expect("a change of somebody else's is heard").expect("the store lives");
}

/// One of several that enqueue, claim and settle until the jobs of all have ended. Returns what it was handed.
async fn work(store: &SqliteStore, peer: u64) -> Vec<(i64, u64)> {
    let mut handed = Vec::new();
    let mut changes = store.watch();
    for number in 0..JOBS_EACH {
        let new = job(peer * 1_000 + number).process("p");
        store.insert(vec![new], SystemClock.now()).await.expect("insert answers");
        handed.extend(claim_and_settle(store, peer).await);
    }
    loop {
        changes.mark_unchanged();
        let more = claim_and_settle(store, peer).await;
        let counts = store.counts().await.expect("counts answers");
        let ended: u64 = counts.iter().filter(|row| row.state == State::Succeeded).map(|row| row.jobs).sum();
        if ended == PEERS * JOBS_EACH {
            return handed.into_iter().chain(more).collect();
        }
        if more.is_empty() {
            changed(&mut changes).await;
        }
        handed.extend(more);
    }
}

async fn claim_and_settle(store: &SqliteStore, peer: u64) -> Vec<(i64, u64)> {
    let request = ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(format!("w{peer}")),
        limit: 3,
        suspects_max: 1,
        lease_for: LEASE_FOR,
        now: SystemClock.now(),
    };
    let claimed = store.claim(request).await.expect("claim answers");
    let item = |claimed: &Claimed| SettleItem {
        lease: claimed.lease.clone(),
        settlement: settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5),
        follow_ups: Vec::new(),
    };
    let items: Vec<_> = claimed.iter().map(item).collect();
    let count = items.len();
    let settled = store.settle(items, SystemClock.now()).await.expect("settle answers");
    assert_eq!(settled, vec![Settled::Applied(State::Succeeded); count], "nobody else has them");
    claimed.iter().map(|claimed| (claimed.lease.seq, claimed.lease.fence)).collect()
}

/// Every job was handed out once, to one of the peers.
fn check_handed_out(handed: impl IntoIterator<Item = (i64, u64)>) {
    let mut fences: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for (seq, fence) in handed {
        fences.entry(seq).or_default().push(fence);
    }
    assert_eq!(fences.len() as u64, PEERS * JOBS_EACH);
    let twice: Vec<_> = fences.iter().filter(|(_, fences)| **fences != [1]).collect();
    assert!(twice.is_empty(), "handed out twice: {twice:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_of_one_process_share_a_file() {
    let stage = Stage::new();
    let stores: Vec<_> = (0..PEERS).map(|_| open(&stage)).collect();
    let peers =
        (0..).zip(stores.clone()).map(|(peer, store)| tokio::spawn(async move { work(&store, peer).await }));
    let mut handed = Vec::new();
    for peer in peers.collect::<Vec<_>>() {
        handed.extend(peer.await.expect("no peer fails"));
    }
    check_handed_out(handed);
    check_sound(&stores[0]).await;
}

/// Starts this test again as another process.
fn spawn_child(name: &str, role: &str, stage: &Stage) -> Child {
    let mut command = child::command(&format!("sharing::{name}"), role, &stage.folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the child starts")
}

fn finish(child: Child) {
    let output = child.wait_with_output().expect("the child ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The file does not exist yet: the first thing that the children fight over is who makes it.
#[tokio::test]
async fn processes_share_a_file_from_its_first_moment() {
    if let Some((peer, folder)) = child::role() {
        let store = open(&Stage::at(folder.clone()));
        let handed = work(&store, peer.parse().expect("a number")).await;
        let lines: Vec<String> = handed.iter().map(|(seq, fence)| format!("{seq} {fence}")).collect();
        std::fs::write(folder.join(format!("handed-{peer}")), lines.join("\n")).expect("it can be written");
        return;
    }
    let stage = Stage::new();
    let name = "processes_share_a_file_from_its_first_moment";
    let children: Vec<_> = (0..PEERS).map(|peer| spawn_child(name, &peer.to_string(), &stage)).collect();
    children.into_iter().for_each(finish);
    let handed = (0..PEERS).flat_map(|peer| {
        let text = std::fs::read_to_string(stage.folder.join(format!("handed-{peer}"))).expect("its list");
        let line = |line: &str| {
            let (seq, fence) = line.split_once(' ').expect("two numbers");
            (seq.parse().expect("a number"), fence.parse().expect("a number"))
        };
        text.lines().map(line).collect::<Vec<(i64, u64)>>()
    });
    check_handed_out(handed);
    check_sound(&open(&stage)).await;
}

#[tokio::test]
async fn a_change_by_another_process_wakes_whoever_watches() {
    if let Some((_, folder)) = child::role() {
        let store = open(&Stage::at(folder));
        store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
        return;
    }
    let stage = Stage::new();
    let store = open(&stage);
    let mut changes = store.watch();
    changes.mark_unchanged();
    let child = spawn_child("a_change_by_another_process_wakes_whoever_watches", "child", &stage);
    while store.get(vec![id(1)]).await.expect("get answers").is_empty() {
        changed(&mut changes).await;
    }
    finish(child);
    let claimed = claim_and_settle(&store, 0).await;
    assert_eq!(claimed, [(1, 1)], "and the job can be claimed here");
}

#[tokio::test]
async fn a_change_by_another_store_wakes_whoever_watches() {
    let stage = Stage::new();
    let (writing, watching) = (open(&stage), open(&stage));
    let mut changes = watching.watch();
    for number in 1..=20 {
        changes.mark_unchanged();
        writing.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        changed(&mut changes).await;
    }
}

#[test]
fn a_new_file_may_be_opened_by_many_at_once() {
    for _ in 0..30 {
        let stage = Stage::new();
        let ready = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    ready.wait();
                    open(&stage);
                });
            }
        });
    }
}
