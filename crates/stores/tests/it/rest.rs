//! Stores that nobody uses just now: a program may hold hundreds of them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_queue::testing::bench::{id, job};
use longhaul_queue::{Clock, Store, SystemClock};
use longhaul_sqlite::child;
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

use crate::stage::Stage;

/// Nothing that should come by itself takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);
/// The system has no event for the end of a thread, so this asks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const STORES: usize = 500;
/// Of resident memory, for all of them.
const MEMORY_MAX_KIB: u64 = 300 * 1024;

fn stores_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    // Names are cut at 15 bytes.
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("longhaul-")).collect()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

async fn until_at_rest() {
    let started_at = Instant::now();
    while stores_threads().iter().any(|name| name != "longhaul-foreig") {
        assert!(started_at.elapsed() < PATIENCE, "threads stay: {:?}", stores_threads());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Runs the rest of a test in a process of its own, where no other test has stores. True in that process.
fn alone(name: &str) -> bool {
    if child::role().is_some() {
        return true;
    }
    let stage = Stage::new();
    let mut command = child::command(&format!("rest::{name}"), "alone", &stage.folder);
    let output = command.stdin(Stdio::null()).output().expect("the child starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    false
}

fn open(name: &str) -> SqliteStore {
    let (_, folder) = child::role().expect("this is the child");
    SqliteStore::open(&folder.join(name), SqliteOptions::default()).expect("it opens")
}

#[tokio::test]
async fn hundreds_of_watched_stores_at_rest_have_no_thread_and_little_memory() {
    if !alone("hundreds_of_watched_stores_at_rest_have_no_thread_and_little_memory") {
        return;
    }
    let before = resident_kib();
    let mut watched = Vec::with_capacity(STORES);
    for number in 0..STORES {
        let store = open(&format!("{number}.db"));
        store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
        assert_eq!(store.get(vec![id(1)]).await.expect("get answers").len(), 1);
        let changes = store.watch();
        watched.push((store, changes));
    }
    until_at_rest().await;
    let grown = resident_kib() - before;
    println!("{STORES} stores at rest: {grown} KiB");
    assert!(grown < MEMORY_MAX_KIB, "{grown} KiB for {STORES} stores");
    for (store, _) in watched {
        store.close().await;
    }
}

#[tokio::test]
async fn a_store_at_rest_wakes_for_commands_and_for_writes_of_others() {
    if !alone("a_store_at_rest_wakes_for_commands_and_for_writes_of_others") {
        return;
    }
    let (resting, other) = (open("shared.db"), open("shared.db"));
    let mut changes = resting.watch();
    for number in 1..=3 {
        until_at_rest().await;
        changes.mark_unchanged();
        other.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        tokio::time::timeout(PATIENCE, changes.changed())
            .await
            .expect("it is heard")
            .expect("the store lives");
        until_at_rest().await;
        resting.insert(vec![job(100 + number)], SystemClock.now()).await.expect("insert answers");
    }
    assert_eq!(resting.get((1..=3).map(id).collect()).await.expect("get answers").len(), 3);
}

#[tokio::test]
async fn an_enqueue_on_its_callers_thread_wakes_the_writer_for_its_event() {
    if !alone("an_enqueue_on_its_callers_thread_wakes_the_writer_for_its_event") {
        return;
    }
    let options = SqliteOptions {
        durability: longhaul_stores::sqlite::Durability::Relaxed,
        ..SqliteOptions::default()
    };
    let (_, folder) = child::role().expect("this is the child");
    let store = SqliteStore::open(&folder.join("relaxed.db"), options).expect("it opens");
    until_at_rest().await;
    // At this level a small enqueue commits on the caller's thread, without the writer's.
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    let started_at = Instant::now();
    let written = async || {
        let count = "SELECT count(*) FROM lh_events";
        let read = store
            .db()
            .read(move |connection| Ok(connection.query_row(count, [], |row| row.get::<_, i64>(0))?));
        read.await.expect("it answers")
    };
    while written().await == 0 {
        assert!(started_at.elapsed() < PATIENCE, "nobody writes the event");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[tokio::test]
async fn a_store_says_when_it_next_has_something_to_do() {
    let stage = Stage::new();
    let store: Arc<SqliteStore> = stage.open();
    let bench = stage.bench(&store);
    let (now, later) = (bench.now(), bench.now() + Duration::from_secs(60));
    assert_eq!(store.next_due(now).await, Ok(None), "nothing until somebody writes");
    bench.add([job(1).run_at(later)]).await;
    assert_eq!(store.next_due(now).await, Ok(Some(later)));
    assert_eq!(
        store.next_due(later + Duration::from_secs(1)).await,
        Ok(Some(later + Duration::from_secs(1)))
    );
    bench.add([job(2)]).await;
    assert_eq!(store.next_due(now).await, Ok(Some(now)), "a job is ready");
    let claimed = bench.start(2).await;
    assert_eq!(store.next_due(now).await, Ok(Some(later.min(claimed.lease.until))), "a lease runs out");
}
