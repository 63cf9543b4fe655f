//! What a caller may ask of a job beyond its kind and payload: limits, dependencies, uniqueness, retention.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::JobId;
use crate::clock::Timestamp;
use crate::retry::RetryPolicy;
use crate::state::State;

/// Settings that most jobs leave alone; stored beside the payload, out of the claim's way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Free labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// W3C `traceparent` of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The job that enqueued this one; information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<JobId>,
    /// How often the handler may fail; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Leases lost in a row without progress before the job counts as poison; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_crashes: Option<u32>,
    /// Throttles in a row before the job fails; default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_throttles: Option<u32>,
    /// `Continue` answers before the job fails; default unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_continues: Option<u32>,
    /// When to try again; default exponential from 1 s to 1 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Hard time for one run; default 1 h.
    #[serde(
        with = "crate::duration::millis_option",
        rename = "run_limit_ms",
        skip_serializing_if = "Option::is_none"
    )]
    pub run_limit: Option<Duration>,
    /// Longest silence without progress, save or log line; default off.
    #[serde(
        with = "crate::duration::millis_option",
        rename = "idle_limit_ms",
        skip_serializing_if = "Option::is_none"
    )]
    pub idle_limit: Option<Duration>,
    /// Wait before a `Continue` that names none; default 0.
    #[serde(
        with = "crate::duration::millis_option",
        rename = "delay_ms",
        skip_serializing_if = "Option::is_none"
    )]
    pub delay: Option<Duration>,
    /// Whose turn it is: jobs of one queue with different keys take turns, and a queue may bound how many of one key run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// At most one unfinished job per key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// What happens to the row at the end; default by queue, then by whether there is a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

impl JobOptions {
    /// These, asked for by whoever asked for those: for comparisons of what was asked.
    pub fn with_trace_of(&self, other: &Self) -> Self {
        Self { trace: other.trace.clone(), ..self.clone() }
    }
}

/// An edge of the graph: wait for `job_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// The parent.
    pub job_id: JobId,
    /// What a failed or cancelled parent does to this job.
    #[serde(default)]
    pub on_failure: OnFailure,
}

/// What a failed or cancelled parent does to its child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Cancel the child, and in turn its children.
    #[default]
    Cancel,
    /// Run it all the same: the edge is satisfied by any end.
    Run,
    /// Hold it until the parent is retried or the edge is dropped.
    Hold,
}

/// At most one unfinished job per (queue, kind, key), and none within the window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// The key; its scope is the queue and kind.
    pub key: String,
    /// A time during which the key stays taken, also after the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// What a second enqueue does.
    #[serde(default)]
    pub policy: UniquePolicy,
}

impl Unique {
    /// One unfinished job per key; a second enqueue returns the first.
    pub fn key(key: impl Into<String>) -> Self {
        Self { key: key.into(), window: None, policy: UniquePolicy::Skip }
    }

    /// Until when the key stays taken whatever becomes of the job.
    pub fn enqueue_window_end(&self, created_at: Timestamp) -> Option<Timestamp> {
        match self.window? {
            Window::Enqueue { length } => Some(created_at + length),
            Window::Success { .. } => None,
        }
    }
}

/// How long a unique key stays taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "since", rename_all = "snake_case")]
pub enum Window {
    /// From the enqueue on.
    Enqueue {
        /// Its length.
        #[serde(with = "crate::duration::millis", rename = "for_ms")]
        length: Duration,
    },
    /// From success on: a cooldown.
    Success {
        /// Its length.
        #[serde(with = "crate::duration::millis", rename = "for_ms")]
        length: Duration,
    },
}

/// What an enqueue does when its unique key is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum UniquePolicy {
    /// Return the existing job.
    #[default]
    Skip,
    /// Give the existing job the new payload, unless it is running or has ended.
    Replace,
    /// Push the existing job's start to now + `wait`, but not past `cap` after its enqueue.
    Debounce {
        /// The quiet time.
        #[serde(with = "crate::duration::millis", rename = "wait_ms")]
        wait: Duration,
        /// The latest start after the first enqueue.
        #[serde(with = "crate::duration::millis", rename = "cap_ms")]
        cap: Duration,
    },
}

/// What happens to a job's row when it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "retention", rename_all = "snake_case")]
pub enum Retention {
    /// Stays until its owner consumes it. The default for jobs with a process.
    UntilConsumed {
        /// Goes after this time all the same; default never.
        #[serde(with = "crate::duration::millis_option", rename = "ttl_ms", default)]
        ttl: Option<Duration>,
    },
    /// Stays for a time. The default otherwise: 24 h, or 7 days when failed or cancelled.
    Keep {
        /// After success.
        #[serde(with = "crate::duration::millis", rename = "succeeded_ms")]
        succeeded: Duration,
        /// After failure or cancellation.
        #[serde(with = "crate::duration::millis", rename = "failed_ms")]
        failed: Duration,
    },
    /// Goes with its success; kept for 7 days when failed or cancelled.
    DeleteOnSuccess,
}

/// When an ended job's row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Only by a person or `consume`.
    Never,
    /// By the pruner, then.
    At(Timestamp),
    /// With the settlement itself.
    Now,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Removal {
    /// When the pruner must look.
    pub fn pruned_at(self) -> Option<Timestamp> {
        match self {
            Self::At(at) => Some(at),
            Self::Never | Self::Now => None,
        }
    }
}

impl Retention {
    /// The rule for a job without one of its own, in a queue without one.
    pub fn default_for(has_process: bool) -> Self {
        if has_process {
            Self::UntilConsumed { ttl: None }
        } else {
            Self::Keep { succeeded: DAY, failed: 7 * DAY }
        }
    }

    /// When a job that ends as `state` at `now` is removed.
    pub fn removal(self, state: State, now: Timestamp) -> Removal {
        match self {
            Self::UntilConsumed { ttl: None } => Removal::Never,
            Self::UntilConsumed { ttl: Some(ttl) } => Removal::At(now + ttl),
            Self::Keep { succeeded, .. } if state == State::Succeeded => Removal::At(now + succeeded),
            Self::Keep { failed, .. } => Removal::At(now + failed),
            Self::DeleteOnSuccess if state == State::Succeeded => Removal::Now,
            Self::DeleteOnSuccess => Removal::At(now + 7 * DAY),
        }
    }
}
