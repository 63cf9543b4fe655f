//! Who runs jobs.

use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_api::Listed;
use longhaul_api::workers::WorkerOut;

use super::ApiResult;
use crate::ctx::Ctx;

/// Lists workers that were heard of within a day.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", responses((status = 200, body = Listed<WorkerOut>)))]
pub(super) async fn list_workers(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<WorkerOut>>> {
    let now = ctx.queue().clock().now();
    let workers = ctx.queue().store().workers(now).await?.into_iter();
    Ok(Answer(Listed::whole(workers.map(|worker| WorkerOut::new(worker, now)).collect())))
}
