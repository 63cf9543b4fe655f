//! Jobs as they are shown.

use longhaul_queue::client::Explanation;
use longhaul_queue::job::{LogLine, ParentStatus, Progress, Run};
use longhaul_queue::state::{JobError, Park, Spent};
use longhaul_queue::store::{Enqueued, InsertOutcome};
use longhaul_queue::{Job, JobDetail, JobId, Json, ProcessId, State, Timestamp, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job_options::OptionsIn;

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Job)]
pub struct JobOut {
    /// Identity.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// Submission order; never reused.
    pub seq: i64,
    /// Lane.
    pub queue: String,
    /// Handler.
    pub kind: String,
    /// `blocked`, `scheduled`, `ready`, `running`, `parked`, `succeeded`, `failed` or `cancelled`.
    #[schema(value_type = String)]
    pub state: State,
    /// Group.
    #[schema(value_type = Option<String>)]
    pub process_id: Option<ProcessId>,
    /// Not among its process's results.
    pub helper: bool,
    /// Lower runs first.
    pub priority: i32,
    /// Earliest start.
    #[schema(value_type = i64)]
    pub run_at: Timestamp,
    /// When it was enqueued.
    #[schema(value_type = i64)]
    pub created_at: Timestamp,
    /// When its state last changed.
    #[schema(value_type = i64)]
    pub updated_at: Timestamp,
    /// When the newest run began.
    #[schema(value_type = Option<i64>)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<i64>)]
    pub finished_at: Option<Timestamp>,
    /// Cancelled if it has not started by then.
    #[schema(value_type = Option<i64>)]
    pub expires_at: Option<Timestamp>,
    /// `attempt`, `crashes`, `throttles`, `continues` and `parks` so far.
    #[schema(value_type = Object)]
    pub spent: Spent,
    /// Raised by each claim.
    pub fence: u64,
    /// Until when the lease holds, while running.
    #[schema(value_type = Option<i64>)]
    pub lease_until: Option<Timestamp>,
    /// Who runs it, or ran it last.
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerId>,
    /// A running job that is being cancelled.
    pub cancel_requested: bool,
    /// Dependencies not yet satisfied.
    pub waits_for: u32,
    /// `key`, `until` and `on_timeout` while parked.
    #[schema(value_type = Option<Object>)]
    pub park: Option<Park>,
    /// `reason` and `text`: why it failed, was cancelled, or failed last.
    #[schema(value_type = Option<Object>)]
    pub error: Option<JobError>,
    /// Settings given at enqueue.
    pub options: OptionsIn,
}

same_fields!(JobOut, Job, { id, seq, queue, kind, state, process_id, helper, priority, run_at, created_at, updated_at, started_at, finished_at, expires_at, spent, fence, lease_until, worker, cancel_requested, waits_for, park, error, options });

/// A job with everything known of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = JobDetail)]
pub struct JobDetailOut {
    /// The job.
    #[serde(flatten)]
    pub job: JobOut,
    /// Input. Secrets by name are shown as `[redacted]`.
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// Checkpoint.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Json>,
    /// Output.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// Parents: `job_id`, `on_failure`, `satisfied` and how they `ended`.
    #[schema(value_type = Vec<Object>)]
    pub depends_on: Vec<ParentStatus>,
    /// The process it waits for.
    #[schema(value_type = Option<String>)]
    pub after_process: Option<ProcessId>,
    /// Past runs, oldest first: `fence`, `worker`, `started_at`, `ended_at`, `outcome`, `error`, `usage`.
    #[schema(value_type = Vec<Object>)]
    pub runs: Vec<Run>,
    /// `done`, `total`, `message` and `at`.
    #[schema(value_type = Option<Object>)]
    pub progress: Option<Progress>,
    /// Log lines with `at` and `text`, oldest first.
    #[schema(value_type = Vec<Object>)]
    pub log: Vec<LogLine>,
}

same_fields!(JobDetailOut, JobDetail, { job, payload, data, result, depends_on, after_process, runs, progress, log });

/// What became of a job that was handed in.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Enqueued)]
pub struct EnqueuedOut {
    /// The stored job: the new one, or the one that was there.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// Its place in submission order.
    pub seq: i64,
    /// Where it stands.
    #[schema(value_type = String)]
    pub state: State,
    /// `inserted`, `duplicate`, `skipped`, `replaced` or `debounced`.
    #[schema(value_type = String)]
    pub how: InsertOutcome,
}

same_fields!(EnqueuedOut, Enqueued, { id, seq, state, how });

/// Why a job stands where it stands.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Explanation)]
pub struct ExplanationOut {
    /// Where it stands.
    #[schema(value_type = String)]
    pub state: State,
    /// Why, in a sentence.
    pub reason: String,
    /// When that ends by itself, if it does.
    #[schema(value_type = Option<i64>)]
    pub until: Option<Timestamp>,
    /// What to do about it.
    pub hint: Option<String>,
}

same_fields!(ExplanationOut, Explanation, { state, reason, until, hint });
