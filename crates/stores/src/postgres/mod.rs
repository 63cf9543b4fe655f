//! Postgres: one schema of one database, many processes on many machines.
//!
//! Reading order: `migrations/` (the tables and why), `db` (transactions: what runs side by side and what runs alone),
//! `pool`, `tls` and `listener` (connections), `server_time` (whose clock counts), `tx` and `totals` (bookkeeping that
//! every change carries), `fold`, then a file per verb: `insert` (with `plain`, `group` and `transaction`), `take` (the
//! usual claim, one trip) and `claim` (the others, with `turns`), `save`, `settle` (with `updates` and `done`), `graph`,
//! `process`, `unique`, `admin`, `revive`, `delete`, `sweep`, `settings`, `records`, `read`, `list` (with `ways`, the
//! indexes that a list may go by), `export` and `import`.
//!
//! Connections are encrypted as the URL says (`tls`). A connection pooler that hands out connections per transaction cannot
//! stand in between, because statements are prepared and one connection listens.

mod admin;
mod claim;
mod claim_fast;
mod columns;
mod db;
mod delete;
mod error;
mod export;
mod fairness;
mod fold;
mod graph;
mod group;
mod import;
mod insert;
mod insert_fast;
mod list;
mod list_plan;
mod listener;
mod pool;
mod process;
mod read;
mod records;
mod revive;
mod rows;
mod save;
mod server_time;
mod settings;
mod settle;
mod settle_fast;
mod sweep;
mod tls;
mod totals;
mod transaction;
mod tx;
mod unique;
mod updates;
mod url;

use std::sync::Arc;

use async_trait::async_trait;
use longhaul_queue::events::EventPage;
use longhaul_queue::job::{
    Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId,
};
use longhaul_queue::store::{
    CancelReply, Caps, ClaimRequest, Count, Deleted, Enqueued, ExportPage, ExportRecord, ExtendRequest,
    Firing, LedgerRow, ListRequest, Page, ProcessInfo, QueueChange, QueueInfo, Record, Renewal, RetryRequest,
    Save, Schedule, SettleItem, Settled, Swept, Task, UnparkRequest, Unparked, WorkerInfo,
};
use longhaul_queue::{Clock, EngineStore, Json, Result, State, Store, Timestamp};
use tokio::sync::watch;

pub use db::PostgresOptions;
use db::{Db, Mode, transact};
pub use url::PostgresUrl;

use crate::insert_batcher::{self, Part};

/// Jobs in a Postgres schema. Cheap to clone.
#[derive(Clone)]
pub struct PostgresStore {
    db: Arc<Db>,
}

impl PostgresStore {
    /// Connects and brings the schema up to date. A thread of the store serves its connections.
    pub async fn open(url: &PostgresUrl, options: PostgresOptions) -> Result<Self> {
        Ok(Self { db: Arc::new(Db::open(url, options).await?) })
    }

    /// Makes a call on the thread of the connections, where the answer comes in: the rows of hundreds of jobs would wake another
    /// thread dozens of times. A caller that goes away does not end it.
    async fn served<T, F>(&self, call: impl FnOnce(Arc<Db>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.db.pool.io().spawn(call(Arc::clone(&self.db))).await {
            Ok(answer) => answer,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(db::gone()),
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn caps(&self) -> Caps {
        self.db.caps().clone()
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        self.db.server_clock()
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.db.watch()
    }

    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
        if insert_batcher::is_small(&jobs) {
            return insert_batcher::enqueue(&self.db, self.db.pool.io(), Part { jobs, now }).await;
        }
        let alone = jobs.iter().any(insert_batcher::reaches_out);
        let mode = if alone { Mode::Alone } else { Mode::Shared };
        transact!(self.db, mode, now, |tx| insert::insert(tx, &jobs, now))
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| read::get(tx, &ids))
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| list::list(tx, &request))
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| read::counts(tx))
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        transact!(self.db, Mode::Alone, request.now, |tx| admin::unpark(tx, &request))
    }

    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>> {
        transact!(self.db, Mode::Alone, now, |tx| admin::cancel(tx, &ids, now))
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        transact!(self.db, Mode::Alone, request.now, |tx| revive::retry(tx, &request))
    }

    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State> {
        transact!(self.db, Mode::Alone, now, |tx| admin::unhold(tx, id, now))
    }

    async fn edit(&self, id: JobId, change: JobChange, now: Timestamp) -> Result<State> {
        transact!(self.db, Mode::Alone, now, |tx| admin::edit(tx, id, &change))
    }

    async fn run_now(&self, id: JobId, now: Timestamp) -> Result<State> {
        transact!(self.db, Mode::Alone, now, |tx| admin::run_now(tx, id, now))
    }

    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| read::results(
            tx,
            &process_id,
            after,
            limit
        ))
    }

    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted> {
        transact!(self.db, Mode::Alone, self.db.time(Timestamp::default()), |tx| delete::delete(tx, &ids))
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| read::queues(tx))
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        transact!(self.db, Mode::Alone, Timestamp::default(), |tx| settings::set_queue(tx, &change))
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| read::processes(tx, after.as_ref(), limit))
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| read::process(tx, &id))
    }

    async fn seal(&self, id: ProcessId, sealed: bool, now: Timestamp) -> Result<()> {
        transact!(self.db, Mode::Alone, now, |tx| process::seal(tx, &id, sealed, now))
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| read::schedules(tx))
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        transact!(self.db, Mode::Alone, Timestamp::default(), |tx| settings::put_schedule(tx, &schedule))
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        transact!(self.db, Mode::Alone, Timestamp::default(), |tx| settings::delete_schedule(tx, &name))
    }

    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>> {
        transact!(self.db, Mode::Look, now, |tx| read::workers(tx, now))
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        fold::flush_events(&self.db.pool, self.db.keys).await?;
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| read::events(tx, after, limit))
    }
}

#[async_trait]
impl EngineStore for PostgresStore {
    fn spawn_on_listener(&self, task: Task) -> Option<Task> {
        self.db.pool.io().spawn(task);
        None
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>> {
        self.db.settle_order.settled(&request.worker).await;
        self.served(|db| async move { claim_fast::claim(&db, request).await }).await
    }

    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>> {
        transact!(self.db, Mode::Fleeting, request.now, |tx| {
            save::extend(tx, &request, self.db.time(request.now))
        })
    }

    async fn save(&self, lease: Lease, save: Save, now: Timestamp) -> Result<()> {
        let mode = if save.data.is_some() { Mode::Shared } else { Mode::Fleeting };
        transact!(self.db, mode, now, |tx| save::save(tx, &lease, &save))
    }

    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
        let order = &self.db.settle_order;
        let pending =
            order.begin(items.iter().filter(|item| !(order.was_alone(item) && settle_fast::is_plain(item))));
        self.served(|db| async move {
            transact!(db, Mode::Shared, now, |tx| settle::settle(tx, &items, now, (&db.habit, &pending)))
        })
        .await
    }

    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| read::cancelling(tx, &worker))
    }

    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let now = self.db.time(now);
        if let Some(idle) = transact!(self.db, Mode::Look, now, |tx| sweep::promote_idle(tx, now))? {
            return Ok(idle);
        }
        transact!(self.db, Mode::Alone, now, |tx| sweep::promote(tx, now, limit))
    }

    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let now = self.db.time(now);
        if let Some(idle) = transact!(self.db, Mode::Look, now, |tx| sweep::rescue_idle(tx, now))? {
            return Ok(idle);
        }
        transact!(self.db, Mode::Alone, now, |tx| sweep::rescue(tx, now, limit))
    }

    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let now = self.db.time(now);
        fold::fold(&self.db.pool, self.db.keys).await?;
        if let Some(idle) = transact!(self.db, Mode::Look, now, |tx| sweep::prune_idle(tx, now))? {
            return Ok(idle);
        }
        transact!(self.db, Mode::Alone, now, |tx| sweep::prune(tx, now, limit))
    }

    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool> {
        transact!(self.db, Mode::Alone, now, |tx| settings::fire(tx, &firing, now))
    }

    async fn heartbeat(&self, worker: WorkerInfo) -> Result<()> {
        transact!(self.db, Mode::Fleeting, worker.seen_at, |tx| settings::heartbeat(tx, &worker))
    }

    async fn ledger(&self) -> Result<Vec<LedgerRow>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| read::ledger(tx))
    }

    async fn record(&self, name: String) -> Result<Option<Record>> {
        transact!(self.db, Mode::Look, Timestamp::default(), |tx| records::get(tx, &name))
    }

    async fn put_record(&self, name: String, expected: u64, value: Json) -> Result<bool> {
        transact!(self.db, Mode::Shared, Timestamp::default(), |tx| records::put(tx, &name, expected, &value))
    }

    async fn export(&self, after: Option<String>, limit: usize) -> Result<ExportPage> {
        transact!(self.db, Mode::Read, Timestamp::default(), |tx| export::export(tx, after.as_deref(), limit))
    }

    async fn import(&self, pieces: Vec<ExportRecord>) -> Result<()> {
        transact!(self.db, Mode::Alone, Timestamp::default(), |tx| import::import(tx, &pieces))
    }
}
