//! The in-memory store: the executable specification. One lock, plain collections, and each verb in a file of its
//! own, so that a rule can be read where it acts. It promises nothing across a restart.
//!
//! Rules that are settled here because no document says them:
//! - `waits_for` is the number of unsatisfied edges, and one more for the process, in every state. A satisfied edge
//!   never changes again; an unsatisfied one learns of its parent's end even when the child has ended.
//! - A cascade goes breadth first, children by `seq`; a cancelled child's error names the parent it fell with.
//! - Follow-ups are inserted before their job's settlement is applied, so that they belong to the process before it
//!   can be done. When a cancel request turns the settlement into `cancelled`, they are dropped.
//! - A job whose unique key is taken is not stored, so a child that names it in the same submission is refused.
//!   Within a submission, keys are given out in order, and a member counts as waiting whatever its parents do to it.
//! - A repeated enqueue is compared with what was handed in, not with what became of it.
//! - An edge leads to the very job that had the parent's id when the child was enqueued. Once that is deleted, a new
//!   job of the same id is not the child's parent.
//! - The value of a signal stays at hand over a crash and a release, until a run has answered.
//! - Promotion cancels what has expired first, then moves the rest; each by time, then `seq`. A claim looks at what
//!   was ready when it came to a queue, and cancels those expired ones that it could have handed out: a suspect too
//!   many is left to the promoter.
//! - `retry` starts the job now, and forgets an `expires_at` that has passed. A revived child keeps its `run_at`.
//! - A key is asked for when it is needed: a window that has passed frees it, also before the pruner comes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::events::EventPage;
use crate::job::{Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId};
use crate::json::Json;
use crate::state::State;
use crate::store::{
    CancelReply, Caps, ClaimRequest, Count, Deleted, EngineStore, Enqueued, ExportPage, ExportRecord,
    ExtendRequest, Firing, LedgerRow, ListRequest, Page, ProcessInfo, QueueChange, QueueInfo, Record,
    Renewal, RetryRequest, Save, Schedule, SettleItem, Settled, Store, Swept, UnparkRequest, Unparked,
    WorkerInfo,
};

mod admin;
mod claim;
mod export;
mod graph;
mod insert;
mod read;
mod revive;
mod settle;
mod sweep;
mod tables;

use tables::Tables;

/// A store that lives and dies with its process.
pub struct MemoryStore {
    tables: Mutex<Tables>,
    changes: watch::Sender<u64>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self { tables: Mutex::default(), changes: watch::Sender::new(0) }
    }

    /// A panic under the lock leaves a row half changed at worst in a test that fails anyway.
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one call as one transaction: one event, one notice to the watchers.
    fn write<T>(&self, now: Timestamp, call: impl FnOnce(&mut Tables) -> T) -> T {
        let mut tables = self.lock();
        let reply = call(&mut tables);
        let touched = tables.publish(now);
        drop(tables);
        if touched {
            self.changes.send_modify(|changes| *changes += 1);
        }
        reply
    }

    /// A call that changes settings, and no job's state.
    fn set<T>(&self, call: impl FnOnce(&mut Tables) -> T) -> T {
        self.write(Timestamp::default(), |tables| {
            tables.touched = true;
            call(tables)
        })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn caps(&self) -> Caps {
        Caps {
            name: "memory",
            durability: "nothing survives the end of the process".to_owned(),
            advice: None,
            shared: false,
        }
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
        self.write(now, |tables| tables.insert(jobs, now))
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        Ok(self.lock().get(&ids))
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        Ok(self.lock().list(&request))
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        Ok(self.lock().counts())
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        Ok(self.write(request.now, |tables| tables.unpark(request)))
    }

    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>> {
        Ok(self.write(now, |tables| tables.cancel(&ids, now)))
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        Ok(self.write(request.now, |tables| tables.retry(&request)))
    }

    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State> {
        self.write(now, |tables| tables.unhold(id, now))
    }

    async fn edit(&self, id: JobId, change: JobChange, now: Timestamp) -> Result<State> {
        self.write(now, |tables| tables.edit(id, change))
    }

    async fn run_now(&self, id: JobId, now: Timestamp) -> Result<State> {
        self.write(now, |tables| tables.run_now(id, now))
    }

    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        Ok(self.lock().results(&process_id, after, limit))
    }

    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted> {
        Ok(self.set(|tables| tables.delete(&ids)))
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        Ok(self.lock().queues())
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        self.set(|tables| tables.set_queue(change));
        Ok(())
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        Ok(self.lock().processes(after.as_ref(), limit))
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        Ok(self.lock().process(&id))
    }

    async fn seal(&self, id: ProcessId, sealed: bool, now: Timestamp) -> Result<()> {
        self.write(now, |tables| tables.seal(&id, sealed, now));
        Ok(())
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        Ok(self.lock().schedules.values().cloned().collect())
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        self.set(|tables| tables.schedules.insert(schedule.name.clone(), schedule));
        Ok(())
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        Ok(self.set(|tables| tables.schedules.remove(&name).is_some()))
    }

    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>> {
        Ok(self.lock().workers(now))
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        Ok(self.lock().events(after, limit))
    }
}

#[async_trait]
impl EngineStore for MemoryStore {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>> {
        Ok(self.write(request.now, |tables| tables.claim(&request)))
    }

    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>> {
        Ok(self.write(request.now, |tables| tables.extend(&request)))
    }

    async fn save(&self, lease: Lease, save: Save, now: Timestamp) -> Result<()> {
        self.write(now, |tables| tables.save(&lease, save))
    }

    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
        Ok(self.write(now, |tables| tables.settle(items, now)))
    }

    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>> {
        Ok(self.lock().cancelling(&worker))
    }

    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        Ok(self.write(now, |tables| tables.promote_due(now, limit)))
    }

    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        Ok(self.write(now, |tables| tables.rescue_expired(now, limit)))
    }

    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        Ok(self.write(now, |tables| tables.prune(now, limit)))
    }

    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool> {
        self.write(now, |tables| tables.fire(firing, now))
    }

    async fn heartbeat(&self, worker: WorkerInfo) -> Result<()> {
        self.write(worker.seen_at, |tables| tables.heartbeat(worker));
        Ok(())
    }

    async fn ledger(&self) -> Result<Vec<LedgerRow>> {
        Ok(self.lock().ledger())
    }

    async fn record(&self, name: String) -> Result<Option<Record>> {
        Ok(self.lock().records.get(&name).cloned())
    }

    async fn put_record(&self, name: String, expected: u64, value: Json) -> Result<bool> {
        Ok(self.lock().put_record(name, expected, value))
    }

    async fn export(&self, after: Option<String>, limit: usize) -> Result<ExportPage> {
        self.lock().export(after.as_deref(), limit)
    }

    async fn import(&self, pieces: Vec<ExportRecord>) -> Result<()> {
        self.set(|tables| tables.import(pieces))
    }
}
