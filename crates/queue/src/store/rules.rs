//! Rules that every store follows, whatever it keeps jobs in. Pure: a store reads what they need and writes what they answer.
//! The larger ones have files of their own: [`crate::state`] for settlements, [`crate::graph`] for edges, [`crate::fairness`] for the
//! order of claims, [`super::refusals`] for what is refused.

use crate::clock::Timestamp;
use crate::job::{JobOptions, NewJob, Wake};
use crate::state::{
    Event, JobError, OnTimeout, Outcome, Park, Policy, RunOutcome, Settlement, Spent, State, settle,
};

use super::Signal;

/// The jitter where nobody draws one: in sweeps, and for a signal that came before its park.
pub(crate) const JITTER_MEAN: f64 = 0.5;

/// Where a job stands that has neither a lease nor a park and has not ended.
pub fn first_state(waits: bool, run_at: Timestamp, now: Timestamp) -> State {
    if waits {
        State::Blocked
    } else if run_at > now {
        State::Scheduled
    } else {
        State::Ready
    }
}

/// Whether a repeated enqueue means the same as what was stored. Times are not compared: they move while a job lives. Nor is the
/// trace, which tells who asked and not for what.
pub fn same_content(stored: &NewJob, job: &NewJob) -> bool {
    let NewJob { run_at, expires_at, .. } = *stored;
    let options = job.options.with_trace_of(&stored.options);
    *stored == NewJob { run_at, expires_at, options, ..job.clone() }
}

/// What becomes of the value that a park ended with, which the next run is told.
#[derive(Debug, Clone, PartialEq)]
pub enum WakeChange {
    /// The run that it started has ended.
    Clear,
    /// The run that it started came to nothing; the next one must learn of it too.
    Keep,
    /// The park has ended.
    Set(Wake),
}

impl WakeChange {
    /// After a run, by how it ended.
    pub fn after(outcome: RunOutcome) -> Self {
        if matches!(outcome, RunOutcome::Crash | RunOutcome::Release) { Self::Keep } else { Self::Clear }
    }
}

/// What a signal does to a parked job.
pub fn woken(
    options: &JobOptions,
    spent: Spent,
    signal: Signal,
    now: Timestamp,
    jitter: f64,
) -> (Settlement, WakeChange) {
    let policy = Policy::default().with(options);
    match signal.into_event() {
        Ok(event) => (settle(event, spent, &policy, now, jitter), WakeChange::Clear),
        Err(value) => {
            let resumed = settle(Event::Release, spent, &policy, now, jitter);
            (Settlement { run_at: Some(now), ..resumed }, WakeChange::Set(Wake::Signal(value)))
        }
    }
}

/// What becomes of a park whose signal came first: it does not wait.
pub fn woken_at_once(
    parked: Settlement,
    options: &JobOptions,
    signal: Signal,
    now: Timestamp,
) -> (Settlement, WakeChange) {
    let (woken, wake) = woken(options, parked.spent, signal, now, JITTER_MEAN);
    // The park came first, if only for a moment: what it wrote stays.
    let run_at = woken.run_at.or(parked.run_at);
    (Settlement { run_at, data: parked.data, usage: parked.usage, ..woken }, wake)
}

/// What the end of a park's time does to its job, as the park says.
pub fn park_timed_out(
    park: &Park,
    options: &JobOptions,
    spent: Spent,
    now: Timestamp,
) -> (Settlement, WakeChange) {
    let error = JobError::park_timeout(&park.key);
    let (event, wake) = match park.on_timeout {
        OnTimeout::Resume => (Event::Release, WakeChange::Set(Wake::TimedOut)),
        OnTimeout::Retry => {
            (Event::Outcome(Outcome::Retry { error, after: None, data: None }), WakeChange::Clear)
        }
        OnTimeout::Fail => (Event::Outcome(Outcome::Fail(error)), WakeChange::Clear),
    };
    (settle(event, spent, &Policy::default().with(options), now, JITTER_MEAN), wake)
}

/// What the death of its worker does to a running job.
pub fn crashed(options: &JobOptions, spent: Spent, cancel_requested: bool, now: Timestamp) -> Settlement {
    let settlement = settle(Event::Crash, spent, &Policy::default().with(options), now, JITTER_MEAN);
    let settlement = if cancel_requested { settlement.under_cancel() } else { settlement };
    // Also of a job that was to be cancelled, the history says that its worker died.
    Settlement { outcome: RunOutcome::Crash, ..settlement }
}
