//! What only Postgres is asked: crashes of the server, connections that are cut, several stores on one schema, snapshots
//! that are held, and schemas of newer programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, settle};
use longhaul_queue::store::{ClaimRequest, ListRequest, QueueChange, SettleItem, Settled};
use longhaul_queue::testing::bench::{done, id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Claimed, Clock, EngineStore as _, Error, State, Store, SystemClock};
use longhaul_sqlite::child;
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};
use tokio::sync::watch;
use tokio_postgres::Client;

use crate::servers::postgres::{Server, shared};

/// Nothing that should come at once takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn open(server: &Server, schema: &str) -> Arc<PostgresStore> {
    let store = PostgresStore::open(&server.url(schema), PostgresOptions::default()).await;
    Arc::new(store.expect("the store opens"))
}

pub(crate) async fn count(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("it answers").get(0)
}

pub(crate) async fn changed(changes: &mut watch::Receiver<u64>) {
    let change = tokio::time::timeout(PATIENCE, changes.changed()).await;
    change.expect("a change of somebody else's is heard").expect("the store lives");
}

pub(crate) fn request(worker: &str, lease_for: Duration) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(worker),
        limit: 5,
        suspects_max: 5,
        lease_for,
        now: SystemClock.now(),
    }
}

pub(crate) fn item(claimed: &Claimed) -> SettleItem {
    let settlement = settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5);
    SettleItem { lease: claimed.lease.clone(), settlement, follow_ups: Vec::new() }
}

/// Repeats a call until the server answers it.
macro_rules! persist {
    ($call:expr) => {{
        let started_at = Instant::now();
        loop {
            match $call.await {
                Err(Error::Unavailable(text)) => assert!(started_at.elapsed() < PATIENCE, "{text}"),
                other => break other.expect("nothing else goes wrong"),
            }
            tokio::task::yield_now().await;
        }
    }};
}

/// One worker of several under faults: claims, settles, and counts how often each job was settled by an answer.
async fn work(store: Arc<PostgresStore>, name: String, jobs: u64) -> BTreeMap<i64, u32> {
    let mut settled = BTreeMap::new();
    loop {
        let claimed = persist!(store.claim(request(&name, Duration::from_secs(2))));
        let items: Vec<_> = claimed.iter().map(item).collect();
        if !items.is_empty() {
            let replies = persist!(store.settle(items.clone(), SystemClock.now()));
            for (claimed, reply) in claimed.iter().zip(replies) {
                if reply == Settled::Applied(State::Succeeded) {
                    *settled.entry(claimed.lease.seq).or_default() += 1;
                }
            }
        }
        persist!(store.rescue_expired(SystemClock.now(), 100));
        persist!(store.promote_due(SystemClock.now(), 100));
        let counts = persist!(store.counts());
        let ended: u64 = counts.iter().filter(|row| row.state == State::Succeeded).map(|row| row.jobs).sum();
        if ended == jobs {
            return settled;
        }
    }
}

/// Enqueues one by one while others work, and returns when every enqueue was answered.
async fn enqueue(store: Arc<PostgresStore>, jobs: u64) {
    for number in 1..=jobs {
        // A child now and then, so that calls which run alone are disturbed too.
        let new = if number % 10 == 0 { job(number).after(id(number - 1)) } else { job(number) };
        let new = new.max_crashes(1_000);
        persist!(store.insert(vec![new.clone()], SystemClock.now()));
    }
}

/// Lets workers run while `disturb` does its worst, and checks that nothing was lost or settled twice.
async fn survives(stores: &[Arc<PostgresStore>], jobs: u64, disturb: impl Future<Output = ()>) {
    let enqueuing = tokio::spawn(enqueue(Arc::clone(&stores[0]), jobs));
    let workers: Vec<_> = (0..)
        .zip(stores)
        .map(|(number, store)| tokio::spawn(work(Arc::clone(store), format!("w{number}"), jobs)))
        .collect();
    disturb.await;
    enqueuing.await.expect("every enqueue is answered");
    let mut settled: BTreeMap<i64, u32> = BTreeMap::new();
    for worker in workers {
        for (seq, times) in worker.await.expect("no worker fails") {
            *settled.entry(seq).or_default() += times;
        }
    }
    let twice: Vec<_> = settled.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "settled twice: {twice:?}");
    let ledger = stores[0].ledger().await.expect("ledger answers");
    let ended: Vec<_> = ledger.iter().map(|row| (row.state, row.jobs)).collect();
    assert_eq!(ended.iter().map(|(_, jobs)| jobs).sum::<u64>(), jobs, "each ended once: {ended:?}");
    invariants::check(stores[0].as_ref()).await.expect("what is stored fits together");
}

/// How many jobs have ended, asked beside the stores.
async fn until_ended(store: &PostgresStore, jobs: u64) {
    loop {
        let counts = persist!(store.counts());
        if counts.iter().filter(|row| row.state == State::Succeeded).map(|row| row.jobs).sum::<u64>() >= jobs
        {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_loses_and_repeats_nothing() {
    let server = Arc::new(Server::start("fsync=on"));
    let schema = Server::schema();
    let stores = [open(&server, &schema).await, open(&server, &schema).await];
    let watching = Arc::clone(&stores[0]);
    let disturb = async {
        for ended in [50, 150, 250] {
            until_ended(&watching, ended).await;
            let server = Arc::clone(&server);
            let restart = move || {
                server.crash();
                server.restart();
            };
            tokio::task::spawn_blocking(restart).await.expect("it restarts");
        }
    };
    survives(&stores, 400, disturb).await;
    // Also the listener has found back.
    let mut changes = stores[1].watch();
    let new = open(&server, &schema).await;
    for number in 1_000.. {
        changes.mark_unchanged();
        new.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        if tokio::time::timeout(Duration::from_secs(6), changes.changed()).await.is_ok() {
            break;
        }
        assert!(number < 1_010, "the listener stays deaf");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_and_repeat_nothing() {
    let schema = Server::schema();
    let stores = [open(shared(), &schema).await, open(shared(), &schema).await];
    let client = shared().connect().await;
    let cut = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}'"
    );
    let watching = Arc::clone(&stores[0]);
    let disturb = async {
        let mut ended = 0;
        let mut cut_in_all = 0;
        while ended < 300 {
            until_ended(&watching, ended).await;
            cut_in_all += count(&client, &cut).await;
            ended += 20;
        }
        assert!(cut_in_all > 15, "only {cut_in_all} connections were cut");
    };
    survives(&stores, 300, disturb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_on_one_schema_hand_out_each_job_once() {
    let schema = Server::schema();
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(shared(), &schema).await);
    }
    survives(&stores, 400, async {}).await;
}

#[tokio::test]
async fn a_change_by_another_store_wakes_whoever_watches() {
    let schema = Server::schema();
    let (writing, watching) = (open(shared(), &schema).await, open(shared(), &schema).await);
    let mut changes = watching.watch();
    for number in 1..=20 {
        changes.mark_unchanged();
        writing.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        changed(&mut changes).await;
    }
}

#[tokio::test]
async fn a_change_by_another_process_wakes_whoever_watches() {
    let name = "postgres_special::a_change_by_another_process_wakes_whoever_watches";
    if let Some((url, _)) = child::role() {
        let url = url.parse().expect("a URL");
        let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("the store opens");
        store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
        return;
    }
    let schema = Server::schema();
    let store = open(shared(), &schema).await;
    let mut changes = store.watch();
    changes.mark_unchanged();
    let mut command = child::command(name, &shared().url_text(&schema), std::path::Path::new("/"));
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.expect("it runs").expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    changed(&mut changes).await;
    assert_eq!(store.get(vec![id(1)]).await.expect("get answers").len(), 1);
}

/// Dead rows pile up while somebody looks at an old state of things; claims go on all the same.
#[tokio::test]
async fn a_held_snapshot_does_not_stop_claims() {
    let schema = Server::schema();
    let store = open(shared(), &schema).await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    let mut holder = shared().connect().await;
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let held = holder.build_transaction().isolation_level(level).start().await.expect("it begins");
    let jobs = format!("SELECT count(*) FROM {schema}.lh_jobs WHERE state = 2");
    let seen = |client: i64| assert_eq!(client, 1, "the old state of things");
    seen(held.query_one(&jobs, &[]).await.expect("it answers").get(0));
    let mut handed_out = 0;
    for round in 0..20 {
        let new: Vec<_> = (0..100).map(|number| job(10 + round * 100 + number)).collect();
        store.insert(new, SystemClock.now()).await.expect("insert answers");
        loop {
            let request = ClaimRequest { limit: 100, ..request("w", Duration::from_secs(60)) };
            let claimed = store.claim(request).await.expect("claim answers");
            if claimed.is_empty() {
                break;
            }
            handed_out += claimed.len();
            let items = claimed.iter().map(item).collect();
            let settled = store.settle(items, SystemClock.now()).await.expect("settle answers");
            assert!(settled.iter().all(|reply| *reply == Settled::Applied(State::Succeeded)));
        }
    }
    assert_eq!(handed_out, 2_001);
    seen(held.query_one(&jobs, &[]).await.expect("it answers").get(0));
    held.rollback().await.expect("it ends");
    invariants::check(store.as_ref()).await.expect("what is stored fits together");
}

#[tokio::test]
async fn a_schema_of_a_newer_program_is_refused() {
    let schema = Server::schema();
    drop(open(shared(), &schema).await);
    let client = shared().connect().await;
    let newer = format!("UPDATE {schema}.lh_schema SET version = 99");
    client.batch_execute(&newer).await.expect("it is written");
    let refused = PostgresStore::open(&shared().url(&schema), PostgresOptions::default()).await;
    let error = refused.err().expect("it is refused").to_string();
    assert!(error.contains("version 99") && error.contains("upgrade longhaul"), "{error}");
}

#[tokio::test]
async fn a_missing_schema_is_made_only_when_told() {
    let url = shared().url(&Server::schema());
    let options = PostgresOptions { create: false, ..PostgresOptions::default() };
    let refused = PostgresStore::open(&url, options.clone()).await.err();
    assert!(matches!(refused, Some(Error::NotFound(_))), "{refused:?}");
    PostgresStore::open(&url, PostgresOptions::default()).await.expect("it is made");
    PostgresStore::open(&url, options).await.expect("it is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_schema_may_be_opened_by_many_at_once() {
    let schema = Server::schema();
    let opened: Vec<_> = (0..8)
        .map(|_| {
            let schema = schema.clone();
            tokio::spawn(async move { open(shared(), &schema).await })
        })
        .collect();
    for store in opened {
        store.await.expect("it opens");
    }
}

#[tokio::test]
async fn the_server_tells_what_it_promises() {
    let schema = Server::schema();
    let told = open(shared(), &schema).await.caps();
    assert!(told.durability.contains("fsync=off"), "{told:?}");
    assert!(told.advice.is_some_and(|advice| advice.contains("fsync = on")), "{told:?}");
    let relaxed = format!("{}&options=-c%20synchronous_commit=off", shared().url_text(&schema));
    let store = PostgresStore::open(&relaxed.parse().expect("a URL"), PostgresOptions::default()).await;
    let told = store.expect("the store opens").caps().durability;
    assert!(told.contains("synchronous_commit=off"), "{told}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let url = "postgres://longhaul@127.0.0.1:1/postgres".parse().expect("a URL");
    let error = PostgresStore::open(&url, PostgresOptions::default()).await.err();
    assert!(matches!(&error, Some(Error::Unavailable(text)) if text.contains("127.0.0.1:1")), "{error:?}");
}

/// An enqueue that takes its place later must not become visible earlier, or a reader that goes by places would miss it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_read_up_to_a_place_has_missed_none_before_it() {
    let schema = Server::schema();
    let stores = [open(shared(), &schema).await, open(shared(), &schema).await];
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let (store, stop) = (Arc::clone(&stores[usize::from(writer % 2 == 0)]), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut written = 0;
                while !stop.load(Ordering::Relaxed) {
                    let new = (0..=written % 3).map(|more| job(writer * 1_000_000 + written * 10 + more + 1));
                    store.insert(new.collect(), SystemClock.now()).await.expect("insert answers");
                    written += 1;
                }
            })
        })
        .collect();
    let (mut cursor, mut read) = (None, 0_i64);
    while read < 1_500 {
        let request = ListRequest { cursor, limit: 50, ..ListRequest::default() };
        let page = stores[0].list(request).await.expect("list answers");
        for job in &page.items {
            read += 1;
            assert_eq!(job.seq, read, "a place was passed over");
        }
        cursor = page.items.last().map(|job| job.seq).or(cursor);
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("no writer fails");
    }
    invariants::check(stores[0].as_ref()).await.expect("what is stored fits together");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queues_limit_holds_over_all_stores() {
    const RUNNING_MAX: usize = 3;
    let schema = Server::schema();
    let first = open(shared(), &schema).await;
    let limit = QueueChange {
        name: "default".to_owned(),
        max_running: Some(u32::try_from(RUNNING_MAX).ok()),
        ..QueueChange::default()
    };
    first.set_queue(limit).await.expect("it is set");
    first.insert((1..=80).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    let running = Arc::new(AtomicUsize::new(0));
    let mut workers = Vec::new();
    for number in 0..4 {
        let (store, running) = (open(shared(), &schema).await, Arc::clone(&running));
        workers.push(tokio::spawn(async move {
            let mut settled = 0;
            loop {
                let worker = format!("w{number}");
                let claimed = store.claim(request(&worker, PATIENCE)).await.expect("claim answers");
                let now_running = running.fetch_add(claimed.len(), Ordering::SeqCst) + claimed.len();
                assert!(now_running <= RUNNING_MAX, "{now_running} run at once");
                // Counted down before the settlement: in the store they run a little longer.
                running.fetch_sub(claimed.len(), Ordering::SeqCst);
                settled += claimed.len();
                let items = claimed.iter().map(item).collect();
                store.settle(items, SystemClock.now()).await.expect("settle answers");
                let counts = store.counts().await.expect("counts answers");
                if counts.iter().all(|row| row.state == State::Succeeded) {
                    return settled;
                }
            }
        }));
    }
    let mut settled = 0;
    for worker in workers {
        settled += worker.await.expect("no worker fails");
    }
    assert_eq!(settled, 80);
}

/// A heartbeat comes from a runtime of its own, which serves no sockets and may end before the store does.
#[tokio::test]
async fn a_store_serves_every_runtime_and_outlives_them() {
    let schema = Server::schema();
    let store = open(shared(), &schema).await;
    for number in 1..=3_u64 {
        let elsewhere_store = Arc::clone(&store);
        let elsewhere = move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_time().build().expect("a runtime");
            // Several at once, so that connections are made here.
            runtime.block_on(async {
                let insert =
                    |number: u64| elsewhere_store.insert(vec![job(number).queue("q")], SystemClock.now());
                let (inserted, counted) = tokio::join!(insert(number), elsewhere_store.counts());
                inserted.and(counted.map(|_| ()))
            })
        };
        let answered = tokio::task::spawn_blocking(elsewhere).await.expect("it runs");
        answered.expect("both are answered");
        let counts = store.counts().await.expect("the connections made there still serve");
        assert_eq!(counts.iter().map(|row| row.jobs).sum::<u64>(), number);
    }
}
