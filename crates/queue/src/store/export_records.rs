//! What a store consists of when it moves to another: see [`crate::EngineStore::export`].

use serde::{Deserialize, Serialize};

use super::{LedgerRow, QueueSettings, Schedule, Signal};
use crate::clock::Timestamp;
use crate::job::{Dependency, Job, JobId, LogLine, NewJob, OnFailure, ProcessId, Progress, Run, Wake};
use crate::json::Json;
use crate::state::{JobError, State};

/// Some of everything.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportPage {
    /// These.
    pub pieces: Vec<ExportRecord>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<String>,
}

/// One thing that lasts. An export gives them in the order of this list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "schedules are few, and a page has 500 pieces at most")]
pub enum ExportRecord {
    /// The highest `seq` ever given out, when there was one.
    LastSeq(i64),
    /// A queue with settings or with fair keys.
    Queue(QueuePiece),
    /// A process that is open for more jobs. The others follow from their jobs.
    OpenProcess(ProcessId),
    /// A job, by `seq`.
    Job(Box<JobPiece>),
    /// A unique key that is taken.
    Unique(UniquePiece),
    /// A signal that is kept.
    Signal {
        /// Its key.
        key: String,
        /// What it tells.
        signal: Signal,
        /// When it is forgotten.
        expires_at: Timestamp,
    },
    /// A schedule.
    Schedule(Schedule),
    /// A line of the ledger.
    Ledger(LedgerRow),
    /// A record.
    Record {
        /// Its name.
        name: String,
        /// Its version.
        version: u64,
        /// Its value.
        value: Json,
    },
}

/// A queue's settings, and where its turns stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePiece {
    /// Its name.
    pub name: String,
    /// What is set.
    #[serde(flatten)]
    pub settings: QueueSettings,
    /// Whose turn it was last, empty for jobs without a key; `None` when the queue never had a fair key.
    pub last_key: Option<String>,
}

/// A job with all that belongs to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPiece {
    /// The job.
    pub job: Job,
    /// Input.
    pub payload: Json,
    /// Checkpoint.
    pub data: Option<Json>,
    /// Output.
    pub result: Option<Json>,
    /// Its parents, in the order given.
    pub edges: Vec<EdgePiece>,
    /// The process it was to wait for.
    pub after_process: Option<ProcessId>,
    /// It still waits for that.
    pub waits_for_process: bool,
    /// What ended the park before the next run.
    pub wake: Option<Wake>,
    /// Past runs, oldest first.
    pub runs: Vec<Run>,
    /// Newest progress report.
    pub progress: Option<Progress>,
    /// Log lines, oldest first.
    pub log: Vec<LogLine>,
    /// When the pruner takes an ended job.
    pub remove_at: Option<Timestamp>,
}

impl JobPiece {
    /// What was handed in, as far as a repeated enqueue is compared with it.
    pub fn submitted(&self) -> NewJob {
        let dependency =
            |edge: &EdgePiece| Dependency { job_id: edge.parent_id, on_failure: edge.on_failure };
        let depends_on = self.edges.iter().map(dependency).collect();
        self.job.submitted(self.payload.clone(), depends_on, self.after_process.clone())
    }
}

/// An edge, with what the parent left to its child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EdgePiece {
    /// The parent.
    pub parent_id: JobId,
    /// Its place; `None` once it is deleted.
    pub parent_seq: Option<i64>,
    /// What its failure does.
    pub on_failure: OnFailure,
    /// Whether the edge is satisfied.
    pub satisfied: bool,
    /// How the parent ended; `None` while it has not.
    pub ended: Option<State>,
    /// Its result.
    pub result: Option<Json>,
    /// Why it did not succeed.
    pub error: Option<JobError>,
}

/// Who holds a unique key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniquePiece {
    /// The key's queue.
    pub queue: String,
    /// The key's kind.
    pub kind: String,
    /// The key.
    pub key: String,
    /// The holder.
    pub job_id: JobId,
    /// Its place.
    pub seq: i64,
    /// How the holder ended; `None` while it has not.
    pub ended: Option<State>,
    /// End of the window.
    pub taken_until: Option<Timestamp>,
}
