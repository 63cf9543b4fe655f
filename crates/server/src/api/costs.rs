//! What was spent, and what is decided about calls whose end was never seen.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use longhaul_api::bills::{ResolveCosts, ResolveError, ResolvedCosts, WhichCalls};
use longhaul_api::costs::{Costs, DAYS};
use longhaul_llm::ledger::{Decision, UnknownCall};

use super::ApiResult;
use super::extract::{ApiJson, ApiQuery};
use super::page::Listed;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Who decides where no token names anybody.
const NAMELESS: &str = "api";

/// Shows what was spent, by day and model.
#[utoipa::path(get, path = "/api/v1/costs", tag = "costs", responses((status = 200, body = Costs)))]
pub(super) async fn show_costs(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Costs>> {
    Ok(Answer(Costs::of(ctx.llm(), DAYS, now(&ctx)).await?))
}

/// Lists calls that may have been billed: `call`, `day`, `profile`, `model`, `requests`, `batch` and `ceiling_usd` each.
#[utoipa::path(get, path = "/api/v1/costs/unknown", tag = "costs", params(WhichCalls), responses((status = 200, body = Listed<Object>)))]
pub(super) async fn unknown_costs(
    Shared(ctx): Shared<Ctx>,
    ApiQuery(which): ApiQuery<WhichCalls>,
) -> ApiResult<Answer<Listed<UnknownCall>>> {
    check_day(which.day.as_deref())?;
    let ledger = ctx.llm().ledger();
    ledger.abandon_dead(now(&ctx)).await.map_err(longhaul_llm::Error::from)?;
    let calls = ledger.unknown(which.filter()).await.map_err(longhaul_llm::Error::from)?;
    Ok(Answer(Listed::whole(calls)))
}

/// Records what such calls cost, and releases the rest of what budgets hold for them.
#[utoipa::path(post, path = "/api/v1/costs/resolve", tag = "costs", request_body = ResolveCosts, responses((status = 200, body = ResolvedCosts)))]
pub(super) async fn resolve_costs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(decision): ApiJson<ResolveCosts>,
) -> ApiResult<Answer<ResolvedCosts>> {
    check_day(decision.day.as_deref())?;
    let who = caller.name.as_deref().unwrap_or(NAMELESS);
    let resolved = decision.carry_out(ctx.llm(), who, now(&ctx)).await;
    Ok(Answer(resolved.map_err(|error| match error {
        ResolveError::Nothing => Problem::new(StatusCode::NOT_FOUND, "nothing_matched", error),
        ResolveError::Ledger(error) if error.is_transient() => longhaul_llm::Error::from(error).into(),
        // A bill that is less than what is booked, or more than those calls can have cost.
        ResolveError::BillTooLow { .. } | ResolveError::Ledger(_) => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", error).at("bill_usd")
        }
    })?))
}

/// Lists what was decided: `decided_at`, `decided_by`, `verdict`, `about`, `calls`, `ceiling_usd` and `cost_usd` each.
#[utoipa::path(get, path = "/api/v1/costs/decisions", tag = "costs", responses((status = 200, body = Listed<Object>)))]
pub(super) async fn cost_decisions(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<Decision>>> {
    let decisions = ctx.llm().ledger().decisions().await.map_err(longhaul_llm::Error::from)?;
    Ok(Answer(Listed::whole(decisions)))
}

fn now(ctx: &Ctx) -> i64 {
    ctx.queue().clock().now().as_millis()
}

fn check_day(day: Option<&str>) -> Result<(), Problem> {
    match day {
        Some(day) if !longhaul_llm::ledger::is_day(day) => {
            let text = format!("{day:?} is not a day; write it like 2026-11-15");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("day"))
        }
        _ => Ok(()),
    }
}
