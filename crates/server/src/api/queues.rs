//! Queues: counts, pauses, limits.

use std::time::Duration;

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use longhaul_queue::job::Retention;
use longhaul_queue::store::{QueueChange, QueueInfo, QueueSettings};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiResult;
use super::counts::Counts;
use super::extract::{ApiJson, change};
use super::page::Listed;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// A queue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Queue)]
pub(super) struct QueueOut {
    /// Its name.
    name: String,
    /// Nothing is claimed from it.
    paused: bool,
    /// At most this many of its jobs run at once, over all workers.
    max_running: Option<u32>,
    /// At most this many jobs of one fair key run at once, over all workers.
    max_running_per_key: Option<u32>,
    /// The time of waiting that makes up for one level of priority.
    ageing_ms: Option<u64>,
    /// For jobs that name none.
    #[schema(value_type = Option<Object>)]
    retention: Option<Retention>,
    /// Its jobs by state.
    counts: Counts,
}

impl From<QueueInfo> for QueueOut {
    fn from(info: QueueInfo) -> Self {
        let QueueInfo { name, settings, counts } = info;
        let QueueSettings { paused, max_running, max_running_per_key, ageing, retention } = settings;
        let ageing_ms = ageing.map(|ageing| u64::try_from(ageing.as_millis()).unwrap_or(u64::MAX));
        Self { name, paused, max_running, max_running_per_key, ageing_ms, retention, counts: counts.into() }
    }
}

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

/// Settings to change; those left out stay, and `null` lifts one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct QueueIn {
    /// Pause or resume.
    paused: Option<bool>,
    /// Set or lift the limit.
    #[serde(deserialize_with = "change")]
    #[schema(value_type = Option<u32>)]
    max_running: Option<Option<u32>>,
    /// Set or lift the limit for each fair key.
    #[serde(deserialize_with = "change")]
    #[schema(value_type = Option<u32>)]
    max_running_per_key: Option<Option<u32>>,
    /// Set or lift the time of waiting that makes up for one level of priority.
    #[serde(deserialize_with = "change")]
    #[schema(value_type = Option<u64>)]
    ageing_ms: Option<Option<u64>>,
    /// Set or lift the rule.
    #[serde(deserialize_with = "change")]
    #[schema(value_type = Option<Object>, example = json!({"retention": "keep", "succeeded_ms": 3_600_000, "failed_ms": 86_400_000}))]
    retention: Option<Option<Retention>>,
}

/// Changes a queue's settings, effective at once.
#[utoipa::path(patch, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)), request_body = QueueIn, responses((status = 200, body = QueueOut)))]
pub(super) async fn change_queue(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
    ApiJson(wanted): ApiJson<QueueIn>,
) -> ApiResult<Answer<QueueOut>> {
    let QueueIn { paused, max_running, max_running_per_key, ageing_ms, retention } = wanted;
    let ageing = ageing_ms.map(|ageing_ms| ageing_ms.map(Duration::from_millis));
    set(&ctx, QueueChange { name, paused, max_running, max_running_per_key, ageing, retention }).await
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
