//! What turns cost Redis, and that a key's limit holds for claims that come at once.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, settle};
use longhaul_queue::store::{ClaimRequest, QueueChange, SettleItem};
use longhaul_queue::testing::bench::{LEASE_FOR, done, job};
use longhaul_queue::{Claimed, Clock, EngineStore as _, NewJob, Store, SystemClock};
use longhaul_stores::redis::RedisStore;
use redis::aio::MultiplexedConnection;

use crate::servers::redis::{RedisServer, connect, shared};

const KEY_LIMIT: u32 = 2;
const KEYS: u64 = 5;
const JOBS: u64 = 200;

fn request(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(worker),
        limit,
        suspects_max: 1,
        lease_for: LEASE_FOR,
        now: SystemClock.now(),
    }
}

fn keyed(number: u64, key: u64) -> NewJob {
    job(number).fair_key(format!("key-{key}"))
}

/// How many jobs of each key run, by what is stored.
async fn running(store: &RedisStore, numbers: impl Iterator<Item = u64>) -> BTreeMap<String, u32> {
    let ids = numbers.map(longhaul_queue::testing::bench::id).collect();
    let mut counts = BTreeMap::new();
    for detail in store.get(ids).await.expect("get answers") {
        if detail.job.state == longhaul_queue::State::Running {
            *counts.entry(detail.job.options.fair_key.unwrap_or_default()).or_default() += 1;
        }
    }
    counts
}

/// Claims and settles until nothing is left, and looks again and again whether a key has more than its part.
async fn work(store: &RedisStore, worker: &str) -> usize {
    let (mut handed_out, mut dry) = (0, 0);
    // Somebody else may hold all that a key allows: what is left then comes with the next settlement.
    while dry < 100 {
        let claimed = store.claim(request(worker, 4)).await.expect("claim answers");
        let counts = running(store, 1..=JOBS).await;
        assert!(counts.values().all(|count| *count <= KEY_LIMIT), "{counts:?}");
        dry = if claimed.is_empty() { dry + 1 } else { 0 };
        handed_out += claimed.len();
        let item = |claimed: &Claimed| SettleItem {
            lease: claimed.lease.clone(),
            settlement: settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5),
            follow_ups: Vec::new(),
        };
        let items = claimed.iter().map(item).collect();
        store.settle(items, SystemClock.now()).await.expect("settle answers");
        tokio::task::yield_now().await;
    }
    handed_out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_at_once_never_exceed_a_keys_limit() {
    let url = shared().url("");
    let (one, two) = (connect(&url).await, connect(&url).await);
    let limit = QueueChange {
        name: "default".to_owned(),
        max_running_per_key: Some(Some(KEY_LIMIT)),
        ..QueueChange::default()
    };
    one.set_queue(limit).await.expect("set_queue answers");
    let jobs = (1..=JOBS).map(|number| keyed(number, number % KEYS)).collect();
    one.insert(jobs, SystemClock.now()).await.expect("insert answers");
    let workers = async { tokio::join!(work(&one, "w1"), work(&two, "w2")) };
    let (first, second) = tokio::time::timeout(Duration::from_secs(60), workers).await.expect("they end");
    assert_eq!((first + second) as u64, JOBS);
}

/// The commands that the server runs for a claim, with how often.
async fn commands_of_claim(
    store: &RedisStore,
    connection: &mut MultiplexedConnection,
    limit: usize,
) -> BTreeMap<String, u64> {
    redis::cmd("CONFIG").arg("RESETSTAT").query_async::<()>(connection).await.expect("the server answers");
    let claimed = store.claim(request("w", limit)).await.expect("claim answers");
    assert_eq!(claimed.len(), limit);
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("the server answers");
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    let mut commands: BTreeMap<String, u64> = stats.lines().filter_map(line).collect();
    commands.retain(|name, _| !name.starts_with("config"));
    commands
}

async fn server_with_store() -> (RedisServer, RedisStore, MultiplexedConnection) {
    let server = RedisServer::start(&[]);
    let store = connect(&server.url("")).await;
    let connection = server.connection().await;
    (server, store, connection)
}

/// Claims once, so that the stream and its group are there.
async fn warm_up(store: &RedisStore, first: NewJob) {
    store.insert(vec![first], SystemClock.now()).await.expect("insert answers");
    assert_eq!(store.claim(request("w", 1)).await.expect("claim answers").len(), 1);
}

#[tokio::test]
async fn a_queue_without_keys_is_claimed_as_if_there_were_none() {
    let (_server, store, mut connection) = server_with_store().await;
    let elsewhere = NewJob { queue: "elsewhere".to_owned(), ..keyed(9_000, 1) };
    store.insert(vec![elsewhere], SystemClock.now()).await.expect("insert answers");
    warm_up(&store, job(9_001)).await;
    store.insert((1..=100).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    let commands = commands_of_claim(&store, &mut connection, 10).await;
    // One settings row, one set of kinds, one lane, the rows; the delivery; the counters; the event and the notice.
    let expected = [
        ("fcall", 1),
        ("hget", 1),
        ("hincrby", 5),
        ("hmget", 1),
        ("hset", 1),
        ("publish", 1),
        ("setrange", 1),
        ("smembers", 1),
        ("xadd", 2),
        ("xreadgroup", 1),
        ("zadd", 2),
        ("zrange", 1),
        ("zrem", 1),
    ];
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect();
    assert_eq!(commands, expected);
}

#[tokio::test]
async fn what_a_keyed_claim_costs_does_not_grow_with_the_backlog_of_its_keys() {
    let (_server, store, mut connection) = server_with_store().await;
    warm_up(&store, keyed(90_000, 0)).await;
    let few = (1..=20).map(|number| keyed(number, number % 2)).collect();
    store.insert(few, SystemClock.now()).await.expect("insert answers");
    let short = commands_of_claim(&store, &mut connection, 4).await;
    let many = (1_001..=6_000).map(|number| keyed(number, number % 2)).collect();
    store.insert(many, SystemClock.now()).await.expect("insert answers");
    let long = commands_of_claim(&store, &mut connection, 4).await;
    let total = |commands: &BTreeMap<String, u64>| commands.values().sum::<u64>();
    assert!(total(&long) <= total(&short) + 2, "{short:?} {long:?}");
}

#[tokio::test]
async fn keys_beyond_those_that_a_claim_serves_cost_it_nothing() {
    let (_server, store, mut connection) = server_with_store().await;
    warm_up(&store, keyed(90_000, 0)).await;
    store
        .insert((1..=50).map(|number| keyed(number, number)).collect(), SystemClock.now())
        .await
        .expect("insert");
    let few = commands_of_claim(&store, &mut connection, 4).await;
    store
        .insert((101..=5_000).map(|number| keyed(number, number)).collect(), SystemClock.now())
        .await
        .expect("insert");
    let many = commands_of_claim(&store, &mut connection, 4).await;
    let total = |commands: &BTreeMap<String, u64>| commands.values().sum::<u64>();
    assert!(total(&many) <= total(&few) + 2, "{few:?} {many:?}");
}
