//! Workers that serve all runs: each run has a queue of its own, and runs come and go.

use std::time::Duration;

use longhaul_queue::{Queue, QueueShare, State, WorkerControl};

use super::run::RUN_PREFIX;

/// Least and greatest time between two looks for new runs.
const LOOK_GAP: Duration = Duration::from_millis(200);
const LOOK_AT_LEAST: Duration = Duration::from_secs(2);
/// Runs share a worker evenly.
const RUN_WEIGHT: u32 = 1;

/// Keeps a worker's queues at `always` and those of all runs with work. Never returns; drop it to end it.
pub async fn all_runs(queue: Queue, control: WorkerControl, always: Vec<QueueShare>) {
    let mut changes = queue.changes();
    loop {
        changes.mark_unchanged();
        look(&queue, &control, &always).await;
        tokio::time::sleep(LOOK_GAP).await;
        let _ = tokio::time::timeout(LOOK_AT_LEAST, changes.changed()).await;
    }
}

/// Looks once. A worker that ends when nothing is left must know its queues before it starts.
pub async fn look(queue: &Queue, control: &WorkerControl, always: &[QueueShare]) {
    // A store that cannot be read now is read at the next look.
    let Ok(found) = queue.store().queues().await else { return };
    let runs = found.iter().filter(|queue| queue.name.starts_with(RUN_PREFIX) && has_work(&queue.counts));
    let runs = runs.map(|queue| QueueShare { name: queue.name.clone(), weight: Some(RUN_WEIGHT) });
    control.set_queues(always.iter().cloned().chain(runs).collect());
}

/// Whether something is left that a worker could move, now or later.
fn has_work(counts: &[u64; 8]) -> bool {
    State::ALL.iter().zip(counts).any(|(state, count)| !state.is_terminal() && *count > 0)
}
