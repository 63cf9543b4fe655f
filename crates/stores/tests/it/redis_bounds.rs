//! What Redis keeps within bounds: memory, answers, and what is left behind.

use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, settle};
use longhaul_queue::store::{ClaimRequest, ExtendRequest, Filter, ListRequest, Renewal, SettleItem};
use longhaul_queue::testing::bench::{LEASE_FOR, days, done, id, job, json};
use longhaul_queue::{Claimed, Clock, EngineStore as _, Error, NewJob, Store, SystemClock};
use longhaul_stores::redis::RedisStore;
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::servers::redis::{RedisServer, connect, store};

const WORKER: &str = "w";

async fn ask(connection: &mut MultiplexedConnection, command: &[&str]) -> Value {
    let mut asked = redis::cmd(command[0]);
    asked.arg(&command[1..]);
    asked.query_async(connection).await.expect("the server answers")
}

async fn claim(store: &RedisStore, limit: usize) -> Vec<Claimed> {
    let request = ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(WORKER),
        limit,
        suspects_max: 1,
        lease_for: LEASE_FOR,
        now: SystemClock.now(),
    };
    store.claim(request).await.expect("claim answers")
}

async fn settle_with(store: &RedisStore, claimed: &[Claimed], result: &str) {
    let item = |claimed: &Claimed| SettleItem {
        lease: claimed.lease.clone(),
        settlement: settle(done(result), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5),
        follow_ups: Vec::new(),
    };
    let items = claimed.iter().map(item).collect();
    store.settle(items, SystemClock.now()).await.expect("settle answers");
}

#[tokio::test]
async fn a_full_server_takes_no_job_but_works_off_those_it_has() {
    let server = RedisServer::start(&[]);
    let store = connect(&server.url("")).await;
    store.insert(vec![job(1), job(2), job(4)], SystemClock.now()).await.expect("insert answers");
    let claimed = claim(&store, 2).await;
    settle_with(&store, &claimed[..1], "1").await;
    let mut connection = server.connection().await;
    ask(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = store.insert(vec![job(3)], SystemClock.now()).await;
    assert!(matches!(&refused, Err(Error::Unavailable(_))), "{refused:?}");
    let leases = vec![claimed[1].lease.clone()];
    let renewal = ExtendRequest { leases, lease_for: LEASE_FOR, now: SystemClock.now() };
    let renewed = store.extend(renewal).await.expect("extend answers");
    assert!(matches!(renewed[..], [Renewal::Extended { .. }]), "{renewed:?}");
    assert_eq!(store.delete(vec![id(1)]).await.expect("delete answers").deleted, 1);
    // What is there can be worked off, so that it makes room.
    settle_with(&store, &claimed[1..], "2").await;
    let next = claim(&store, 2).await;
    assert_eq!(next.len(), 1, "a job that waits is handed out");
    settle_with(&store, &next, "4").await;
    ask(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]).await;
    store.insert(vec![job(3)], SystemClock.now()).await.expect("insert answers");
}

const LARGE: u64 = 12;

fn large() -> String {
    format!("{:?}", "x".repeat(900_000))
}

#[tokio::test]
async fn large_results_come_in_more_pages_and_all_of_them() {
    let store = store().await;
    store
        .insert((1..=LARGE).map(|number| job(number).process("p")).collect(), SystemClock.now())
        .await
        .expect("insert");
    settle_with(&store, &claim(&store, 99).await, &large()).await;
    let (mut found, mut pages, mut after) = (0, 0, Some(0));
    while let Some(last) = after {
        let page = store.results("p".into(), last, 100).await.expect("results answers");
        assert!(page.items.iter().all(|item| item.result.is_some()));
        found += page.items.len() as u64;
        pages += 1;
        after = page.next;
    }
    assert_eq!(found, LARGE);
    assert!(pages > 1, "10 MB are more than one answer");
}

#[tokio::test]
async fn a_list_finds_jobs_behind_large_payloads() {
    let store = store().await;
    let jobs =
        (1..=LARGE).map(|number| NewJob { payload: json(&large()), ..job(number).tag("red") }).collect();
    store.insert(jobs, SystemClock.now()).await.expect("insert answers");
    for (filter, expected) in [
        (Filter::default(), LARGE),
        (Filter { tag: Some("red".to_owned()), ..Filter::default() }, LARGE),
        (Filter { search: vec!["xxxx".to_owned()], ..Filter::default() }, LARGE),
        (Filter { search: vec!["nowhere".to_owned()], ..Filter::default() }, 0),
    ] {
        let request = ListRequest { filter, limit: 100, ..ListRequest::default() };
        let page = store.list(request).await.expect("list answers");
        assert_eq!((page.items.len() as u64, page.next), (expected, None));
        assert!(
            page.items.iter().all(|job| job.options.tags == ["red"]),
            "options come without their payload"
        );
    }
}

#[tokio::test]
async fn a_stream_without_workers_goes_and_comes_back_with_the_next_claim() {
    let server = RedisServer::start(&[]);
    let url = server.url("");
    let store = connect(&url).await;
    let stream = format!("{{longhaul:{}}}:s:default", url.name);
    let mut connection = server.connection().await;
    for number in 1..=2 {
        store.insert(vec![job(number)], SystemClock.now()).await.expect("insert answers");
        settle_with(&store, &claim(&store, 1).await, "1").await;
        assert_eq!(ask(&mut connection, &["EXISTS", &stream]).await, Value::Int(1));
        store.prune(SystemClock.now(), 100).await.expect("prune answers");
        assert_eq!(
            ask(&mut connection, &["EXISTS", &stream]).await,
            Value::Int(1),
            "its worker was here today"
        );
        ask(&mut connection, &["XGROUP", "DELCONSUMER", &stream, "workers", WORKER]).await;
        store.prune(SystemClock.now(), 100).await.expect("prune answers");
        assert_eq!(ask(&mut connection, &["EXISTS", &stream]).await, Value::Int(0));
    }
}

#[tokio::test]
async fn the_ledger_forgets_what_is_more_than_a_year_ago() {
    let store = store().await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    settle_with(&store, &claim(&store, 1).await, "1").await;
    let lines = async |after: Duration| {
        store.prune(SystemClock.now() + after, 100).await.expect("prune answers");
        store.ledger().await.expect("ledger answers").len()
    };
    assert_eq!(lines(days(399)).await, 1);
    assert_eq!(lines(days(402)).await, 0);
}
