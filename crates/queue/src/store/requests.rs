//! What the calls about jobs take and answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Filter;
use crate::clock::Timestamp;
use crate::error::Error;
use crate::job::{JobId, Lease, LogLine, NewJob, Progress, WorkerId};
use crate::json::Json;
use crate::state::{Event, JobError, Outcome, Settlement, State};

/// What became of an enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// The stored job: the new one, or the one that was there.
    pub id: JobId,
    /// Its place in submission order.
    pub seq: i64,
    /// Where it stands.
    pub state: State,
    /// What happened.
    pub how: InsertOutcome,
}

/// What an enqueue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InsertOutcome {
    /// A new job.
    Inserted,
    /// The same id with the same content was there.
    Duplicate,
    /// The unique key was taken; the holder is returned.
    Skipped,
    /// The unique key was taken; the holder got the new payload.
    Replaced,
    /// The unique key was taken; the holder's start was pushed back.
    Debounced,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListRequest {
    /// Which jobs.
    pub filter: Filter,
    /// Newest first instead of submission order.
    pub newest_first: bool,
    /// The `seq` that the last page ended with.
    pub cursor: Option<i64>,
    /// At most this many, and at most [`crate::limits::PAGE_MAX`].
    pub limit: usize,
}

/// Some of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page<T> {
    /// These.
    pub items: Vec<T>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<i64>,
    /// The walk was ended by its bound: there are fewer items than asked for, or none, although more may match from
    /// `next` on.
    pub partial: bool,
}

/// How many jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Count {
    /// In this queue.
    pub queue: String,
    /// Of this kind.
    pub kind: String,
    /// In this state.
    pub state: State,
    /// So many.
    pub jobs: u64,
}

/// Which jobs a worker wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRequest {
    /// From these queues, in this order.
    pub queues: Vec<String>,
    /// Of these kinds; `None` takes any.
    pub kinds: Option<Vec<String>>,
    /// For this worker.
    pub worker: WorkerId,
    /// At most this many: as many as can start at once.
    pub limit: usize,
    /// At most this many of them with crashes.
    pub suspects_max: usize,
    /// Lease time.
    pub lease_for: Duration,
    /// Now.
    pub now: Timestamp,
}

/// Leases to renew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtendRequest {
    /// These.
    pub leases: Vec<Lease>,
    /// For this long from now.
    pub lease_for: Duration,
    /// Now.
    pub now: Timestamp,
}

/// What became of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It holds on.
    Extended {
        /// Until then.
        until: Timestamp,
        /// Somebody wants the job to end.
        cancel_requested: bool,
    },
    /// It is gone: stop working on the job.
    Lost,
}

/// What a running job stores on the way.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Save {
    /// New checkpoint; `None` keeps the old one.
    pub data: Option<Json>,
    /// Newest progress.
    pub progress: Option<Progress>,
    /// Further log lines.
    pub log: Vec<LogLine>,
}

/// A settlement with the right to make it.
#[derive(Debug, Clone, PartialEq)]
pub struct SettleItem {
    /// The right.
    pub lease: Lease,
    /// What happens to the job.
    pub settlement: Settlement,
    /// Jobs that the handler enqueued: stored in the same transaction or not at all.
    pub follow_ups: Vec<NewJob>,
}

/// What became of a settlement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The job is in this state now.
    Applied(State),
    /// The lease was stale; nothing changed.
    LostLease,
    /// The follow-up jobs are invalid; nothing changed and the lease still holds.
    Refused(Error),
}

/// Ends a wait.
#[derive(Debug, Clone, PartialEq)]
pub struct UnparkRequest {
    /// Whose.
    pub target: UnparkTarget,
    /// How.
    pub signal: Signal,
    /// Now.
    pub now: Timestamp,
    /// For a retry's delay, drawn from 0..1.
    pub jitter: f64,
}

/// Which parked jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnparkTarget {
    /// Those that wait for this key, also in future.
    Key(String),
    /// These, if they are parked.
    Ids(Vec<JobId>),
    /// These, if they are parked and wait for this key: telling them twice is harmless, and nothing is kept.
    Waiting {
        /// What they wait for.
        key: String,
        /// Who.
        ids: Vec<JobId>,
    },
}

/// The value for a parked job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// Run again, with this value at hand.
    Resume(Json),
    /// It is done, with this result.
    Done(Json),
    /// It failed this time.
    Retry(JobError),
    /// It failed for good.
    Fail(JobError),
}

impl Signal {
    /// The event for [`crate::state::settle`], or the value to resume with.
    pub fn into_event(self) -> Result<Event, Json> {
        match self {
            Self::Resume(value) => Err(value),
            Self::Done(result) => Ok(Event::Outcome(Outcome::Done(result))),
            Self::Retry(error) => Ok(Event::Outcome(Outcome::Retry { error, after: None, data: None })),
            Self::Fail(error) => Ok(Event::Outcome(Outcome::Fail(error))),
        }
    }
}

/// What an unpark did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unparked {
    /// The jobs whose wait ended.
    pub jobs: Vec<JobId>,
    /// The signal is kept for a job that is yet to park.
    pub kept: bool,
}

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "reply", content = "state")]
pub enum CancelReply {
    /// It was waiting and has ended.
    Cancelled,
    /// It is running and has been asked to end.
    Requested,
    /// It had ended before.
    Ended(State),
    /// There is no such job.
    NotFound,
}

/// Jobs to put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRequest {
    /// These.
    pub ids: Vec<JobId>,
    /// With their checkpoint, or from the start.
    pub keep_data: bool,
    /// Now.
    pub now: Timestamp,
}

/// What a delete did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Rows gone.
    pub deleted: u64,
    /// Those that may not go, with the reason.
    pub refused: Vec<(JobId, Error)>,
}

/// Begins the names of records that belong to running processes, and not to what they work on.
pub const LEASE_PREFIX: &str = "lease/";

/// A small value that processes share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts its writes, from 1.
    pub version: u64,
    /// What was written last.
    pub value: Json,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows changed.
    pub changed: u64,
    /// When there will be more to do, as far as known; `Some(now)` or earlier when the limit cut this sweep.
    pub next_at: Option<Timestamp>,
}
