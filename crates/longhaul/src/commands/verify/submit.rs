//! Submits the jobs of `verify crash` from a process of its own, which is killed and repeated like the workers. After
//! each acknowledged batch it writes down how many of its jobs were new.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_queue::Queue;
use longhaul_queue::store::InsertOutcome;

use super::journal;
use super::plan::Plan;
use crate::app::App;
use crate::args::SubmitArgs;
use crate::exit::{Code, code_of};

/// Jobs stored at once: ten groups, so that jobs of one batch depend on each other.
const BATCH: usize = 100;
/// Before a store that is away is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Runs the command.
pub(super) async fn run(app: &App, args: &SubmitArgs) -> Result<Code> {
    let queue = open(app).await?;
    let jobs = Plan::draw(args.jobs, args.seed).new_jobs(&args.journal)?;
    let mut acks =
        OpenOptions::new().append(true).create(true).open(&args.acks).context("opening the acks")?;
    for (batch, jobs) in jobs.chunks(BATCH).enumerate() {
        let enqueued = loop {
            match queue.enqueue_many(jobs.to_vec()).await {
                // It may have taken effect: to repeat it is safe.
                Err(error) if error.is_transient() => tokio::time::sleep(AGAIN_AFTER).await,
                answer => break answer?,
            }
        };
        let new = enqueued.iter().filter(|enqueued| enqueued.how == InsertOutcome::Inserted).count();
        journal::append(&mut acks, &Ack { batch, new, all: enqueued.len() })?;
    }
    Ok(Code::Ok)
}

/// The queue, once its store can be reached. Nobody waits for it for ever: whoever started this process ends it.
async fn open(app: &App) -> Result<Queue> {
    loop {
        match app.queue_or_new().await {
            Err(error) if code_of(&error) == Code::Unreachable => tokio::time::sleep(AGAIN_AFTER).await,
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
