//! SQLite, the default store: one file, no server, several processes.
//!
//! How the file is opened and written is in the crate `longhaul-sqlite`. Reading order here: `migrations/0001_jobs.sql` (the tables
//! and why) and those after it, [`db`] (the file), `session`, `tx` and `changes` (bookkeeping that every change carries), `workers`
//! (which workers are alive), then a file per verb: `insert`, `claim` (with `turns`, for fair keys and ageing), `settle`,
//! `graph`, `process`, `unique`, `admin`, `sweep`, `settings`, `read`, `list` (with `ways`, the indexes that a list may
//! go by), `export` and `import`.

mod admin;
mod audit;
mod claim;
mod db;
mod error;
mod event_buffer;
mod export;
mod fairness;
mod graph;
mod import;
mod insert;
mod list;
mod list_plan;
#[cfg(test)]
mod plans;
mod process;
mod read;
mod rows;
mod session;
mod settings;
mod settle;
mod sweep;
mod tx;
mod unique;
mod workers;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use longhaul_queue::events::EventPage;
use longhaul_queue::job::{
    Claimed, Job, JobChange, JobDetail, JobId, JobResult, Lease, NewJob, ProcessId, WorkerId,
};
use longhaul_queue::store::{
    CancelReply, Caps, ClaimRequest, Count, Deleted, Enqueued, ExportPage, ExportRecord, ExtendRequest,
    Firing, LedgerRow, ListRequest, Page, ProcessInfo, QueueChange, QueueInfo, Record, Renewal, RetryRequest,
    Save, Schedule, SettleItem, Settled, Swept, UnparkRequest, Unparked, WorkerInfo,
};
use longhaul_queue::{EngineStore, Error, Json, Result, State, Store, Timestamp};
use longhaul_sqlite::WriteOptions;
use tokio::sync::watch;

pub use audit::DbCheck;
pub use db::{Db, SqliteOptions, Transaction};
pub use error::{DbError, DbResult};
pub use longhaul_sqlite::Durability;

/// Needs its own fsync, where that is the level.
const DURABLE: WriteOptions =
    WriteOptions { volatile: false, flush_first: false, writes_deferred: false, urgent: false };
/// Claims and signs of life: a power cut that loses one also ended its holder.
const VOLATILE: WriteOptions = WriteOptions { volatile: true, ..DURABLE };
/// A lease runs out while others wait.
const URGENT: WriteOptions = WriteOptions { urgent: true, ..VOLATILE };

/// Jobs of an enqueue that may run on its caller's thread: a fraction of a millisecond.
const INSERT_HERE_MAX: usize = 10;

/// Jobs in a SQLite file.
#[derive(Clone)]
pub struct SqliteStore {
    db: Db,
}

impl SqliteStore {
    /// Opens the file and brings its schema up to date.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self> {
        Db::open(path, options).map(Self::on)
    }

    /// Jobs in a database that is open already, beside its owner's tables.
    pub fn on(db: Db) -> Self {
        Self { db }
    }

    /// When this store next has something to do for a worker: now where a job is ready, or the earliest time that a sweep must look
    /// at. `None`: nothing until the next write. A program with many stores may close this one until then.
    pub async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>> {
        self.db.read(move |connection| sweep::next_work(connection, now)).await
    }

    /// Gives up this handle; the last one closes the file. See [`Db::close`].
    pub async fn close(self) {
        self.db.close().await;
    }

    /// The database, for a caller's own tables, backups and checks.
    pub fn db(&self) -> &Db {
        &self.db
    }
}

/// What survives what, in a sentence.
fn promise(durability: Durability) -> &'static str {
    match durability {
        Durability::Fsync => "fsync: what was enqueued, saved or settled survives a power cut",
        Durability::Relaxed => "relaxed: a commit survives kill -9; a power cut may lose the last ones",
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn caps(&self) -> Caps {
        Caps {
            name: "sqlite",
            durability: promise(self.db.durability()).to_owned(),
            advice: None,
            shared: true,
        }
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.db.file.watch()
    }

    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let short = jobs.len() <= INSERT_HERE_MAX;
        let work = move |tx: &mut tx::Tx<'_>| insert::insert(tx, jobs, now);
        if short {
            self.db.file.write_here(DURABLE, work).await
        } else {
            self.db.file.write(DURABLE, work).await
        }
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        self.db.read(move |connection| read::get(connection, &ids)).await
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        self.db.read(move |connection| list::list(connection, &request)).await
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        self.db.read(read::counts).await
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        self.db.file.write(DURABLE, move |tx| admin::unpark(tx, request)).await
    }

    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>> {
        self.db.file.write(DURABLE, move |tx| admin::cancel(tx, &ids, now)).await
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        self.db.file.write(DURABLE, move |tx| admin::retry(tx, &request)).await
    }

    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State> {
        self.db.file.write(DURABLE, move |tx| admin::unhold(tx, id, now)).await
    }

    async fn edit(&self, id: JobId, change: JobChange, _now: Timestamp) -> Result<State> {
        self.db.file.write(DURABLE, move |tx| admin::edit(tx, id, change)).await
    }

    async fn run_now(&self, id: JobId, now: Timestamp) -> Result<State> {
        self.db.file.write(DURABLE, move |tx| admin::run_now(tx, id, now)).await
    }

    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        self.db.read(move |connection| read::results(connection, process_id.as_str(), after, limit)).await
    }

    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted> {
        self.db.file.write(DURABLE, move |tx| admin::delete(tx, &ids)).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.db.read(read::queues).await
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        self.db.file.write(DURABLE, move |tx| settings::set_queue(tx, &change)).await
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        self.db.read(move |connection| read::processes(connection, after.as_ref(), limit)).await
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        self.db.read(move |connection| read::process(connection, &id)).await
    }

    async fn seal(&self, id: ProcessId, sealed: bool, now: Timestamp) -> Result<()> {
        self.db.file.write(DURABLE, move |tx| process::seal(tx, &id, sealed, now)).await
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        self.db.read(read::schedules).await
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        self.db.file.write(DURABLE, move |tx| settings::put_schedule(tx, &schedule)).await
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        self.db.file.write(DURABLE, move |tx| settings::delete_schedule(tx, &name)).await
    }

    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>> {
        // In this order: one that is noted and then read as alive may have died since, which the next look tells.
        let dead = self.db.workers.dead_names().await;
        let mut workers = self.db.read(move |connection| read::workers(connection, now)).await?;
        workers.retain(|worker| !dead.contains(worker.id.as_str()));
        Ok(workers)
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        self.db.file.flush_deferred().await?;
        self.db.read(move |connection| read::events(connection, after, limit)).await
    }
}

#[async_trait]
impl EngineStore for SqliteStore {
    async fn register_local_worker(&self, worker: WorkerId) {
        self.db.workers.register_local_worker(worker).await;
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>> {
        let queues = request.queues.clone();
        let options = WriteOptions { flush_first: true, ..VOLATILE };
        self.db
            .file
            .write_unless(
                options,
                move |connection| Ok((!claim::anything_ready(connection, &queues)?).then(Vec::new)),
                move |tx| claim::claim(tx, &request),
            )
            .await
    }

    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>> {
        self.db.file.write(URGENT, move |tx| claim::extend(tx, &request)).await
    }

    async fn save(&self, lease: Lease, save: Save, _now: Timestamp) -> Result<()> {
        let options = if save.data.is_some() { DURABLE } else { VOLATILE };
        self.db.file.write(options, move |tx| settle::save(tx, &lease, &save)).await
    }

    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
        self.db.file.write(DURABLE, move |tx| settle::settle(tx, items, now)).await
    }

    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>> {
        self.db.read(move |connection| read::cancelling(connection, &worker)).await
    }

    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let probe = move |connection: &_| sweep::promote_idle(connection, now);
        self.db.file.write_unless(DURABLE, probe, move |tx| sweep::promote(tx, now, limit)).await
    }

    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let dead = self.db.workers.dead(now).await;
        let (of_probe, of_work) = (Arc::clone(&dead.names), Arc::clone(&dead.names));
        let probe = move |connection: &_| sweep::rescue_idle(connection, &of_probe, now);
        let work = move |tx: &mut tx::Tx<'_>| sweep::rescue(tx, &of_work, now, limit);
        let rescued = self.db.file.write_unless(DURABLE, probe, work).await?;
        if rescued.cut {
            self.db.workers.look_again();
            return Ok(rescued.swept);
        }
        if !dead.names.is_empty() {
            // Before the lock goes: without it, their last signs of life would make them living ones again.
            let names = Arc::clone(&dead.names);
            self.db.file.write(URGENT, move |tx| settings::forget_workers(tx, &names)).await?;
        }
        dead.forget().await;
        Ok(rescued.swept)
    }

    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let probe = move |connection: &_| sweep::prune_idle(connection, now);
        self.db.file.write_unless(DURABLE, probe, move |tx| sweep::prune(tx, now, limit)).await
    }

    async fn verify(&self) -> Result<()> {
        let problems = self.db.faults().await?;
        let Some(first) = problems.first() else { return Ok(()) };
        let (file, count) = (self.db.path().display(), problems.len());
        Err(Error::Corrupt(format!(
            "{file} is damaged, {count} faults, the first: {first}; restore a backup with `longhaul restore`"
        )))
    }

    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool> {
        self.db.file.write(DURABLE, move |tx| settings::fire(tx, firing, now)).await
    }

    async fn heartbeat(&self, worker: WorkerInfo) -> Result<()> {
        self.db.file.write(URGENT, move |tx| settings::heartbeat(tx, &worker)).await
    }

    async fn ledger(&self) -> Result<Vec<LedgerRow>> {
        self.db.read(read::ledger).await
    }

    async fn record(&self, name: String) -> Result<Option<Record>> {
        self.db.read(move |connection| settings::record(connection, &name)).await
    }

    async fn put_record(&self, name: String, expected: u64, value: Json) -> Result<bool> {
        self.db.file.write(DURABLE, move |tx| settings::put_record(tx, &name, expected, &value)).await
    }

    async fn export(&self, after: Option<String>, limit: usize) -> Result<ExportPage> {
        self.db.read(move |connection| export::export(connection, after.as_deref(), limit)).await
    }

    async fn import(&self, pieces: Vec<ExportRecord>) -> Result<()> {
        self.db.file.write(DURABLE, move |tx| import::import(tx, pieces)).await
    }
}
