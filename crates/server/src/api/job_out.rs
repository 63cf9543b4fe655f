//! Jobs as they are shown.

use longhaul_queue::client::Explanation;
use longhaul_queue::job::{LogLine, ParentStatus, Progress, Run};
use longhaul_queue::state::{JobError, Park, Spent};
use longhaul_queue::store::{Enqueued, InsertOutcome};
use longhaul_queue::{Job, JobDetail, JobId, Json, State, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::job_in::OptionsIn;

/// A job.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Job)]
pub(super) struct JobOut {
    /// Identity.
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    /// Submission order; never reused.
    seq: i64,
    /// Lane.
    queue: String,
    /// Handler.
    kind: String,
    /// `blocked`, `scheduled`, `ready`, `running`, `parked`, `succeeded`, `failed` or `cancelled`.
    #[schema(value_type = String)]
    state: State,
    /// Group.
    process_id: Option<String>,
    /// Not among its process's results.
    helper: bool,
    /// Lower runs first.
    priority: i32,
    /// Earliest start.
    #[schema(value_type = i64)]
    run_at: Timestamp,
    /// When it was enqueued.
    #[schema(value_type = i64)]
    created_at: Timestamp,
    /// When its state last changed.
    #[schema(value_type = i64)]
    updated_at: Timestamp,
    /// When the newest run began.
    #[schema(value_type = Option<i64>)]
    started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<i64>)]
    finished_at: Option<Timestamp>,
    /// Cancelled if it has not started by then.
    #[schema(value_type = Option<i64>)]
    expires_at: Option<Timestamp>,
    /// `attempt`, `crashes`, `throttles`, `continues` and `parks` so far.
    #[schema(value_type = Object)]
    spent: Spent,
    /// Raised by each claim.
    fence: u64,
    /// Until when the lease holds, while running.
    #[schema(value_type = Option<i64>)]
    lease_until: Option<Timestamp>,
    /// Who runs it, or ran it last.
    worker: Option<String>,
    /// A running job that is being cancelled.
    cancel_requested: bool,
    /// Dependencies not yet satisfied.
    waits_for: u32,
    /// `key`, `until` and `on_timeout` while parked.
    #[schema(value_type = Option<Object>)]
    park: Option<Park>,
    /// `reason` and `text`: why it failed, was cancelled, or failed last.
    #[schema(value_type = Option<Object>)]
    error: Option<JobError>,
    /// Settings given at enqueue.
    options: OptionsIn,
}

impl From<Job> for JobOut {
    fn from(job: Job) -> Self {
        Self {
            id: job.id,
            seq: job.seq,
            queue: job.queue,
            kind: job.kind,
            state: job.state,
            process_id: job.process_id.map(|id| id.as_str().to_owned()),
            helper: job.helper,
            priority: job.priority,
            run_at: job.run_at,
            created_at: job.created_at,
            updated_at: job.updated_at,
            started_at: job.started_at,
            finished_at: job.finished_at,
            expires_at: job.expires_at,
            spent: job.spent,
            fence: job.fence,
            lease_until: job.lease_until,
            worker: job.worker.map(|worker| worker.as_str().to_owned()),
            cancel_requested: job.cancel_requested,
            waits_for: job.waits_for,
            park: job.park,
            error: job.error,
            options: job.options.into(),
        }
    }
}

/// A job with everything known of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JobDetail)]
pub(super) struct JobDetailOut {
    /// The job.
    #[serde(flatten)]
    job: JobOut,
    /// Input. Secrets by name are shown as `[redacted]`.
    #[schema(value_type = serde_json::Value)]
    payload: Json,
    /// Checkpoint.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
    /// Output.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Json>,
    /// Parents: `job_id`, `on_failure`, `satisfied` and how they `ended`.
    #[schema(value_type = Vec<Object>)]
    depends_on: Vec<ParentStatus>,
    /// The process it waits for.
    after_process: Option<String>,
    /// Past runs, oldest first: `fence`, `worker`, `started_at`, `ended_at`, `outcome`, `error`, `usage`.
    #[schema(value_type = Vec<Object>)]
    runs: Vec<Run>,
    /// `done`, `total`, `message` and `at`.
    #[schema(value_type = Option<Object>)]
    progress: Option<Progress>,
    /// Log lines with `at` and `text`, oldest first.
    #[schema(value_type = Vec<Object>)]
    log: Vec<LogLine>,
}

impl From<JobDetail> for JobDetailOut {
    fn from(detail: JobDetail) -> Self {
        Self {
            job: detail.job.into(),
            payload: detail.payload,
            data: detail.data,
            result: detail.result,
            depends_on: detail.depends_on,
            after_process: detail.after_process.map(|id| id.as_str().to_owned()),
            runs: detail.runs,
            progress: detail.progress,
            log: detail.log,
        }
    }
}

/// What became of a job that was handed in.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Enqueued)]
pub(super) struct EnqueuedOut {
    /// The stored job: the new one, or the one that was there.
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    /// Its place in submission order.
    seq: i64,
    /// Where it stands.
    #[schema(value_type = String)]
    state: State,
    /// `inserted`, `duplicate`, `skipped`, `replaced` or `debounced`.
    #[schema(value_type = String)]
    how: InsertOutcome,
}

impl From<Enqueued> for EnqueuedOut {
    fn from(enqueued: Enqueued) -> Self {
        let Enqueued { id, seq, state, how } = enqueued;
        Self { id, seq, state, how }
    }
}

/// Why a job stands where it stands.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(super) struct ExplanationOut {
    /// Where it stands.
    #[schema(value_type = String)]
    state: State,
    /// Why, in a sentence.
    reason: String,
    /// When that ends by itself, if it does.
    #[schema(value_type = Option<i64>)]
    until: Option<Timestamp>,
    /// What to do about it.
    hint: Option<String>,
}

impl From<Explanation> for ExplanationOut {
    fn from(explanation: Explanation) -> Self {
        let Explanation { state, reason, until, hint } = explanation;
        Self { state, reason, until, hint }
    }
}
