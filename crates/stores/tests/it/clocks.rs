//! A clock that steps back, by minutes or by days, between any two calls.

use std::time::Duration;

use longhaul_queue::clock::Clock;
use longhaul_queue::store::Settled;
use longhaul_queue::testing::bench::{LEASE_FOR, days, done, job, secs};
use longhaul_queue::{EngineStore as _, State};

use crate::stage::{Stage, check_sound};

#[tokio::test]
async fn neither_fence_nor_seq_goes_back_and_no_job_is_stuck() {
    let steps = [secs(1), secs(59), LEASE_FOR, days(1), days(400)];
    for step in steps {
        live_under(step).await;
    }
}

/// Enqueues, claims, loses, settles and continues a job, with the clock stepping back before each call.
async fn live_under(step: Duration) {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let back = || stage.clock.set(stage.clock.now() - step);
    let first = bench.add_one(job(1)).await;
    back();
    let second = bench.add_one(job(2)).await;
    assert!(second.seq > first.seq);

    back();
    let claimed = bench.claim(2).await;
    assert_eq!(claimed.len(), 2, "what was ready stays ready");
    assert!(claimed.iter().all(|claimed| claimed.lease.until > bench.now()), "a lease has its full time");
    back();
    assert_eq!(bench.rescue().await.changed, 0, "time that did not pass takes no lease");
    bench.pass(step + step + LEASE_FOR);
    assert_eq!(bench.rescue().await.changed, 2, "time that passed does");

    back();
    let due = bench.detail(1).await.job.run_at;
    let wait = bench.promote().await.next_at.expect("somebody waits").since(bench.now());
    assert_eq!(wait, due.since(bench.now()));
    bench.pass(wait);
    bench.promote().await;
    let again = bench.claim(2).await;
    let fences: Vec<u64> = again.iter().map(|claimed| claimed.lease.fence).collect();
    assert_eq!(fences, [2, 2]);
    back();
    for claimed in &again {
        assert_eq!(bench.settle(claimed, done("1")).await, Settled::Applied(State::Succeeded));
    }
    let stale = bench.settle(&claimed[0], done("2")).await;
    assert_eq!(stale, Settled::LostLease, "an old lease stays lost");

    bench.delete(&[1, 2]).await;
    back();
    assert!(bench.add_one(job(3)).await.seq > second.seq, "not even after the last job was deleted");
    store.prune(bench.now(), 100).await.expect("prune answers");
    bench.start(3).await;
    check_sound(&store).await;
}
