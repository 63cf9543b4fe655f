//! The process that submits the jobs: killed at random and repeated from the start, the last time to its end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::process::Child;

use super::Toll;
use crate::Scratch;
use crate::verify::{Crash, Role, submit::Submit};

/// Rounds that may be killed, at most.
const KILLS_MAX: u32 = 8;
/// Before the process has even opened the store.
const KILL_AFTER_MIN_MS: u64 = 5;
/// It takes about this long to start, and to store so many jobs in a further millisecond.
const START_MS: u64 = 40;
const JOBS_PER_MS: u64 = 50;

/// See the module.
pub(super) struct Submitter {
    role: Role,
    jobs: u64,
    /// Rounds that are still to be killed.
    kills_left: u32,
    running: Option<(Child, Option<Instant>)>,
    done: bool,
}

impl Submitter {
    pub(super) fn new(args: &Crash, seed: u64, scratch: &Scratch) -> Self {
        let (journal, acks) = (scratch.path("journal"), scratch.path("acks"));
        let role = Role::Submit(Submit { jobs: args.jobs, seed, journal, acks });
        let kills_left = args.kills.div_ceil(10).min(KILLS_MAX);
        Self { role, jobs: u64::from(args.jobs), kills_left, running: None, done: false }
    }

    pub(super) fn jobs(&self) -> u64 {
        self.jobs
    }

    /// Whether the last round has come to its end.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Starts, kills or ends a round, whatever is due.
    pub(super) async fn tend(
        &mut self,
        scratch: &Scratch,
        random: &mut fastrand::Rng,
        toll: &mut Toll,
    ) -> Result<()> {
        if self.done {
            return Ok(());
        }
        let Some((child, kill_at)) = &mut self.running else {
            let wait =
                Duration::from_millis(random.u64(KILL_AFTER_MIN_MS..START_MS + self.jobs / JOBS_PER_MS));
            let kill_at = (self.kills_left > 0).then(|| Instant::now() + wait);
            self.running = Some((scratch.spawn(&self.role.words()?, "submitter.log")?, kill_at));
            return Ok(());
        };
        if let Some(status) = child.try_wait().context("looking at the submitter")? {
            if !status.success() {
                toll.surprises.push(format!("the submitter ended by itself: {status}"));
            }
            // A round that was faster than its kill counts as one: the rest repeats what is stored already.
            self.done = kill_at.is_none() && status.success();
        } else if kill_at.is_some_and(|kill_at| kill_at <= Instant::now()) {
            child.kill().await.context("killing the submitter")?;
            toll.submitters_killed += 1;
        } else {
            return Ok(());
        }
        self.kills_left = self.kills_left.saturating_sub(1);
        self.running = None;
        Ok(())
    }
}
