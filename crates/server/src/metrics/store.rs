//! A store whose calls are measured.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use longhaul_queue::events::EventPage;
use longhaul_queue::job::{
    Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId,
};
use longhaul_queue::json::Json;
use longhaul_queue::store::{
    CancelReply, Caps, ClaimRequest, Count, Deleted, Enqueued, ExportPage, ExtendRequest, Firing, LedgerRow,
    ListRequest, Page, Piece, ProcessInfo, QueueChange, QueueInfo, Record, Renewal, RetryRequest, Save,
    Schedule, SettleItem, Settled, Swept, UnparkRequest, Unparked, WorkerInfo,
};
use longhaul_queue::{Clock, Result, State, Store, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Meters;

/// Measures what passes through.
pub struct MeteredStore {
    inner: Arc<dyn Store>,
    meters: Arc<Meters>,
}

impl MeteredStore {
    /// Measures a store.
    pub fn new(inner: Arc<dyn Store>, meters: Arc<Meters>) -> Self {
        Self { inner, meters }
    }

    fn called<T>(&self, name: &'static str, started: Instant, reply: &Result<T>) {
        let unavailable = reply.as_ref().is_err_and(longhaul_queue::Error::is_transient);
        self.meters.called(name, started.elapsed(), unavailable);
    }
}

/// Forwards each call and measures it; `seen` is what else is learnt from it.
macro_rules! measured {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $reply:ty $(, before $before:ident = $look:expr)? $(, seen $seen:expr)?;)*) => {
        #[async_trait]
        impl Store for MeteredStore {
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
                self.inner.runtime()
            }

            $(async fn $name(&self, $($argument: $type),*) -> Result<$reply> {
                $(let $before = $look;)?
                let started = Instant::now();
                let reply = self.inner.$name($($argument),*).await;
                self.called(stringify!($name), started, &reply);
                $(if let Ok(reply) = &reply {
                    let seen: &(dyn Fn(&Meters, &$reply) + Sync) = &$seen;
                    seen(&self.meters, reply);
                })?
                reply
            })*
        }
    };
}

measured! {
    fn insert(jobs: Vec<NewJob>, now: Timestamp) -> Vec<Enqueued>, seen |meters, jobs| meters.enqueued(jobs);
    fn get(ids: Vec<JobId>) -> Vec<JobDetail>;
    fn list(request: ListRequest) -> Page<Job>;
    fn counts() -> Vec<Count>;
    fn claim(request: ClaimRequest) -> Vec<Claimed>, before now = request.now, seen move |meters, jobs| meters.claimed(jobs, now);
    fn extend(request: ExtendRequest) -> Vec<Renewal>;
    fn save(lease: Lease, save: Save, now: Timestamp) -> ();
    fn settle(items: Vec<SettleItem>, now: Timestamp) -> Vec<Settled>, before ends = Meters::ends(&items), seen |meters, replies| meters.settled(&ends, replies, now);
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
    fn rescue_expired(now: Timestamp, limit: usize) -> Swept, seen |meters, swept| meters.rescued(swept.changed);
    fn prune(now: Timestamp, limit: usize) -> Swept;
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
