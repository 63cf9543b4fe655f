//! What most jobs leave at its default, as it is handed in and as it is shown.

use std::time::Duration;

use longhaul_queue::job::{JobOptions, Retention, Unique};
use longhaul_queue::{JobId, RetryPolicy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Settings of a job.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = JobOptions)]
pub struct OptionsIn {
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
    /// The job that enqueued this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub parent_id: Option<JobId>,
    /// How often the handler may fail; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Leases lost in a row before it counts as poison; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_crashes: Option<u32>,
    /// Throttles in a row before it fails; default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_throttles: Option<u32>,
    /// `continue` answers before it fails; default unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_continues: Option<u32>,
    /// When to try again; default exponential from 1 s to 1 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"backoff": "exponential", "base_ms": 1000, "cap_ms": 3_600_000}))]
    pub retry: Option<RetryPolicy>,
    /// Hard time for one run; default an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_limit_ms: Option<u64>,
    /// Longest silence without progress, save or log line; default off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_limit_ms: Option<u64>,
    /// Wait before a `continue` that names none; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Whose job it is: keys of a queue take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_key: Option<String>,
    /// At most one unfinished job per key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"key": "user-7", "policy": {"policy": "skip"}}))]
    pub unique: Option<Unique>,
    /// What happens to the row at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"retention": "keep", "succeeded_ms": 3_600_000, "failed_ms": 86_400_000}))]
    pub retention: Option<Retention>,
}

impl From<OptionsIn> for JobOptions {
    fn from(options: OptionsIn) -> Self {
        let millis = |millis: Option<u64>| millis.map(Duration::from_millis);
        Self {
            title: options.title,
            owner: options.owner,
            tags: options.tags,
            trace: options.trace,
            parent_id: options.parent_id,
            max_attempts: options.max_attempts,
            max_crashes: options.max_crashes,
            max_throttles: options.max_throttles,
            max_continues: options.max_continues,
            retry: options.retry,
            run_limit: millis(options.run_limit_ms),
            idle_limit: millis(options.idle_limit_ms),
            delay: millis(options.delay_ms),
            fair_key: options.fair_key,
            unique: options.unique,
            retention: options.retention,
        }
    }
}

impl From<JobOptions> for OptionsIn {
    fn from(options: JobOptions) -> Self {
        Self {
            title: options.title,
            owner: options.owner,
            tags: options.tags,
            trace: options.trace,
            parent_id: options.parent_id,
            max_attempts: options.max_attempts,
            max_crashes: options.max_crashes,
            max_throttles: options.max_throttles,
            max_continues: options.max_continues,
            retry: options.retry,
            run_limit_ms: options.run_limit.map(millis),
            idle_limit_ms: options.idle_limit.map(millis),
            delay_ms: options.delay.map(millis),
            fair_key: options.fair_key,
            unique: options.unique,
            retention: options.retention,
        }
    }
}

/// A time as whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
