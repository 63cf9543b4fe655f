//! The in-memory store passes the suite, and random runs of it agree with themselves.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::Bench;
use longhaul_queue::testing::bench::{START, job};
use longhaul_queue::testing::random;
use longhaul_queue::{ManualClock, Store};

async fn bench() -> Bench {
    Bench::new(Arc::new(MemoryStore::new()))
}

longhaul_queue::conformance_tests!(bench);

#[tokio::test]
async fn random_runs_are_repeatable() {
    for seed in 0..20 {
        let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())];
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
