//! Workers elsewhere, as far as their calls tell of them. A call is a sign of life; the store is told of it now and then, so that
//! they stand in the list of workers beside our own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use longhaul_queue::store::WorkerInfo;
use longhaul_queue::{Timestamp, WorkerId};
use tracing::warn;

use crate::ctx::Ctx;

/// How often the store is told of a worker.
const BEAT_EVERY: Duration = Duration::from_secs(10);
/// Workers remembered; beyond it the one unheard of for longest goes.
const WORKERS_MAX: usize = 10_000;

/// The workers that called lately.
#[derive(Debug, Default)]
pub(crate) struct RemoteWorkers(Mutex<HashMap<WorkerId, Known>>);

#[derive(Debug)]
struct Known {
    info: WorkerInfo,
    told_at: Timestamp,
}

/// What a claim tells of its worker.
pub(super) struct Hello {
    pub(super) worker: WorkerId,
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) queues: Vec<String>,
    pub(super) kinds: Option<Vec<String>>,
    pub(super) limit: usize,
}

impl RemoteWorkers {
    /// A worker asks for jobs.
    pub(super) async fn claims(&self, ctx: &Ctx, hello: &Hello) {
        let now = ctx.queue().clock().now();
        let due = self.update(&hello.worker, now, |known| match known {
            Some(info) => {
                let slots = info.running.saturating_add(u32::try_from(hello.limit).unwrap_or(u32::MAX));
                WorkerInfo {
                    queues: hello.queues.clone(),
                    kinds: hello.kinds.clone(),
                    concurrency: info.concurrency.max(slots),
                    ..info
                }
            }
            None => WorkerInfo {
                id: hello.worker.clone(),
                host: hello.host.clone().unwrap_or_else(|| "http".to_owned()),
                pid: hello.pid.unwrap_or(0),
                version: String::new(),
                queues: hello.queues.clone(),
                kinds: hello.kinds.clone(),
                concurrency: u32::try_from(hello.limit).unwrap_or(u32::MAX),
                running: 0,
                started_at: now,
                seen_at: now,
                gone: false,
            },
        });
        tell(ctx, due).await;
    }

    /// A worker has so many jobs more, or fewer.
    pub(super) fn holds(&self, worker: &WorkerId, change: i64) {
        if let Some(known) = self.lock().get_mut(worker) {
            let running = i64::from(known.info.running).saturating_add(change).max(0);
            known.info.running = u32::try_from(running).unwrap_or(u32::MAX);
        }
    }

    /// A worker renews the leases of all that it has.
    pub(super) async fn renews(&self, ctx: &Ctx, worker: &WorkerId, leases: usize) {
        let Some(info) = self.lock().get(worker).map(|known| known.info.clone()) else {
            return; // Its next claim introduces it.
        };
        let running = u32::try_from(leases).unwrap_or(u32::MAX);
        let concurrency = info.concurrency.max(running);
        let now = ctx.queue().clock().now();
        let due =
            self.update(worker, now, |known| WorkerInfo { running, concurrency, ..known.unwrap_or(info) });
        tell(ctx, due).await;
    }

    /// Changes what is known of a worker, and answers it when the store is to be told.
    fn update(
        &self,
        worker: &WorkerId,
        now: Timestamp,
        change: impl FnOnce(Option<WorkerInfo>) -> WorkerInfo,
    ) -> Option<WorkerInfo> {
        let mut workers = self.lock();
        let known = workers.remove(worker);
        let told_at = known.as_ref().map(|known| known.told_at);
        let info = WorkerInfo { seen_at: now, ..change(known.map(|known| known.info)) };
        let due = told_at.is_none_or(|told_at| now.since(told_at) >= BEAT_EVERY);
        if workers.len() >= WORKERS_MAX
            && let Some(oldest) = workers.values().min_by_key(|known| known.info.seen_at)
        {
            let oldest = oldest.info.id.clone();
            workers.remove(&oldest);
        }
        let told_at = if due { now } else { told_at.unwrap_or(now) };
        workers.insert(worker.clone(), Known { info: info.clone(), told_at });
        due.then_some(info)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<WorkerId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn tell(ctx: &Ctx, info: Option<WorkerInfo>) {
    let Some(info) = info else { return };
    // A list for people: work goes on without it.
    if let Err(error) = ctx.engine().store().heartbeat(info).await {
        warn!(%error, "a worker's sign of life could not be stored");
    }
}
