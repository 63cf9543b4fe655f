//! What a job is. Plain data; everything may import this file, and it knows no store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::retry::RetryPolicy;
use crate::state::{JobError, Park, RunOutcome, Spent, State};

mod change;
mod options;

pub use change::JobChange;
pub use options::{Dependency, JobOptions, OnFailure, Removal, Retention, Unique, UniquePolicy, Window};

/// The queue of a job that names none.
pub const DEFAULT_QUEUE: &str = "default";

/// Identity of a job: a UUIDv7, so that ids sort roughly by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);

impl JobId {
    /// A fresh id; `random` fills all bits that time does not.
    pub fn generate(now: Timestamp, random: u128) -> Self {
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        let bytes = random.to_be_bytes();
        let mut tail = [0; 10];
        tail.copy_from_slice(&bytes[..10]);
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &tail).into_uuid())
    }

    /// The random bits of the id that follows one made from `random`.
    pub fn next_random(random: u128) -> u128 {
        // The last of the ten bytes that `generate` takes counts up.
        random.wrapping_add(1 << 48)
    }

    /// From its 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// Its 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text)
            .map(Self)
            .map_err(|_| Error::invalid(format!("{text:?} is not a job id (a UUID such as 0198c5a2-…)")))
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps a name; bounds are checked at enqueue.
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self::new(name)
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name)
            }
        }
    };
}

name_type! {
    /// A group of jobs of one caller: results, progress and deletion go by it.
    ProcessId
}
name_type! {
    /// One start of one worker process. Random, so that a restart on the same host is somebody else.
    WorkerId
}

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

/// A stored job, without its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Identity.
    pub id: JobId,
    /// Submission order within the store; never reused.
    pub seq: i64,
    /// Lane.
    pub queue: String,
    /// Handler.
    pub kind: String,
    /// Where it stands.
    pub state: State,
    /// Group.
    pub process_id: Option<ProcessId>,
    /// Not among its process's results.
    pub helper: bool,
    /// Lower runs first.
    pub priority: i32,
    /// Earliest start; written by enqueue and settle.
    pub run_at: Timestamp,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When its state last changed.
    pub updated_at: Timestamp,
    /// When the newest run began; written by claim.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Cancelled if it has not started by then.
    pub expires_at: Option<Timestamp>,
    /// Failures, crashes and the other budgets so far.
    pub spent: Spent,
    /// Raised by each claim and by nothing else.
    pub fence: u64,
    /// Until when the lease holds, while running.
    pub lease_until: Option<Timestamp>,
    /// Who runs it, or ran it last.
    pub worker: Option<WorkerId>,
    /// A running job that is being cancelled.
    pub cancel_requested: bool,
    /// Dependencies not yet satisfied.
    pub waits_for: u32,
    /// What it waits for while parked.
    pub park: Option<Park>,
    /// Why it failed, was cancelled, or failed last.
    pub error: Option<JobError>,
    /// Settings given at enqueue.
    pub options: JobOptions,
}

impl Job {
    /// What would have to be handed in for it.
    pub fn submitted(
        &self,
        payload: Json,
        depends_on: Vec<Dependency>,
        after_process: Option<ProcessId>,
    ) -> NewJob {
        NewJob {
            id: Some(self.id),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            payload,
            process_id: self.process_id.clone(),
            helper: self.helper,
            priority: self.priority,
            run_at: None,
            expires_at: self.expires_at,
            depends_on,
            after_process,
            options: self.options.clone(),
        }
    }
}

/// A stored job with everything known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobDetail {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// Input.
    pub payload: Json,
    /// Checkpoint.
    pub data: Option<Json>,
    /// Output.
    pub result: Option<Json>,
    /// Parents, in the order given.
    pub depends_on: Vec<ParentStatus>,
    /// The process it waits for.
    pub after_process: Option<ProcessId>,
    /// Past runs, oldest first, at most [`crate::limits::RUNS_KEPT_MAX`].
    pub runs: Vec<Run>,
    /// Newest progress report.
    pub progress: Option<Progress>,
    /// Log lines, oldest first, at most [`crate::limits::LOG_LINES_MAX`].
    pub log: Vec<LogLine>,
}

/// A parent as its child sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParentStatus {
    /// The parent.
    pub job_id: JobId,
    /// The edge's policy.
    pub on_failure: OnFailure,
    /// Whether the edge is satisfied.
    pub satisfied: bool,
    /// How the parent ended; `None` while it has not.
    pub ended: Option<State>,
}

/// A parent's end, copied to the child when the parent settled.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParentResult {
    /// The parent.
    pub job_id: JobId,
    /// How it ended.
    pub state: State,
    /// Its result, when it succeeded.
    pub result: Option<Json>,
    /// Why it did not succeed, whether its handler, a limit, a crash or a person ended it.
    pub error: Option<JobError>,
}

/// One past run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The fence of that run.
    pub fence: u64,
    /// Who ran it.
    pub worker: WorkerId,
    /// Claimed at.
    pub started_at: Timestamp,
    /// Settled or rescued at.
    pub ended_at: Timestamp,
    /// How it ended.
    pub outcome: RunOutcome,
    /// What went wrong.
    pub error: Option<JobError>,
    /// What it used, as the handler reported it.
    pub usage: Option<Json>,
}

/// How far a run has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Total number of units, when known.
    pub total: Option<u64>,
    /// A word for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<String>,
    /// When it was reported.
    pub at: Timestamp,
}

/// A line that a handler logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When.
    pub at: Timestamp,
    /// What.
    pub text: String,
}

/// Who may write a running job's outcome. Every write after a claim carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub job_id: JobId,
    /// Its place in the store, so that the guard needs no look-up.
    pub seq: i64,
    /// The claim's number; a newer claim has a higher one.
    pub fence: u64,
    /// The holder.
    pub worker: WorkerId,
    /// Until when it holds unless extended.
    pub until: Timestamp,
}

/// A job that a claim handed out.
#[derive(Debug, Clone, PartialEq)]
pub struct Claimed {
    /// The job, as it is now: running.
    pub job: Job,
    /// The right to settle it.
    pub lease: Lease,
    /// Input.
    pub payload: Json,
    /// Checkpoint of an earlier run.
    pub data: Option<Json>,
    /// Parents' results, in the order of `depends_on`.
    pub parents: Vec<ParentResult>,
    /// What ended the park before this run.
    pub wake: Option<Wake>,
}

/// What ended a park.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// A signal with a value.
    Signal(Json),
    /// Nothing came in time.
    TimedOut,
}

/// An ended job of a process, for its owner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// The job.
    pub id: JobId,
    /// Its place in submission order; the cursor of the next page.
    pub seq: i64,
    /// Its kind.
    pub kind: String,
    /// How it ended.
    pub state: State,
    /// Its result, when it succeeded.
    pub result: Option<Json>,
    /// Why it did not.
    pub error: Option<JobError>,
}
