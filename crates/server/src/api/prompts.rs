//! Runs of prompts: how one is started, what it would cost, and what is done about provider batches whose fate is unknown.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::processes::Number;
use longhaul_api::prompts::{RunIn, Submitted};
use longhaul_api::runs::{Decision, Resolve};
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::{Estimate, Run, Submission, manage};

use super::ApiResult;
use super::extract::ApiJson;
use crate::ctx::Ctx;
use crate::guard::Caller;

pub(super) mod input;

use input::{Wanted, amount};

/// Where one is started.
pub(super) const START: &str = "/api/v1/prompts";

/// Hands in a run. The same call again is the same run: nothing is sent or paid for twice, and a call that was cut off goes on.
#[utoipa::path(post, path = "/api/v1/prompts", tag = "prompts", request_body = RunIn, responses((status = 201, body = Submitted), (status = 200, description = "It was there before", body = Submitted)))]
pub(super) async fn submit_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<RunIn>,
) -> ApiResult<(StatusCode, Answer<Submitted>)> {
    let max_cost = asked.max_cost_usd.map(|dollars| amount("max_cost_usd", dollars)).transpose()?;
    let (allow_unpriced, ask_again) = (asked.allow_unpriced, asked.ask_again);
    super::runs::check_unpriced(&caller, allow_unpriced)?;
    let mut wanted = Wanted::new(&ctx, &caller, asked).await?;
    let id = wanted.settings.run_id();
    let exists = Run::find(ctx.queue(), &id).await?.is_some();
    if !exists {
        let estimate = wanted.estimate(&ctx).await?;
        wanted.settings.expected = Some(estimate.expected(wanted.settings.mode));
    }
    super::runs::set_limits(&ctx, &caller, (&id, exists), (max_cost, allow_unpriced)).await?;
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
    let asked_again = match resumed && ask_again {
        true => super::runs::ask_again(&ctx, &caller, &id).await?,
        false => 0,
    };
    let status = if resumed { StatusCode::OK } else { StatusCode::CREATED };
    let submitted = Submitted {
        id: id.as_str().to_owned(),
        resumed,
        asked_again,
        requests: settings.source.requests,
        mode: settings.mode.to_string(),
        mode_note: settings.mode_note,
        estimate_usd: settings.expected.and_then(|expected| expected.cost_usd),
        estimate_max_usd: settings.expected.and_then(|expected| expected.cost_max_usd),
    };
    Ok((status, Answer(submitted)))
}

/// Says what a run would cost; sends and stores nothing.
#[utoipa::path(post, path = "/api/v1/prompts/estimate", tag = "prompts", request_body = RunIn, responses((status = 200, body = Estimate)))]
pub(super) async fn estimate_run(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<RunIn>,
) -> ApiResult<Answer<Estimate>> {
    Ok(Answer(Wanted::new(&ctx, &caller, asked).await?.estimate(&ctx).await?))
}

/// Decides what to do with provider batches whose fate is unknown or that the provider refuses, and says how many there were.
#[utoipa::path(post, path = "/api/v1/runs/{id}/resolve", tag = "prompts", params(("id" = String, Path)), request_body = Resolve, responses((status = 200, body = Number)))]
pub(super) async fn resolve_run(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(asked): ApiJson<Resolve>,
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
