//! The order of a worker's settle and its next claim, which go out together. Where they travel on different connections, or a
//! settlement takes more than one trip, the claim could be served first and take a job that is less urgent than what the
//! settlement makes ready. So a claim waits for earlier settlements of the same worker, but only while they may still make jobs
//! ready. Most cannot: nobody waited for their jobs when these were claimed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_queue::job::{JobId, WorkerId};
use longhaul_queue::store::SettleItem;
use tokio::sync::watch;

/// Jobs that are remembered to have nobody waiting for them. Those that are never settled here are forgotten with all others.
const ALONE_MAX: usize = 100_000;

/// The settlements of one store that may make something ready, and whose they are.
#[derive(Default)]
pub(crate) struct SettleOrder {
    pending: watch::Sender<BTreeMap<u64, Vec<WorkerId>>>,
    next: AtomicU64,
    /// Jobs under way that nobody waited for when they were claimed, with their fences.
    alone: Mutex<HashMap<JobId, u64>>,
}

/// A settlement that claims of its workers wait for, until it is dropped at the latest.
pub(crate) struct PendingSettle {
    order: Arc<SettleOrder>,
    number: u64,
}

impl SettleOrder {
    /// Remembers claimed jobs, by their fences, that nobody waits for.
    pub(crate) fn alone(&self, jobs: impl IntoIterator<Item = (JobId, u64)>) {
        let mut alone = self.lock();
        if alone.len() > ALONE_MAX {
            alone.clear();
        }
        alone.extend(jobs);
    }

    /// Whether nobody waited for this job when it was claimed; it is forgotten.
    pub(crate) fn was_alone(&self, item: &SettleItem) -> bool {
        self.lock().remove(&item.lease.job_id) == Some(item.lease.fence)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, u64>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called before the first `await` of a settle, with what may make something ready.
    pub(crate) fn begin<'i>(
        self: &Arc<Self>,
        items: impl IntoIterator<Item = &'i SettleItem>,
    ) -> PendingSettle {
        let mut workers: Vec<WorkerId> = items.into_iter().map(|item| item.lease.worker.clone()).collect();
        workers.sort_unstable();
        workers.dedup();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if !workers.is_empty() {
            self.pending.send_modify(|pending| drop(pending.insert(number, workers)));
        }
        PendingSettle { order: Arc::clone(self), number }
    }

    /// Waits for the settlements of this worker that have begun.
    pub(crate) async fn settled(&self, worker: &WorkerId) {
        let mut pending = self.pending.subscribe();
        let before: Vec<u64> = {
            let pending = pending.borrow_and_update();
            let of_worker = pending.iter().filter(|(_, workers)| workers.contains(worker));
            of_worker.map(|(number, _)| *number).collect()
        };
        if !before.is_empty() {
            // An error would mean that the sender is gone, which is borrowed here.
            let _ =
                pending.wait_for(|pending| before.iter().all(|number| !pending.contains_key(number))).await;
        }
    }
}

impl PendingSettle {
    /// It will make nothing ready: claims need not wait for its commit.
    pub(crate) fn makes_nothing_ready(&self) {
        self.order.pending.send_if_modified(|pending| pending.remove(&self.number).is_some());
    }
}

impl Drop for PendingSettle {
    fn drop(&mut self) {
        self.makes_nothing_ready();
    }
}
