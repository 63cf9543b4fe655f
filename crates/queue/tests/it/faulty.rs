//! The store that fails on demand does what it says, and a job's life ends once wherever it fails.

use std::sync::Arc;

use longhaul_queue::job::Claimed;
use longhaul_queue::memory::MemoryStore;
use longhaul_queue::testing::bench::{LEASE_FOR, START, done, id, job, secs};
use longhaul_queue::testing::{Bench, Fault, FaultyStore};
use longhaul_queue::{Error, Result, State, Store};

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
    let undisturbed = live(None).await;
    for number in 1..=undisturbed {
        for fault in [Fault::Before, Fault::After] {
            live(Some((number, fault))).await;
        }
    }
}

/// Enqueues, claims, settles and consumes a job, repeats what fails, and says how many calls that took.
async fn live(fault: Option<(u64, Fault)>) -> u64 {
    let faulty = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())));
    if let Some((number, fault)) = fault {
        faulty.fail_call(number, fault);
    }
    let bench = Bench::new(faulty.clone());
    persist(async || bench.store.insert(vec![job(1), job(2).after(id(1))], bench.now()).await).await;
    for number in [1, 2] {
        let claimed = claim(&bench).await;
        assert_eq!(claimed.job.id, id(number), "{fault:?}");
        let item = bench.item(&claimed, done("1"), Vec::new());
        persist(async || bench.store.settle(vec![item.clone()], bench.now()).await).await;
        let found = persist(async || bench.store.get(vec![id(number)]).await).await;
        assert_eq!(found[0].job.state, State::Succeeded, "{fault:?}");
    }
    persist(async || bench.store.delete(vec![id(1), id(2)]).await).await;
    let ledger = persist(async || bench.store.ledger().await).await;
    assert_eq!(
        ledger.iter().map(|row| (row.state, row.jobs)).collect::<Vec<_>>(),
        [(State::Succeeded, 2)],
        "{fault:?}"
    );
    faulty.calls()
}

/// Claims one job; one whose claim was carried out but never heard of comes back by the rescue.
async fn claim(bench: &Bench) -> Claimed {
    loop {
        let claimed = persist(async || bench.store.claim(bench.request()).await).await;
        if let Some(claimed) = claimed.into_iter().next() {
            return claimed;
        }
        bench.pass(LEASE_FOR);
        persist(async || bench.store.rescue_expired(bench.now(), 10).await).await;
        bench.pass(secs(1));
        persist(async || bench.store.promote_due(bench.now(), 10).await).await;
    }
}

async fn persist<T>(call: impl AsyncFn() -> Result<T>) -> T {
    loop {
        match call().await {
            Err(Error::Unavailable(_)) => {}
            other => return other.expect("nothing else goes wrong"),
        }
    }
}
