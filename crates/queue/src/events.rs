//! What has changed, for people and pages. Events are hints, never the source of truth: they are coalesced and
//! only the newest are kept, and a reader that fell behind is told to look afresh.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{JobId, ProcessId, Progress};
use crate::state::State;

/// What one commit of the store changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number; rising, without reuse.
    pub id: u64,
    /// When.
    pub at: Timestamp,
    /// The first [`crate::limits::EVENT_CHANGES_MAX`] changes.
    pub changes: Vec<Change>,
    /// How many more there were.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

/// One job's change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The job.
    pub job_id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// Where it stands now.
    pub state: State,
    /// How far it has come, when that is the news.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// Events after a cursor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventPage {
    /// Oldest first.
    pub events: Vec<Event>,
    /// Events after the cursor are gone: read the state afresh.
    pub resync: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
