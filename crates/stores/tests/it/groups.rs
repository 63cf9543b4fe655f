//! Many callers at once: their commands share a transaction, and each gets an answer of its own.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use longhaul_queue::store::{ClaimRequest, QueueChange, Settled};
use longhaul_queue::testing::bench::{done, id, job, json};
use longhaul_queue::{Claimed, EngineStore as _, Error, NewJob, State, Store};
use longhaul_stores::sqlite::{DbError, SqliteStore, Transaction};

use tokio::task::JoinSet;

use crate::stage::{Stage, check_sound, together};

/// So many claims in one group, and what they were handed.
async fn claim_together(store: &Arc<SqliteStore>, request: &ClaimRequest, count: usize) -> Vec<Claimed> {
    let claim = |_| {
        let (store, request) = (Arc::clone(store), request.clone());
        async move { store.claim(request).await }
    };
    let replies = together(store, (0..count).map(claim).collect()).await;
    replies.into_iter().flat_map(|reply| reply.expect("claim answers")).collect()
}

#[tokio::test]
async fn of_64_callers_each_gets_its_own_answer() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1000)]).await;
    let now = bench.now();
    // By turns: a good job, one with an unknown parent, one whose id is taken, and a good one of a process.
    let submission = |number: u64| match number % 4 {
        0 => vec![job(number)],
        1 => vec![job(number), job(number + 100).after(id(9999))],
        2 => vec![job(number), NewJob { payload: json("2"), ..job(1000) }],
        _ => vec![job(number).process("p")],
    };
    let insert = |number| {
        let store = Arc::clone(&store);
        async move { store.insert(submission(number), now).await }
    };
    let replies = together(&store, (0..64).map(insert).collect()).await;
    let mut last_seq = 1;
    for (number, reply) in (0..).zip(&replies) {
        match (number % 4, reply) {
            (0 | 3, Ok(stored)) => {
                assert_eq!((stored[0].id, stored[0].seq), (id(number), last_seq + 1), "no place is skipped");
                last_seq = stored[0].seq;
            }
            (1, Err(Error::Invalid(text))) => assert!(text.contains("does not exist"), "{text}"),
            (2, Err(Error::Invalid(text))) => assert!(text.contains("other content"), "{text}"),
            other => panic!("job {number}: {other:?}"),
        }
        assert_eq!(bench.find(number).await.is_some(), reply.is_ok(), "job {number}");
    }
    check_sound(&store).await;
}

/// Polls once and answers whether it is still under way.
async fn begin(call: &mut (impl Future + Unpin)) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *call).poll(context).is_pending())).await
}

#[tokio::test]
async fn a_caller_that_leads_and_goes_away_leaves_nobody_behind() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    // By another task than the next ones: so these are taken for a crowd, and let others join.
    bench.add([job(1)]).await;
    let (shared, now) = (Arc::clone(&store), bench.now());
    let calls = tokio::spawn(async move {
        let mut first = shared.insert(vec![job(2)], now);
        let mut second = shared.insert(vec![job(3)], now);
        assert!(begin(&mut first).await, "it lets others join");
        assert!(begin(&mut second).await, "it waits for the first");
        drop(first);
        second.await
    });
    let stored = calls.await.expect("no panic").expect("stored");
    assert_eq!(stored[0].id, id(3));
    assert!(bench.find(2).await.is_some(), "who goes away has still asked for it");
    bench.add([job(4)]).await;
    check_sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn enqueues_that_gather_do_not_keep_a_claim_waiting() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let now = bench.now();
    let enough = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for caller in 0..16_u64 {
        let (store, enough) = (Arc::clone(&store), Arc::clone(&enough));
        callers.spawn(async move {
            for number in (0..).take_while(|_| !enough.load(Ordering::Relaxed)) {
                store.insert(vec![job(caller * 1_000_000 + number)], now).await.expect("stored");
            }
        });
    }
    // Claims go through the thread, enqueues do not.
    let mut claimed = 0;
    while claimed < 200 {
        claimed += bench.claim(10).await.len();
    }
    enough.store(true, Ordering::Relaxed);
    callers.join_all().await;
    check_sound(&store).await;
}

#[tokio::test]
async fn claims_of_one_group_never_overlap() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add((1..=40).map(job)).await;
    let request = ClaimRequest { limit: 3, ..bench.request() };
    let claimed = claim_together(&store, &request, 16).await;
    let distinct: BTreeSet<_> = claimed.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!((claimed.len(), distinct.len()), (40, 40));
    assert!(claimed.iter().all(|claimed| claimed.lease.fence == 1));
}

#[tokio::test]
async fn a_queues_limit_holds_within_a_group() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add((1..=40).map(job)).await;
    let limit =
        QueueChange { name: "default".to_owned(), max_running: Some(Some(7)), ..QueueChange::default() };
    store.set_queue(limit).await.expect("set_queue answers");
    let request = ClaimRequest { limit: 3, ..bench.request() };
    assert_eq!(claim_together(&store, &request, 10).await.len(), 7);
}

#[tokio::test]
async fn one_callers_panic_takes_nobody_along() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let call = |number: u64| {
        let store = Arc::clone(&store);
        async move {
            let work = move |tx: &mut Transaction<'_, '_>| {
                tx.enqueue(vec![job(number).process("p")])?;
                match number % 3 {
                    0 => Ok(()),
                    1 => Err(DbError::caller("not today")),
                    _ => panic!("on purpose"),
                }
            };
            store.db().transaction(work).await
        }
    };
    let replies = together(&store, (0..30).map(call).collect()).await;
    for (number, reply) in (0..).zip(&replies) {
        assert_eq!(reply.is_ok(), number % 3 == 0, "job {number}: {reply:?}");
        assert_eq!(bench.find(number).await.is_some(), reply.is_ok(), "job {number}");
    }
    assert_eq!(bench.claim(30).await.len(), 10);
    check_sound(&store).await;
}

#[tokio::test]
async fn a_process_ends_once_when_its_jobs_end_in_one_group() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add((1..=20).map(|number| job(number).process("p"))).await;
    bench.add([job(30).after_process("p")]).await;
    let now = bench.now();
    let settle = |claimed: &Claimed| {
        let (item, store) = (bench.item(claimed, done("1"), Vec::new()), Arc::clone(&store));
        async move { store.settle(vec![item], now).await }
    };
    let claimed = bench.claim(20).await;
    let replies = together(&store, claimed.iter().map(settle).collect()).await;
    assert!(
        replies.iter().all(|reply| reply == &Ok(vec![Settled::Applied(State::Succeeded)])),
        "{replies:?}"
    );
    bench.start(30).await;
    check_sound(&store).await;
}
