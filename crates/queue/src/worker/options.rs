//! How a worker is set up, and what it says at the end.

use std::time::Duration;

use serde::Serialize;

use crate::job::DEFAULT_QUEUE;
use crate::maintenance::MaintenanceOptions;
use crate::state::{RunOutcome, State};

/// Settings of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// What it serves at first; see [`crate::WorkerControl::set_queues`]. Default: the default queue.
    pub queues: Vec<QueueShare>,
    /// Only these of its kinds; default all that it has handlers for.
    pub kinds: Option<Vec<String>>,
    /// Jobs that run at once. Default 10.
    pub concurrency: usize,
    /// Jobs whose worker died that run at once, at most. One at a time finds a job that kills its worker without taking
    /// others down with it; handlers that cannot do that need not wait for each other. Default 1.
    pub suspects_max: usize,
    /// How long a claim holds unless renewed. Default 60 s.
    pub lease: Duration,
    /// How often to look without being told that something changed, with jitter. Default 1 s.
    pub poll: Duration,
    /// How long a handler may go on after somebody cancelled its job. Default 10 s.
    pub cancel_grace: Duration,
    /// How long running jobs may go on after a drain was asked for and their handlers were told. Default 30 s.
    pub drain_grace: Duration,
    /// A label for people. Default empty.
    pub host: String,
    /// Of the program, a label. Default this crate's.
    pub version: String,
    /// End once nothing ready, scheduled or running is left in its queues of its kinds. A paused queue and jobs that
    /// wait for something outside (parked, blocked) do not count: this worker cannot move them.
    pub until_empty: bool,
    /// What time moves (retries, scheduled jobs, expired leases, retention, schedules) is moved beside the work, by
    /// any number of workers at once. `None` leaves that to a [`crate::Maintenance`] somewhere else, and without one
    /// no failed job is ever tried again. Default on.
    pub maintenance: Option<MaintenanceOptions>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            queues: vec![QueueShare::from(DEFAULT_QUEUE)],
            kinds: None,
            concurrency: 10,
            suspects_max: 1,
            lease: Duration::from_secs(60),
            poll: Duration::from_secs(1),
            cancel_grace: Duration::from_secs(10),
            drain_grace: Duration::from_secs(30),
            host: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            until_empty: false,
            maintenance: Some(MaintenanceOptions::default()),
        }
    }
}

/// The order in which one claim looks at the queues: those without a weight as given, then those with one at random, a
/// heavier one more often first.
pub(super) fn queue_order(queues: &[QueueShare], mut random: impl FnMut() -> f64) -> Vec<String> {
    let mut order: Vec<(f64, &QueueShare)> = queues
        .iter()
        .map(|share| match share.weight {
            None => (f64::NEG_INFINITY, share),
            // Exponential waiting times: the first of them is this queue's with the odds of its weight.
            Some(weight) => (-random().max(f64::MIN_POSITIVE).ln() / f64::from(weight.max(1)), share),
        })
        .collect();
    order.sort_by(|left, right| left.0.total_cmp(&right.0));
    order.into_iter().map(|(_, share)| share.name.clone()).collect()
}

/// A queue that a worker serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueShare {
    /// Its name.
    pub name: String,
    /// Its share among the queues with a weight. `None` goes strictly before those, in the order given.
    pub weight: Option<u32>,
}

impl From<&str> for QueueShare {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), weight: None }
    }
}

impl From<String> for QueueShare {
    fn from(name: String) -> Self {
        Self { name, weight: None }
    }
}

/// What a worker did: its runs, by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WorkerReport {
    /// Finished.
    pub done: u64,
    /// To be continued.
    pub continued: u64,
    /// Waiting for a signal.
    pub parked: u64,
    /// Failed, to be retried.
    pub retried: u64,
    /// Held off by a rate limit.
    pub throttled: u64,
    /// Failed for good.
    pub failed: u64,
    /// Cancelled while running.
    pub cancelled: u64,
    /// Given back at the end.
    pub released: u64,
    /// Lost to somebody else; their outcomes were dropped.
    pub lost_leases: u64,
    /// Finished, but the store did not take the result before the worker had to end: the job runs again.
    pub unstored: u64,
}

impl WorkerReport {
    /// All runs.
    pub fn total(&self) -> u64 {
        let Self {
            done,
            continued,
            parked,
            retried,
            throttled,
            failed,
            cancelled,
            released,
            lost_leases,
            unstored,
        } = *self;
        done + continued
            + parked
            + retried
            + throttled
            + failed
            + cancelled
            + released
            + lost_leases
            + unstored
    }

    pub(super) fn count(&mut self, state: State, outcome: RunOutcome) {
        let tally = match (state, outcome) {
            (State::Failed, _) => &mut self.failed,
            (State::Cancelled, _) | (_, RunOutcome::Cancel) => &mut self.cancelled,
            (_, RunOutcome::Done) => &mut self.done,
            (_, RunOutcome::Continue) => &mut self.continued,
            (_, RunOutcome::Park) => &mut self.parked,
            (_, RunOutcome::Retry) => &mut self.retried,
            (_, RunOutcome::Throttle) => &mut self.throttled,
            (_, RunOutcome::Fail) => &mut self.failed,
            (_, RunOutcome::Release) => &mut self.released,
            (_, RunOutcome::Crash) => &mut self.lost_leases,
        };
        *tally += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavier_queues_come_first_more_often_and_unweighted_ones_always() {
        let share = |name: &str, weight| QueueShare { name: name.to_owned(), weight };
        let queues = vec![share("light", Some(1)), share("urgent", None), share("heavy", Some(3))];
        let mut random = fastrand::Rng::with_seed(7);
        let orders: Vec<_> = (0..1000).map(|_| queue_order(&queues, || random.f64())).collect();
        assert!(orders.iter().all(|order| order[0] == "urgent"));
        let heavy_first = orders.iter().filter(|order| order[1] == "heavy").count();
        assert!((700..800).contains(&heavy_first), "{heavy_first} of 1000, 750 expected");
    }
}
