//! The transition table for running jobs, and what it answers.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::json::Json;

use super::{JobError, Outcome, Park, Policy, Reason, RunOutcome, Spent, State};

/// What happened to a running job (or, by `unpark`, to a parked one).
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The handler answered, or the engine answered for it.
    Outcome(Outcome),
    /// The lease expired.
    Crash,
    /// The worker gives it back untouched.
    Release,
    /// The worker ends it on request.
    Cancel,
}

/// What an event does to the row: the only way a running job changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    /// The new state.
    pub state: State,
    /// The new earliest start; `None` keeps the old one.
    pub run_at: Option<Timestamp>,
    /// The budgets afterwards.
    pub spent: Spent,
    /// New checkpoint; `None` keeps the old one.
    pub data: Option<Json>,
    /// The result, when succeeded.
    pub result: Option<Json>,
    /// Why it failed, is retried or was cancelled.
    pub error: Option<JobError>,
    /// What it waits for, when parked.
    pub park: Option<Park>,
    /// For the history.
    pub outcome: RunOutcome,
    /// What the run used, for the history.
    pub usage: Option<Json>,
}

impl Settlement {
    /// Refuses a settlement that [`settle`] could not have made.
    pub fn check(&self) -> Result<()> {
        match self.state {
            State::Blocked | State::Running => {
                Err(Error::invalid(format!("a run cannot end as {}", self.state)))
            }
            State::Parked if self.park.is_none() => Err(Error::invalid("a park names no key")),
            State::Scheduled if self.run_at.is_none() => Err(Error::invalid("a delay names no time")),
            State::Scheduled
            | State::Ready
            | State::Parked
            | State::Succeeded
            | State::Failed
            | State::Cancelled => Ok(()),
        }
    }

    /// What remains of this settlement when the job's cancellation was requested first: an end stands, everything
    /// else becomes `cancelled`.
    pub fn under_cancel(self) -> Self {
        if self.state.is_terminal() {
            return self;
        }
        let error = JobError::new(Reason::Cancelled, "cancelled on request while running");
        Self {
            state: State::Cancelled,
            run_at: None,
            park: None,
            error: Some(error),
            outcome: RunOutcome::Cancel,
            ..self
        }
    }
}

/// The transition table for running jobs. `jitter` is drawn from 0..1.
pub fn settle(event: Event, spent: Spent, policy: &Policy, now: Timestamp, jitter: f64) -> Settlement {
    let base = Settlement {
        state: State::Ready,
        run_at: None,
        spent,
        data: None,
        result: None,
        error: None,
        park: None,
        outcome: RunOutcome::Release,
        usage: None,
    };
    match event {
        Event::Outcome(Outcome::Done(result)) => {
            Settlement { state: State::Succeeded, result: Some(result), outcome: RunOutcome::Done, ..base }
        }
        Event::Outcome(Outcome::Continue { after, data }) => {
            continued(Settlement { data, outcome: RunOutcome::Continue, ..base }, policy, after, now)
        }
        Event::Outcome(Outcome::Park { park, data }) => {
            parked(Settlement { data, outcome: RunOutcome::Park, ..base }, policy, park)
        }
        Event::Outcome(Outcome::Retry { error, after, data }) => {
            let base = Settlement { data, ..base };
            if error.reason == Reason::Throttle {
                throttled(
                    base,
                    policy,
                    error,
                    after.unwrap_or_else(|| policy.retry.delay(spent.throttles, jitter)),
                    now,
                )
            } else {
                failed_once(
                    base,
                    policy,
                    error,
                    after.unwrap_or_else(|| policy.retry.delay(spent.attempt, jitter)),
                    now,
                )
            }
        }
        Event::Outcome(Outcome::Fail(error)) => fail(
            Settlement { spent: Spent { attempt: spent.attempt.saturating_add(1), ..spent }, ..base },
            error,
            RunOutcome::Fail,
        ),
        Event::Crash => crashed(base, policy, now),
        Event::Release => base,
        Event::Cancel => base.under_cancel(),
    }
}

/// How long a job that lost its lease waits before it is ready again: 1 s, 2 s, 4 s, … at most a minute.
pub fn crash_delay(crashes: u32) -> Duration {
    Duration::from_secs(1 << crashes.saturating_sub(1).min(6)).min(Duration::from_secs(60))
}

fn continued(base: Settlement, policy: &Policy, after: Option<Duration>, now: Timestamp) -> Settlement {
    let continues = base.spent.continues.saturating_add(1);
    let spent = Spent { continues, crashes: 0, throttles: 0, ..base.spent };
    if policy.max_continues.is_some_and(|max| continues > max) {
        let error = JobError::new(Reason::Failure, format!("continued {continues} times, more than allowed"));
        return fail(Settlement { spent, ..base }, error, RunOutcome::Fail);
    }
    start_after(Settlement { spent, ..base }, after.unwrap_or(policy.delay), now)
}

fn parked(base: Settlement, policy: &Policy, park: Park) -> Settlement {
    let parks = base.spent.parks.saturating_add(1);
    let spent = Spent { parks, crashes: 0, throttles: 0, ..base.spent };
    if policy.max_parks.is_some_and(|max| parks > max) {
        let error = JobError::new(Reason::Failure, format!("parked {parks} times, more than allowed"));
        return fail(Settlement { spent, ..base }, error, RunOutcome::Fail);
    }
    Settlement { state: State::Parked, run_at: park.until, park: Some(park), spent, ..base }
}

fn failed_once(
    base: Settlement,
    policy: &Policy,
    error: JobError,
    delay: Duration,
    now: Timestamp,
) -> Settlement {
    let attempt = base.spent.attempt.saturating_add(1);
    let base = Settlement { spent: Spent { attempt, throttles: 0, ..base.spent }, ..base };
    if attempt >= policy.max_attempts {
        return fail(base, error, RunOutcome::Retry);
    }
    start_after(Settlement { error: Some(error), outcome: RunOutcome::Retry, ..base }, delay, now)
}

fn throttled(
    base: Settlement,
    policy: &Policy,
    error: JobError,
    delay: Duration,
    now: Timestamp,
) -> Settlement {
    let throttles = base.spent.throttles.saturating_add(1);
    let base = Settlement { spent: Spent { throttles, ..base.spent }, ..base };
    if throttles > policy.max_throttles {
        return fail(base, error, RunOutcome::Throttle);
    }
    start_after(Settlement { error: Some(error), outcome: RunOutcome::Throttle, ..base }, delay, now)
}

fn crashed(base: Settlement, policy: &Policy, now: Timestamp) -> Settlement {
    let crashes = base.spent.crashes.saturating_add(1);
    let base = Settlement { spent: Spent { crashes, ..base.spent }, outcome: RunOutcome::Crash, ..base };
    if crashes >= policy.max_crashes {
        let text = format!("its worker died {crashes} times in a row while running it");
        return fail(base, JobError::new(Reason::Poison, text), RunOutcome::Crash);
    }
    let error = JobError::new(Reason::Crash, "the worker died or lost touch with the store");
    start_after(Settlement { error: Some(error), ..base }, crash_delay(crashes), now)
}

fn fail(base: Settlement, error: JobError, outcome: RunOutcome) -> Settlement {
    Settlement { state: State::Failed, error: Some(error), outcome, ..base }
}

fn start_after(base: Settlement, delay: Duration, now: Timestamp) -> Settlement {
    let state = if delay.is_zero() { State::Ready } else { State::Scheduled };
    Settlement { state, run_at: Some(now + delay), ..base }
}
