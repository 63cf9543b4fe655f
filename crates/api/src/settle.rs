//! The ends of runs, as workers tell them.

use longhaul_queue::state::OnTimeout;
use longhaul_queue::store::Settled;
use longhaul_queue::{JobId, Json, State, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::AnyJson;
use crate::job_in::JobIn;
use crate::work::LeaseForm;

/// Ends of runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleIn {
    /// These, at most 1000, in one transaction.
    pub items: Vec<ItemIn>,
}

/// The end of a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemIn {
    /// The right to end it.
    pub lease: LeaseForm,
    /// How it ended.
    pub outcome: OutcomeIn,
    /// Jobs that are stored with it, or not at all. Dropped when the run is repeated, since its repetition enqueues them again.
    #[serde(default)]
    pub follow_ups: Vec<JobIn>,
    /// What the run used, for the history: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    pub usage: Option<Json>,
}

/// How a run ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Outcome)]
pub enum OutcomeIn {
    /// Finished, with a result.
    Done(AnyJson),
    /// Not finished, nothing wrong: run again.
    Continue(ContinueIn),
    /// Wait for a signal from outside.
    Park(ParkIn),
    /// Failed this time; the job's policy says whether and when it is tried again.
    Retry(RetryIn),
    /// Held off by a rate limit: costs no attempt.
    Throttle(ThrottleIn),
    /// Failed for good.
    Fail(FailIn),
    /// Given back untouched.
    Release,
    /// Cancelled.
    Cancel,
}

/// Run again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContinueIn {
    /// Default the job's own `delay_ms`.
    pub after_seconds: Option<f64>,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
}

/// Wait for a signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ParkIn {
    /// What to wait for. A new one for each wait.
    pub key: String,
    /// Latest end of the wait; default never.
    #[schema(value_type = Option<i64>)]
    pub until: Option<Timestamp>,
    /// What happens then: `resume` (default), `retry` or `fail`.
    #[serde(default)]
    #[schema(value_type = String, default = "resume")]
    pub on_timeout: OnTimeout,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
}

/// Failed this time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryOutcome)]
pub struct RetryIn {
    /// Why.
    pub error: String,
    /// Default by the job's retry policy.
    pub after_seconds: Option<f64>,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
}

/// Held off by a rate limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ThrottleIn {
    /// What the other side asked for; default by the job's retry policy.
    pub after_seconds: Option<f64>,
    /// What it said.
    pub error: Option<String>,
}

/// Failed for good.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailIn {
    /// Why.
    pub error: String,
}

/// What became of settlements, in the order sent.
#[derive(Debug, Serialize, ToSchema)]
pub struct Settlements {
    /// One for each item.
    pub items: Vec<SettledOut>,
}

/// What became of a settlement.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Settled)]
pub struct SettledOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub job_id: JobId,
    /// The state that it is in now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub applied: Option<State>,
    /// The lease was stale; nothing changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost_lease: bool,
    /// The item cannot be read or its follow-up jobs not be stored; nothing changed and the lease still holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl SettledOut {
    /// What became of the settlement of this job.
    pub fn new(job_id: JobId, settled: Settled) -> Self {
        let base = Self { job_id, applied: None, lost_lease: false, refused: None };
        match settled {
            Settled::Applied(state) => Self { applied: Some(state), ..base },
            Settled::LostLease => Self { lost_lease: true, ..base },
            Settled::Refused(error) => Self { refused: Some(error.to_string()), ..base },
        }
    }
}
