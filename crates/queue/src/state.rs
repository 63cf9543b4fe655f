//! How a job moves. [`settle`] is the only code that knows when a retry becomes a failure: pure, no clock, no
//! store. Stores write what it answers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::json::Json;

mod policy;
mod settlement;

pub use policy::{Policy, Spent};
pub use settlement::{Event, Settlement, crash_delay, settle};

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
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
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

#[cfg(test)]
#[path = "state/tests.rs"]
mod tests;
