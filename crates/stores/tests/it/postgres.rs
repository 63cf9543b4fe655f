//! Postgres passes the suite, loses no job with a lost call, and agrees with the memory store on random runs.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::bench::START;
use longhaul_queue::testing::{Bench, lost_calls, random};
use longhaul_queue::{EngineStore, ManualClock};
use longhaul_stores::postgres::{PostgresOptions, PostgresStore};

use crate::servers::postgres::{Server, shared};
use crate::sqlite::seeds;

async fn open(clock: &Arc<ManualClock>) -> Arc<PostgresStore> {
    let options = PostgresOptions { clock: Arc::clone(clock) as _, ..PostgresOptions::default() };
    let store = PostgresStore::open(&shared().url(&Server::schema()), options).await;
    Arc::new(store.expect("the store opens"))
}

async fn bench() -> Bench {
    let clock = Arc::new(ManualClock::new(START));
    Bench::new(open(&clock).await).timed_by(clock)
}

longhaul_queue::conformance_tests!(bench);

#[tokio::test]
async fn a_life_with_one_lost_call_ends_once() {
    lost_calls::check(bench).await;
}

#[tokio::test]
async fn random_runs_agree_with_the_memory_store() {
    for seed in seeds() {
        println!("seed {seed}");
        let clock = Arc::new(ManualClock::new(START));
        let stores: [Arc<dyn EngineStore>; 2] = [Arc::new(MemoryStore::new()), open(&clock).await];
        random::run(seed, 2_000, &stores, &clock).await;
    }
}
