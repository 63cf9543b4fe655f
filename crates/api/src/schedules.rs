//! Schedules: jobs that recur.

use longhaul_queue::maintenance::next_after;
use longhaul_queue::store::{Missed, Schedule};
use longhaul_queue::{Json, NewJob, ProcessId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job_in::JobIn;
use crate::job_options::OptionsIn;

/// Coming times that are shown.
const RUNS_SHOWN: usize = 3;

/// A schedule.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleOut {
    /// Its name.
    pub name: String,
    /// Cron expression: five fields, or six with seconds first.
    pub cron: String,
    /// IANA time zone in which it is read.
    pub timezone: String,
    /// What is enqueued.
    pub job: ScheduledJob,
    /// What happens to times that were missed: `skip`, `once` or `all`.
    #[schema(value_type = String)]
    pub missed: Missed,
    /// The next time.
    #[schema(value_type = i64)]
    pub next_at: Timestamp,
    /// The next times.
    #[schema(value_type = Vec<i64>)]
    pub next_runs: Vec<Timestamp>,
    /// When it fired last.
    #[schema(value_type = Option<i64>)]
    pub last_at: Option<Timestamp>,
}

/// The job of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ScheduledJob {
    /// Handler.
    pub kind: String,
    /// Lane.
    pub queue: String,
    /// Input. Secrets by name are shown as `[redacted]`.
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// Lower runs first.
    pub priority: i32,
    /// Group.
    #[schema(value_type = Option<String>)]
    pub process_id: Option<ProcessId>,
    /// Settings.
    pub options: OptionsIn,
}

impl From<NewJob> for ScheduledJob {
    fn from(job: NewJob) -> Self {
        let NewJob { kind, queue, payload, priority, process_id, options, .. } = job;
        Self { kind, queue, payload, priority, process_id, options: options.into() }
    }
}

impl From<ScheduledJob> for NewJob {
    fn from(job: ScheduledJob) -> Self {
        let ScheduledJob { kind, queue, payload, priority, process_id, options } = job;
        Self { queue, priority, process_id, options: options.into(), ..Self::new(kind, payload) }
    }
}

impl From<Schedule> for ScheduleOut {
    fn from(schedule: Schedule) -> Self {
        let Schedule { name, cron, timezone, job, missed, next_at, last_at } = schedule;
        // An expression may have an end.
        let following = |after: &Timestamp| next_after(&cron, &timezone, *after).ok();
        let next_runs = std::iter::successors(Some(next_at), following).take(RUNS_SHOWN).collect();
        Self { name, job: job.into(), missed, next_at, next_runs, last_at, cron, timezone }
    }
}

impl From<ScheduleOut> for Schedule {
    fn from(schedule: ScheduleOut) -> Self {
        let ScheduleOut { name, cron, timezone, job, missed, next_at, next_runs: _, last_at } = schedule;
        Self { name, cron, timezone, job: job.into(), missed, next_at, last_at }
    }
}

/// A schedule to keep.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleIn {
    /// Cron expression: five fields, or six with seconds first.
    #[schema(example = "0 8 * * 1-5")]
    pub cron: String,
    /// IANA time zone in which it is read; default `UTC`.
    pub timezone: Option<String>,
    /// What happens to times that were missed: `skip`, `once` (default) or `all`.
    #[serde(default)]
    #[schema(value_type = String, default = "once")]
    pub missed: Missed,
    /// What to enqueue. Ids, times and dependencies make no sense here.
    pub job: JobIn,
}

impl From<Schedule> for ScheduleIn {
    fn from(schedule: Schedule) -> Self {
        let Schedule { cron, timezone, missed, job, .. } = schedule;
        Self { cron, timezone: Some(timezone), missed, job: job.into() }
    }
}

/// What was removed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// Its name.
    pub removed: String,
}
