//! Runs of every pipeline: listed, looked at and steered. What a run is and how it goes on is its pipeline's; how one is started is
//! in the file of the pipeline.

use axum::Extension;
use axum::Json as Answer;
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use longhaul_llm::NanoUsd;
use longhaul_pipeline::{Error, Found, Part, Retry, Status};
use longhaul_queue::Json;
use longhaul_queue::limits::PAGE_MAX;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::warn;
use utoipa::{IntoParams, ToSchema};

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};
use super::jobs::WaitQuery;
use super::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use super::processes::{JSONL, Number, wants_lines};
use super::prompts::input::amount;
use super::verbs::conflict;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::wait::{Wait, duration};

/// Runs on one page: each is read with its counts and money.
const RUNS_MAX: usize = 100;
/// Parts that are shown with a run; `/parts` has the others.
const PARTS_MAX: usize = 20;

/// A run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Run)]
pub(super) struct RunOut {
    /// `id`, `pipeline`, `title`, `state`, `hold`, `message`, `units` by what became of them, `spent` in dollars, `estimated_usd`,
    /// `eta_seconds`, times, and `details` that only this pipeline has.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    status: Status,
    /// What the whole of it will cost if it goes on as so far, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    projected_usd: Option<NanoUsd>,
    /// Its settings; only when one run is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    settings: Option<Value>,
    /// Its first parts, such as provider batches or chunks; only when one run is shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    parts: Vec<Part>,
}

impl RunOut {
    fn brief(status: Status) -> Self {
        Self { projected_usd: status.projected(), status, settings: None, parts: Vec::new() }
    }

    async fn whole(found: &Found, status: Status) -> Result<Self, Problem> {
        let settings = Some(found.pipeline.settings(&found.run).await?);
        let parts = found.pipeline.parts(&found.run, 0, PARTS_MAX).await?;
        Ok(Self { settings, parts, ..Self::brief(status) })
    }
}

/// The run of this name, if the caller may see it.
pub(super) async fn find(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Found, Problem> {
    let found = ctx.runs.get(name).await?;
    match access::may_see_process(ctx, caller, found.run.id.as_str()).await? {
        true => Ok(found),
        false => Err(Error::NoRun(name.to_owned()).into()),
    }
}

/// Which runs.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunsQuery {
    /// Only those of the pipeline of this name.
    pipeline: Option<String>,
    /// Where the page begins: `next` of the one before.
    cursor: Option<String>,
    /// At most this many, 1 to 100; default 100.
    limit: Option<usize>,
}

/// Lists runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsQuery), responses((status = 200, body = Listed<RunOut>)))]
pub(super) async fn list_runs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiQuery(query): ApiQuery<RunsQuery>,
) -> ApiResult<Answer<Listed<RunOut>>> {
    let limit = limit(query.limit)?.min(RUNS_MAX);
    let page = ctx.runs.list(query.pipeline.as_deref(), seq_of(query.cursor.as_deref())?, limit).await;
    let page = page.map_err(|error| match error {
        error @ Error::Invalid(_) => Problem::from(error).at("pipeline"),
        error => error.into(),
    })?;
    let mut items = Vec::with_capacity(page.items.len());
    for job in &page.items {
        if job.process_id.as_ref().is_some_and(|process| access::is_unlisted(&caller, process.as_str())) {
            continue;
        }
        // One that was removed between two reads is not there any more.
        if let Some(found) = ctx.runs.of_manifest(job).await? {
            items.push(RunOut::brief(found.status().await?));
        }
    }
    Ok(Answer(Listed { items, next: page.next.map(cursor_of), partial: page.partial }))
}

/// Shows a run with its settings, money and first parts; with `wait`, once nothing more happens by itself.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path), WaitQuery), responses((status = 200, body = RunOut)))]
pub(super) async fn show_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<WaitQuery>,
) -> ApiResult<Answer<RunOut>> {
    let mut wait = Wait::new(&ctx, duration("wait", query.wait.as_deref())?);
    ctx.runs.book_abandoned().await?;
    loop {
        let found = find(&ctx, &caller, &id).await?;
        let status = found.status().await?;
        if status.is_over() || !wait.again().await {
            return Ok(Answer(RunOut::whole(&found, status).await?));
        }
    }
}

/// Lists the parts of a run in their order: provider batches, chunks.
#[utoipa::path(get, path = "/api/v1/runs/{id}/parts", tag = "runs", params(("id" = String, Path), PageQuery), responses((status = 200, body = Listed<Object>)))]
pub(super) async fn run_parts(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<Part>>> {
    let limit = limit(query.limit)?;
    let first = u64::try_from(seq_of(query.cursor.as_deref())?.unwrap_or(0))
        .map_err(|_| Problem::invalid("no part has such a number").at("cursor"))?;
    let found = find(&ctx, &caller, &id).await?;
    let items = found.pipeline.parts(&found.run, first, limit).await?;
    let next = (items.len() == limit).then(|| cursor_of((first + limit as u64).cast_signed()));
    Ok(Answer(Listed { items, next, partial: false }))
}

/// Reads results in the order of the units: a page, or with `Accept: application/jsonl` all of them, a line each.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/results", tag = "runs", params(("id" = String, Path), PageQuery),
    responses((status = 200, content((Listed<Object> = "application/json"), (String = "application/jsonl"))))
)]
pub(super) async fn run_results(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Response> {
    let found = find(&ctx, &caller, &id).await?;
    let after = seq_of(query.cursor.as_deref())?.unwrap_or(0);
    if wants_lines(&headers) {
        return Ok(lines(found, after));
    }
    let page = found.pipeline.results(&found.run, after, limit(query.limit)?).await?;
    Ok(Answer(Listed { items: page.items, next: page.next.map(cursor_of), partial: false }).into_response())
}

fn lines(found: Found, after: i64) -> Response {
    let pages = stream::try_unfold(Some(after), move |after| {
        let found = found.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let page = found.pipeline.results(&found.run, after, PAGE_MAX).await;
            let page = page.map_err(std::io::Error::other)?;
            let text: String = page.items.iter().flat_map(|item: &Json| [item.as_str(), "\n"]).collect();
            Ok::<_, std::io::Error>(Some((text, page.next)))
        }
    });
    ([(header::CONTENT_TYPE, JSONL)], Streamed::from_stream(pages)).into_response()
}

/// Ends a run early. What was done is kept; provider batches are asked to end, and what they have answered by then is kept too.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn cancel_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    Ok(Answer(Number { changed: ctx.runs.get(&id).await?.cancel().await? }))
}

/// Stops a run's units from being begun; what is under way goes on.
#[utoipa::path(post, path = "/api/v1/runs/{id}/pause", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = RunOut)))]
pub(super) async fn pause_run(Shared(ctx): Shared<Ctx>, Path(id): Path<String>) -> ApiResult<Answer<RunOut>> {
    let found = ctx.runs.get(&id).await?;
    found.pause().await?;
    Ok(Answer(RunOut::brief(found.status().await?)))
}

/// How a run goes on.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ResumeIn {
    /// A new limit of its cost.
    max_cost_usd: Option<f64>,
}

/// Lets a paused or held run go on, and says how many of its jobs were held.
#[utoipa::path(post, path = "/api/v1/runs/{id}/resume", tag = "runs", params(("id" = String, Path)), request_body = Option<ResumeIn>, responses((status = 200, body = Number)))]
pub(super) async fn resume_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(how): ApiJson<Option<ResumeIn>>,
) -> ApiResult<Answer<Number>> {
    let found = ctx.runs.get(&id).await?;
    if let Some(dollars) = how.unwrap_or_default().max_cost_usd {
        ctx.runs.set_cap(&found.run.id, Some(amount("max_cost_usd", dollars)?)).await?;
    }
    Ok(Answer(Number { changed: found.resume().await? }))
}

/// What is tried again; nothing said means all that failed.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = RetryRunIn)]
pub(super) struct RetryIn {
    /// What failed in one part, counted from 1, and nothing of the others.
    part: Option<u64>,
}

/// Tries again what failed, and nothing else, and says how many units that are.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = String, Path)), request_body = Option<RetryIn>, responses((status = 200, body = Number)))]
pub(super) async fn retry_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(what): ApiJson<Option<RetryIn>>,
) -> ApiResult<Answer<Number>> {
    let which = match what.unwrap_or_default().part {
        None => Retry::Failed,
        Some(number) => Retry::Part(number.checked_sub(1).ok_or_else(|| {
            let text = "parts count from 1, as in /parts";
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("part")
        })?),
    };
    let changed = ctx.runs.get(&id).await?.retry(which).await.map_err(wrong_state)?;
    Ok(Answer(Number { changed }))
}

/// Deletes a run for good, with its results. Refused while it has not ended.
#[utoipa::path(delete, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn delete_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let found = ctx.runs.get(&id).await?;
    Ok(Answer(Number { changed: remove(&ctx, &found).await? }))
}

/// Deletes a run with all that belongs to it, and says how many jobs it had.
pub(crate) async fn remove(ctx: &Ctx, found: &Found) -> Result<u64, Problem> {
    let removed = found.remove().await.map_err(wrong_state)?;
    // What cannot be removed now is swept later.
    if let Err(error) = ctx.shelf.remove_table(found.run.id.as_str()).await {
        warn!(run = %found.run.id, %error, "what a deleted run left on the shelf cannot be removed now");
    }
    Ok(removed)
}

/// A verb that does not fit the state of a run.
fn wrong_state(error: Error) -> Problem {
    match error {
        Error::Queue(error) => conflict(error),
        Error::Invalid(text) => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_state", text),
        error => error.into(),
    }
}
