//! What callers do to a Postgres store: wrong URLs, calls that are dropped midway, clocks that are wrong.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use longhaul_queue::job::WorkerId;
use longhaul_queue::store::{ClaimRequest, ExtendRequest, ListRequest, Renewal};
use longhaul_queue::testing::bench::{id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Clock, EngineStore as _, Error, Queue, Store, SystemClock, Timestamp};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::{Server, shared};

const LEASE: Duration = Duration::from_secs(60);
/// More than a lease: what a wrong clock is off by.
const OFF: Duration = Duration::from_secs(3_600);
/// How far the server's time and this machine's may be apart, both being on this machine.
const CLOSE: Duration = Duration::from_secs(5);

async fn open(schema: &str) -> Arc<PostgresStore> {
    let store = PostgresStore::open(&shared().url(schema), PostgresOptions::default()).await;
    Arc::new(store.expect("the store opens"))
}

fn request(now: Timestamp) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: WorkerId::new("w"),
        limit: 5,
        suspects_max: 5,
        lease_for: LEASE,
        now,
    }
}

#[tokio::test]
async fn a_missing_or_wrong_password_is_told_when_the_store_opens() {
    let server = Server::start("fsync=off");
    server.let_in("host all guarded 127.0.0.1/32 scram-sha-256").await;
    let client = server.connect().await;
    client.batch_execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'").await.expect("a role");
    let port = server.port();
    let try_with = async |user: &str| {
        let url = format!("postgres://{user}@127.0.0.1:{port}/postgres").parse().expect("a URL");
        PostgresStore::open(&url, PostgresOptions::default()).await.map(|_| ())
    };
    for (user, part) in [("guarded", "password"), ("guarded:wrong", "password"), ("nobody", "nobody")] {
        let error = try_with(user).await.expect_err("it is refused");
        assert!(matches!(&error, Error::Denied(text) if text.contains(part)), "{user}: {error:?}");
        assert!(!error.to_string().contains("wrong"), "no password is shown: {error}");
    }
    try_with("guarded:right").await.expect("it opens");
}

/// Another program's port, or a server that is stopped: the system takes the connection, and nobody answers.
#[tokio::test]
async fn what_listens_and_does_not_answer_is_given_up() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = mute.local_addr().expect("an address").port();
    let url = format!("postgres://u@127.0.0.1:{port}/d?connect_timeout=1").parse().expect("a URL");
    let error =
        PostgresStore::open(&url, PostgresOptions::default()).await.map(|_| ()).expect_err("no answer");
    assert!(matches!(&error, Error::Unavailable(text) if text.contains("does not answer")), "{error:?}");
}

#[tokio::test]
async fn a_schema_may_be_called_like_a_word_of_sql() {
    let server = Server::start("fsync=off");
    for schema in ["select", "user", "order", "_1"] {
        let store = PostgresStore::open(&server.url(schema), PostgresOptions::default()).await;
        let store = store.expect("it opens");
        store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
        let mut client = server.connect().await;
        let transaction = client.transaction().await.expect("it begins");
        store.insert_with(&transaction, vec![job(2)], SystemClock.now()).await.expect("it is taken");
        transaction.commit().await.expect("it commits");
        assert_eq!(
            store.claim(request(SystemClock.now())).await.expect("claim answers").len(),
            2,
            "{schema}"
        );
    }
}

/// Polls a call some times and drops it, at every step that it may be dropped at.
#[tokio::test]
async fn an_enqueue_in_a_callers_transaction_that_is_dropped_midway_leaves_nothing() {
    let schema = Server::schema();
    let store = open(&schema).await;
    let mut client = shared().connect().await;
    let mut whole = 0;
    for steps in 0..40 {
        let transaction = client.transaction().await.expect("it begins");
        let number = 10 * (steps + 1);
        let new = vec![job(number), job(number + 1).after(id(number)), job(number + 2).queue("other")];
        let mut polls = 0;
        let mut call = Box::pin(store.insert_with(&transaction, new, SystemClock.now()));
        let ended = std::future::poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Ready(reply) => Poll::Ready(Some(reply)),
            Poll::Pending if polls == steps => Poll::Ready(None),
            Poll::Pending => {
                polls += 1;
                Poll::Pending
            }
        })
        .await;
        drop(call);
        let path: String = transaction.query_one("SHOW search_path", &[]).await.expect("it answers").get(0);
        assert!(path.contains("public"), "after {steps} steps the caller's path stands: {path}");
        transaction.commit().await.expect("it commits");
        let counts = store.counts().await.expect("counts answers");
        let stored = counts.iter().map(|row| row.jobs).sum::<u64>();
        whole += 3 * u64::from(stored > whole);
        assert_eq!(stored, whole, "all three or none, after {steps} steps");
        invariants::check(store.as_ref()).await.expect("what is stored fits together");
        if ended.is_some() {
            assert!(steps > 3, "it was dropped {steps} times");
            return;
        }
    }
    panic!("it never came to its end");
}

/// Enqueues that wait for each other are served by the store, not by one of the callers.
#[tokio::test]
async fn a_caller_that_goes_away_takes_nobody_along() {
    let schema = Server::schema();
    let store = open(&schema).await;
    // Whoever holds the counter of places keeps all enqueues waiting.
    let mut client = shared().connect().await;
    let transaction = client.transaction().await.expect("it begins");
    let hold = format!("SELECT value FROM {schema}.lh_meta WHERE key = 'seq' FOR UPDATE");
    transaction.query_one(&hold, &[]).await.expect("it is held");
    let insert = |number: u64| {
        let store = Arc::clone(&store);
        Box::pin(async move { store.insert(vec![job(number)], SystemClock.now()).await })
    };
    let (mut first, mut second) = (insert(1), insert(2));
    let (third, fourth) = (tokio::spawn(insert(3)), tokio::spawn(insert(4)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    drop((first, second));
    transaction.rollback().await.expect("it is free");
    for answer in [third, fourth] {
        answer.await.expect("no caller fails").expect("insert answers");
    }
    let request = ListRequest { limit: 10, ..ListRequest::default() };
    let listed = store.list(request).await.expect("list answers").items;
    assert!(listed.iter().any(|job| job.id == id(3)) && listed.iter().any(|job| job.id == id(4)));
    invariants::check(store.as_ref()).await.expect("what is stored fits together");
}

/// The server's time counts: not that of a worker whose clock is off by more than a lease.
#[tokio::test]
async fn a_wrong_clock_neither_keeps_a_lease_nor_takes_one() {
    let schema = Server::schema();
    let store = open(&schema).await;
    let truth = || SystemClock.now();
    store.insert(vec![job(1), job(2)], truth()).await.expect("insert answers");
    for wrong in [truth() - OFF, truth() + OFF] {
        let request = ClaimRequest { limit: 1, ..request(wrong) };
        let claimed = store.claim(request).await.expect("claim answers").pop().expect("a job");
        let about =
            |until: Timestamp| until.since(truth()) <= LEASE + CLOSE && until > truth() + LEASE - CLOSE;
        assert!(about(claimed.lease.until), "{:?} at {:?}", claimed.lease.until, truth());
        for rescuer in [truth() - OFF, truth(), truth() + OFF] {
            let rescued = store.rescue_expired(rescuer, 10).await.expect("rescue answers");
            assert_eq!(rescued.changed, 0, "no lease has ended, whatever a clock says");
            let next_at = rescued.next_at.expect("a lease will end");
            assert!(about(next_at), "{next_at:?}");
        }
        let request = ExtendRequest { leases: vec![claimed.lease], lease_for: LEASE, now: wrong };
        let renewed = store.extend(request).await.expect("extend answers").pop();
        assert!(matches!(renewed, Some(Renewal::Extended { until, .. }) if about(until)), "{renewed:?}");
    }
    let queue = Queue::new(store);
    let apart = queue.clock().now().since(truth()).max(truth().since(queue.clock().now()));
    assert!(apart < CLOSE, "a queue goes by its store's time");
    assert!(!queue.clock().is_system());
}
