//! Submits the jobs of `verify crash` from a process of its own, which is killed and repeated like the workers. After
//! each acknowledged batch it writes down how many of its jobs were new.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context as _, Result};
use longhaul_queue::store::How;

use super::journal;
use super::plan::Plan;
use crate::app::App;
use crate::args::SubmitArgs;
use crate::exit::Code;

/// Jobs stored at once: ten groups, so that jobs of one batch depend on each other.
const BATCH: usize = 100;

/// Runs the command.
pub(super) async fn run(app: &App, args: &SubmitArgs) -> Result<Code> {
    let queue = app.queue_or_new().await?;
    let jobs = Plan::draw(args.jobs, args.seed).new_jobs(&args.journal)?;
    let mut acks =
        OpenOptions::new().append(true).create(true).open(&args.acks).context("opening the acks")?;
    for (batch, jobs) in jobs.chunks(BATCH).enumerate() {
        let enqueued = queue.enqueue_many(jobs.to_vec()).await?;
        let new = enqueued.iter().filter(|enqueued| enqueued.how == How::Inserted).count();
        journal::append(&mut acks, &Ack { batch, new, all: enqueued.len() })?;
    }
    Ok(Code::Ok)
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
