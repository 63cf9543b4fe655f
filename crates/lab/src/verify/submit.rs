//! Submits the jobs of a crash verification from a process of its own, which is killed and repeated like the workers. After
//! each acknowledged batch it writes down how many of its jobs were new.

use std::fmt;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_queue::store::InsertOutcome;
use longhaul_queue::{Engine, Error};
use serde::{Deserialize, Serialize};

use super::journal;
use super::plan::Plan;
use crate::Host;

/// Jobs stored at once: ten groups, so that jobs of one batch depend on each other.
const BATCH: usize = 100;
/// Before a store that is away is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Submit {
    pub(super) jobs: u32,
    /// Of the plan.
    pub(super) seed: u64,
    /// Where jobs write what they do.
    pub(super) journal: PathBuf,
    /// Where it writes what was acknowledged.
    pub(super) acks: PathBuf,
}

impl Submit {
    pub(super) async fn run(&self, host: &Host) -> Result<()> {
        let engine = open(host).await?;
        let jobs = Plan::draw(self.jobs, self.seed).new_jobs(&self.journal)?;
        let mut acks =
            OpenOptions::new().append(true).create(true).open(&self.acks).context("opening the acks")?;
        for (batch, jobs) in jobs.chunks(BATCH).enumerate() {
            let enqueued = loop {
                match engine.queue().enqueue_many(jobs.to_vec()).await {
                    // It may have taken effect: to repeat it is safe.
                    Err(error) if error.is_transient() => tokio::time::sleep(AGAIN_AFTER).await,
                    answer => break answer?,
                }
            };
            let new = enqueued.iter().filter(|enqueued| enqueued.how == InsertOutcome::Inserted).count();
            journal::append(&mut acks, &Ack { batch, new, all: enqueued.len() })?;
        }
        Ok(())
    }
}

/// The engine, once its store can be reached. Nobody waits for it for ever: whoever started this process ends it.
async fn open(host: &Host) -> Result<Engine> {
    loop {
        match super::engine(host).await {
            Err(error) if error.downcast_ref().is_some_and(Error::is_transient) => {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            answer => return answer,
        }
    }
}

/// An acknowledged batch.
struct Ack {
    batch: usize,
    new: usize,
    all: usize,
}

impl fmt::Display for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.batch, self.new, self.all)
    }
}

/// What was acknowledged, and what is wrong with it: a batch is stored whole, and once.
pub(super) fn violations(acks: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(acks).context("reading the acks")?;
    let mut violations = Vec::new();
    let mut acknowledged = std::collections::HashSet::new();
    for line in text.lines() {
        let numbers: Vec<usize> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [batch, new, all] = numbers[..] else {
            violations.push(format!("{line:?} is not a line about a batch"));
            continue;
        };
        if new != 0 && new != all {
            violations.push(format!("batch {batch} was stored in part: {new} of {all} jobs were new"));
        }
        if !acknowledged.insert(batch) && new != 0 {
            violations
                .push(format!("batch {batch} was acknowledged before and {new} of its jobs were new again"));
        }
    }
    Ok(violations)
}
