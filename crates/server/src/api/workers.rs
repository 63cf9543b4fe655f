//! Who runs jobs.

use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_queue::Timestamp;
use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::store::WorkerInfo;
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiResult;
use super::page::Listed;
use crate::ctx::Ctx;

/// A worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
pub(super) struct WorkerOut {
    /// Random per start.
    id: String,
    /// Where it runs; `http` when it did not say.
    host: String,
    /// Its process there; 0 when it did not say.
    pid: u32,
    /// Of its program.
    version: String,
    /// What it serves.
    queues: Vec<String>,
    /// What it serves; absent means any kind.
    kinds: Option<Vec<String>>,
    /// Slots.
    concurrency: u32,
    /// Slots in use.
    running: u32,
    /// When it started.
    #[schema(value_type = i64)]
    started_at: Timestamp,
    /// When it was heard of last.
    #[schema(value_type = i64)]
    seen_at: Timestamp,
    /// It was not heard of for half a minute and is probably dead.
    silent: bool,
}

/// Lists workers that were heard of within a day.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", responses((status = 200, body = Listed<WorkerOut>)))]
pub(super) async fn list_workers(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<WorkerOut>>> {
    let now = ctx.queue().clock().now();
    let show = |worker: WorkerInfo| WorkerOut {
        id: worker.id.as_str().to_owned(),
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
    };
    Ok(Answer(Listed::whole(ctx.queue().store().workers(now).await?.into_iter().map(show).collect())))
}
