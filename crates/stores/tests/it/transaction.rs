//! A caller's own tables and jobs in one transaction.

use std::sync::Arc;

use longhaul_queue::store::{ListRequest, Settled};
use longhaul_queue::testing::bench::{done, id, job};
use longhaul_queue::{Error, NewJob, State, Store};
use longhaul_stores::sqlite::{DbError, DbResult, SqliteStore, Transaction};

use crate::stage::{Stage, check_sound, on_writer};

const ORDERS: &str = "SELECT count(*) FROM orders";

/// A store with a table of its owner's.
async fn shop(stage: &Stage) -> Arc<SqliteStore> {
    let store = stage.open();
    let create = "CREATE TABLE orders (id INTEGER PRIMARY KEY)";
    store.db().transaction(|tx| Ok(tx.connection().execute_batch(create)?)).await.expect("a table");
    store
}

fn add_order(tx: &Transaction<'_, '_>, id: i64) -> DbResult<()> {
    tx.connection().execute("INSERT INTO orders (id) VALUES (?1)", [id])?;
    Ok(())
}

#[tokio::test]
async fn rows_and_jobs_are_stored_together() {
    let stage = Stage::new();
    let store = shop(&stage).await;
    let replies = store
        .db()
        .transaction(|tx| {
            add_order(tx, 7)?;
            tx.enqueue(vec![job(1), NewJob::new("work", longhaul_queue::Json::null())])
        })
        .await
        .expect("both are stored");
    let bench = stage.bench(&store);
    assert_eq!((replies[0].id, replies[0].state), (id(1), State::Ready));
    assert_eq!(store.get(vec![replies[1].id]).await.expect("get answers").len(), 1, "an id was drawn");
    assert_eq!((on_writer(&store, ORDERS).await, bench.claim(9).await.len()), (1, 2));
    check_sound(&store).await;
}

#[tokio::test]
async fn nothing_is_stored_when_either_is_refused() {
    let stage = Stage::new();
    let store = shop(&stage).await;
    stage.bench(&store).add([job(1)]).await;
    let refused: [fn(&mut Transaction<'_, '_>) -> DbResult<()>; 4] = [
        |_| Err(DbError::caller("no stock left")),
        |tx| tx.enqueue(vec![NewJob::new("", longhaul_queue::Json::null())]).map(|_| ()),
        |tx| tx.enqueue(vec![job(3).after(id(99))]).map(|_| ()),
        |tx| add_order(tx, 7),
    ];
    for refuse in refused {
        let before = stage.bench(&store).snapshot().await;
        let work = move |tx: &mut Transaction<'_, '_>| {
            add_order(tx, 7)?;
            tx.enqueue(vec![job(2).after(id(1)).process("p")])?;
            refuse(tx)
        };
        let error = store.db().transaction(work).await.expect_err("it is refused");
        assert!(matches!(error, Error::Invalid(_)), "it is the caller's to mend: {error:?}");
        assert_eq!(stage.bench(&store).snapshot().await, before);
    }
    assert_eq!(on_writer(&store, ORDERS).await, 0);
    check_sound(&store).await;
}

#[tokio::test]
async fn a_handler_that_lost_its_lease_cannot_write_to_its_own_tables() {
    let stage = Stage::new();
    let store = shop(&stage).await;
    let bench = stage.bench(&store);
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    let lease = claimed.lease.clone();
    let write = |id: i64| {
        let (store, lease) = (Arc::clone(&store), lease.clone());
        async move {
            let work = move |tx: &mut Transaction<'_, '_>| {
                tx.hold(&lease)?;
                add_order(tx, id)
            };
            store.db().transaction(work).await
        }
    };
    write(7).await.expect("the lease holds");
    assert_eq!(bench.settle(&claimed, done("1")).await, Settled::Applied(State::Succeeded));
    assert_eq!(write(8).await, Err(Error::LostLease(id(1))));
    assert_eq!(on_writer(&store, ORDERS).await, 1);
}

#[tokio::test]
async fn the_callers_reason_is_the_answer() {
    let stage = Stage::new();
    let store = stage.open();
    let refused = store.db().transaction(|_| Err::<(), _>(DbError::caller("no stock left"))).await;
    assert_eq!(refused, Err(Error::Invalid("no stock left".to_owned())));
}

#[tokio::test]
async fn a_panic_is_an_error_and_the_writer_goes_on() {
    let stage = Stage::new();
    let store = stage.open();
    let work = |tx: &mut Transaction<'_, '_>| -> DbResult<()> {
        tx.enqueue(vec![job(1)])?;
        panic!("on purpose")
    };
    let error = store.db().transaction(work).await.expect_err("it panicked");
    assert!(error.to_string().contains("panicked"), "{error}");
    let bench = stage.bench(&store);
    assert!(bench.find(1).await.is_none(), "nothing of it is stored");
    bench.add([job(1)]).await;
    bench.run(1, done("1")).await;
}

#[tokio::test]
async fn the_commit_wakes_whoever_watches_and_a_refusal_does_not() {
    let stage = Stage::new();
    let store = stage.open();
    let mut changes = store.watch();
    changes.mark_unchanged();
    store.db().transaction(|_| Err::<(), _>(DbError::caller("no"))).await.expect_err("it is refused");
    assert!(!changes.has_changed().expect("the store lives"));
    store.db().transaction(|tx| tx.enqueue(vec![job(1)])).await.expect("it is stored");
    changes.changed().await.expect("the store lives");
    assert_eq!(store.counts().await.expect("counts answers")[0].jobs, 1, "the commit came first");
}

/// A caller may go on after a refusal; then nothing of the refused submission may stay, least of all a job without
/// the edges that would release it.
#[tokio::test]
async fn a_refused_enqueue_leaves_nothing_when_the_caller_goes_on() {
    let stage = Stage::new();
    let store = stage.open();
    let unknown = id(99);
    let outcome = store.db().transaction(move |tx| {
        let refused = tx.enqueue(vec![job(1), job(2).after(unknown)]);
        tx.enqueue(vec![job(3)])?;
        Ok(refused.is_err())
    });
    assert_eq!(outcome.await, Ok(true));
    let page = store.list(ListRequest { limit: 10, ..ListRequest::default() }).await.expect("list answers");
    assert_eq!(page.items.iter().map(|job| job.id).collect::<Vec<_>>(), [id(3)]);
}
