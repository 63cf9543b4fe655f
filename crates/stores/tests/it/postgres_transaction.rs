//! A caller's own tables on Postgres, and jobs in one transaction with them.

use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::store::ListRequest;
use longhaul_queue::testing::bench::{id, job};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Clock, EngineStore as _, Error, Json, NewJob, State, Store, SystemClock};
use longhaul_stores::postgres::PostgresStore;
use tokio_postgres::Client;

use crate::postgres_special::{changed, count, item, open, request};
use crate::servers::postgres::{Server, shared};

/// A store with a table of its owner's, and a connection of the owner's own.
async fn shop() -> (Arc<PostgresStore>, Client, String) {
    let schema = Server::schema();
    let store = open(shared(), &schema).await;
    let client = shared().connect().await;
    let orders = format!("{schema}.orders");
    client.batch_execute(&format!("CREATE TABLE {orders} (id bigint PRIMARY KEY)")).await.expect("a table");
    (store, client, orders)
}

#[tokio::test]
async fn rows_and_jobs_are_stored_together() {
    let (store, mut client, orders) = shop().await;
    let mut changes = store.watch();
    let transaction = client.transaction().await.expect("it begins");
    transaction.batch_execute(&format!("INSERT INTO {orders} VALUES (7)")).await.expect("a row");
    let new = vec![job(1), job(2).after(id(1)), NewJob::new("work", Json::null())];
    let replies = store.insert_with(&transaction, new, SystemClock.now()).await.expect("they are taken");
    assert_eq!((replies[0].id, replies[0].state, replies[1].state), (id(1), State::Ready, State::Blocked));
    changes.mark_unchanged();
    transaction.commit().await.expect("it commits");
    changed(&mut changes).await;
    assert_eq!(store.get(vec![replies[2].id]).await.expect("get answers").len(), 1, "an id was drawn");
    let claimed = store.claim(request("w", Duration::from_secs(60))).await.expect("claim answers");
    assert_eq!((claimed.len(), count(&client, &format!("SELECT count(*) FROM {orders}")).await), (2, 1));
    let path: String = client.query_one("SHOW search_path", &[]).await.expect("it answers").get(0);
    assert!(path.contains("public"), "the caller's own path stands: {path}");
    invariants::check(store.as_ref()).await.expect("what is stored fits together");
}

#[tokio::test]
async fn nothing_is_stored_when_the_caller_rolls_back() {
    let (store, mut client, orders) = shop().await;
    let transaction = client.transaction().await.expect("it begins");
    transaction.batch_execute(&format!("INSERT INTO {orders} VALUES (7)")).await.expect("a row");
    store.insert_with(&transaction, vec![job(1)], SystemClock.now()).await.expect("it is taken");
    transaction.rollback().await.expect("it is undone");
    assert!(store.counts().await.expect("counts answers").is_empty());
    assert_eq!(count(&client, &format!("SELECT count(*) FROM {orders}")).await, 0);
    let reply = store.insert(vec![job(2)], SystemClock.now()).await.expect("insert answers");
    assert_eq!(reply[0].seq, 1, "its place is free again");
}

#[tokio::test]
async fn a_handler_that_lost_its_lease_cannot_write_to_its_own_tables() {
    let (store, mut client, orders) = shop().await;
    store.insert(vec![job(1)], SystemClock.now()).await.expect("insert answers");
    let claimed = store.claim(request("w", Duration::from_secs(60))).await.expect("claim answers");
    let lease = claimed[0].lease.clone();
    let transaction = client.transaction().await.expect("it begins");
    store.hold_with(&transaction, &lease).await.expect("the lease holds");
    transaction.batch_execute(&format!("INSERT INTO {orders} VALUES (7)")).await.expect("a row");
    transaction.commit().await.expect("it commits");
    store.settle(vec![item(&claimed[0])], SystemClock.now()).await.expect("settle answers");
    let transaction = client.transaction().await.expect("it begins");
    assert_eq!(store.hold_with(&transaction, &lease).await, Err(Error::LostLease(id(1))));
}

/// A caller may go on after a refusal; then nothing of the refused submission may stay.
#[tokio::test]
async fn a_refused_enqueue_leaves_nothing_when_the_caller_goes_on() {
    let (store, mut client, orders) = shop().await;
    let transaction = client.transaction().await.expect("it begins");
    let refused = vec![job(1), job(2).after(id(99))];
    let error = store.insert_with(&transaction, refused, SystemClock.now()).await.expect_err("it is refused");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    store.insert_with(&transaction, vec![job(3)], SystemClock.now()).await.expect("it is taken");
    transaction.batch_execute(&format!("INSERT INTO {orders} VALUES (7)")).await.expect("a row");
    transaction.commit().await.expect("it commits");
    let page = store.list(ListRequest { limit: 10, ..ListRequest::default() }).await.expect("list answers");
    assert_eq!(page.items.iter().map(|job| job.id).collect::<Vec<_>>(), [id(3)]);
}

#[tokio::test]
async fn a_callers_snapshot_that_stands_still_is_refused() {
    let (store, mut client, _) = shop().await;
    let level = tokio_postgres::IsolationLevel::RepeatableRead;
    let transaction = client.build_transaction().isolation_level(level).start().await.expect("it begins");
    let error =
        store.insert_with(&transaction, vec![job(1)], SystemClock.now()).await.expect_err("it is refused");
    assert!(error.to_string().contains("READ COMMITTED"), "{error}");
}
