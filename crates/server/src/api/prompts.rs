//! Runs of prompts: how one is started, what it would cost, and what is done about provider batches whose fate is unknown.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_llm::NanoUsd;
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::{Basis, Run, Submission, manage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiResult;
use super::extract::ApiJson;
use super::processes::Number;
use crate::ctx::Ctx;
use crate::guard::Caller;

pub(super) mod input;

use input::{RunIn, Wanted, amount};

/// Where one is started.
pub(super) const START: &str = "/api/v1/prompts";

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
#[utoipa::path(post, path = "/api/v1/prompts", tag = "prompts", request_body = RunIn, responses((status = 201, body = Submitted), (status = 200, description = "It was there before", body = Submitted)))]
pub(super) async fn submit_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<RunIn>,
) -> ApiResult<(StatusCode, Answer<Submitted>)> {
    let max_cost = asked.max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    let mut wanted = Wanted::new(&ctx, &caller, asked).await?;
    let id = wanted.settings.run_id();
    if Run::find(ctx.queue(), &id).await?.is_none() {
        let estimate = wanted.estimate(&ctx).await?;
        wanted.settings.expected = Some(estimate.expected(wanted.settings.mode));
    }
    if max_cost.is_some() {
        ctx.runs.set_cap(&id, max_cost).await?;
    }
    let prompts = match caller.trace {
        Some(trace) => ctx.prompts.clone().with_trace(trace.to_string()),
        None => ctx.prompts.clone(),
    };
    let mut submission = Submission::begin(&prompts, wanted.settings.clone()).await?;
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
#[utoipa::path(post, path = "/api/v1/prompts/estimate", tag = "prompts", request_body = RunIn, responses((status = 200, body = EstimateOut)))]
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
#[utoipa::path(post, path = "/api/v1/runs/{id}/resolve", tag = "prompts", params(("id" = String, Path)), request_body = ResolveIn, responses((status = 200, body = Number)))]
pub(super) async fn resolve_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(asked): ApiJson<ResolveIn>,
) -> ApiResult<Answer<Number>> {
    let run = ctx.runs.get(&id).await?.run;
    let told = match asked.decision {
        Decision::Resubmit => BatchTold::Resubmit,
        Decision::Wait => BatchTold::Wait,
        Decision::OneByOne => BatchTold::Alone,
        Decision::Drop => BatchTold::Drop,
    };
    Ok(Answer(Number { changed: manage::resolve(&ctx.prompts, &run.id, told).await? }))
}
