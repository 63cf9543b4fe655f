//! What only a server can do to a store: die and come back, cut connections, forget scripts, lose streams, evict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::limits::{CLAIM_MAX, INSERT_MAX};
use longhaul_queue::state::{Policy, State, settle};
use longhaul_queue::store::{ClaimRequest, ExtendRequest, Renewal, SettleItem, Settled};
use longhaul_queue::testing::bench::{LEASE_FOR, done, id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Claimed, Clock, EngineStore as _, Error, Queue, Result, Store, SystemClock};
use longhaul_stores::redis::RedisStore;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::servers::redis::{RedisServer, connect, shared};

/// Nothing that should come at once takes longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn request(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(worker),
        limit,
        suspects_max: usize::MAX,
        lease_for: LEASE_FOR,
        now: SystemClock.now(),
    }
}

pub(crate) fn done_item(claimed: &Claimed) -> SettleItem {
    SettleItem {
        lease: claimed.lease.clone(),
        settlement: settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5),
        follow_ups: Vec::new(),
    }
}

/// Repeats a call while the server is away; anything else that goes wrong fails the test.
async fn persist<T>(call: impl AsyncFn() -> Result<T>) -> T {
    let tries = async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(Error::Unavailable(_)) => tokio::task::yield_now().await,
                Err(error) => panic!("only the connection goes wrong: {error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.expect("the server comes back")
}

async fn ask(connection: &mut MultiplexedConnection, command: &[&str]) -> Value {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    asked.query_async(connection).await.expect("the server answers")
}

const WORKERS: u64 = 3;
const JOBS_EACH: u64 = 200;

/// Enqueues, claims and settles until its jobs are enqueued and nothing is left, whatever happens to the server. Returns
/// the leases whose settlement was acknowledged.
async fn work(store: &RedisStore, worker: u64) -> Vec<(i64, u64)> {
    let name = format!("w{worker}");
    let mut settled = Vec::new();
    let mut next = 0;
    loop {
        if next < JOBS_EACH {
            let jobs: Vec<_> = (next..next + 5).map(|number| job(worker * 1_000 + number)).collect();
            persist(async || store.insert(jobs.clone(), SystemClock.now()).await).await;
            next += 5;
        }
        let claimed = persist(async || store.claim(request(&name, 4)).await).await;
        let items: Vec<_> = claimed.iter().map(done_item).collect();
        let replies = persist(async || store.settle(items.clone(), SystemClock.now()).await).await;
        for (claimed, reply) in claimed.iter().zip(replies) {
            match reply {
                Settled::Applied(State::Succeeded) => settled.push((claimed.lease.seq, claimed.lease.fence)),
                // The settlement that was repeated had been carried out the first time.
                Settled::LostLease => {}
                other => panic!("a settlement is applied or lost: {other:?}"),
            }
        }
        if next == JOBS_EACH && claimed.is_empty() {
            return settled;
        }
    }
}

async fn by_state(store: &RedisStore, state: State) -> u64 {
    let counts = persist(async || store.counts().await).await;
    counts.iter().filter(|row| row.state == state).map(|row| row.jobs).sum()
}

/// Kills the server again and again, each time once more jobs have ended, so that it comes in the middle.
async fn disturb(server: &mut RedisServer, store: &RedisStore) {
    for round in 1..=4 {
        let wait = async {
            while by_state(store, State::Succeeded).await < round * 60 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("jobs end");
        server.kill();
        server.restart();
    }
}

#[tokio::test]
async fn a_server_killed_under_load_loses_nothing_and_settles_nothing_twice() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let store = connect(&server.url("")).await;
    let workers = futures_util::future::join_all((0..WORKERS).map(|worker| work(&store, worker)));
    let (settlements, ()) = tokio::join!(workers, disturb(&mut server, &store));
    let mut settled: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    for (seq, fence) in settlements.into_iter().flatten() {
        settled.entry(seq).or_default().push(fence);
    }
    let twice: Vec<_> = settled.iter().filter(|(_, fences)| fences.len() > 1).collect();
    assert!(twice.is_empty(), "settled twice: {twice:?}");
    // A claim whose answer was lost holds its jobs until the lease is over; everything else has succeeded.
    let later = SystemClock.now() + LEASE_FOR + Duration::from_secs(1);
    let rescued = persist(async || store.rescue_expired(later, 1_000).await).await.changed;
    let succeeded = by_state(&store, State::Succeeded).await;
    assert_eq!(succeeded + rescued, WORKERS * JOBS_EACH, "no job is lost");
    let due = later + Duration::from_secs(1);
    persist(async || store.promote_due(due, 1_000).await).await;
    assert_eq!(by_state(&store, State::Ready).await, rescued);
    invariants::check(&store).await.expect("what is stored fits together");
}

#[tokio::test]
async fn cut_connections_are_made_again() {
    let server = RedisServer::start(&[]);
    let store = connect(&server.url("")).await;
    let mut changes = store.watch();
    let mut connection = server.connection().await;
    for number in 1..=5 {
        ask(&mut connection, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        ask(&mut connection, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        persist(async || store.insert(vec![job(number)], SystemClock.now()).await).await;
        // The notice may have been missed while nobody listened; then the new subscription is one.
        tokio::time::timeout(PATIENCE, changes.changed())
            .await
            .expect("it is heard")
            .expect("the store lives");
    }
    let claimed = persist(async || store.claim(request("w", 9)).await).await;
    assert_eq!(claimed.len(), 5);
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_not_an_error_of_the_caller() {
    let mut server = RedisServer::start(&[]);
    let store = connect(&server.url("")).await;
    server.kill();
    let reply = store.insert(vec![job(1)], SystemClock.now()).await;
    assert!(matches!(reply, Err(Error::Unavailable(_))), "{reply:?}");
    let reply = RedisStore::connect(&server.url("")).await.map(|_| ());
    assert!(matches!(reply, Err(Error::Unavailable(_))), "{reply:?}");
    server.restart();
    persist(async || store.insert(vec![job(1)], SystemClock.now()).await).await;
}

#[tokio::test]
async fn stores_of_one_name_see_each_others_jobs_and_others_do_not() {
    let url = shared().url("");
    let (writing, watching) = (connect(&url).await, connect(&url).await);
    let other = connect(&shared().url("")).await;
    let mut changes = watching.watch();
    for number in 1..=20 {
        changes.mark_unchanged();
        writing.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        tokio::time::timeout(PATIENCE, changes.changed())
            .await
            .expect("it is heard")
            .expect("the store lives");
    }
    let (one, two) = tokio::join!(writing.claim(request("w1", 10)), watching.claim(request("w2", 20)));
    let claimed: Vec<_> =
        one.expect("claim answers").into_iter().chain(two.expect("claim answers")).collect();
    let ids: BTreeSet<_> = claimed.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!((claimed.len(), ids.len()), (20, 20), "each job is handed out once");
    assert!(other.get(vec![id(1)]).await.expect("get answers").is_empty());
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_told_when_the_store_opens() {
    let server = RedisServer::start(&[]);
    ask(&mut server.connection().await, &["CONFIG", "SET", "requirepass", "sesame"]).await;
    let port = server.port;
    let try_with = async |password: &str| {
        let url = format!("redis://{password}127.0.0.1:{port}").parse().expect("a URL");
        RedisStore::connect(&url).await.map(|_| ())
    };
    for password in ["", ":barley@", "nobody:sesame@"] {
        let error = try_with(password).await.expect_err("it is refused");
        assert!(matches!(&error, Error::Denied(text) if text.contains("password")), "{password}: {error:?}");
        assert!(!error.to_string().contains("sesame"), "no password is shown: {error}");
    }
    try_with(":sesame@").await.expect("it opens");
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_unless_told_otherwise() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let refused = RedisStore::connect(&server.url("")).await.map(|_| ()).expect_err("it may drop leases");
    assert!(matches!(&refused, Error::Invalid(text) if text.contains("noeviction")), "{refused}");
    let store = connect(&server.url("&allow_eviction=true")).await;
    let caps = store.caps();
    assert!(caps.durability.contains("allkeys-lru") && caps.advice.is_some(), "{caps:?}");
}

#[tokio::test]
async fn the_promise_follows_the_servers_settings() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut connection = server.connection().await;
    let promise = async || {
        let caps = connect(&server.url("")).await.caps();
        (caps.durability, caps.advice)
    };
    let (strong, advice) = promise().await;
    assert!(strong.contains("survives a crash") && advice.is_none(), "{strong}");
    ask(&mut connection, &["CONFIG", "SET", "appendfsync", "everysec"]).await;
    assert!(promise().await.0.contains("last second"));
    ask(&mut connection, &["CONFIG", "SET", "appendonly", "no"]).await;
    let (weak, advice) = promise().await;
    assert!(
        weak.contains("loses everything") && advice.is_some_and(|advice| advice.contains("appendonly yes")),
        "{weak}"
    );
}

#[tokio::test]
async fn a_server_that_hides_its_settings_is_served_all_the_same() {
    let server = RedisServer::start(&["--rename-command", "CONFIG", ""]);
    let store = connect(&server.url("")).await;
    assert!(store.caps().durability.starts_with("unknown"));
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
}

#[tokio::test]
async fn forgotten_functions_are_loaded_again() {
    let server = RedisServer::start(&[]);
    let store = connect(&server.url("")).await;
    let mut connection = server.connection().await;
    for number in 1..=3 {
        ask(&mut connection, &["FUNCTION", "FLUSH"]).await;
        store.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        ask(&mut connection, &["FUNCTION", "FLUSH"]).await;
        let claimed = store.claim(request("w", 1)).await.expect("claim answers");
        ask(&mut connection, &["FUNCTION", "FLUSH"]).await;
        let settled = store.settle(vec![done_item(&claimed[0])], SystemClock.now()).await;
        assert_eq!(settled, Ok(vec![Settled::Applied(State::Succeeded)]));
    }
}

/// A server, a store on it, and the stream of its default queue.
async fn with_stream() -> (RedisServer, RedisStore, MultiplexedConnection, String) {
    let server = RedisServer::start(&[]);
    let url: longhaul_stores::redis::RedisUrl =
        format!("redis://127.0.0.1:{}?name=s", server.port).parse().expect("a URL");
    let store = connect(&url).await;
    let connection = server.connection().await;
    (server, store, connection, "{longhaul:s}:s:default".to_owned())
}

async fn pending(connection: &mut MultiplexedConnection, stream: &str) -> i64 {
    let Value::Array(summary) = ask(connection, &["XPENDING", stream, "workers"]).await else { return -1 };
    redis::from_redis_value(summary[0].clone()).expect("a number")
}

#[tokio::test]
async fn the_pending_list_tells_what_is_delivered_to_whom() {
    let (_server, store, mut connection, stream) = with_stream().await;
    store.insert((1..=3).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    let claimed = store.claim(request("w1", 9)).await.expect("claim answers");
    let entries = ask(&mut connection, &["XPENDING", &stream, "workers", "-", "+", "10", "w1"]).await;
    assert!(matches!(&entries, Value::Array(entries) if entries.len() == 1), "one delivery: {entries:?}");
    let items: Vec<_> = claimed.iter().map(done_item).collect();
    store.settle(items[..2].to_vec(), SystemClock.now()).await.expect("settle answers");
    assert_eq!(pending(&mut connection, &stream).await, 1, "one of its jobs still runs");
    store.settle(items[2..].to_vec(), SystemClock.now()).await.expect("settle answers");
    assert_eq!(pending(&mut connection, &stream).await, 0);
    assert_eq!(ask(&mut connection, &["XLEN", &stream]).await, Value::Int(0));
}

#[tokio::test]
async fn leases_of_nothing_do_not_keep_others_from_being_rescued() {
    let (_server, store, mut connection, _) = with_stream().await;
    let (leases, deliveries) = ("{longhaul:s}:leases", "{longhaul:s}:deliveries");
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    let claimed = store.claim(request("w", 1)).await.expect("claim answers");
    // One without a delivery, and one whose jobs are another delivery's.
    ask(&mut connection, &["ZADD", leases, "1", "998", "2", "999"]).await;
    let mut copy = redis::cmd("HVALS");
    let known: Vec<Vec<u8>> = copy.arg(deliveries).query_async(&mut connection).await.expect("a delivery");
    let mut put = redis::cmd("HSET");
    put.arg(deliveries).arg("999").arg(&known[0]);
    put.query_async::<()>(&mut connection).await.expect("it is stored");
    let later = claimed[0].lease.until + Duration::from_millis(1);
    assert_eq!(store.rescue_expired(later, 10).await.expect("rescue answers").changed, 1);
    let found = store.get(vec![claimed[0].job.id]).await.expect("get answers");
    assert_eq!((found[0].job.state, found[0].job.spent.crashes), (State::Scheduled, 1));
    assert_eq!(ask(&mut connection, &["ZCARD", leases]).await, Value::Int(0));
}

#[tokio::test]
async fn a_stream_that_is_lost_or_trimmed_loses_no_job() {
    for damage in ["DEL", "XTRIM", "XGROUP"] {
        let (_server, store, mut connection, stream) = with_stream().await;
        store.insert((1..=4).map(job).collect(), SystemClock.now()).await.expect("insert answers");
        let claimed = store.claim(request("w1", 2)).await.expect("claim answers");
        match damage {
            "DEL" => ask(&mut connection, &["DEL", &stream]).await,
            "XTRIM" => ask(&mut connection, &["XTRIM", &stream, "MAXLEN", "0"]).await,
            _ => ask(&mut connection, &["XGROUP", "DESTROY", &stream, "workers"]).await,
        };
        let leases = claimed.iter().map(|claimed| claimed.lease.clone()).collect();
        let renewal = ExtendRequest { leases, lease_for: LEASE_FOR, now: SystemClock.now() };
        let renewed = store.extend(renewal).await.expect("extend answers");
        assert!(renewed.iter().all(|renewal| matches!(renewal, Renewal::Extended { .. })), "{damage}");
        let settled = store.settle(vec![done_item(&claimed[0])], SystemClock.now()).await;
        assert_eq!(settled, Ok(vec![Settled::Applied(State::Succeeded)]), "{damage}");
        let more = store.claim(request("w2", 9)).await.expect("claim answers");
        assert_eq!(more.len(), 2, "{damage}: the others can be claimed");
        let later = SystemClock.now() + 2 * LEASE_FOR;
        assert_eq!(store.rescue_expired(later, 100).await.expect("rescue answers").changed, 3, "{damage}");
        invariants::check(&store).await.expect("what is stored fits together");
    }
}

/// The number that a server gives by itself is higher than any delivery's; the other is read in place of the next.
#[tokio::test]
async fn an_entry_of_somebody_else_does_not_end_the_record_of_deliveries() {
    for id in ["*", "1-5"] {
        let (_server, store, mut connection, stream) = with_stream().await;
        store.insert((1..=4).map(job).collect(), SystemClock.now()).await.expect("insert answers");
        let first = store.claim(request("w1", 1)).await.expect("claim answers");
        ask(&mut connection, &["XADD", &stream, id, "payload", "run this"]).await;
        let mut claimed = Vec::new();
        for worker in ["w2", "w3"] {
            claimed.extend(store.claim(request(worker, 1)).await.expect("claim answers"));
            let entries =
                ask(&mut connection, &["XPENDING", &stream, "workers", "-", "+", "9", worker]).await;
            assert!(
                matches!(&entries, Value::Array(entries) if entries.len() == 1),
                "{id} {worker}: {entries:?}"
            );
        }
        let items: Vec<_> = first.iter().chain(&claimed).map(done_item).collect();
        let settled = store.settle(items, SystemClock.now()).await.expect("settle answers");
        assert_eq!(settled, vec![Settled::Applied(State::Succeeded); 3], "{id}");
        assert_eq!(pending(&mut connection, &stream).await, 0, "{id}");
        assert_eq!(
            ask(&mut connection, &["XLEN", &stream]).await,
            Value::Int(0),
            "{id}: nothing is left behind"
        );
        invariants::check(&store).await.expect("what is stored fits together");
    }
}

#[tokio::test]
async fn an_entry_that_nobody_needs_is_dropped_from_the_pending_list() {
    let (_server, store, mut connection, stream) = with_stream().await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    store.claim(request("w1", 1)).await.expect("claim answers");
    ask(&mut connection, &["XADD", &stream, "1-1", "worker", "w9", "jobs", ""]).await;
    ask(&mut connection, &["XREADGROUP", "GROUP", "workers", "w9", "STREAMS", &stream, ">"]).await;
    for (worker, entry) in [("w1", "1-0"), ("w9", "1-1")] {
        ask(&mut connection, &["XCLAIM", &stream, "workers", worker, "0", entry, "IDLE", "3600000"]).await;
    }
    assert_eq!(pending(&mut connection, &stream).await, 2);
    assert_eq!(store.rescue_expired(SystemClock.now(), 9).await.expect("rescue answers").changed, 0);
    assert_eq!(pending(&mut connection, &stream).await, 1);
    let entries = ask(&mut connection, &["XPENDING", &stream, "workers", "-", "+", "9", "w1"]).await;
    assert!(matches!(&entries, Value::Array(entries) if entries.len() == 1), "the other stays: {entries:?}");
}

#[tokio::test]
async fn the_largest_submission_goes_in_and_out() {
    let store = connect(&shared().url("")).await;
    let jobs = (1..=INSERT_MAX as u64).map(|number| job(number).process("p")).collect();
    assert_eq!(store.insert(jobs, SystemClock.now()).await.expect("insert answers").len(), INSERT_MAX);
    let mut settled = 0;
    while settled < 3_000 {
        let claimed = store.claim(request("w", CLAIM_MAX)).await.expect("claim answers");
        assert_eq!(claimed.len(), CLAIM_MAX);
        let items = claimed.iter().map(done_item).collect();
        settled += store.settle(items, SystemClock.now()).await.expect("settle answers").len();
    }
    let ended = store.results("p".into(), 0, 1_000).await.expect("results answers");
    assert_eq!((ended.items.len(), ended.next), (1_000, Some(1_000)));
    assert_eq!(by_state(&store, State::Ready).await, (INSERT_MAX - 3_000) as u64);
}

#[tokio::test]
async fn an_installation_of_another_layout_is_refused() {
    let server = RedisServer::start(&[]);
    let url = server.url("");
    let store = connect(&url).await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    connect(&url).await;
    let meta = format!("{{longhaul:{}}}:meta", url.name);
    let mut connection = server.connection().await;
    for damage in [&["HSET", &meta, "layout", "99"][..], &["HDEL", &meta, "layout"]] {
        ask(&mut connection, damage).await;
        let refused = RedisStore::connect(&url).await.map(|_| ()).expect_err("it cannot be read");
        assert!(matches!(&refused, Error::Invalid(text) if text.contains("layout")), "{refused}");
    }
}

#[tokio::test]
async fn jobs_leave_the_middle_of_their_neighbours_and_the_others_keep_their_order() {
    let store = connect(&shared().url("")).await;
    store.insert((1..=9).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    for number in [5, 1, 9, 4] {
        store.cancel(vec![id(number)], SystemClock.now()).await.expect("cancel answers");
    }
    let mut claimed = store.claim(request("w", 2)).await.expect("claim answers");
    store.cancel(vec![id(7)], SystemClock.now()).await.expect("cancel answers");
    claimed.extend(store.claim(request("w", 9)).await.expect("claim answers"));
    let ids: Vec<_> = claimed.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(ids, [2, 3, 6, 8].map(id));
    invariants::check(&store).await.expect("what is stored fits together");
}

/// Everybody goes by the server's time, so that a wrong clock neither keeps a lease nor takes one.
#[tokio::test]
async fn a_queue_goes_by_the_servers_time() {
    let queue = Queue::new(Arc::new(connect(&shared().url("")).await));
    assert!(!queue.clock().is_system());
    let (told, here) = (queue.clock().now(), SystemClock.now());
    assert!(told.since(here).max(here.since(told)) < Duration::from_secs(5), "both are on this machine");
    queue.clock().sleep_until(told + Duration::from_millis(20)).await;
    assert!(queue.clock().now() >= told + Duration::from_millis(20));
}
