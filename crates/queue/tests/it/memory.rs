//! The in-memory store passes the suite, and random runs of it agree with themselves.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::Bench;
use longhaul_queue::testing::bench::{START, done, job};
use longhaul_queue::testing::random;
use longhaul_queue::{EngineStore, ManualClock};

async fn bench() -> Bench {
    Bench::new(Arc::new(MemoryStore::new()))
}

longhaul_queue::conformance_tests!(bench);

#[tokio::test]
async fn random_runs_are_repeatable() {
    for seed in 0..20 {
        let stores: [Arc<dyn EngineStore>; 2] = [Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())];
        random::run(seed, 500, &stores, &ManualClock::new(START)).await;
    }
}

/// Events are bounded here at once, not only by the pruner, so a slow reader is told.
#[tokio::test]
async fn a_reader_that_fell_behind_is_told_to_resync() {
    let bench = bench().await;
    let kept = longhaul_queue::limits::EVENTS_KEPT_MAX as u64;
    for number in 1..=kept + 5 {
        bench.add([job(number)]).await;
    }
    let resync = async |after| bench.store.events(Some(after), 1).await.expect("events answers").resync;
    assert_eq!(
        (resync(0).await, resync(4).await, resync(5).await, resync(kept + 5).await),
        (true, true, false, false)
    );
}

/// A backlog must not slow claims down: this ends in a blink or shows that something became quadratic.
#[tokio::test]
async fn a_hundred_thousand_jobs_are_claimed_and_settled() {
    let bench = bench().await;
    for first in [1, 50_001] {
        bench.add((first..first + 50_000).map(|number| job(number).process("p"))).await;
    }
    for _ in 0..100 {
        let claimed = bench.claim(1_000).await;
        let items = claimed.iter().map(|claimed| bench.item(claimed, done("1"), Vec::new())).collect();
        bench.store.settle(items, bench.now()).await.expect("settle answers");
    }
    let process = bench.store.process("p".into()).await.expect("process answers").expect("it has jobs");
    assert_eq!((process.total(), process.unfinished()), (100_000, 0));
}
