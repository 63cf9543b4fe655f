//! SQLite passes the suite and agrees with the memory store on random runs.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::Bench;
use longhaul_queue::testing::bench::START;
use longhaul_queue::testing::random;
use longhaul_queue::{ManualClock, Store};
use longhaul_stores::sqlite::{Durability, SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// A store in a folder of its own. `Relaxed`, because these tests check rules, not disks.
pub(crate) fn store(clock: &Arc<ManualClock>) -> (Arc<SqliteStore>, TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = SqliteOptions {
        durability: Durability::Relaxed,
        clock: Arc::clone(clock) as _,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&folder.path().join("test.db"), options).expect("the store opens");
    (Arc::new(store), folder)
}

async fn bench() -> Bench {
    let clock = Arc::new(ManualClock::new(START));
    let (store, folder) = store(&clock);
    Bench::new(store).timed_by(clock).keeping(folder)
}

longhaul_queue::conformance_tests!(bench);

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
        let clock = Arc::new(ManualClock::new(START));
        let (sqlite, _folder) = store(&clock);
        let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), sqlite];
        random::run(seed, 2_000, &stores, &clock).await;
    }
}
