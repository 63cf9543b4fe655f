//! Who runs jobs.

use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::store::WorkerInfo;
use longhaul_queue::{Timestamp, WorkerId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A worker.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerOut {
    /// Random per start.
    #[schema(value_type = String)]
    pub id: WorkerId,
    /// Where it runs; `http` when it did not say.
    pub host: String,
    /// Its process there; 0 when it did not say.
    pub pid: u32,
    /// Of its program.
    pub version: String,
    /// What it serves.
    pub queues: Vec<String>,
    /// What it serves; absent means any kind.
    pub kinds: Option<Vec<String>>,
    /// Slots.
    pub concurrency: u32,
    /// Slots in use.
    pub running: u32,
    /// When it started.
    #[schema(value_type = i64)]
    pub started_at: Timestamp,
    /// When it was heard of last.
    #[schema(value_type = i64)]
    pub seen_at: Timestamp,
    /// It was not heard of for half a minute and is probably dead.
    pub silent: bool,
}

impl WorkerOut {
    /// A worker as it is at `now`.
    pub fn new(worker: WorkerInfo, now: Timestamp) -> Self {
        Self {
            id: worker.id,
            host: worker.host,
            pid: worker.pid,
            version: worker.version,
            queues: worker.queues,
            kinds: worker.kinds,
            concurrency: worker.concurrency,
            running: worker.running,
            started_at: worker.started_at,
            seen_at: worker.seen_at,
            silent: now.since(worker.seen_at) > WORKER_SILENT_AFTER,
        }
    }
}

impl From<WorkerOut> for WorkerInfo {
    fn from(worker: WorkerOut) -> Self {
        Self {
            id: worker.id,
            host: worker.host,
            pid: worker.pid,
            version: worker.version,
            queues: worker.queues,
            kinds: worker.kinds,
            concurrency: worker.concurrency,
            running: worker.running,
            started_at: worker.started_at,
            seen_at: worker.seen_at,
            gone: false,
        }
    }
}
