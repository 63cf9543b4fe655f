//! What differs between the forms of the API and those of the queue; the rest is written the same way on both sides.

use longhaul_queue::job::{JobOptions, LogLine, OnFailure, ParentStatus, Progress, Run};
use longhaul_queue::store::{ProcessInfo, QueueInfo, QueueSettings, Schedule};
use longhaul_queue::{Job, JobDetail, JobId, Json, NewJob, ProcessId, Result, State, Timestamp};
use serde::{Deserialize, Serialize};

/// Jobs to store.
#[derive(Debug, Serialize)]
pub(super) struct Submission<'a> {
    pub(super) jobs: Vec<JobIn<'a>>,
}

/// A job to store.
#[derive(Debug, Serialize)]
pub(super) struct JobIn<'a> {
    kind: &'a str,
    queue: &'a str,
    payload: &'a Json,
    id: Option<JobId>,
    process_id: Option<&'a ProcessId>,
    helper: bool,
    priority: i32,
    run_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    depends_on: Vec<ParentIn>,
    after_process: Option<&'a ProcessId>,
    options: &'a JobOptions,
}

#[derive(Debug, Serialize)]
struct ParentIn {
    job: JobId,
    on_failure: OnFailure,
}

impl<'a> From<&'a NewJob> for JobIn<'a> {
    fn from(job: &'a NewJob) -> Self {
        let parents = job.depends_on.iter();
        Self {
            kind: &job.kind,
            queue: &job.queue,
            payload: &job.payload,
            id: job.id,
            process_id: job.process_id.as_ref(),
            helper: job.helper,
            priority: job.priority,
            run_at: job.run_at,
            expires_at: job.expires_at,
            depends_on: parents
                .map(|edge| ParentIn { job: edge.job_id, on_failure: edge.on_failure })
                .collect(),
            after_process: job.after_process.as_ref(),
            options: &job.options,
        }
    }
}

/// A schedule to keep.
#[derive(Debug, Serialize)]
pub(super) struct ScheduleIn<'a> {
    cron: &'a str,
    timezone: &'a str,
    missed: longhaul_queue::store::Missed,
    job: JobIn<'a>,
}

impl<'a> From<&'a Schedule> for ScheduleIn<'a> {
    fn from(schedule: &'a Schedule) -> Self {
        let Schedule { cron, timezone, missed, job, .. } = schedule;
        Self { cron, timezone, missed: *missed, job: job.into() }
    }
}

/// What a job has beside its own fields. Read apart from them: values are kept as they are written.
#[derive(Debug, Deserialize)]
struct Beside {
    payload: Json,
    data: Option<Json>,
    result: Option<Json>,
    depends_on: Vec<ParentStatus>,
    after_process: Option<ProcessId>,
    runs: Vec<Run>,
    progress: Option<Progress>,
    log: Vec<LogLine>,
}

/// A job with everything known of it.
pub(super) fn detail(text: &[u8]) -> serde_json::Result<JobDetail> {
    let (job, beside): (Job, Beside) = (serde_json::from_slice(text)?, serde_json::from_slice(text)?);
    let Beside { payload, data, result, depends_on, after_process, runs, progress, log } = beside;
    Ok(JobDetail { job, payload, data, result, depends_on, after_process, runs, progress, log })
}

/// Jobs by state.
#[derive(Debug, Deserialize)]
pub(super) struct Counts {
    blocked: u64,
    scheduled: u64,
    ready: u64,
    running: u64,
    parked: u64,
    succeeded: u64,
    failed: u64,
    cancelled: u64,
}

impl From<Counts> for [u64; 8] {
    fn from(counts: Counts) -> Self {
        State::ALL.map(|state| match state {
            State::Blocked => counts.blocked,
            State::Scheduled => counts.scheduled,
            State::Ready => counts.ready,
            State::Running => counts.running,
            State::Parked => counts.parked,
            State::Succeeded => counts.succeeded,
            State::Failed => counts.failed,
            State::Cancelled => counts.cancelled,
        })
    }
}

/// A queue.
#[derive(Debug, Deserialize)]
pub(super) struct Queue {
    name: String,
    #[serde(flatten)]
    settings: QueueSettings,
    counts: Counts,
}

impl From<Queue> for QueueInfo {
    fn from(queue: Queue) -> Self {
        let Queue { name, settings, counts } = queue;
        Self { name, settings, counts: counts.into() }
    }
}

/// A process.
#[derive(Debug, Deserialize)]
pub(super) struct Process {
    id: ProcessId,
    sealed: bool,
    counts: Counts,
    helpers: Counts,
}

impl From<Process> for ProcessInfo {
    fn from(process: Process) -> Self {
        let Process { id, sealed, counts, helpers } = process;
        Self { id, sealed, counts: counts.into(), helpers: helpers.into() }
    }
}

/// Where a job stands after a change.
#[derive(Debug, Deserialize)]
pub(super) struct Changed {
    pub(super) change: String,
    pub(super) state: Option<State>,
}

impl Changed {
    /// Its state, which every verb tells but a deletion.
    pub(super) fn state(&self, id: JobId) -> Result<State> {
        self.state.ok_or_else(|| {
            longhaul_queue::Error::Corrupt(format!("the server does not tell the state of job {id}"))
        })
    }
}
