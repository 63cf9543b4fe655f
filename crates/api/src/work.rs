//! What workers send and are sent: claims, renewals, checkpoints.

use longhaul_queue::job::{ParentResult, Wake};
use longhaul_queue::store::Renewal;
use longhaul_queue::{Claimed, JobId, Json, Lease, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job_out::JobOut;

/// Which jobs a worker wants.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimIn {
    /// Its name, random per start; the first answer gives one to send from then on.
    pub worker: Option<String>,
    /// Where it runs, for people.
    pub host: Option<String>,
    /// Its process there, for people.
    pub pid: Option<u32>,
    /// From these queues, in this order.
    #[schema(example = json!(["default"]))]
    pub queues: Vec<String>,
    /// Of these kinds; any when left out.
    pub kinds: Option<Vec<String>>,
    /// At most this many, 1 to 1000: as many as can start at once.
    #[serde(default = "one")]
    pub limit: usize,
    /// How long each lease holds unless extended; default 60.
    #[serde(default = "lease_default")]
    pub lease_seconds: f64,
    /// How long to wait for the first job; default not at all, at most 300.
    pub wait_seconds: Option<f64>,
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
pub struct LeaseForm {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub job_id: JobId,
    /// Its place in the store.
    pub seq: i64,
    /// The claim's number; a newer claim has a higher one.
    pub fence: u64,
    /// The holder.
    #[schema(value_type = String)]
    pub worker: WorkerId,
    /// Until when it holds unless extended.
    #[schema(value_type = i64)]
    pub until: Timestamp,
}

same_fields!(LeaseForm, Lease, { job_id, seq, fence, worker, until });

/// What a claim handed out.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Claims {
    /// The worker's name: send it with the next claim.
    pub worker: String,
    /// The jobs; none when nothing came in time.
    pub jobs: Vec<ClaimedOut>,
}

/// A job that a claim handed out.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Claimed)]
pub struct ClaimedOut {
    /// The right to settle it.
    pub lease: LeaseForm,
    /// The job as it is now: running.
    #[serde(flatten)]
    pub job: JobOut,
    /// Input.
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// Checkpoint of an earlier run.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
    /// Parents' ends with `job_id`, `state`, `result` and `error`, in the order of `depends_on`.
    #[schema(value_type = Vec<Object>)]
    pub parents: Vec<ParentResult>,
    /// What ended the park before this run: `{"signal": value}` or `"timed_out"`.
    #[schema(value_type = Option<Object>)]
    pub wake: Option<Wake>,
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
pub struct ExtendIn {
    /// These, at most 1000.
    pub leases: Vec<LeaseForm>,
    /// For this long from now; default 60.
    #[serde(default = "lease_default")]
    pub lease_seconds: f64,
}

/// What became of renewals, in the order asked.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Renewals {
    /// One for each lease.
    pub leases: Vec<RenewalOut>,
}

/// What became of a renewal.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Renewal)]
pub struct RenewalOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub job_id: JobId,
    /// It holds on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended: Option<Extended>,
    /// It is gone: stop working on the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// A lease that holds on.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Extended {
    /// Until then.
    #[schema(value_type = i64)]
    pub until: Timestamp,
    /// Somebody wants the job to end: settle it with `cancel`.
    pub cancel_requested: bool,
}

impl RenewalOut {
    /// What became of the renewal of this lease.
    pub fn new(lease: &Lease, reply: Renewal) -> Self {
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
pub struct SaveIn {
    /// The right to do so.
    pub lease: LeaseForm,
    /// New checkpoint, which the next run finds; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
    /// How far it is.
    pub progress: Option<ProgressIn>,
    /// Further log lines.
    #[serde(default)]
    pub log: Vec<String>,
}

/// How far a run has come.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Progress)]
pub struct ProgressIn {
    /// Units done.
    pub done: u64,
    /// Total number of units, when known.
    pub total: Option<u64>,
    /// A word for people.
    pub message: Option<String>,
}

/// It is on disk.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Saved {
    /// Always true.
    pub saved: bool,
}
