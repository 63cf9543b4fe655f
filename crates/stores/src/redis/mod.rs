//! Redis (7 or newer): many worker processes on many machines.
//!
//! **How a stream carries delivery.** A stream is first in, first out, and a claim goes by turns, priority, time and
//! submission. So a job waits in a sorted set of its lane (queue, kind and fair key), and the claim moves the best of them
//! into the queue's stream and reads them back as the claiming worker's, all in one call: one entry for up to 128 jobs of a
//! claim and queue (a delivery), naming the worker and the jobs. The consumer group's pending list is thus the record of what
//! is delivered to whom. A renewal claims the entry anew for its own worker, which resets its idle time; the entry is
//! acknowledged and deleted with the last of its jobs. The truth is in the rows, though: a job's fence and lease decide, by
//! the time that the caller gives, and `crashes` in the row is the guard against poison (an entry's own delivery count would
//! not know that a checkpoint is progress). So a trimmed, deleted or destroyed stream loses nothing. The rescuer goes over
//! the pending lists with `XAUTOCLAIM` and its cursor, and drops the entries that nobody needs any more.
//!
//! **Why most jobs' rows are written once.** A claim notes only which delivery a job went with; who reads the row sees it as
//! running by that note, and who changes it writes it down. The delivery holds what a plain success needs to know, so that its
//! settlement reads no row and notes the end beside it. Neighbours, which most jobs are that come together, share one member
//! of their lane, one note, and one comparison of their leases.
//!
//! **Who decides.** Every change is one call of a Lua function, hence atomic: `scripts/tables.lua` is the one way in which a
//! row changes, with all its indexes and counters. The functions are one library, named by a digest of its text: it is loaded
//! when the server does not know it, and several versions stand side by side. What `state::settle` judges stays in Rust: where
//! a judgement needs what is stored (a lease that expired, a park that a signal or its time ends), the function hands over the
//! row, Rust judges, and the answer is written if the row is still the same, byte by byte. Functions get the time as an
//! argument.
//!
//! **Who may write.** A lease names place, job, fence and worker, and all four are compared: a server that lost its last writes
//! in a failover gives places and fences again, and lets nobody in who was handed the lost ones.
//!
//! **Keys** all begin with `{longhaul:NAME}`, so that a cluster keeps them in one slot:
//!
//! | key | what |
//! |---|---|
//! | `j:N` | hash: 128 jobs by seq; `SEQ` the row, `SEQz` its plain success, other letters what stands beside it |
//! | `r:N` | string: the deliveries of running jobs of a bucket, six bytes a place |
//! | `ids` | hash: id to seq |
//! | `buckets` | sorted set: which `j:N` there are |
//! | `ready:QUEUE KIND [k KEY]` | sorted set a lane: priority, then time, seq and number of neighbours as bytes; suspects apart |
//! | `lanes:QUEUE`, `ring:QUEUE KIND` | set of kinds with ready jobs; sorted set of their fair keys |
//! | `start`, `expiries`, `parkends` | sorted sets by time: jobs that become due |
//! | `leases`, `prune` | sorted sets by time: deliveries by their earliest lease; ended jobs, up to 128 to a member |
//! | `s:QUEUE`, `streams`, `cursors` | the stream; which there are; where the rescuer's walk over its pending list goes on |
//! | `deliveries`, `closed` | hashes: queue, worker, times and jobs of a delivery; how many have ended, if not all |
//! | `e:SEQ`, `ch:SEQ` | hash of a job's edges, by the parent's seq; sorted set of its children |
//! | `p:ID`, `procs`, `pj:ID`, `pe:ID`, `wait:ID` | a process: counters, names, its jobs, its results, who waits for it |
//! | `uniques`, `windows`, `signals`, `forget`, `park:KEY` | unique keys and signals, with the times at which they go; who waits |
//! | `in:STATE`, `cancels:WORKER`, `log:SEQ` | jobs of a state; running jobs to be ended; log lines |
//! | `counts`, `running`, `keys:QUEUE` | hashes: jobs by lane and state; running jobs by queue; and by fair key |
//! | `queues`, `schedules`, `records`, `ledger`, `workers`, `seen`, `meta` | hashes of what their name says |
//! | `events`, `changed` | a stream of what changed, bounded; the channel of the notice |
//!
//! Reading order: `scripts/tables.lua`, `flush.lua`, `graph.lua`, `insert.lua`, `lanes.lua`, `turns.lua`, `claim.lua`,
//! `settle.lua`; then [`RedisStore`], `link`, `codec` and `encode` (rows and arguments as bytes), and a file a verb.

mod address;
mod admin;
mod claim;
mod codec;
mod edit;
mod encode;
mod export;
mod import;
mod insert;
mod link;
mod list;
mod park;
mod promise;
mod read;
mod records;
mod reply;
mod scripts;
mod server_time;
mod settings;
mod settle;
mod sweep;
mod watch;

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

pub use address::RedisUrl;
use insert::Enqueues;
use link::Link;
use server_time::ServerTime;
use watch::Watcher;

use crate::insert_batcher::{self, Gather, Inserts as _, Part};
use crate::io::Io;
use crate::settle_order::SettleOrder;

/// Jobs in a Redis server.
pub struct RedisStore {
    link: Arc<Link>,
    enqueues: Arc<Enqueues>,
    watcher: Watcher,
    time: ServerTime,
    settle_order: Arc<SettleOrder>,
    caps: Caps,
    // Last, so that everything it serves has gone before.
    _io: Io,
}

impl RedisStore {
    /// Connects, and refuses a server that may drop keys.
    pub async fn connect(url: &RedisUrl) -> Result<Self> {
        let client = url.client()?;
        let io = Io::start("longhaul-redis")?;
        let link = Arc::new(Link::open(client.clone(), url.prefix(), io.handle()?).await?);
        promise::check_layout(&link, &url.name).await?;
        let caps = promise::caps(&link, url.allow_eviction).await?;
        let watcher = Watcher::start(client, link.key("changed"), &io.handle()?).await?;
        let time = ServerTime::start(&link, &io.handle()?).await?;
        let enqueues = Arc::new(Enqueues { link: Arc::clone(&link), gather: Gather::default() });
        Ok(Self { link, enqueues, watcher, time, settle_order: Arc::default(), caps, _io: io })
    }
}

#[async_trait]
impl Store for RedisStore {
    fn caps(&self) -> Caps {
        self.caps.clone()
    }

    fn clock(&self) -> Option<Arc<dyn Clock>> {
        Some(Arc::clone(&self.time.clock) as _)
    }

    fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.watcher.receiver()
    }

    async fn insert(&self, jobs: Vec<NewJob>, now: Timestamp) -> Result<Vec<Enqueued>> {
        let part = Part { jobs, now };
        if insert_batcher::is_small(&part.jobs) {
            return insert_batcher::enqueue(&self.enqueues, self.link.runtime(), part).await;
        }
        self.enqueues.alone(&part).await
    }

    async fn get(&self, ids: Vec<JobId>) -> Result<Vec<JobDetail>> {
        read::get(self, &ids).await
    }

    async fn list(&self, request: ListRequest) -> Result<Page<Job>> {
        list::list(self, &request).await
    }

    async fn counts(&self) -> Result<Vec<Count>> {
        read::counts(self).await
    }

    async fn unpark(&self, request: UnparkRequest) -> Result<Unparked> {
        park::unpark(self, request).await
    }

    async fn cancel(&self, ids: Vec<JobId>, now: Timestamp) -> Result<Vec<CancelReply>> {
        admin::cancel(self, &ids, now).await
    }

    async fn retry(&self, request: RetryRequest) -> Result<Vec<Result<State>>> {
        admin::retry(self, &request).await
    }

    async fn unhold(&self, id: JobId, now: Timestamp) -> Result<State> {
        admin::unhold(self, id, now).await
    }

    async fn edit(&self, id: JobId, change: JobChange, now: Timestamp) -> Result<State> {
        edit::edit(self, id, &change, now).await
    }

    async fn run_now(&self, id: JobId, now: Timestamp) -> Result<State> {
        admin::run_now(self, id, now).await
    }

    async fn results(&self, process_id: ProcessId, after: i64, limit: usize) -> Result<Page<JobResult>> {
        read::results(self, &process_id, after, limit).await
    }

    async fn delete(&self, ids: Vec<JobId>) -> Result<Deleted> {
        admin::delete(self, &ids).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        settings::queues(self).await
    }

    async fn set_queue(&self, change: QueueChange) -> Result<()> {
        settings::set_queue(self, change).await
    }

    async fn processes(&self, after: Option<ProcessId>, limit: usize) -> Result<Vec<ProcessInfo>> {
        settings::processes(self, after, limit).await
    }

    async fn process(&self, id: ProcessId) -> Result<Option<ProcessInfo>> {
        settings::process(self, id).await
    }

    async fn seal(&self, id: ProcessId, sealed: bool, now: Timestamp) -> Result<()> {
        settings::seal(self, &id, sealed, now).await
    }

    async fn schedules(&self) -> Result<Vec<Schedule>> {
        settings::schedules(self).await
    }

    async fn put_schedule(&self, schedule: Schedule) -> Result<()> {
        settings::put_schedule(self, &schedule).await
    }

    async fn delete_schedule(&self, name: String) -> Result<bool> {
        settings::delete_schedule(self, &name).await
    }

    async fn workers(&self, now: Timestamp) -> Result<Vec<WorkerInfo>> {
        settings::workers(self, now).await
    }

    async fn events(&self, after: Option<u64>, limit: usize) -> Result<EventPage> {
        read::events(self, after, limit).await
    }
}

#[async_trait]
impl EngineStore for RedisStore {
    fn spawn_on_listener(&self, task: Task) -> Option<Task> {
        self.link.runtime().spawn(task);
        None
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>> {
        self.settle_order.settled(&request.worker).await;
        claim::claim(self, request).await
    }

    async fn extend(&self, request: ExtendRequest) -> Result<Vec<Renewal>> {
        claim::extend(self, request).await
    }

    async fn save(&self, lease: Lease, save: Save, now: Timestamp) -> Result<()> {
        claim::save(self, lease, save, now).await
    }

    async fn settle(&self, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
        // One connection keeps the order of calls; only a park may take a second trip, to run at once by a signal that came first.
        let pending = self.settle_order.begin(items.iter().filter(|item| item.settlement.park.is_some()));
        let settled = settle::settle(self, items, now).await;
        drop(pending);
        settled
    }

    async fn cancelling(&self, worker: WorkerId) -> Result<Vec<JobId>> {
        admin::cancelling(self, &worker).await
    }

    async fn promote_due(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        sweep::promote(self, now, limit).await
    }

    async fn rescue_expired(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        sweep::rescue(self, now, limit).await
    }

    async fn prune(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        sweep::prune(self, now, limit).await
    }

    async fn fire(&self, firing: Firing, now: Timestamp) -> Result<bool> {
        insert::fire(self, firing, now).await
    }

    async fn heartbeat(&self, worker: WorkerInfo) -> Result<()> {
        settings::heartbeat(self, &worker).await
    }

    async fn record(&self, name: String) -> Result<Option<Record>> {
        records::record(self, &name).await
    }

    async fn put_record(&self, name: String, expected: u64, value: Json) -> Result<bool> {
        records::put_record(self, name, expected, &value).await
    }

    async fn export(&self, after: Option<String>, limit: usize) -> Result<ExportPage> {
        export::export(self, after, limit).await
    }

    async fn import(&self, pieces: Vec<ExportRecord>) -> Result<()> {
        import::import(self, &pieces).await
    }

    async fn ledger(&self) -> Result<Vec<LedgerRow>> {
        read::ledger(self).await
    }
}
