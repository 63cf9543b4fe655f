//! Fair keys in a file that several stores share.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_queue::store::{ClaimRequest, Filter, ListRequest, QueueChange};
use longhaul_queue::testing::bench::{LEASE_FOR, START, done, id, job};
use longhaul_queue::{Claimed, EngineStore as _, NewJob, State, Store};
use longhaul_stores::sqlite::SqliteStore;

use crate::stage::{Stage, check_sound, together};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn keyed(number: u64, key: &str) -> NewJob {
    job(number).fair_key(key)
}

async fn limit_keys(store: &SqliteStore, limit: u32) {
    let name = "default".to_owned();
    let change = QueueChange { name, max_running_per_key: Some(Some(limit)), ..QueueChange::default() };
    store.set_queue(change).await.expect("set_queue answers");
}

fn request(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: worker.into(),
        limit,
        suspects_max: 1,
        lease_for: LEASE_FOR,
        now: START,
    }
}

/// Another store has read this queue's settings before; it must not remember that there were no keys.
#[tokio::test]
async fn a_first_key_by_another_store_counts_at_once() {
    let stage = Stage::new();
    let (one, other) = (stage.open(), stage.open());
    let bench = stage.bench(&one);
    bench.add([job(1), job(2), job(3)]).await;
    assert_eq!(bench.claim_ids(request("w1", 1)).await, [id(1)]);
    other.insert(vec![keyed(4, "a")], START).await.expect("insert answers");
    assert_eq!(bench.claim_ids(request("w1", 2)).await, [id(4), id(2)]);
}

/// Four claimers, each with a connection of its own, take what they get until nobody gets any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimers_at_once_never_exceed_a_keys_limit() {
    let stage = Stage::new();
    let stores: Vec<Arc<SqliteStore>> = (0..4).map(|_| stage.open()).collect();
    let bench = stage.bench(&stores[0]);
    limit_keys(&stores[0], 5).await;
    bench.add((1..=60).map(|number| keyed(number, KEYS[number as usize % 3]))).await;
    for round in 0..4 {
        let claimers = stores.iter().enumerate().map(|(number, store)| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let more = store.claim(request(&format!("w{number}"), 2)).await.expect("claim answers");
                    if more.is_empty() {
                        return got;
                    }
                    got.extend(more);
                }
            })
        });
        let mut claimed: Vec<Claimed> = Vec::new();
        for claimer in claimers.collect::<Vec<_>>() {
            claimed.extend(claimer.await.expect("no claimer fails"));
        }
        let mut running = BTreeMap::new();
        for claimed in &claimed {
            *running.entry(claimed.job.options.fair_key.as_deref().unwrap_or_default()).or_insert(0) += 1;
        }
        assert_eq!(running, KEYS.map(|key| (key, 5)).into(), "round {round}");
        for claimed in &claimed {
            bench.settle(claimed, done("1")).await;
        }
    }
    check_sound(&stores[0]).await;
}

/// They share a transaction, in which the first one's jobs run already.
#[tokio::test]
async fn claims_of_one_group_never_exceed_a_keys_limit() {
    let stage = Stage::new();
    let store = stage.open();
    limit_keys(&store, 2).await;
    stage.bench(&store).add((1..=9).map(|number| keyed(number, "a"))).await;
    let claim = |_| {
        let store = Arc::clone(&store);
        async move { store.claim(request("w", 1)).await }
    };
    let replies = together(&store, (0..5).map(claim).collect()).await;
    let got: usize = replies.into_iter().map(|reply| reply.expect("claim answers").len()).sum();
    assert_eq!(got, 2);
}

/// The refused one was the first to name a key; what it wrote of that is undone, and the next one writes it.
#[tokio::test]
async fn a_refused_first_key_leaves_the_next_one_its_turn() {
    let stage = Stage::new();
    let store = stage.open();
    let submissions = [vec![keyed(1, "a"), job(2).after(id(99))], vec![keyed(3, "a")]];
    let insert = |jobs: Vec<NewJob>| {
        let store = Arc::clone(&store);
        async move { store.insert(jobs, START).await }
    };
    let replies = together(&store, submissions.map(insert).into()).await;
    assert!(replies[0].is_err() && replies[1].is_ok(), "{replies:?}");
    assert_eq!(stage.bench(&store).claim_ids(request("w", 9)).await, [id(3)]);
    check_sound(&store).await;
}

#[tokio::test]
async fn lists_find_ready_jobs_with_and_without_a_key() {
    let stage = Stage::new();
    let store = stage.open();
    stage.bench(&store).add([job(1), keyed(2, "a"), keyed(3, "b"), job(4)]).await;
    let filter = Filter { states: vec![State::Ready], ..Filter::default() };
    let page = store.list(ListRequest { filter, newest_first: false, cursor: None, limit: 9 }).await;
    let seqs: Vec<i64> = page.expect("list answers").items.iter().map(|job| job.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_queue_that_had_keys_and_has_nothing_else_is_not_listed() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    limit_keys(&store, 1).await;
    bench.add([keyed(1, "a")]).await;
    bench.run(1, done("1")).await;
    bench.delete(&[1]).await;
    let lift =
        QueueChange { name: "default".to_owned(), max_running_per_key: Some(None), ..QueueChange::default() };
    store.set_queue(lift).await.expect("set_queue answers");
    assert_eq!(store.queues().await.expect("queues answers"), []);
    bench.add([keyed(2, "a"), keyed(3, "b")]).await;
    assert_eq!(bench.claim_ids(request("w", 1)).await, [id(3)], "its turns go on where they were");
}

/// A key with more expired jobs than one claim clears holds up no other key.
#[tokio::test]
async fn a_backlog_of_expired_jobs_holds_up_its_own_key_only() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let expires_at = Some(START + LEASE_FOR);
    bench.add((1..=250).map(|number| NewJob { expires_at, ..keyed(number, "a") })).await;
    bench.add([keyed(301, "a"), keyed(302, "b"), keyed(303, "c")]).await;
    bench.pass(LEASE_FOR);
    let request = ClaimRequest { now: bench.now(), ..request("w", 9) };
    assert_eq!(bench.claim_ids(request.clone()).await, [id(302), id(303)]);
    assert_eq!(bench.claim_ids(request.clone()).await, []);
    assert_eq!(bench.claim_ids(request).await, [id(301)]);
    check_sound(&store).await;
}

#[tokio::test]
async fn check_finds_keys_that_claims_would_miss_and_says_what_to_do() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([keyed(1, "a")]).await;
    stage.connection().execute("UPDATE lh_queues SET last_key = NULL", []).expect("it is updated");
    let problems = store.db().check().await.expect("check answers").problems;
    assert!(problems.len() == 1 && problems[0].contains("queue default"), "{problems:?}");
    bench.add([keyed(2, "a")]).await;
    check_sound(&store).await;
    assert_eq!(bench.claim_ids(request("w", 9)).await, [id(1), id(2)]);
}
