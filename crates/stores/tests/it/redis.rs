//! Redis passes the suite, loses no job with a lost call, and agrees with the memory store on random runs.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::bench::START;
use longhaul_queue::testing::{Bench, lost_calls, random};
use longhaul_queue::{EngineStore, ManualClock};

use crate::servers::redis::store;

async fn bench() -> Bench {
    Bench::new(Arc::new(store().await))
}

longhaul_queue::conformance_tests!(bench);

#[tokio::test]
async fn a_life_with_one_lost_call_ends_once() {
    lost_calls::check(bench).await;
}

/// The first seed is drawn and printed, so that a difference can be repeated: LONGHAUL_SEED=… cargo test random. For a
/// long run, LONGHAUL_SEEDS says how many.
#[tokio::test]
async fn random_runs_agree_with_the_memory_store() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let given = number("LONGHAUL_SEED");
    let first = given.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let seeds = number("LONGHAUL_SEEDS").unwrap_or(if given.is_some() { 1 } else { 10 });
    for seed in first..first + seeds {
        println!("seed {seed}");
        let clock = ManualClock::new(START);
        let stores: [Arc<dyn EngineStore>; 2] = [Arc::new(MemoryStore::new()), Arc::new(store().await)];
        random::run(seed, 2_000, &stores, &clock).await;
    }
}
