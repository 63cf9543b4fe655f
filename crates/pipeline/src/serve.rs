//! Workers that serve whatever comes: each run and each sheet has a queue of its own, and they come and go.

use std::collections::HashSet;
use std::time::Duration;

use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::{Queue, QueueShare, State, WorkerControl};

/// Least and greatest time between two looks for new queues.
const LOOK_GAP: Duration = Duration::from_millis(200);
const LOOK_AT_LEAST: Duration = Duration::from_secs(2);
/// They share a worker evenly.
const WEIGHT: u32 = 1;

/// Which queues are served.
#[derive(Debug, Clone, Default)]
pub struct Served {
    /// These, whatever happens.
    pub always: Vec<QueueShare>,
    /// Those with work whose names begin so.
    pub prefixes: Vec<&'static str>,
}

/// Keeps a worker's queues at those that are to be served. Never returns; drop it to end it.
pub async fn all(queue: Queue, control: WorkerControl, served: Served) {
    let mut changes = queue.changes();
    loop {
        changes.mark_unchanged();
        look(&queue, &control, &served).await;
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Looks once. A worker that ends when nothing is left must know its queues before it starts.
pub async fn look(queue: &Queue, control: &WorkerControl, served: &Served) {
    // A store that cannot be read now is read at the next look.
    let Ok(found) = queue.store().queues().await else { return };
    let wanted = |name: &str| served.prefixes.iter().any(|prefix| name.starts_with(prefix));
    let found = found.iter().filter(|queue| wanted(&queue.name) && has_work(&queue.counts));
    let found = found.map(|queue| QueueShare { name: queue.name.clone(), weight: Some(WEIGHT) });
    control.set_queues(served.always.iter().cloned().chain(found).collect());
}

/// The queues that living workers serve: a run whose queue is not among them does not move.
pub async fn served(queue: &Queue) -> longhaul_queue::Result<HashSet<String>> {
    let now = queue.clock().now();
    let workers = queue.store().workers(now).await?;
    let living = workers.into_iter().filter(|worker| now.since(worker.seen_at) <= WORKER_SILENT_AFTER);
    Ok(living.flat_map(|worker| worker.queues).collect())
}

/// Whether something is left that a worker could move, now or later.
fn has_work(counts: &[u64; 8]) -> bool {
    State::ALL.iter().zip(counts).any(|(state, count)| !state.is_terminal() && *count > 0)
}
