//! What workers send and are sent.

use longhaul_queue::job::{ParentResult, Wake};
use longhaul_queue::store::Renewal;
use longhaul_queue::{Claimed, JobId, Json, Lease, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::job_out::JobOut;

/// Which jobs a worker wants.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ClaimIn {
    /// Its name, random per start; the first answer gives one to send from then on.
    pub(super) worker: Option<String>,
    /// Where it runs, for people.
    pub(super) host: Option<String>,
    /// Its process there, for people.
    pub(super) pid: Option<u32>,
    /// From these queues, in this order.
    #[schema(example = json!(["default"]))]
    pub(super) queues: Vec<String>,
    /// Of these kinds; any when left out.
    pub(super) kinds: Option<Vec<String>>,
    /// At most this many, 1 to 1000: as many as can start at once.
    #[serde(default = "one")]
    pub(super) limit: usize,
    /// How long each lease holds unless extended; default 60.
    #[serde(default = "lease_default")]
    pub(super) lease_seconds: f64,
    /// How long to wait for the first job; default not at all, at most 300.
    pub(super) wait_seconds: Option<f64>,
}

fn one() -> usize {
    1
}

fn lease_default() -> f64 {
    60.0
}

/// The right to write a running job's outcome. Send it as it came.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Lease)]
pub(in crate::api) struct LeaseForm {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    job_id: JobId,
    /// Its place in the store.
    seq: i64,
    /// The claim's number; a newer claim has a higher one.
    fence: u64,
    /// The holder.
    worker: String,
    /// Until when it holds unless extended.
    #[schema(value_type = i64)]
    until: Timestamp,
}

impl From<Lease> for LeaseForm {
    fn from(lease: Lease) -> Self {
        let Lease { job_id, seq, fence, worker, until } = lease;
        Self { job_id, seq, fence, worker: worker.as_str().to_owned(), until }
    }
}

impl From<LeaseForm> for Lease {
    fn from(lease: LeaseForm) -> Self {
        let LeaseForm { job_id, seq, fence, worker, until } = lease;
        Self { job_id, seq, fence, worker: worker.into(), until }
    }
}

/// What a claim handed out.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Claims {
    /// The worker's name: send it with the next claim.
    pub(super) worker: String,
    /// The jobs; none when nothing came in time.
    pub(super) jobs: Vec<ClaimedOut>,
}

/// A job that a claim handed out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Claimed)]
pub(in crate::api) struct ClaimedOut {
    /// The right to settle it.
    lease: LeaseForm,
    /// The job as it is now: running.
    #[serde(flatten)]
    job: JobOut,
    /// Input.
    #[schema(value_type = serde_json::Value)]
    payload: Json,
    /// Checkpoint of an earlier run.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
    /// Parents' ends with `job_id`, `state`, `result` and `error`, in the order of `depends_on`.
    #[schema(value_type = Vec<Object>)]
    parents: Vec<ParentResult>,
    /// What ended the park before this run: `{"signal": value}` or `"timed_out"`.
    #[schema(value_type = Option<Object>)]
    wake: Option<Wake>,
}

impl From<Claimed> for ClaimedOut {
    fn from(claimed: Claimed) -> Self {
        let Claimed { job, lease, payload, data, parents, wake } = claimed;
        Self { lease: lease.into(), job: job.into(), payload, data, parents, wake }
    }
}

/// Leases to renew.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ExtendIn {
    /// These, at most 1000.
    pub(super) leases: Vec<LeaseForm>,
    /// For this long from now; default 60.
    #[serde(default = "lease_default")]
    pub(super) lease_seconds: f64,
}

/// What became of renewals, in the order asked.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Renewals {
    /// One for each lease.
    pub(super) leases: Vec<RenewalOut>,
}

/// What became of a renewal.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Renewal)]
pub(in crate::api) struct RenewalOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    job_id: JobId,
    /// It holds on.
    #[serde(skip_serializing_if = "Option::is_none")]
    extended: Option<Extended>,
    /// It is gone: stop working on the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

/// A lease that holds on.
#[derive(Debug, Serialize, ToSchema)]
struct Extended {
    /// Until then.
    #[schema(value_type = i64)]
    until: Timestamp,
    /// Somebody wants the job to end: settle it with `cancel`.
    cancel_requested: bool,
}

impl RenewalOut {
    pub(super) fn new(lease: &Lease, reply: Renewal) -> Self {
        let extended = match reply {
            Renewal::Extended { until, cancel_requested } => Some(Extended { until, cancel_requested }),
            Renewal::Lost => None,
        };
        Self { job_id: lease.job_id, lost: extended.is_none(), extended }
    }
}

/// What a running job stores on the way.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SaveIn {
    /// The right to do so.
    pub(super) lease: LeaseForm,
    /// New checkpoint, which the next run finds; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub(super) data: Option<Json>,
    /// How far it is.
    pub(super) progress: Option<ProgressIn>,
    /// Further log lines.
    #[serde(default)]
    pub(super) log: Vec<String>,
}

/// How far a run has come.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Progress)]
pub(in crate::api) struct ProgressIn {
    /// Units done.
    pub(super) done: u64,
    /// Total number of units, when known.
    pub(super) total: Option<u64>,
    /// A word for people.
    pub(super) message: Option<String>,
}

/// It is on disk.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Saved {
    /// Always true.
    pub(super) saved: bool,
}
