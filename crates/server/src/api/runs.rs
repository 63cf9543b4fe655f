//! Runs: many prompts, each answered once, in order. What a run is and how it goes on is the slice's
//! ([`longhaul_prompts`]); here it is handed in, looked at and steered.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_llm::{NanoUsd, Scope};
use longhaul_prompts::batch::{BatchTold, Step};
use longhaul_prompts::eta::eta_seconds;
use longhaul_prompts::run::RUN_PREFIX;
use longhaul_prompts::{Basis, Progress, Run, RunId, RunSettings, Submission, manage};
use longhaul_queue::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};
use super::page::{Listed, PageQuery, cursor_of, limit, seq_of};
use super::processes::Number;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

pub(super) mod input;
pub(super) mod results;

use input::{RunIn, Wanted, amount};

/// Runs on one page: each is read with its counts and money.
const RUNS_MAX: usize = 100;

/// A run.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Run)]
pub(super) struct RunOut {
    /// Its name: of its process and of its queue too.
    id: String,
    /// Profile, model, mode, source and what else its requests have in common.
    #[schema(value_type = Object)]
    settings: RunSettings,
    /// Status, counts by state, and what was spent, in dollars.
    #[schema(value_type = Object)]
    progress: Progress,
    /// Seconds until it has ended, by the pace of its newest answers; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    eta_seconds: Option<u64>,
    /// When it was handed in.
    #[schema(value_type = i64)]
    created_at: Timestamp,
    /// Provider batches under way; only when one run is shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    batches: Vec<BatchOut>,
}

/// A provider batch of a run.
#[derive(Debug, Serialize, ToSchema)]
struct BatchOut {
    /// Its job.
    #[schema(value_type = String, format = "uuid")]
    job_id: JobId,
    /// Which part of the run.
    chunk: u64,
    /// Which try.
    round: u64,
    /// Requests in it.
    requests: u64,
    /// How far it is.
    #[schema(value_type = Object)]
    at: Step,
}

impl RunOut {
    async fn new(ctx: &Ctx, run: Run) -> Result<Self, Problem> {
        let progress = Progress::of(&ctx.bulk, &run.id, &run.settings).await?;
        Ok(Self {
            eta_seconds: eta_seconds(&ctx.bulk, &run, &progress).await?,
            id: run.id.as_str().to_owned(),
            settings: run.settings,
            progress,
            created_at: run.job.created_at,
            batches: Vec::new(),
        })
    }
}

/// The run of this name, with or without `run-`.
async fn find(ctx: &Ctx, name: &str) -> Result<Run, Problem> {
    let name = if name.starts_with(RUN_PREFIX) { name.to_owned() } else { format!("{RUN_PREFIX}{name}") };
    Ok(Run::get(ctx.queue(), &RunId::named(name)).await?)
}

/// The same, if the caller may see it.
async fn find_seen(ctx: &Ctx, caller: &Caller, name: &str) -> Result<Run, Problem> {
    let run = find(ctx, name).await?;
    match access::may_see_process(ctx, caller, run.id.as_str()).await? {
        true => Ok(run),
        false => Err(longhaul_prompts::Error::NoRun(run.id.to_string()).into()),
    }
}

/// Lists runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(PageQuery), responses((status = 200, body = Listed<RunOut>)))]
pub(super) async fn list_runs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiQuery(query): ApiQuery<PageQuery>,
) -> ApiResult<Answer<Listed<RunOut>>> {
    let limit = limit(query.limit)?.min(RUNS_MAX);
    let page = Run::list(ctx.queue(), seq_of(query.cursor.as_deref())?, limit).await?;
    let mut items = Vec::with_capacity(page.items.len());
    for job in page.items {
        let Some(process) = &job.process_id else { continue };
        if access::is_unlisted(&caller, process.as_str()) {
            continue;
        }
        // One that was consumed between two reads is not there any more.
        if let Some(run) = Run::find(ctx.queue(), &RunId::named(process.as_str())).await? {
            items.push(RunOut::new(&ctx, run).await?);
        }
    }
    Ok(Answer(Listed { items, next: page.next.map(cursor_of), partial: page.partial }))
}

/// Shows a run with its settings, progress, money and provider batches.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = RunOut)))]
pub(super) async fn show_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult<Answer<RunOut>> {
    let run = find_seen(&ctx, &caller, &id).await?;
    // What a killed process left under way may have been billed, and is part of what a run cost.
    let now = ctx.queue().clock().now().as_millis();
    ctx.llm().ledger().abandon_dead(now).await.map_err(longhaul_llm::Error::from)?;
    let batches = manage::batches(&ctx.bulk, &run.id).await?;
    let batches = batches.into_iter().map(|(detail, payload)| BatchOut {
        job_id: detail.job.id,
        chunk: payload.chunk,
        round: payload.round.into(),
        requests: payload.len(),
        at: detail.data.and_then(|data| data.to().ok()).unwrap_or_default(),
    });
    let batches = batches.collect();
    Ok(Answer(RunOut { batches, ..RunOut::new(&ctx, run).await? }))
}

/// A run that was handed in.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Submitted {
    /// Its name.
    id: String,
    /// It was there before: the same input with the same settings is the same run.
    resumed: bool,
    /// Total number of requests.
    requests: u64,
    /// `sync` or `batch`.
    mode: String,
    /// Why it is not the mode that was asked for.
    mode_note: Option<String>,
    /// What it is expected to cost, in dollars; absent without a price.
    #[schema(value_type = Option<f64>)]
    estimate_usd: Option<NanoUsd>,
    /// The upper end of it.
    #[schema(value_type = Option<f64>)]
    estimate_max_usd: Option<NanoUsd>,
}

/// Hands in a run. The same call again is the same run: nothing is sent or paid for twice, and a call that was cut off goes on.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", request_body = RunIn, responses((status = 201, body = Submitted), (status = 200, description = "It was there before", body = Submitted)))]
pub(super) async fn submit_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<RunIn>,
) -> ApiResult<(StatusCode, Answer<Submitted>)> {
    let max_cost = asked.max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    let mut wanted = Wanted::new(&ctx, &caller, asked).await?;
    let id = RunId::of(&wanted.settings);
    if Run::find(ctx.queue(), &id).await?.is_none() {
        let estimate = wanted.estimate(&ctx).await?;
        wanted.settings.expected = Some(estimate.expected(wanted.settings.mode));
    }
    if max_cost.is_some() {
        let set = ctx.llm().ledger().set_cap(&Scope::run(id.as_str()), max_cost).await;
        set.map_err(longhaul_llm::Error::from)?;
    }
    let bulk = match caller.trace {
        Some(trace) => ctx.bulk.clone().with_trace(trace.to_string()),
        None => ctx.bulk.clone(),
    };
    let mut submission = Submission::begin(&bulk, wanted.settings.clone()).await?;
    let (resumed, settings) = (submission.is_resumed(), submission.settings().clone());
    if !submission.is_complete().await? {
        let mut requests = wanted.requests(&ctx);
        while let Some(request) = requests.next().await? {
            submission.push(request).await?;
        }
        submission.finish().await?;
    }
    let status = if resumed { StatusCode::OK } else { StatusCode::CREATED };
    let submitted = Submitted {
        id: id.as_str().to_owned(),
        resumed,
        requests: settings.source.requests,
        mode: settings.mode.to_string(),
        mode_note: settings.mode_note,
        estimate_usd: settings.expected.and_then(|expected| expected.cost_usd),
        estimate_max_usd: settings.expected.and_then(|expected| expected.cost_max_usd),
    };
    Ok((status, Answer(submitted)))
}

/// What prompts would cost.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Estimate)]
pub(super) struct EstimateOut {
    /// The model.
    model: String,
    /// Requests.
    requests: u64,
    /// Input tokens, estimated from the bytes.
    input_tokens: u64,
    /// Requests that were answered before and are in the cache.
    answered: u64,
    /// Output tokens, at least.
    output_tokens: u64,
    /// Output tokens, at most as expected.
    output_tokens_max: u64,
    /// What the estimate is based on: `sample`, `schema`, `past`, `assumed` or `none`.
    #[schema(value_type = String)]
    basis: Basis,
    /// Number of answers behind it.
    measured_calls: u64,
    /// Expected, one by one, in dollars: the lower end; absent without a price.
    #[schema(value_type = Option<f64>)]
    cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    cost_max_usd: Option<NanoUsd>,
    /// Expected in provider batches: the lower end; absent without a price or batches.
    #[schema(value_type = Option<f64>)]
    batch_cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    batch_cost_max_usd: Option<NanoUsd>,
    /// The most it can be, one by one.
    #[schema(value_type = Option<f64>)]
    ceiling_usd: Option<NanoUsd>,
    /// Day of the price.
    price_as_of: Option<String>,
    /// It is self-hosted and costs nothing.
    free: bool,
    /// The price is that of a simulator.
    simulated: bool,
}

/// Says what a run would cost; sends and stores nothing.
#[utoipa::path(post, path = "/api/v1/estimate", tag = "costs", request_body = RunIn, responses((status = 200, body = EstimateOut)))]
pub(super) async fn estimate_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<RunIn>,
) -> ApiResult<Answer<EstimateOut>> {
    let estimate = Wanted::new(&ctx, &caller, asked).await?.estimate(&ctx).await?;
    Ok(Answer(EstimateOut {
        model: estimate.model,
        requests: estimate.requests,
        input_tokens: estimate.input_tokens,
        answered: estimate.answered,
        output_tokens: estimate.output_tokens,
        output_tokens_max: estimate.output_tokens_max,
        basis: estimate.basis,
        measured_calls: estimate.measured_calls,
        cost_usd: estimate.cost_usd,
        cost_max_usd: estimate.cost_max_usd,
        batch_cost_usd: estimate.batch_cost_usd,
        batch_cost_max_usd: estimate.batch_cost_max_usd,
        ceiling_usd: estimate.ceiling_usd,
        price_as_of: estimate.price_as_of,
        free: estimate.free,
        simulated: estimate.simulated,
    }))
}

/// Ends a run early. Provider batches are asked to end, and what they have answered by then is kept.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn cancel_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let run = find(&ctx, &id).await?;
    Ok(Answer(Number { changed: manage::cancel(&ctx.bulk, &run.id).await? }))
}

/// Stops a run's requests from being sent; what was sent goes on.
#[utoipa::path(post, path = "/api/v1/runs/{id}/pause", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = RunOut)))]
pub(super) async fn pause_run(Shared(ctx): Shared<Ctx>, Path(id): Path<String>) -> ApiResult<Answer<RunOut>> {
    let run = find(&ctx, &id).await?;
    manage::pause(&ctx.bulk, &run.id).await?;
    Ok(Answer(RunOut::new(&ctx, run).await?))
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
    let run = find(&ctx, &id).await?;
    if let Some(dollars) = how.unwrap_or_default().max_cost_usd {
        let cap = Some(amount("max_cost_usd", dollars)?);
        let set = ctx.llm().ledger().set_cap(&Scope::run(run.id.as_str()), cap).await;
        set.map_err(longhaul_llm::Error::from)?;
    }
    Ok(Answer(Number { changed: manage::resume(&ctx.bulk, &run.id).await? }))
}

/// Puts the failed requests of a run back.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry-failed", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn retry_failed(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let run = find(&ctx, &id).await?;
    Ok(Answer(Number { changed: manage::retry_failed(&ctx.bulk, &run.id).await? }))
}

/// What to do with provider batches whose fate is unknown, or that the provider refuses.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveIn {
    /// The decision.
    decision: Decision,
}

/// A person's word on a batch that may or may not exist, or that the provider does not take.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Decision {
    /// Send it again: the unknown one is believed not to exist.
    Resubmit,
    /// Look for it again.
    Wait,
    /// Send its requests one by one.
    OneByOne,
    /// Give up on it: its requests fail.
    Drop,
}

/// Decides what to do with provider batches whose fate is unknown or that the provider refuses, and says how many there were.
#[utoipa::path(post, path = "/api/v1/runs/{id}/resolve", tag = "runs", params(("id" = String, Path)), request_body = ResolveIn, responses((status = 200, body = Number)))]
pub(super) async fn resolve_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(asked): ApiJson<ResolveIn>,
) -> ApiResult<Answer<Number>> {
    let run = find(&ctx, &id).await?;
    let told = match asked.decision {
        Decision::Resubmit => BatchTold::Resubmit,
        Decision::Wait => BatchTold::Wait,
        Decision::OneByOne => BatchTold::Alone,
        Decision::Drop => BatchTold::Drop,
    };
    Ok(Answer(Number { changed: manage::resolve(&ctx.bulk, &run.id, told).await? }))
}

/// Deletes a run for good, with its answers. Refused while requests are unfinished.
#[utoipa::path(delete, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path)), responses((status = 200, body = Number)))]
pub(super) async fn delete_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Number>> {
    let run = find(&ctx, &id).await?;
    Ok(Answer(Number { changed: consume(&ctx, &run.id).await? }))
}

/// Deletes a run with all that belongs to it.
pub(super) async fn consume(ctx: &Ctx, run: &RunId) -> Result<u64, Problem> {
    manage::consume(&ctx.bulk, run).await.map_err(|error| match error {
        longhaul_prompts::Error::Queue(error) => super::verbs::conflict(error),
        error => error.into(),
    })
}
