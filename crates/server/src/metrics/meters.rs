//! What passes by in this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_queue::job::Claimed;
use longhaul_queue::state::RunOutcome;
use longhaul_queue::store::{Enqueued, InsertOutcome, SettleItem, Settled};
use longhaul_queue::{JobId, Timestamp};

use super::text::{Buckets, Text};

/// Upper bounds of times, in seconds: from a claim to a day.
const BOUNDS_S: [f64; 14] =
    [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0, f64::INFINITY];
/// Runs whose beginning is remembered; more are never under way in one process.
const RUNS_MAX: usize = 100_000;

/// Shared by what measures and what tells.
#[derive(Debug, Default)]
pub struct Meters {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    enqueued: u64,
    attempts: BTreeMap<&'static str, u64>,
    waits: Times,
    runs: Times,
    calls: BTreeMap<&'static str, Times>,
    busy: u64,
    expired: u64,
    begun: HashMap<(JobId, u64), Timestamp>,
}

/// How often something took how long.
#[derive(Debug, Default)]
struct Times {
    counts: [u64; BOUNDS_S.len()],
    sum: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let place = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len() - 1);
        self.counts[place] += 1;
        self.sum += seconds;
    }

    fn buckets(&self) -> Buckets {
        Buckets { counts: BOUNDS_S.into_iter().zip(self.counts).collect(), sum: self.sum }
    }
}

impl Meters {
    /// A call of the store.
    pub(super) fn called(&self, name: &'static str, took: Duration, unavailable: bool) {
        let mut state = self.state();
        state.calls.entry(name).or_default().add(took);
        state.busy += u64::from(unavailable);
    }

    /// Jobs that were stored.
    pub(super) fn enqueued(&self, jobs: &[Enqueued]) {
        self.state().enqueued += jobs.iter().filter(|job| job.how == InsertOutcome::Inserted).count() as u64;
    }

    /// Jobs that begin to run.
    pub(super) fn claimed(&self, jobs: &[Claimed], now: Timestamp) {
        let mut state = self.state();
        if state.begun.len() > RUNS_MAX {
            state.begun.clear();
        }
        for claimed in jobs {
            state.waits.add(now.since(claimed.job.run_at));
            state.begun.insert((claimed.lease.job_id, claimed.lease.fence), now);
        }
    }

    /// Runs that have ended.
    pub(super) fn settled(&self, ended: &[(JobId, u64, RunOutcome)], replies: &[Settled], now: Timestamp) {
        let mut state = self.state();
        for ((job, fence, outcome), reply) in ended.iter().zip(replies) {
            let begun = state.begun.remove(&(*job, *fence));
            if !matches!(reply, Settled::Applied(_)) {
                continue;
            }
            *state.attempts.entry(word(*outcome)).or_default() += 1;
            if let Some(begun) = begun {
                state.runs.add(now.since(begun));
            }
        }
    }

    /// Leases that nobody renewed.
    pub(super) fn rescued(&self, jobs: u64) {
        self.state().expired += jobs;
    }

    /// What is remembered of settlements before they are handed over.
    pub(super) fn ends(items: &[SettleItem]) -> Vec<(JobId, u64, RunOutcome)> {
        items.iter().map(|item| (item.lease.job_id, item.lease.fence, item.settlement.outcome)).collect()
    }

    /// Tells all of it.
    pub(super) fn write(&self, text: &mut Text) {
        let state = self.state();
        text.count("jobs_enqueued_total", "Jobs stored by this process.", state.enqueued);
        let rows = state.attempts.iter().map(|(outcome, count)| ([("outcome", *outcome)], *count as f64));
        text.counter("job_attempts_total", "Runs of this process, by how they ended.", rows);
        text.histogram(
            "job_wait_seconds",
            "From when a job may start to when it does.",
            &[(None, state.waits.buckets())],
        );
        text.histogram(
            "job_run_seconds",
            "From the start of a run to its end.",
            &[(None, state.runs.buckets())],
        );
        let rows: Vec<_> =
            state.calls.iter().map(|(name, times)| (Some(("op", *name)), times.buckets())).collect();
        text.histogram("store_op_seconds", "Calls of the store.", &rows);
        text.count("store_busy_total", "Calls that the store could not serve.", state.busy);
        text.count("leases_expired_total", "Leases that nobody renewed.", state.expired);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn word(outcome: RunOutcome) -> &'static str {
    match outcome {
        RunOutcome::Done => "done",
        RunOutcome::Continue => "continue",
        RunOutcome::Park => "park",
        RunOutcome::Retry => "retry",
        RunOutcome::Throttle => "throttle",
        RunOutcome::Fail => "fail",
        RunOutcome::Crash => "crash",
        RunOutcome::Release => "release",
        RunOutcome::Cancel => "cancel",
    }
}
