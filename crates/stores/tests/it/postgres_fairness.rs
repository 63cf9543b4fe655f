//! What only a shared server is asked about turns: claims at the same time, and what a claim costs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, settle};
use longhaul_queue::store::{ClaimRequest, QueueChange, SettleItem};
use longhaul_queue::testing::bench::{done, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Claimed, Clock, EngineStore as _, State, Store, SystemClock};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::{Server, shared};

async fn open(server: &Server, schema: &str) -> Arc<PostgresStore> {
    let store = PostgresStore::open(&server.url(schema), PostgresOptions::default()).await;
    Arc::new(store.expect("the store opens"))
}

fn request(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(worker),
        limit,
        suspects_max: limit,
        lease_for: Duration::from_secs(60),
        now: SystemClock.now(),
    }
}

fn item(claimed: &Claimed) -> SettleItem {
    let settlement = settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5);
    SettleItem { lease: claimed.lease.clone(), settlement, follow_ups: Vec::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keys_limit_holds_when_many_claim_at_once() {
    const RUNNING_MAX: i32 = 2;
    let schema = Server::schema();
    let first = open(shared(), &schema).await;
    let limit = QueueChange {
        name: "default".to_owned(),
        max_running_per_key: Some(u32::try_from(RUNNING_MAX).ok()),
        ..QueueChange::default()
    };
    first.set_queue(limit).await.expect("it is set");
    let new = (1..=120_u64).map(|number| job(number).fair_key(format!("k{}", number % 3))).collect();
    first.insert(new, SystemClock.now()).await.expect("insert answers");
    let running = Arc::new(Mutex::new(HashMap::<String, i32>::new()));
    let mut workers = Vec::new();
    for number in 0..4 {
        let (store, running) = (open(shared(), &schema).await, Arc::clone(&running));
        workers.push(tokio::spawn(async move {
            let mut settled = 0;
            loop {
                let claimed = store.claim(request(&format!("w{number}"), 5)).await.expect("claim answers");
                let key = |claimed: &Claimed| claimed.job.options.fair_key.clone().expect("it has a key");
                {
                    let mut running = running.lock().expect("no worker fails");
                    for claimed in &claimed {
                        let now_running = running.entry(key(claimed)).or_default();
                        *now_running += 1;
                        assert!(*now_running <= RUNNING_MAX, "{now_running} of a key run at once");
                    }
                    // Counted down before the settlement: in the store they run a little longer.
                    for claimed in &claimed {
                        *running.entry(key(claimed)).or_default() -= 1;
                    }
                }
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
    assert_eq!(settled, 120);
    invariants::check(first.as_ref()).await.expect("what is stored fits together");
}

/// The limit also holds in the store itself, whatever the workers think.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_at_once_get_no_more_of_a_key_than_it_may_run() {
    let schema = Server::schema();
    let first = open(shared(), &schema).await;
    let change = |limit| QueueChange {
        name: "default".to_owned(),
        max_running_per_key: Some(Some(limit)),
        ..QueueChange::default()
    };
    first.set_queue(change(3)).await.expect("it is set");
    let new = (1..=60_u64).map(|number| job(number).fair_key(format!("k{}", number % 2))).collect();
    first.insert(new, SystemClock.now()).await.expect("insert answers");
    let mut claims = Vec::new();
    for number in 0..6 {
        let store = open(shared(), &schema).await;
        claims.push(tokio::spawn(async move { store.claim(request(&format!("w{number}"), 4)).await }));
    }
    let mut claimed = Vec::new();
    for claim in claims {
        claimed.append(&mut claim.await.expect("no claim fails").expect("claim answers"));
    }
    assert_eq!(claimed.len(), 6, "three of each key, over all claims");
}

/// Statements that a call sends, by the server's own log.
async fn statements(server: &Server, call: impl Future<Output = ()>) -> Vec<String> {
    let seen = server.log().lines().count();
    call.await;
    // A store listens on a connection of its own, which is not the call's.
    let log = server.log();
    let lines = log
        .lines()
        .skip(seen)
        .filter(|line| line.contains("LOG:  statement:") || line.contains("LOG:  execute"));
    lines.filter(|line| !line.contains("NOTIFY")).map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn a_queue_without_keys_is_claimed_from_by_as_few_statements_as_ever() {
    let server = Server::start("fsync=off log_statement=all");
    let store = open(&server, &Server::schema()).await;
    let claim = async |jobs: usize| {
        let claimed = store.claim(request("w", 2)).await.expect("claim answers");
        assert_eq!(claimed.len(), jobs);
    };
    claim(0).await;
    let empty = statements(&server, claim(0)).await;
    // Before there were fair keys: the opening, the queue's settings, the first jobs, the commit.
    assert!(empty.len() <= 4, "{empty:#?}");
    store.insert((1..=4).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    claim(2).await;
    let full = statements(&server, claim(2)).await;
    // Besides, the taking and the bookkeeping.
    assert!(full.len() <= 6, "{full:#?}");
    assert_eq!(full.len(), 4, "{full:#?}");
}
