//! A job as a client hands it in. Jobs of one call may depend on each other by names of the client's own (`ref`).

use std::collections::HashMap;
use std::time::Duration;

use axum::http::StatusCode;
use longhaul_queue::job::{DEFAULT_QUEUE, Dependency, JobOptions, OnFailure, Retention, Unique};
use longhaul_queue::{JobId, Json, NewJob, RetryPolicy, Timestamp, TraceContext};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;
use longhaul_pipeline::OwnNames;

/// A job to store.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob)]
pub(super) struct JobIn {
    /// Which handler runs it.
    #[schema(example = "echo")]
    pub(super) kind: String,
    /// The input, any JSON; default `null`.
    #[serde(default = "Json::null")]
    #[schema(value_type = serde_json::Value)]
    pub(super) payload: Json,
    /// Your own id (a UUID): the same job can then be sent again without harm.
    #[schema(value_type = Option<String>, format = "uuid")]
    pub(super) id: Option<JobId>,
    /// A name by which others in the same call may depend on it. It is not stored.
    pub(super) r#ref: Option<String>,
    /// Default `default`.
    pub(super) queue: Option<String>,
    /// The group it belongs to.
    pub(super) process_id: Option<String>,
    /// Shown with its process, but not among its results.
    #[serde(default)]
    pub(super) helper: bool,
    /// Lower runs first; default 0.
    #[serde(default)]
    pub(super) priority: i32,
    /// Earliest start.
    #[schema(value_type = Option<i64>)]
    pub(super) run_at: Option<Timestamp>,
    /// Earliest start, from now on; not together with `run_at`.
    pub(super) delay_ms: Option<u64>,
    /// Past it a job that has never started is cancelled.
    #[schema(value_type = Option<i64>)]
    pub(super) expires_at: Option<Timestamp>,
    /// Jobs that must end first.
    #[serde(default)]
    pub(super) depends_on: Vec<ParentIn>,
    /// Wait until this process is sealed and has nothing unfinished.
    pub(super) after_process: Option<String>,
    /// The name of the webhook to notify when the job has ended. Not together with `unique`.
    pub(super) webhook: Option<String>,
    /// What most jobs leave at its default.
    #[serde(default)]
    pub(super) options: OptionsIn,
}

/// A parent: a `ref` of the same call or an id, with or without what its failure does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Parent)]
pub(super) enum ParentIn {
    /// When it fails, the job is cancelled.
    Name(String),
    /// With a rule of its own.
    Rule(ParentRule),
}

/// A parent and what its failure does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ParentRule {
    /// A `ref` of the same call, or an id.
    job: String,
    /// `cancel` (default), `run` or `hold`.
    #[serde(default)]
    #[schema(value_type = String, default = "cancel")]
    on_failure: OnFailure,
}

/// Settings of a job.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = JobOptions)]
pub(super) struct OptionsIn {
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// Free labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    /// W3C `traceparent` of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    /// The job that enqueued this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    parent_id: Option<JobId>,
    /// How often the handler may fail; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    /// Leases lost in a row before it counts as poison; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_crashes: Option<u32>,
    /// Throttles in a row before it fails; default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_throttles: Option<u32>,
    /// `continue` answers before it fails; default unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_continues: Option<u32>,
    /// When to try again; default exponential from 1 s to 1 h.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"backoff": "exponential", "base_ms": 1000, "cap_ms": 3_600_000}))]
    retry: Option<RetryPolicy>,
    /// Hard time for one run; default an hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_limit_ms: Option<u64>,
    /// Longest silence without progress, save or log line; default off.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_limit_ms: Option<u64>,
    /// Wait before a `continue` that names none; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    /// Whose job it is: keys of a queue take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    fair_key: Option<String>,
    /// At most one unfinished job per key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"key": "user-7", "policy": {"policy": "skip"}}))]
    pub(super) unique: Option<Unique>,
    /// What happens to the row at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"retention": "keep", "succeeded_ms": 3_600_000, "failed_ms": 86_400_000}))]
    retention: Option<Retention>,
}

impl OptionsIn {
    /// The caller's span, unless the job names one itself.
    pub(super) fn asked_from(&mut self, caller: TraceContext) {
        self.trace.get_or_insert_with(|| caller.to_string());
    }
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
        let millis =
            |time: Option<Duration>| time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
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
            run_limit_ms: millis(options.run_limit),
            idle_limit_ms: millis(options.idle_limit),
            delay_ms: millis(options.delay),
            fair_key: options.fair_key,
            unique: options.unique,
            retention: options.retention,
        }
    }
}

/// The jobs of one call, with ids for those that others depend on. `derived` gives the id of the nth job, if ids are to follow
/// from the call itself.
pub(super) fn new_jobs(
    names: &OwnNames,
    jobs: Vec<JobIn>,
    now: Timestamp,
    derived: impl Fn(usize) -> Option<JobId>,
) -> Result<Vec<NewJob>, Problem> {
    let mut refs = HashMap::new();
    let mut random = fastrand::u128(..);
    let mut ids = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.iter().enumerate() {
        job.id
            .map_or(Ok(()), |id| names.check_id(id))
            .map_err(|error| wrong(index, "id", error.to_string()))?;
        let mut id = job.id.or_else(|| derived(index));
        if let Some(name) = &job.r#ref {
            let id = *id.get_or_insert_with(|| JobId::generate(now, random));
            random = JobId::next_random(random);
            if refs.insert(name.clone(), id).is_some() {
                return Err(wrong(index, "ref", format!("the ref {name:?} is used twice")));
            }
        }
        ids.push(id);
    }
    let jobs = jobs.into_iter().zip(ids).enumerate();
    jobs.map(|(index, (job, id))| new_job(names, job, index, (id, &refs), now)).collect()
}

fn new_job(
    names: &OwnNames,
    job: JobIn,
    index: usize,
    (id, refs): (Option<JobId>, &HashMap<String, JobId>),
    now: Timestamp,
) -> Result<NewJob, Problem> {
    names.check_kind(&job.kind).map_err(|error| wrong(index, "kind", error.to_string()))?;
    let queue = job.queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
    names.check_queue(&queue).map_err(|error| wrong(index, "queue", error.to_string()))?;
    if let Some(process) = &job.process_id {
        names.check_process(process).map_err(|error| wrong(index, "process_id", error.to_string()))?;
    }
    let run_at = match (job.run_at, job.delay_ms) {
        (Some(_), Some(_)) => {
            return Err(wrong(index, "delay_ms", "run_at and delay_ms exclude each other".to_owned()));
        }
        (None, Some(delay_ms)) => Some(now + Duration::from_millis(delay_ms)),
        (run_at, None) => run_at,
    };
    let mut depends_on = Vec::with_capacity(job.depends_on.len());
    for parent in job.depends_on {
        let (name, on_failure) = match parent {
            ParentIn::Name(name) => (name, OnFailure::default()),
            ParentIn::Rule(rule) => (rule.job, rule.on_failure),
        };
        let found = refs.get(&name).copied().or_else(|| name.parse().ok());
        let job_id = found.ok_or_else(|| {
            wrong(index, "depends_on", format!("{name:?} is neither a ref of this call nor a job id"))
        })?;
        depends_on.push(Dependency { job_id, on_failure });
    }
    Ok(NewJob {
        id,
        queue,
        kind: job.kind,
        payload: job.payload,
        process_id: job.process_id.map(Into::into),
        helper: job.helper,
        priority: job.priority,
        run_at,
        expires_at: job.expires_at,
        depends_on,
        after_process: job.after_process.map(Into::into),
        options: job.options.into(),
    })
}

/// A job that cannot be stored, by its place in the call.
pub(super) fn wrong(index: usize, field: &str, text: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(format!("jobs[{index}].{field}"))
}
