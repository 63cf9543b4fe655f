//! Jobs of batch kinds that wait for company before their handler is called.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::handler::{BatchHandler, BatchOptions};
use crate::live_run::{Group, LiveRun};

/// A batch of one kind.
pub(super) struct Batch {
    pub(super) runs: Vec<Arc<LiveRun>>,
    pub(super) handler: BatchHandler,
    group: Arc<Group>,
    size_max: usize,
    start_by: Timestamp,
}

/// The batches that are still gathered, by kind.
#[derive(Default)]
pub(super) struct Gathering {
    open: HashMap<String, Batch>,
}

impl Gathering {
    /// The group that the next job of this kind joins.
    pub(super) fn group(
        &mut self,
        kind: &str,
        (options, handler): (BatchOptions, &BatchHandler),
        now: Timestamp,
    ) -> Arc<Group> {
        let new = || Batch {
            runs: Vec::new(),
            handler: Arc::clone(handler),
            group: Arc::default(),
            size_max: options.size_max.max(1),
            start_by: now + options.wait,
        };
        Arc::clone(&self.open.entry(kind.to_owned()).or_insert_with(new).group)
    }

    /// Adds a job to its kind's batch, and hands the batch out when it is full.
    pub(super) fn add(&mut self, run: Arc<LiveRun>) -> Option<Batch> {
        let kind = run.job.kind.clone();
        let batch = self.open.get_mut(&kind)?;
        batch.runs.push(run);
        if batch.runs.len() < batch.size_max { None } else { self.open.remove(&kind) }
    }

    /// The batches that have waited long enough, or all.
    pub(super) fn take_due(&mut self, now: Timestamp, all: bool) -> Vec<Batch> {
        self.open.extract_if(|_, batch| all || batch.start_by <= now).map(|(_, batch)| batch).collect()
    }

    /// When the next batch has waited long enough.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.open.values().map(|batch| batch.start_by).min()
    }
}
