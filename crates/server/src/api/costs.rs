//! What was spent.

use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_llm::ledger::day_of;
use longhaul_llm::{SIM_MODEL_PREFIX, Scope};
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiResult;
use crate::ctx::Ctx;

/// Days shown.
const DAYS: i64 = 31;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// What was spent, by day and model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Costs {
    /// The last 31 days, in UTC.
    items: Vec<CostLine>,
    /// Calls whose end nobody saw; they may have been billed.
    unknown_calls: u64,
    /// The most that those can have cost, in millionths of a dollar.
    unknown_ceiling_micros: u64,
}

/// Spending of a day with a model.
#[derive(Debug, Serialize, ToSchema)]
struct CostLine {
    /// Such as `2026-11-15`.
    day: String,
    /// Whose account.
    profile: String,
    /// Which model.
    model: String,
    /// Requests that were paid for.
    calls: u64,
    /// All input.
    input_tokens: u64,
    /// All output.
    output_tokens: u64,
    /// In millionths of a dollar; absent when the model has no price.
    cost_micros: Option<u64>,
    /// Requests without a price.
    unpriced_calls: u64,
    /// The model is a simulator, and the money is not real.
    simulated: bool,
}

/// Shows what was spent, by day and model.
#[utoipa::path(get, path = "/api/v1/costs", tag = "costs", responses((status = 200, body = Costs)))]
pub(super) async fn show_costs(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Costs>> {
    let now = ctx.queue().clock().now().as_millis();
    let ledger = ctx.llm().ledger();
    let rows = ledger.spend(&day_of(now - DAYS * DAY_MS), &day_of(now)).await;
    let rows = rows.map_err(longhaul_llm::Error::from)?;
    let items = rows.into_iter().map(|row| CostLine {
        day: row.day,
        profile: row.profile,
        calls: row.calls,
        input_tokens: row.usage.input(),
        output_tokens: row.usage.output(),
        cost_micros: (row.unpriced_calls < row.calls).then_some(row.cost.0),
        unpriced_calls: row.unpriced_calls,
        simulated: row.model.starts_with(SIM_MODEL_PREFIX),
        model: row.model,
    });
    let items = items.collect();
    let all = ledger.totals(&Scope::all()).await.map_err(longhaul_llm::Error::from)?;
    Ok(Answer(Costs {
        items,
        unknown_calls: all.unknown_calls,
        unknown_ceiling_micros: all.unknown_ceiling.0,
    }))
}
