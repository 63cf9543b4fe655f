//! A job as a client hands it in: the body of `POST /api/v1/jobs`, a line of `longhaul enqueue -`, the argument of MCP's `enqueue_job`.
//! Jobs of one call may depend on each other by names of the client's own (`ref`).

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use longhaul_pipeline::OwnNames;
use longhaul_queue::job::{DEFAULT_QUEUE, Dependency, OnFailure};
use longhaul_queue::{JobId, Json, NewJob, ProcessId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job_options::OptionsIn;

/// A job to store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob)]
pub struct JobIn {
    /// Which handler runs it.
    #[schema(example = "echo")]
    pub kind: String,
    /// The input, any JSON; default `null`. Put no secrets into it.
    #[serde(default = "Json::null")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// Your own id (a UUID): the same job can then be sent again without harm.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = "uuid")]
    pub id: Option<JobId>,
    /// A name by which others in the same call may depend on it. It is not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// The lane; default `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The group it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub process_id: Option<ProcessId>,
    /// Shown with its process, but not among its results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub helper: bool,
    /// Lower runs first; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Earliest start, in milliseconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub run_at: Option<Timestamp>,
    /// Earliest start, in milliseconds from now; not together with `run_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Past it a job that has never started is cancelled; in milliseconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<i64>)]
    pub expires_at: Option<Timestamp>,
    /// Jobs that must end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<ParentIn>,
    /// Wait until this process is sealed and has nothing unfinished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub after_process: Option<ProcessId>,
    /// The name of the webhook to notify when the job has ended. Not together with `unique`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// What most jobs leave at its default.
    #[serde(default)]
    pub options: OptionsIn,
}

/// A parent: a `ref` of the same call or an id, with or without what its failure does.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Parent)]
pub enum ParentIn {
    /// When it fails, the job is cancelled.
    Name(String),
    /// With a rule of its own.
    Rule(ParentRule),
}

/// A parent and what its failure does.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ParentRule {
    /// A `ref` of the same call, or an id.
    pub job: String,
    /// `cancel` (default), `run` or `hold`.
    #[serde(default)]
    #[schema(value_type = String, default = "cancel")]
    pub on_failure: OnFailure,
}

/// A field that does not fit, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub text: String,
}

impl Misfit {
    /// What is wrong with a field.
    pub fn new(field: &'static str, text: impl fmt::Display) -> Self {
        Self { field, text: text.to_string() }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.text)
    }
}

impl JobIn {
    /// Refuses a job that a client hands in under a name that belongs to the program.
    pub fn check_names(&self, names: &OwnNames) -> Result<(), Misfit> {
        names.check_kind(&self.kind).map_err(|error| Misfit::new("kind", error))?;
        let queue = self.queue.as_deref().map_or(Ok(()), |queue| names.check_queue(queue));
        queue.map_err(|error| Misfit::new("queue", error))?;
        let process = self.process_id.as_ref().map_or(Ok(()), |id| names.check_process(id.as_str()));
        process.map_err(|error| Misfit::new("process_id", error))?;
        self.id.map_or(Ok(()), |id| names.check_id(id)).map_err(|error| Misfit::new("id", error))
    }
}

/// The ids of jobs that have a `ref`.
#[derive(Debug, Default)]
pub struct Refs(HashMap<String, JobId>);

impl Refs {
    /// Remembers a job by its `ref`, if it has one, and gives it the id that `drawn` draws unless it has one of its own.
    pub fn add(&mut self, job: &mut JobIn, drawn: impl FnOnce() -> JobId) -> Result<(), Misfit> {
        let Some(name) = &job.r#ref else { return Ok(()) };
        let id = *job.id.get_or_insert_with(drawn);
        match self.0.insert(name.clone(), id) {
            None => Ok(()),
            Some(_) => Err(Misfit::new("ref", format_args!("the ref {name:?} is given twice"))),
        }
    }

    fn find(&self, name: &str) -> Result<JobId, Misfit> {
        let found = self.0.get(name).copied().or_else(|| name.parse().ok());
        let unknown = format_args!("{name:?} is neither a ref of this call nor a job id");
        found.ok_or_else(|| Misfit::new("depends_on", unknown))
    }
}

impl JobIn {
    /// A job for the default queue, to run at once.
    pub fn new(kind: impl Into<String>, payload: Json) -> Self {
        NewJob::new(kind, payload).into()
    }

    /// The job to store, handed in at `now` beside the jobs of `refs`. Webhooks are the server's business, and not part of it.
    pub fn into_job(self, refs: &Refs, now: Timestamp) -> Result<NewJob, Misfit> {
        let run_at = match (self.run_at, self.delay_ms) {
            (Some(_), Some(_)) => {
                return Err(Misfit::new("delay_ms", "run_at and delay_ms exclude each other"));
            }
            (None, Some(delay_ms)) => Some(now + Duration::from_millis(delay_ms)),
            (run_at, None) => run_at,
        };
        let parents = self.depends_on.into_iter().map(|parent| {
            let ParentRule { job, on_failure } = parent.into();
            Ok(Dependency { job_id: refs.find(&job)?, on_failure })
        });
        Ok(NewJob {
            id: self.id,
            queue: self.queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned()),
            kind: self.kind,
            payload: self.payload,
            process_id: self.process_id,
            helper: self.helper,
            priority: self.priority.unwrap_or_default(),
            run_at,
            expires_at: self.expires_at,
            depends_on: parents.collect::<Result<_, Misfit>>()?,
            after_process: self.after_process,
            options: self.options.into(),
        })
    }
}

impl From<NewJob> for JobIn {
    fn from(job: NewJob) -> Self {
        let rule = |Dependency { job_id, on_failure }| ParentRule { job: job_id.to_string(), on_failure };
        Self {
            kind: job.kind,
            payload: job.payload,
            id: job.id,
            r#ref: None,
            queue: Some(job.queue),
            process_id: job.process_id,
            helper: job.helper,
            priority: Some(job.priority),
            run_at: job.run_at,
            delay_ms: None,
            expires_at: job.expires_at,
            depends_on: job.depends_on.into_iter().map(rule).map(ParentIn::Rule).collect(),
            after_process: job.after_process,
            webhook: None,
            options: job.options.into(),
        }
    }
}

impl From<ParentIn> for ParentRule {
    fn from(parent: ParentIn) -> Self {
        match parent {
            ParentIn::Name(job) => Self { job, on_failure: OnFailure::default() },
            ParentIn::Rule(rule) => rule,
        }
    }
}

#[cfg(test)]
mod tests;
