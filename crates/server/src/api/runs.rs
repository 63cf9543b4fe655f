//! Runs of every pipeline: listed, looked at and steered. What a run is and how it goes on is its pipeline's; how one is started is
//! in the file of the pipeline.

use axum::Extension;
use axum::Json as Answer;
use axum::body::Body as Streamed;
use axum::extract::{Path, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use longhaul_api::jobs::WaitQuery;
use longhaul_api::processes::Number;
use longhaul_api::runs::{Resume, RetryRun, Run, RunDetail};
use longhaul_llm::NanoUsd;
use longhaul_pipeline::{Error, Found, Part, Retry, RunId, RunState, serve};
use longhaul_queue::Json;
use longhaul_queue::limits::PAGE_MAX;
use serde::Deserialize;
use tracing::warn;
use utoipa::IntoParams;

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};

use super::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use super::processes::{JSONL, wants_lines};
use super::prompts::input::amount;
use super::verbs::conflict;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;
use crate::tokens::Scope;
use crate::wait::{Wait, duration};

/// Runs on one page: each is read with its counts and money.
const RUNS_MAX: usize = 100;
/// Parts that are shown with a run; `/parts` has the others.
const PARTS_MAX: usize = 20;

/// The run of this name, if the caller may see it.
pub(super) async fn find(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Found, Problem> {
    let found = ctx.runs.get(name).await?;
    match access::may_see_process(ctx, caller, found.run.id.as_str()).await? {
        true => Ok(found),
        false => Err(Error::NoRun(name.to_owned()).into()),
    }
}

/// Whether a living worker serves a run.
async fn is_served(ctx: &Ctx, found: &Found) -> Result<bool, Problem> {
    Ok(serve::served(ctx.queue()).await?.contains(found.run.id.as_str()))
}

/// What the caller wants of a run that it hands in. Budgets are an operator's: only one who may change them lets calls without a price pass.
pub(super) fn check_unpriced(caller: &Caller, allow_unpriced: bool) -> Result<(), Problem> {
    if allow_unpriced && !caller.may(Scope::Admin) {
        let text = "allow_unpriced needs a token with the scope admin: it lets calls pass under every budget";
        return Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", text).at("allow_unpriced"));
    }
    Ok(())
}

/// Asks again what a run that was handed in again has no answer for. What an operator has paused, cancelled or held stays so for
/// others: they may only ask again what failed.
pub(super) async fn ask_again(ctx: &Ctx, caller: &Caller, run: &RunId) -> Result<u64, Problem> {
    let found = ctx.runs.get(run.as_str()).await?;
    if caller.may(Scope::Admin) {
        return Ok(found.go_on().await?);
    }
    match found.status().await?.standing.state {
        RunState::Failed | RunState::PartlyFailed => Ok(found.retry(Retry::Failed).await?),
        RunState::Running | RunState::Paused | RunState::Held | RunState::Completed | RunState::Cancelled => {
            Ok(0)
        }
    }
}

/// Limits what a run that is handed in may cost. The limit of one that is there already is an operator's to change.
pub(super) async fn set_limits(
    ctx: &Ctx,
    caller: &Caller,
    (run, exists): (&RunId, bool),
    (max_cost, allow_unpriced): (Option<NanoUsd>, bool),
) -> Result<(), Problem> {
    if exists && !caller.may(Scope::Admin) {
        if max_cost.is_none() || ctx.runs.cap(run).await? == max_cost {
            return Ok(());
        }
        let text = "the run is there already, and changing its limit needs a token with the scope admin";
        return Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", text).at("max_cost_usd"));
    }
    Ok(ctx.runs.set_limits(run, max_cost, allow_unpriced).await?)
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
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsQuery), responses((status = 200, body = Listed<Run>)))]
pub(super) async fn list_runs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiQuery(query): ApiQuery<RunsQuery>,
) -> ApiResult<Answer<Listed<Run>>> {
    let limit = limit(query.limit)?.min(RUNS_MAX);
    let page = ctx.runs.list(query.pipeline.as_deref(), seq_of(query.cursor.as_deref())?, limit).await;
    let page = page.map_err(|error| match error {
        error @ Error::Invalid(_) => Problem::from(error).at("pipeline"),
        error => error.into(),
    })?;
    let served = serve::served(ctx.queue()).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for job in &page.items {
        if job.process_id.as_ref().is_some_and(|process| access::is_unlisted(&caller, process.as_str())) {
            continue;
        }
        // One that was removed between two reads is not there any more.
        if let Some(found) = ctx.runs.of_manifest(job).await? {
            let status = found.status().await?;
            let served = served.contains(&status.id);
            items.push(Run::new(status, served));
        }
    }
    Ok(Answer(Listed { items, next: page.next.map(cursor_of), partial: page.partial }))
}

/// Shows a run with its settings, money and first parts; with `wait`, once nothing more happens by itself.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path), WaitQuery), responses((status = 200, body = RunDetail)))]
pub(super) async fn show_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<WaitQuery>,
) -> ApiResult<Answer<RunDetail>> {
    let mut wait = Wait::new(&ctx, duration("wait", query.wait.as_deref())?);
    ctx.runs.book_abandoned().await?;
    loop {
        let found = find(&ctx, &caller, &id).await?;
        let status = found.status().await?;
        if status.is_over() || !wait.again().await {
            let served = is_served(&ctx, &found).await?;
            let run = Run::new(status, served);
            let detail = RunDetail::of(&found, run, PARTS_MAX).await?;
            return Ok(Answer(if redact::hides_from(&caller) { redact::run(detail) } else { detail }));
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
    let mut items = found.pipeline.parts(&found.run, first, limit).await?;
    if redact::hides_from(&caller) {
        items = items.into_iter().map(redact::part).collect();
    }
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
    let hide = redact::hides_from(&caller) && !found.pipeline.results_are_answers();
    if wants_lines(&headers) {
        return Ok(lines(found, after, hide));
    }
    let mut page = found.pipeline.results(&found.run, after, limit(query.limit)?).await?;
    if hide {
        page = redact::results(&page);
    }
    Ok(Answer(Listed { items: page.items, next: page.next.map(cursor_of), partial: false }).into_response())
}

fn lines(found: Found, after: i64, hide: bool) -> Response {
    let pages = stream::try_unfold(Some(after), move |after| {
        let found = found.clone();
        async move {
            let Some(after) = after else { return Ok(None) };
            let page = found.pipeline.results(&found.run, after, PAGE_MAX).await;
            let page = page.map_err(std::io::Error::other)?;
            let page = if hide { redact::results(&page) } else { page };
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
#[utoipa::path(post, path = "/api/v1/runs/{id}/pause", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Run)))]
pub(super) async fn pause_run(Shared(ctx): Shared<Ctx>, Path(id): Path<String>) -> ApiResult<Answer<Run>> {
    let found = ctx.runs.get(&id).await?;
    found.pause().await.map_err(wrong_state)?;
    let served = is_served(&ctx, &found).await?;
    Ok(Answer(Run::new(found.status().await?, served)))
}

/// Lets a paused or held run go on, and says how many of its jobs were held.
#[utoipa::path(post, path = "/api/v1/runs/{id}/resume", tag = "runs", params(("id" = String, Path)), request_body = Option<Resume>, responses((status = 200, body = Number)))]
pub(super) async fn resume_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(how): ApiJson<Option<Resume>>,
) -> ApiResult<Answer<Number>> {
    let found = ctx.runs.get(&id).await?;
    let Resume { max_cost_usd, allow_unpriced } = how.unwrap_or_default();
    let max_cost = max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    ctx.runs.set_limits(&found.run.id, max_cost, allow_unpriced).await?;
    Ok(Answer(Number { changed: found.resume().await? }))
}

/// Tries again what failed or was cancelled, and says how many units that are.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = String, Path)), request_body = Option<RetryRun>, responses((status = 200, body = Number)))]
pub(super) async fn retry_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(what): ApiJson<Option<RetryRun>>,
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
    if let Err(error) = ctx.uploads.remove_table(found.run.id.as_str()).await {
        warn!(run = %found.run.id, %error, "what a deleted run left among the uploads cannot be removed now");
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
