//! The store that fails on demand does what it says, and a job's life ends once wherever it fails.

use std::sync::Arc;

use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::bench::{START, id, job};
use longhaul_queue::testing::{Bench, Fault, FaultyStore, lost_calls};
use longhaul_queue::{Error, Store};

#[tokio::test]
async fn a_call_fails_before_or_after_it_was_carried_out() {
    for (fault, stored) in [(Fault::Before, 0), (Fault::After, 1)] {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()));
        store.fail_call(2, fault);
        store.counts().await.expect("the first call works");
        let failed = store.insert(vec![job(1)], START).await;
        assert!(matches!(failed, Err(Error::Unavailable(_))), "{failed:?}");
        assert_eq!(store.get(vec![id(1)]).await.expect("the third call works").len(), stored);
        let repeated = store.insert(vec![job(1)], START).await.expect("the fourth call works");
        assert_eq!((repeated[0].id, store.calls()), (id(1), 4));
    }
}

#[tokio::test]
async fn a_life_with_one_lost_call_ends_once() {
    lost_calls::check(async || Bench::new(Arc::new(MemoryStore::new()))).await;
}
