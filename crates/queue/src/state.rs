//! How a job moves. [`settle`] is the only code that knows when a retry becomes a failure: pure, no clock, no
//! store. Stores write what it answers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::job::{JobId, JobOptions};
use crate::json::Json;
use crate::retry::RetryPolicy;

/// Where a job stands. There are no other states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for other jobs.
    Blocked,
    /// Waits for a time.
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// Held by a worker under a lease.
    Running,
    /// Waits for a signal from outside.
    Parked,
    /// Ended with a result.
    Succeeded,
    /// Ended without.
    Failed,
    /// Ended on request, by expiry or with its parent.
    Cancelled,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Blocked,
        Self::Scheduled,
        Self::Ready,
        Self::Running,
        Self::Parked,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether the job has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Its name in output, filters and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for State {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Error::invalid(format!("{text:?} is not a state; use one of {names}"))
        })
    }
}

/// What a handler answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Finished, with a result.
    Done(Json),
    /// Not finished, nothing wrong: run again.
    Continue {
        /// Wait before the next run; default the job's own `delay`.
        after: Option<Duration>,
        /// New checkpoint; `None` keeps the old one.
        data: Option<Json>,
    },
    /// Wait for a signal from outside.
    Park {
        /// What to wait for.
        park: Park,
        /// New checkpoint; `None` keeps the old one.
        data: Option<Json>,
    },
    /// Failed this time.
    Retry {
        /// Why.
        error: JobError,
        /// Wait before the next run; default by the retry policy.
        after: Option<Duration>,
        /// New checkpoint; `None` keeps the old one.
        data: Option<Json>,
    },
    /// Failed for good.
    Fail(JobError),
}

/// What a parked job waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Park {
    /// Names one event. The first signal for a key counts, and is kept for [`crate::limits::SIGNAL_KEPT`]; use a new key for each wait.
    pub key: String,
    /// Latest end of the wait; `None` waits for ever.
    pub until: Option<Timestamp>,
    /// What happens then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// What happens to a parked job when its time has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Run again and learn that the time has passed.
    #[default]
    Resume,
    /// Count a failure and retry by the policy.
    Retry,
    /// Fail.
    Fail,
}

/// Why a job failed, is retried or was cancelled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// The kind of reason, for programs.
    pub reason: Reason,
    /// What happened, for people.
    pub text: String,
}

impl JobError {
    /// A reason and a text.
    pub fn new(reason: Reason, text: impl fmt::Display) -> Self {
        Self { reason, text: crate::limits::shorten(&text.to_string(), crate::limits::ERROR_BYTES_MAX) }
    }
}

/// The reasons that stores give, worded once so that all stores say the same.
impl JobError {
    /// Somebody cancelled it before it ran.
    pub fn cancelled() -> Self {
        Self::new(Reason::Cancelled, "cancelled on request")
    }

    /// `expires_at` passed before it ran.
    pub fn expired() -> Self {
        Self::new(Reason::Expired, "it was not started before it expired")
    }

    /// Its parent ended as `ended`.
    pub fn dependency(parent: JobId, ended: State) -> Self {
        Self::new(Reason::Dependency, format!("its parent {parent} ended as {ended}"))
    }

    /// The park's time passed.
    pub fn park_timeout(key: &str) -> Self {
        Self::new(Reason::ParkTimeout, format!("the signal {key:?} did not come in time"))
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.text)
    }
}

/// The kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The handler said so.
    Failure,
    /// A rate limit; costs no attempt.
    Throttle,
    /// The handler panicked.
    Panic,
    /// The run limit passed.
    RunLimit,
    /// The handler was silent for too long.
    IdleLimit,
    /// The worker died, or lost touch with the store.
    Crash,
    /// Crashed too often in a row.
    Poison,
    /// A park ended without its signal.
    ParkTimeout,
    /// Somebody cancelled it.
    Cancelled,
    /// Not started in time.
    Expired,
    /// A parent failed or was cancelled.
    Dependency,
}

impl Reason {
    /// Its name in output and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Throttle => "throttle",
            Self::Panic => "panic",
            Self::RunLimit => "run_limit",
            Self::IdleLimit => "idle_limit",
            Self::Crash => "crash",
            Self::Poison => "poison",
            Self::ParkTimeout => "park_timeout",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::Dependency => "dependency",
        }
    }
}

/// How a run ended, for the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// Finished.
    Done,
    /// To be continued.
    Continue,
    /// Waits for a signal.
    Park,
    /// Failed, to be retried.
    Retry,
    /// Rate limited.
    Throttle,
    /// Failed for good.
    Fail,
    /// The lease was lost.
    Crash,
    /// Given back untouched.
    Release,
    /// Ended on request.
    Cancel,
}

/// Budgets spent so far. Each is counted apart, so that nobody's crash or rate limit eats the retries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Failures of the handler.
    pub attempt: u32,
    /// Leases lost since the last durable progress.
    pub crashes: u32,
    /// Throttles in a row.
    pub throttles: u32,
    /// Continues in all.
    pub continues: u32,
    /// Parks in all.
    pub parks: u32,
}

/// The limits that a settlement judges by: the job's own, else the kind's, else the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Failures allowed. Default 3.
    pub max_attempts: u32,
    /// Crashes in a row allowed. Default 3.
    pub max_crashes: u32,
    /// Throttles in a row allowed. Default 100.
    pub max_throttles: u32,
    /// Continues allowed. Default unlimited.
    pub max_continues: Option<u32>,
    /// Parks allowed. Default unlimited.
    pub max_parks: Option<u32>,
    /// When to try again.
    pub retry: RetryPolicy,
    /// Hard time for one run. Default 1 h.
    pub run_limit: Duration,
    /// Longest silence. Default off.
    pub idle_limit: Option<Duration>,
    /// Wait before a `Continue` that names none. Default 0.
    pub delay: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_crashes: 3,
            max_throttles: 100,
            max_continues: None,
            max_parks: None,
            retry: RetryPolicy::default(),
            run_limit: Duration::from_secs(3600),
            idle_limit: None,
            delay: Duration::ZERO,
        }
    }
}

impl Policy {
    /// This policy with a job's own settings on top.
    pub fn with(&self, options: &JobOptions) -> Self {
        Self {
            max_attempts: options.max_attempts.unwrap_or(self.max_attempts),
            max_crashes: options.max_crashes.unwrap_or(self.max_crashes),
            max_throttles: options.max_throttles.unwrap_or(self.max_throttles),
            max_continues: self.max_continues,
            max_parks: self.max_parks,
            retry: options.retry.clone().unwrap_or_else(|| self.retry.clone()),
            run_limit: options.run_limit.unwrap_or(self.run_limit),
            idle_limit: options.idle_limit.or(self.idle_limit),
            delay: options.delay.unwrap_or(self.delay),
        }
    }
}

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

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
