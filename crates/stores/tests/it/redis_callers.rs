//! Many callers of a Redis store at once: their small enqueues go to the server together, and each gets an answer of its own.

use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::future::join_all;
use longhaul_queue::store::Enqueued;
use longhaul_queue::testing::bench::{id, job, json};
use longhaul_queue::testing::invariants;
use longhaul_queue::{Clock, Error, NewJob, Result, Store, SystemClock};
use longhaul_stores::redis::RedisStore;
use redis::aio::MultiplexedConnection;

use crate::servers::redis::{RedisServer, connect};

const CALLERS: u64 = 64;
/// One goes at once, and while it waits the others gather; another may slip in between.
const CALLS_MAX: u64 = 3;

async fn functions_called(connection: &mut MultiplexedConnection) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(connection).await.expect("the server answers");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Enqueues while the server holds all writes back, so that all callers wait at once.
async fn together(
    store: &Arc<RedisStore>,
    connection: &mut MultiplexedConnection,
    submission: impl Fn(u64) -> Vec<NewJob>,
) -> Vec<Result<Vec<Enqueued>>> {
    redis::cmd("CLIENT")
        .arg(&["PAUSE", "60000", "WRITE"])
        .query_async::<()>(connection)
        .await
        .expect("paused");
    let insert = |number| {
        let (store, jobs) = (Arc::clone(store), submission(number));
        Box::pin(async move { store.insert(jobs, SystemClock.now()).await })
    };
    let mut inserts: Vec<_> = (0..CALLERS).map(insert).collect();
    let mut context = Context::from_waker(Waker::noop());
    for insert in &mut inserts {
        assert!(insert.as_mut().poll(&mut context).is_pending());
    }
    redis::cmd("CLIENT").arg("UNPAUSE").query_async::<()>(connection).await.expect("it goes on");
    join_all(inserts).await
}

#[tokio::test]
async fn small_enqueues_go_together_and_each_caller_gets_its_own_answer() {
    let server = RedisServer::start(&[]);
    let store = Arc::new(connect(&server.url("")).await);
    let mut connection = server.connection().await;
    store.insert(vec![job(1000)], SystemClock.now()).await.expect("stored");

    let before = functions_called(&mut connection).await;
    let replies = together(&store, &mut connection, |number| vec![job(number), job(number + 100)]).await;
    let calls = functions_called(&mut connection).await - before;
    assert!(calls <= CALLS_MAX, "{calls} calls for {CALLERS} callers");
    for (number, reply) in (0..).zip(replies) {
        let ids: Vec<_> = reply.expect("stored").iter().map(|enqueued| enqueued.id).collect();
        assert_eq!(ids, [id(number), id(number + 100)]);
    }

    // By turns: a good job, and one whose id is taken.
    let submission = |number: u64| match number % 2 {
        0 => vec![job(2000 + number)],
        _ => vec![job(2000 + number), NewJob { payload: json("2"), ..job(1000) }],
    };
    let replies = together(&store, &mut connection, submission).await;
    for (number, reply) in (0..).zip(replies) {
        let stored = !store.get(vec![id(2000 + number)]).await.expect("get answers").is_empty();
        match (number % 2, reply) {
            (0, Ok(_)) => assert!(stored, "job {number}"),
            (1, Err(Error::Invalid(text))) => assert!(text.contains("other content") && !stored, "{text}"),
            other => panic!("job {number}: {other:?}"),
        }
    }
    invariants::check(store.as_ref()).await.expect("what is stored fits together");
}
