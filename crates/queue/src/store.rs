//! The one seam to storage, in two halves: [`Store`] is what callers ask, [`EngineStore`] what workers, maintenance and
//! transfers need beside that. Batch first; time is an argument; every list has a limit and a cursor; every write after
//! a claim takes the [`Lease`]. A client of a server implements the first half, and all of it.
//!
//! [`crate::memory::MemoryStore`] is the executable form of every rule here, and `testing::conformance` is the suite
//! that any store must pass.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::clock::{Clock, Timestamp};
use crate::error::Result;
use crate::events::EventPage;
use crate::job::{Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId};
use crate::json::Json;
use crate::state::State;

mod admin;
mod export_records;
mod field;
mod filter;
mod forward;
pub mod refusals;
mod requests;
pub mod rules;
mod search;

pub use admin::{
    Firing, LedgerRow, Missed, ProcessInfo, QueueChange, QueueInfo, QueueSettings, Schedule, WorkerInfo,
};
pub use export_records::{EdgePiece, ExportPage, ExportRecord, JobPiece, QueuePiece, UniquePiece};
pub use field::Field;
pub use filter::{Candidate, Filter, FilterMatcher, IdRange, NameForm};
pub use requests::{
    CancelReply, ClaimRequest, Count, Deleted, Enqueued, ExtendRequest, InsertOutcome, LEASE_PREFIX,
    ListRequest, Page, Record, Renewal, RetryRequest, Save, SettleItem, Settled, Signal, Swept,
    UnparkRequest, UnparkTarget, Unparked,
};

/// What callers ask of a store, open in this process or behind a server. A call that fails with [`crate::Error::Unavailable`] may
/// or may not have taken effect; repeating it is safe for every method of both halves.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// What this store is and promises.
    fn caps(&self) -> Caps;

    /// The time that counts for all who share this store, where that is not the machine's: a server's.
    fn clock(&self) -> Option<Arc<dyn Clock>> {
        None
    }

    /// Counts up whenever something in the store may have changed: a reason to look, never proof.
    fn watch(&self) -> watch::Receiver<u64>;

    /// Stores jobs, all or none. Every job has an id; one that is stored already with equal content is left alone,
    /// with other content it is `Invalid`.
    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>>;

    /// The jobs that exist of those asked for, in the order asked.
    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>>;

    /// Jobs by filter in `seq` order. A store may look at a bounded number of jobs for one page: it then answers what it
    /// found, `partial`, with `next` where the walk ended. Whoever goes on from each `next` meets every job that matches
    /// exactly once. [`crate::Queue::list`] goes on by itself.
    async fn list(&self, request: ListRequest) -> Result<Page<Job>>;

    /// Jobs per queue, kind and state, from maintained counters.
    async fn counts(&self) -> Result<Vec<Count>>;

    /// Ends the wait of parked jobs. A signal for a key that nobody waits for yet is kept; the first one counts.
    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked>;

    /// Cancels waiting jobs and asks running ones to end. Answers in the order asked.
    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>>;

    /// Puts failed and cancelled jobs back. Answers in the order asked.
    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>>;

    /// Drops the edges from failed or cancelled parents that hold this job, and releases it when nothing else does.
    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State>;

    /// Changes a job that neither runs nor has succeeded: see [`JobChange::check`]. A claim sees it before or after the change,
    /// never in between. A new payload takes the checkpoint away. What was changed counts when the job is enqueued again.
    async fn edit(&self, id: JobId, change: JobChange, now: Timestamp) -> Result<State>;

    /// Starts a scheduled job now, whatever it waits for: its time, or its next try.
    async fn run_now(&self, id: JobId, now: Timestamp) -> Result<State>;

    /// Ended jobs of a process after `after`, in `seq` order, helpers left out.
    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>>;

    /// Deletes ended jobs for good, and the events that name no other job. Unknown ids are ignored, so repeating it is a
    /// no-op.
    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted>;

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

    /// Workers heard of within [`crate::limits::WORKER_KEPT`], without those that the store knows to be dead.
    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>>;

    /// Events after an id, oldest first; `None` starts with the newest `limit`.
    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage>;
}

/// What workers, maintenance and transfers need beside that, of a store that this process has open itself.
#[async_trait]
pub trait EngineStore: Store {
    /// Runs a task on the thread where [`Store::watch`] hears of changes, if the store has one of its own, and otherwise gives it
    /// back. A task that waits there for a change acts on it without two hops between threads, some 100 µs of a job's pickup.
    fn spawn_on_listener(&self, task: Task) -> Option<Task> {
        Some(task)
    }

    /// This worker lives in this process and dies with it; told once, before it claims. A store that can tell that a process is
    /// dead takes the jobs of its workers back at once; the others, and those of workers that live elsewhere, when their leases
    /// end.
    async fn register_local_worker(&self, _worker: WorkerId) {}

    /// Hands out ready jobs, each under a lease of its own with a raised fence. Queues in the order given; within a queue
    /// fair keys take turns, and the jobs of one key come by priority, `run_at`, `seq`: see [`crate::fairness`]. Expired
    /// jobs are cancelled on the way.
    ///
    /// A worker need not wait for the answer to its [`EngineStore::settle`] before it claims: a claim whose future is first polled
    /// after that of a settle of the same worker sees all that this settle makes ready, save for children that were added while
    /// their parent ran.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>>;

    /// Renews leases. A lease that passed its time but was not rescued is renewed.
    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>>;

    /// Stores a running job's checkpoint, progress and log lines. New data sets `crashes` to 0. `LostLease` when the
    /// job is not this holder's any more.
    async fn save(&self, lease: Lease, save: Save, now: Timestamp) -> Result<()>;

    /// Applies settlements, each with its follow-up jobs, in one transaction; releases and cancels children, takes a
    /// waiting signal for a park. A stale lease changes nothing.
    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>>;

    /// This worker's running jobs that somebody wants to end.
    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>>;

    /// Moves what has become due: scheduled jobs to ready, parked ones as their park says, expired ones to cancelled.
    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// Takes leases away that have expired, or whose worker the store knows to be dead: crashes + 1, and back to the queue
    /// or failed as poison.
    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// Deletes what retention no longer keeps: ended jobs, unique keys, signals, events, workers.
    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept>;

    /// Enqueues a schedule's jobs and moves its next time, in one transaction, if that time is still `expected_at`.
    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool>;

    /// A worker's sign of life; one with `gone` removes it from the list.
    async fn heartbeat(&self, worker: WorkerInfo) -> Result<()>;

    /// Looks whether what is stored is sound, however long that takes: for when an answer does not fit what is counted.
    /// [`crate::Error::Corrupt`] tells what is wrong. A server sees to that itself.
    async fn verify(&self) -> Result<()> {
        Ok(())
    }

    /// Ended jobs per day, queue, kind and state; survives their deletion.
    async fn ledger(&self) -> Result<Vec<LedgerRow>>;

    /// A small value that processes share under a name.
    async fn record(&self, name: String) -> Result<Option<Record>>;

    /// Writes a record if its version is still `expected`, 0 for one that is not there; false when it is not. The new
    /// version is one higher. It wakes nobody. After a lost answer the record itself tells what became of the call.
    async fn put_record(&self, name: String, expected: u64, value: Json) -> Result<bool>;

    /// Everything that lasts, piece by piece, for [`EngineStore::import`] into another store; `after` is the `next` of the page
    /// before. Each piece comes once if nothing is written meanwhile. Events and workers do not last.
    async fn export(&self, after: Option<String>, limit: usize) -> Result<ExportPage>;

    /// Writes pieces as they are into a store that had nothing of them, all or none; a running job is `Invalid`. Pieces
    /// come in the order of an export, in any number of calls; a call that is repeated changes nothing. What comes so is no
    /// event, because nothing has happened to it.
    async fn import(&self, pieces: Vec<ExportRecord>) -> Result<()>;
}

/// Work for [`EngineStore::spawn_on_listener`].
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store is and promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// A word for people, such as `sqlite`.
    pub name: &'static str,
    /// What survives what, in a sentence; printed at start.
    pub durability: String,
    /// What to change at the server whose settings lose more in a crash than they must.
    pub advice: Option<&'static str>,
    /// Whether other processes can use the same data.
    pub shared: bool,
}
