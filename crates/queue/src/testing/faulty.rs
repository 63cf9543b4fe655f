//! A store that fails on demand: at a given call, before it was carried out or after. The second is the nasty one,
//! where the caller cannot know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::clock::{Clock, Timestamp};
use crate::error::{Error, Result};
use crate::events::EventPage;
use crate::job::{Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId};
use crate::json::Json;
use crate::state::State;
use crate::store::{
    CancelReply, Caps, ClaimRequest, Count, Deleted, Enqueued, ExportPage, ExtendRequest, Firing, LedgerRow,
    ListRequest, Page, Piece, ProcessInfo, QueueChange, QueueInfo, Record, Renewal, RetryRequest, Save,
    Schedule, SettleItem, Settled, Store, Swept, UnparkRequest, Unparked, WorkerInfo,
};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is not carried out.
    Before,
    /// It is carried out, and its reply is lost.
    After,
}

/// A store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    runtime: Option<Handle>,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    faults: HashMap<u64, Fault>,
}

impl FaultyStore {
    /// A store that works until told otherwise.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        let runtime = inner.runtime();
        Self { inner, plan: Mutex::default(), runtime }
    }

    /// One that hears of changes on a runtime of its own, as a server's store does.
    #[must_use]
    pub fn hearing_on(self, runtime: Handle) -> Self {
        Self { runtime: Some(runtime), ..self }
    }

    /// Lets call `number` fail with `Unavailable`, counted from 1 over all async methods.
    pub fn fail_call(&self, number: u64, fault: Fault) {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).faults.insert(number, fault);
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).calls
    }

    /// Counts a call and says what is to become of it.
    fn count(&self) -> Option<Fault> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.calls += 1;
        let number = plan.calls;
        plan.faults.remove(&number)
    }
}

macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {
        #[async_trait]
        impl Store for FaultyStore {
            fn caps(&self) -> Caps {
                self.inner.caps()
            }

            fn clock(&self) -> Option<Arc<dyn Clock>> {
                self.inner.clock()
            }

            fn watch(&self) -> watch::Receiver<u64> {
                self.inner.watch()
            }

            async fn lives_here(&self, worker: WorkerId) {
                self.inner.lives_here(worker).await;
            }

            fn runtime(&self) -> Option<Handle> {
                self.runtime.clone()
            }

            $(async fn $name(&self, $($argument: $type),*) -> Result<$reply> {
                let fault = self.count();
                if fault == Some(Fault::Before) {
                    return Err(Error::Unavailable(concat!(stringify!($name), " was not carried out").to_owned()));
                }
                let reply = self.inner.$name($($argument),*).await;
                if fault == Some(Fault::After) {
                    return Err(Error::Unavailable(concat!("the reply of ", stringify!($name), " is lost").to_owned()));
                }
                reply
            })*
        }
    };
}

forward! {
    fn insert(jobs: Vec<NewJob>, now: Timestamp) -> Vec<Enqueued>;
    fn get(ids: Vec<JobId>) -> Vec<JobDetail>;
    fn list(request: ListRequest) -> Page<Job>;
    fn counts() -> Vec<Count>;
    fn claim(request: ClaimRequest) -> Vec<Claimed>;
    fn extend(request: ExtendRequest) -> Vec<Renewal>;
    fn save(lease: Lease, save: Save, now: Timestamp) -> ();
    fn settle(items: Vec<SettleItem>, now: Timestamp) -> Vec<Settled>;
    fn unpark(request: UnparkRequest) -> Unparked;
    fn cancel(ids: Vec<JobId>, now: Timestamp) -> Vec<CancelReply>;
    fn cancelling(worker: WorkerId) -> Vec<JobId>;
    fn retry(request: RetryRequest) -> Vec<Result<State>>;
    fn unhold(id: JobId, now: Timestamp) -> State;
    fn edit(id: JobId, change: JobChange, now: Timestamp) -> State;
    fn run_now(id: JobId, now: Timestamp) -> State;
    fn results(process_id: ProcessId, after: i64, limit: usize) -> Page<JobResult>;
    fn delete(ids: Vec<JobId>) -> Deleted;
    fn promote_due(now: Timestamp, limit: usize) -> Swept;
    fn rescue_expired(now: Timestamp, limit: usize) -> Swept;
    fn prune(now: Timestamp, limit: usize) -> Swept;
    fn verify() -> ();
    fn queues() -> Vec<QueueInfo>;
    fn set_queue(change: QueueChange) -> ();
    fn processes(after: Option<ProcessId>, limit: usize) -> Vec<ProcessInfo>;
    fn process(id: ProcessId) -> Option<ProcessInfo>;
    fn seal(id: ProcessId, sealed: bool, now: Timestamp) -> ();
    fn schedules() -> Vec<Schedule>;
    fn put_schedule(schedule: Schedule) -> ();
    fn delete_schedule(name: String) -> bool;
    fn fire(firing: Firing, now: Timestamp) -> bool;
    fn beat(worker: WorkerInfo) -> ();
    fn workers(now: Timestamp) -> Vec<WorkerInfo>;
    fn events(after: Option<u64>, limit: usize) -> EventPage;
    fn ledger() -> Vec<LedgerRow>;
    fn record(name: String) -> Option<Record>;
    fn put_record(name: String, expected: u64, value: Json) -> bool;
    fn export(after: Option<String>, limit: usize) -> ExportPage;
    fn import(pieces: Vec<Piece>) -> ();
}
