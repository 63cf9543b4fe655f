//! The one seam to storage. Batch first; time is an argument; every list has a limit and a cursor; every write after
//! a claim takes the [`Lease`]. What a store cannot do is a field of [`Caps`], not a second trait.
//!
//! [`crate::memory::MemoryStore`] is the executable form of every rule here, and `testing::conformance` is the suite
//! that any store must pass.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::events::EventPage;
use crate::job::{
    Claimed, Job, JobDetail, JobId, JobResult, Lease, LogLine, NewJob, ProcessId, Progress, Retention,
    WorkerId,
};
use crate::json::Json;
use crate::state::{Event, JobError, Outcome, Settlement, State};

/// Storage for jobs. A call that fails with [`Error::Unavailable`] may or may not have taken effect; repeating it is
/// safe for every method.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store is and promises.
    fn caps(&self) -> Caps;

    /// Changes whenever something in the store may have changed: a reason to look, never proof.
    fn watch(&self) -> watch::Receiver<u64>;

    /// Stores jobs, all or none. Every job has an id; one that is stored already with equal content is left alone,
    /// with other content it is `Invalid`.
    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>>;

    /// The jobs that exist of those asked for, in the order asked.
    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>>;

    /// Jobs by filter in `seq` order.
    async fn list(&self, request: ListRequest) -> Result<Page<Job>>;

    /// Jobs per queue, kind and state, from maintained counters.
    async fn counts(&self) -> Result<Vec<Count>>;

    /// Hands out ready jobs, each under a lease of its own with a raised fence. Order within a queue: priority,
    /// `run_at`, `seq`; queues in the order given. Expired jobs are cancelled on the way.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>>;

    /// Renews leases. A lease that passed its time but was not rescued is renewed.
    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>>;

    /// Stores a running job's checkpoint, progress and log lines. New data sets `crashes` to 0. `LostLease` when the
    /// job is not this holder's any more.
    async fn save(&self, lease: Lease, save: Save, now: Timestamp) -> Result<()>;

    /// Applies settlements, each with its follow-up jobs, in one transaction; releases and cancels children, takes a
    /// waiting signal for a park. A stale lease changes nothing.
    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>>;

    /// Ends the wait of parked jobs. A signal for a key that nobody waits for yet is kept; the first one counts.
    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked>;

    /// Cancels waiting jobs and asks running ones to end. Answers in the order asked.
    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>>;

    /// This worker's running jobs that somebody wants to end.
    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>>;

    /// Puts failed and cancelled jobs back. Answers in the order asked.
    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>>;

    /// Drops the edges from failed or cancelled parents that hold this job, and releases it when nothing else does.
    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State>;

    /// Ended jobs of a process after `after`, in `seq` order, helpers left out.
    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>>;

    /// Deletes ended jobs for good. Unknown ids are ignored, so repeating it is a no-op.
    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted>;

    /// Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.
    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// Takes expired leases away: crashes + 1, and back to the queue or failed as poison.
    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// Deletes what retention no longer keeps: ended jobs, unique keys, signals, events, workers.
    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// All queues with settings and counts: those with jobs and those with settings.
    async fn queues(&self) -> Result<Vec<QueueInfo>>;

    /// Changes a queue's settings.
    async fn set_queue(&self, change: QueueChange) -> Result<()>;

    /// Processes by id after `after`.
    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>>;

    /// One process; `None` when it has no jobs.
    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>>;

    /// Opens a process for more jobs (`sealed: false`, also before its first) or seals it.
    async fn seal(&self, id: ProcessId, sealed: bool, now: Timestamp) -> Result<()>;

    /// All schedules by name.
    async fn schedules(&self) -> Result<Vec<Schedule>>;

    /// Adds or replaces a schedule.
    async fn put_schedule(&self, schedule: Schedule) -> Result<()>;

    /// Removes a schedule; false when there was none.
    async fn delete_schedule(&self, name: String) -> Result<bool>;

    /// Enqueues a schedule's jobs and moves its next time, in one transaction, if that time is still `expected_at`.
    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool>;

    /// A worker's sign of life; one with `gone` removes it from the list.
    async fn beat(&self, worker: WorkerInfo) -> Result<()>;

    /// Workers heard of within [`crate::limits::WORKER_KEPT`].
    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>>;

    /// Events after an id, oldest first; `None` starts with the newest `limit`.
    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage>;

    /// Ended jobs per day, queue, kind and state; survives their deletion.
    async fn ledger(&self) -> Result<Vec<LedgerRow>>;
}

/// What a store is and promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Caps {
    /// A word for people, such as `sqlite`.
    pub name: &'static str,
    /// What survives what, in a sentence; printed at start.
    pub durability: String,
    /// Whether a caller's own tables can commit together with jobs.
    pub transactional_enqueue: bool,
    /// Whether other processes can use the same data.
    pub shared: bool,
}

/// What became of an enqueued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The stored job: the new one, or the one that was there.
    pub id: JobId,
    /// Its place in submission order.
    pub seq: i64,
    /// Where it stands.
    pub state: State,
    /// What happened.
    pub how: How,
}

/// What an enqueue did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
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

/// Which jobs to list, cancel, retry or delete. All given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these; empty means all.
    pub states: Vec<State>,
    /// The queue.
    pub queue: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The process.
    pub process_id: Option<ProcessId>,
    /// A tag it carries.
    pub tag: Option<String>,
    /// Text in the payload, title or error, or the start of the id.
    pub search: Option<String>,
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
}

/// How many jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
}

/// What a parked job is told.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
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

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows changed.
    pub changed: u64,
    /// When there will be more to do, as far as known; `Some(now)` or earlier when the limit cut this sweep.
    pub next_at: Option<Timestamp>,
}

/// A queue's settings and counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueInfo {
    /// Its name.
    pub name: String,
    /// Nothing is claimed from it.
    pub paused: bool,
    /// At most so many of its jobs run at once, over all workers.
    pub max_running: Option<u32>,
    /// For jobs that name none.
    pub retention: Option<Retention>,
    /// Jobs by state, in the order of [`State::ALL`].
    pub counts: [u64; 8],
}

/// A change of a queue's settings; `None` leaves a setting alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueChange {
    /// Its name.
    pub name: String,
    /// Pause or resume.
    pub paused: Option<bool>,
    /// Set or lift the limit.
    pub max_running: Option<Option<u32>>,
    /// Set or lift the rule.
    pub retention: Option<Option<Retention>>,
}

/// A process and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessInfo {
    /// Its id.
    pub id: ProcessId,
    /// No more jobs are expected.
    pub sealed: bool,
    /// Its jobs by state, in the order of [`State::ALL`], helpers left out.
    pub counts: [u64; 8],
    /// Its helpers by state.
    pub helpers: [u64; 8],
}

impl ProcessInfo {
    /// Jobs in all, helpers left out.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Jobs that have not ended, helpers left out.
    pub fn unfinished(&self) -> u64 {
        State::ALL
            .iter()
            .zip(self.counts)
            .filter(|(state, _)| !state.is_terminal())
            .map(|(_, count)| count)
            .sum()
    }
}

/// A job that recurs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub name: String,
    /// Cron expression: five fields, or six with seconds first.
    pub cron: String,
    /// IANA time zone in which the expression is read.
    pub timezone: String,
    /// What to enqueue.
    pub job: NewJob,
    /// What happens to times that passed while nobody looked.
    pub missed: Missed,
    /// The next time.
    pub next_at: Timestamp,
    /// When it fired last.
    pub last_at: Option<Timestamp>,
}

/// What happens to times that passed while nobody looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    Skip,
    /// One job for all of them.
    #[default]
    Once,
    /// A job for each, at most [`crate::limits::CRON_CATCH_UP_MAX`].
    All,
}

/// A schedule that fires.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// Its name.
    pub name: String,
    /// The next time as the caller read it.
    pub expected_at: Timestamp,
    /// The next time from now on.
    pub next_at: Timestamp,
    /// What to enqueue.
    pub jobs: Vec<NewJob>,
}

/// A worker as others see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Random per start.
    pub id: WorkerId,
    /// A label.
    pub host: String,
    /// A label.
    pub pid: u32,
    /// Of the program.
    pub version: String,
    /// What it serves.
    pub queues: Vec<String>,
    /// What it serves; `None` is any kind.
    pub kinds: Option<Vec<String>>,
    /// Slots.
    pub concurrency: u32,
    /// Slots in use.
    pub running: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it was heard of last.
    pub seen_at: Timestamp,
    /// It says goodbye.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// Jobs that ended on a day.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LedgerRow {
    /// Days since the Unix epoch, UTC.
    pub day: i64,
    /// In this queue.
    pub queue: String,
    /// Of this kind.
    pub kind: String,
    /// As this.
    pub state: State,
    /// So many.
    pub jobs: u64,
}
