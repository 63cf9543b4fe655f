//! A disk that is full.

use std::sync::Arc;

use longhaul_queue::store::Settled;
use longhaul_queue::testing::bench::{done, id, job, json};
use longhaul_queue::{EngineStore as _, Error, NewJob, State, Store};
use longhaul_stores::sqlite::SqliteStore;

use crate::stage::{Stage, check_sound, on_writer, together};

/// A job whose payload takes two pages.
fn large(number: u64) -> NewJob {
    NewJob { payload: json(&format!("{:?}", "x".repeat(8_000))), ..job(number) }
}

/// Leaves the file room for so many pages more.
async fn leave_room(store: &SqliteStore, pages: i64) {
    let count = on_writer(store, "PRAGMA page_count").await;
    let limit = format!("PRAGMA max_page_count = {}", count + pages);
    let set = store.db().transaction(move |tx| Ok(tx.connection().query_row(&limit, [], |_| Ok(()))?));
    set.await.expect("the limit is set");
}

async fn lift_limit(store: &SqliteStore) {
    on_writer(store, "PRAGMA max_page_count = 1000000").await;
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Unavailable(text) if text.contains("full"))
}

#[tokio::test]
async fn a_full_disk_refuses_a_write_and_keeps_what_was_there() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1), job(2)]).await;
    let claimed = bench.start(1).await;
    leave_room(&store, 20).await;
    let before = bench.snapshot().await;

    let error = bench.try_add((10..100).map(large)).await.expect_err("the disk is full");
    assert!(is_full(&error) && error.to_string().contains("nothing was written"), "{error}");
    assert_eq!(bench.snapshot().await, before);
    let item = bench.item(&claimed, done("1"), (10..100).map(large).collect());
    let error = store.settle(vec![item], bench.now()).await.expect_err("its follow-ups do not fit");
    assert!(is_full(&error), "{error}");
    assert_eq!(bench.snapshot().await, before);
    check_sound(&store).await;

    // What needs no room goes on.
    assert_eq!(bench.settle(&claimed, done("1")).await, Settled::Applied(State::Succeeded));
    bench.start(2).await;
    lift_limit(&store).await;
    bench.add((10..100).map(large)).await;
    assert_eq!(bench.claim(100).await.len(), 90);
    check_sound(&store).await;
}

#[tokio::test]
async fn on_a_full_disk_each_caller_of_a_group_learns_the_truth() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    leave_room(&store, 40).await;
    let now = bench.now();
    let insert = |number| {
        let store = Arc::clone(&store);
        async move { store.insert(vec![large(number)], now).await }
    };
    let replies = together(&store, (1..=64).map(insert).collect()).await;
    for (number, reply) in (1..).zip(&replies) {
        let stored = bench.find(number).await.is_some();
        assert_eq!(reply.is_ok(), stored, "job {number}: {reply:?}");
        assert!(reply.as_ref().err().is_none_or(is_full), "job {number}: {reply:?}");
    }
    assert!(replies.iter().any(Result::is_err), "64 jobs of two pages do not fit into 40");
    check_sound(&store).await;

    lift_limit(&store).await;
    for (number, _) in (1..).zip(&replies).filter(|(_, reply)| reply.is_err()) {
        assert_eq!(bench.add_one(large(number)).await.id, id(number), "repeating the call is safe");
    }
    assert_eq!(store.counts().await.expect("counts answers")[0].jobs, 64);
    check_sound(&store).await;
}
