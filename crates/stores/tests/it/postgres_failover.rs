//! A primary dies for good, and its standby takes over.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_queue::job::WorkerId;
use longhaul_queue::state::{Policy, settle};
use longhaul_queue::store::{ClaimRequest, ListRequest, SettleItem, Settled};
use longhaul_queue::testing::bench::{done, id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Claimed, Clock, EngineStore as _, Error, State, Store, SystemClock};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore, PostgresUrl};

use crate::servers::postgres::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// Repeats a call until a server answers it.
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

fn url(servers: [&Server; 2], schema: &str) -> PostgresUrl {
    let [first, second] = servers.map(Server::port);
    let hosts = format!("127.0.0.1:{first},127.0.0.1:{second}");
    let url = format!(
        "postgres://longhaul@{hosts}/postgres?schema={schema}&target_session_attrs=read-write&connections=4"
    );
    url.parse().expect("a URL")
}

async fn open(url: &PostgresUrl) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open(url, PostgresOptions::default()).await.expect("the store opens"))
}

fn request(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new(worker),
        limit,
        suspects_max: limit,
        lease_for: PATIENCE,
        now: SystemClock.now(),
    }
}

fn item(claimed: &Claimed) -> SettleItem {
    let settlement = settle(done("1"), claimed.job.spent, &Policy::default(), SystemClock.now(), 0.5);
    SettleItem { lease: claimed.lease.clone(), settlement, follow_ups: Vec::new() }
}

/// Waits until the standby has replayed all that the primary has committed.
async fn caught_up(primary: &Server, standby: &Server) {
    let (primary, standby) = (primary.connect().await, standby.connect().await);
    let sql = "SELECT pg_current_wal_flush_lsn()::text";
    let written: String = primary.query_one(sql, &[]).await.expect("it answers").get(0);
    let reached = format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{written}', false)");
    let started_at = Instant::now();
    while !standby.query_one(&reached, &[]).await.expect("it answers").get::<_, bool>(0) {
        assert!(started_at.elapsed() < PATIENCE, "the standby stays behind");
    }
}

/// Cuts the standby off while the primary goes on: what it does from now on is lost with it.
async fn cut_off(standby: &Server) {
    let client = standby.connect().await;
    client.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.expect("it is set");
    client.batch_execute("SELECT pg_reload_conf()").await.expect("it is read again");
    let started_at = Instant::now();
    let receiving = "SELECT count(*) FROM pg_stat_wal_receiver";
    while client.query_one(receiving, &[]).await.expect("it answers").get::<_, i64>(0) > 0 {
        assert!(started_at.elapsed() < PATIENCE, "it still receives");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_takes_over_keeps_what_it_had_and_refuses_writers_of_the_lost_rest() {
    let primary = Server::start("fsync=on wal_level=replica");
    let schema = Server::schema();
    let standby = primary.standby();
    let url = url([&primary, &standby], &schema);
    let store = open(&url).await;
    store.insert((1..=40).map(job).collect(), SystemClock.now()).await.expect("insert answers");
    let settled = store.claim(request("w1", 10)).await.expect("claim answers");
    store.settle(settled.iter().map(item).collect(), SystemClock.now()).await.expect("settle answers");
    let held = store.claim(request("w1", 10)).await.expect("claim answers");
    caught_up(&primary, &standby).await;

    // All this is answered, and never reaches the standby.
    cut_off(&standby).await;
    let lost_claim = store.claim(request("w1", 5)).await.expect("claim answers");
    let lost_settle: Vec<_> = held.iter().take(3).map(item).collect();
    store.settle(lost_settle.clone(), SystemClock.now()).await.expect("settle answers");
    store.insert(vec![job(99)], SystemClock.now()).await.expect("insert answers");

    primary.crash();
    let takes_over = tokio::spawn(async move {
        standby.promote().await;
        standby
    });
    let counts = persist!(store.counts());
    let standby = takes_over.await.expect("it takes over");
    let of = |state| counts.iter().filter(|row| row.state == state).map(|row| row.jobs).sum::<u64>();
    assert_eq!(
        [State::Succeeded, State::Running, State::Ready].map(of),
        [10, 10, 20],
        "as it was when cut off"
    );
    let listed =
        store.list(ListRequest { limit: 100, ..ListRequest::default() }).await.expect("list answers");
    assert_eq!(listed.items.len(), 40);
    assert!(listed.items.iter().all(|job| job.id != id(99)), "what came last is gone");

    // Another worker gets the jobs of the lost claims, at the same fences.
    let again = persist!(store.claim(request("w2", 5)));
    let fences = |claimed: &[Claimed]| -> Vec<_> {
        claimed.iter().map(|claimed| (claimed.lease.seq, claimed.lease.fence)).collect()
    };
    assert_eq!(fences(&again), fences(&lost_claim));
    let stale = store.settle(lost_claim.iter().map(item).collect(), SystemClock.now()).await;
    let stale = stale.expect("settle answers");
    assert!(
        stale.iter().all(|reply| *reply == Settled::LostLease),
        "a lost claim settles nothing: {stale:?}"
    );

    // Leases that the standby knew hold; a settlement that was lost is repeated and counts once.
    let mut applied = HashSet::new();
    for items in [lost_settle, held.iter().map(item).collect(), again.iter().map(item).collect()] {
        let replies = persist!(store.settle(items.clone(), SystemClock.now()));
        for (item, reply) in items.iter().zip(replies) {
            if reply == Settled::Applied(State::Succeeded) {
                assert!(applied.insert(item.lease.seq), "{} was settled twice", item.lease.seq);
            }
        }
    }
    assert_eq!(applied.len(), 15);
    let second = open(&url).await;
    let ended: u64 = second.ledger().await.expect("ledger answers").iter().map(|row| row.jobs).sum();
    assert_eq!(ended, 25);
    invariants::check(second.as_ref()).await.expect("what is stored fits together");
    drop(standby);
}
