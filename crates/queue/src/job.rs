//! What a job is. Plain data; everything may import this file, and it knows no store.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::json::Json;
use crate::state::{JobError, Park, RunOutcome, Spent, State};

mod change;
mod new_job;
mod options;

pub use change::JobChange;
pub use new_job::NewJob;
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

    /// When its state last changed. A store keeps `moved_at` for a job that waits; of others, their run or their end tells.
    pub fn last_change(&self, moved_at: Option<Timestamp>) -> Timestamp {
        let changed_at = match self.state {
            State::Blocked | State::Scheduled | State::Ready | State::Parked => moved_at,
            State::Running => self.started_at,
            State::Succeeded | State::Failed | State::Cancelled => self.finished_at,
        };
        changed_at.unwrap_or(self.created_at)
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
