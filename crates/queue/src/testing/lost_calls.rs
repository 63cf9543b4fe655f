//! A job's life in which one call is lost, each in turn: before it was carried out or after, where the caller cannot
//! know. Whoever repeats what failed must come to the same end.

use std::sync::Arc;

use super::bench::{LEASE_FOR, done, id, job, secs};
use super::{Bench, Fault, FaultyStore};
use crate::error::{Error, Result};
use crate::job::Claimed;
use crate::state::State;

/// Lives through every such life; `make` makes a bench with an empty store for each.
pub async fn check(make: impl AsyncFn() -> Bench) {
    let undisturbed = live(make().await, None).await;
    for number in 1..=undisturbed {
        for fault in [Fault::Before, Fault::After] {
            live(make().await, Some((number, fault))).await;
        }
    }
}

/// Enqueues, claims, settles and consumes a job, repeats what fails, and says how many calls that took.
async fn live(sound: Bench, fault: Option<(u64, Fault)>) -> u64 {
    let faulty = Arc::new(FaultyStore::new(Arc::clone(&sound.store)));
    if let Some((number, fault)) = fault {
        faulty.fail_call(number, fault);
    }
    let clock = Arc::clone(&sound.clock);
    let bench = Bench::new(Arc::clone(&faulty) as _).timed_by(clock).keeping(sound);
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
