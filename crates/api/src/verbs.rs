//! Verbs that change one job, and signals for those that wait for one.

use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::store::{Signal, Unparked};
use longhaul_queue::{JobChange, JobId, Json, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{AnyJson, yes};

/// How a job is put back.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryIn {
    /// With its checkpoint (default), or from the start.
    #[serde(default = "yes")]
    pub keep_data: bool,
}

/// Where a job stands after a change.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// What happened.
    pub change: ChangeMade,
    /// Its state now.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

/// What happened to a job: `requested` means that it runs and was asked to end, `ended` that it had ended before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeMade {
    /// Its priority, title or payload is another.
    Edited,
    /// It was put back.
    Retried,
    /// It goes on now instead of later.
    Started,
    /// Failed parents hold it no longer.
    Released,
    /// It has ended.
    Cancelled,
    /// It runs, and was asked to end.
    Requested,
    /// It had ended before.
    Ended,
    /// It is gone.
    Deleted,
}

/// What to change of a job; what is not named stays.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobChange)]
pub struct ChangeIn {
    /// Lower runs first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// A name for people; an empty one takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 512)]
    pub title: Option<String>,
    /// The input of the next run, which begins without a checkpoint.
    #[serde(default, deserialize_with = "Json::present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Option<Json>,
}

same_fields!(ChangeIn, JobChange, { priority, title, payload });

/// A signal for parked jobs: for those that wait for `key`, now or later; for the jobs named; or for those of them that wait for
/// `key`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalIn {
    /// What they wait for. The first signal for a key counts, and is kept for a job that is yet to park.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// These parked jobs. With a key, those of them that wait for it, and nothing is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub ids: Option<Vec<JobId>>,
    /// The value for them.
    pub signal: SignalForm,
}

/// The value for a parked job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Signal)]
pub enum SignalForm {
    /// Run again, with this value at hand.
    Resume(AnyJson),
    /// It is done, with this result.
    Done(AnyJson),
    /// It failed this time, with this text.
    Retry(String),
    /// It failed for good, with this text.
    Fail(String),
}

impl From<SignalForm> for Signal {
    fn from(signal: SignalForm) -> Self {
        let error = |text: String| JobError::new(Reason::Failure, text);
        match signal {
            SignalForm::Resume(AnyJson(value)) => Self::Resume(value),
            SignalForm::Done(AnyJson(value)) => Self::Done(value),
            SignalForm::Retry(text) => Self::Retry(error(text)),
            SignalForm::Fail(text) => Self::Fail(error(text)),
        }
    }
}

impl From<Signal> for SignalForm {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Resume(value) => Self::Resume(AnyJson(value)),
            Signal::Done(value) => Self::Done(AnyJson(value)),
            Signal::Retry(error) => Self::Retry(error.text),
            Signal::Fail(error) => Self::Fail(error.text),
        }
    }
}

/// Whom a signal reached.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Signalled {
    /// The jobs whose wait ended.
    #[schema(value_type = Vec<String>)]
    pub jobs: Vec<JobId>,
    /// It is kept for a job that is yet to park.
    pub kept: bool,
}

same_fields!(Signalled, Unparked, { jobs, kept });
