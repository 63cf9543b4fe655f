//! Queues: counts, pauses, limits.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use longhaul_api::Listed;
use longhaul_api::queues::{QueueIn, QueueOut};
use longhaul_queue::store::{QueueChange, QueueInfo};

use super::ApiResult;
use super::extract::ApiJson;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// Lists queues with their settings and counts.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues", responses((status = 200, body = Listed<QueueOut>)))]
pub(super) async fn list_queues(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<QueueOut>>> {
    let queues = ctx.queue().store().queues().await?;
    Ok(Answer(Listed::whole(queues.into_iter().map(Into::into).collect())))
}

/// Shows a queue.
#[utoipa::path(get, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)), responses((status = 200, body = QueueOut)))]
pub(super) async fn show_queue(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<QueueOut>> {
    let found = find(&ctx, &name).await?;
    let missing = || Problem::not_found(format!("there is no queue {name}: its first job makes it"));
    Ok(Answer(found.ok_or_else(missing)?.into()))
}

async fn find(ctx: &Ctx, name: &str) -> Result<Option<QueueInfo>, Problem> {
    Ok(ctx.queue().store().queues().await?.into_iter().find(|info| info.name == name))
}

/// Changes a queue's settings, effective at once.
#[utoipa::path(patch, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)), request_body = QueueIn, responses((status = 200, body = QueueOut)))]
pub(super) async fn change_queue(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
    ApiJson(wanted): ApiJson<QueueIn>,
) -> ApiResult<Answer<QueueOut>> {
    set(&ctx, wanted.of(name)).await
}

/// Stops claims from a queue; what runs goes on.
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", tag = "queues", params(("name" = String, Path)), responses((status = 200, body = QueueOut)))]
pub(super) async fn pause_queue(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<QueueOut>> {
    set(&ctx, QueueChange { name, paused: Some(true), ..QueueChange::default() }).await
}

/// Lets claims from a queue go on.
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", tag = "queues", params(("name" = String, Path)), responses((status = 200, body = QueueOut)))]
pub(super) async fn resume_queue(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<QueueOut>> {
    set(&ctx, QueueChange { name, paused: Some(false), ..QueueChange::default() }).await
}

async fn set(ctx: &Ctx, change: QueueChange) -> ApiResult<Answer<QueueOut>> {
    let name = change.name.clone();
    ctx.queue().set_queue(change).await.map_err(Problem::unfit)?;
    // One without jobs and with default settings is none.
    Ok(Answer(find(ctx, &name).await?.unwrap_or_else(|| QueueInfo::bare(name)).into()))
}
