//! Rows that cannot be read, by a hand that edited them or a program that wrote them wrongly, keep nobody else waiting.

use std::sync::Arc;

use longhaul_queue::ManualClock;
use longhaul_queue::state::{OnTimeout, State};
use longhaul_queue::testing::Bench;
use longhaul_queue::testing::bench::{LEASE_FOR, START, id, job, park_until, secs};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::{Server, shared};

struct Damaged {
    bench: Bench,
    schema: String,
}

impl Damaged {
    async fn new() -> Self {
        let (schema, clock) = (Server::schema(), Arc::new(ManualClock::new(START)));
        let options = PostgresOptions { clock: Arc::clone(&clock) as _, ..PostgresOptions::default() };
        let store = PostgresStore::open(&shared().url(&schema), options).await.expect("the store opens");
        Self { bench: Bench::new(Arc::new(store)).timed_by(clock), schema }
    }

    async fn spoil(&self, assignment: &str, number: u64) {
        let sql = format!("UPDATE {}.lh_jobs SET {assignment} WHERE id = '{}'", self.schema, id(number));
        let changed = shared().connect().await.execute(&sql, &[]).await.expect("the row is changed");
        assert_eq!(changed, 1);
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_stops_no_rescue() {
    let damaged = Damaged::new().await;
    let bench = &damaged.bench;
    bench.add((1..=4).map(|number| job(number).max_crashes(1))).await;
    bench.add([job(5).after(id(3))]).await;
    assert_eq!(bench.claim(9).await.len(), 4);
    damaged.spoil("options = '{'", 1).await;
    damaged.spoil("crashes = -1", 2).await;
    // The end of job 3 must read this one.
    damaged.spoil("waits_for = -1", 5).await;
    bench.pass(LEASE_FOR);
    let swept = bench.rescue().await;
    assert_eq!((swept.changed, bench.state(4).await), (1, State::Failed));
    assert!(swept.next_at > Some(bench.now()), "the others are left alone for a while: {swept:?}");
    assert_eq!(bench.rescue().await.changed, 0);
}

#[tokio::test]
async fn a_job_that_cannot_be_read_stops_no_promotion() {
    let damaged = Damaged::new().await;
    let bench = &damaged.bench;
    let until = Some(bench.now() + secs(5));
    bench.add([job(1), job(2)]).await;
    bench.run(1, park_until("a", until, OnTimeout::Resume)).await;
    bench.run(2, park_until("b", until, OnTimeout::Resume)).await;
    bench.add([job(3).run_at(bench.now() + secs(5)), job(4).run_at(bench.now() + secs(5))]).await;
    damaged.spoil("park = '{'", 1).await;
    damaged.spoil("attempt = -1", 3).await;
    bench.pass(secs(5));
    let swept = bench.promote().await;
    assert_eq!((swept.changed, bench.state(2).await, bench.state(4).await), (2, State::Ready, State::Ready));
    assert!(swept.next_at > Some(bench.now()), "the others are left alone for a while: {swept:?}");
}
