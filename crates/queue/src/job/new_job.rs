//! A job as a caller hands it in.

use serde::{Deserialize, Serialize};

use super::options::{Dependency, JobOptions, OnFailure, Retention, Unique};
use super::{DEFAULT_QUEUE, JobId, ProcessId};
use crate::clock::Timestamp;
use crate::json::Json;
use crate::retry::RetryPolicy;

/// A job as a caller hands it in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewJob {
    /// The caller's own id, which makes the enqueue repeatable; the client draws one otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// The lane; default `default`.
    pub queue: String,
    /// Which handler runs it.
    pub kind: String,
    /// The input.
    pub payload: Json,
    /// The group it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// A helper is shown with its process but is not among its results, and nobody waits for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub helper: bool,
    /// Lower runs first; default 0.
    #[serde(default)]
    pub priority: i32,
    /// Earliest start; default at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// Past it a job that has never started is cancelled with reason `expired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Jobs that must end first: stored ones, or members of the same submission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<Dependency>,
    /// Wait until this process is sealed and has no unfinished job (helpers aside).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_process: Option<ProcessId>,
    /// What most jobs leave at its default.
    #[serde(default)]
    pub options: JobOptions,
}

impl NewJob {
    /// A job for the default queue, to run at once.
    pub fn new(kind: impl Into<String>, payload: Json) -> Self {
        Self {
            id: None,
            queue: DEFAULT_QUEUE.to_owned(),
            kind: kind.into(),
            payload,
            process_id: None,
            helper: false,
            priority: 0,
            run_at: None,
            expires_at: None,
            depends_on: Vec::new(),
            after_process: None,
            options: JobOptions::default(),
        }
    }

    /// Sets the id.
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Sets the process.
    pub fn process(mut self, process_id: impl Into<ProcessId>) -> Self {
        self.process_id = Some(process_id.into());
        self
    }

    /// Sets the priority; lower runs first.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the earliest start.
    pub fn run_at(mut self, run_at: Timestamp) -> Self {
        self.run_at = Some(run_at);
        self
    }

    /// Waits for `parent`; when it fails, this job is cancelled.
    pub fn after(self, parent: JobId) -> Self {
        self.after_with(parent, OnFailure::Cancel)
    }

    /// Waits for `parent` with a policy for its failure.
    pub fn after_with(mut self, parent: JobId, on_failure: OnFailure) -> Self {
        self.depends_on.push(Dependency { job_id: parent, on_failure });
        self
    }

    /// Waits until `process_id` has nothing unfinished.
    pub fn after_process(mut self, process_id: impl Into<ProcessId>) -> Self {
        self.after_process = Some(process_id.into());
        self
    }

    /// Allows one unfinished job per key.
    pub fn unique(mut self, unique: Unique) -> Self {
        self.options.unique = Some(unique);
        self
    }

    /// Lets it take turns with jobs of other keys.
    pub fn fair_key(mut self, key: impl Into<String>) -> Self {
        self.options.fair_key = Some(key.into());
        self
    }

    /// Sets how often it may fail.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.options.max_attempts = Some(max_attempts);
        self
    }

    /// Sets how often its worker may die under it, in a row and without a checkpoint, before it counts as poison.
    pub fn max_crashes(mut self, max_crashes: u32) -> Self {
        self.options.max_crashes = Some(max_crashes);
        self
    }

    /// Sets the retry policy.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.options.retry = Some(retry);
        self
    }

    /// Sets what happens to the row at the end.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.options.retention = Some(retention);
        self
    }

    /// Adds a label.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.options.tags.push(tag.into());
        self
    }
}
