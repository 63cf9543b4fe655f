//! What was spent, by day and model: one report for the API, the command line and the tools of agents.

use longhaul_llm::ledger::{Spend, day_of};
use longhaul_llm::{Llm, SIM_MODEL_PREFIX, Scope};
use serde::Serialize;
use utoipa::ToSchema;

/// Days of a report, unless somebody wants others.
pub const DAYS: i64 = 31;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// What was spent, by day and model.
#[derive(Debug, Serialize, ToSchema)]
pub struct Costs {
    /// The last 31 days, in UTC.
    pub items: Vec<CostLine>,
    /// Calls of all days whose end nobody saw; they may have been billed.
    pub unknown_calls: u64,
    /// The most that those can have cost, in millionths of a dollar.
    pub unknown_ceiling_micros: u64,
}

/// Spending of a day with a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct CostLine {
    /// Such as `2026-11-15`.
    pub day: String,
    /// Whose account.
    pub profile: String,
    /// Which model.
    pub model: String,
    /// Requests that were paid for.
    pub calls: u64,
    /// All input.
    pub input_tokens: u64,
    /// All output.
    pub output_tokens: u64,
    /// In millionths of a dollar; absent when the model has no price.
    pub cost_micros: Option<u64>,
    /// Requests without a price.
    pub unpriced_calls: u64,
    /// Calls whose end nobody saw; they may have been billed.
    pub unknown_calls: u64,
    /// The most that those can have cost, in millionths of a dollar.
    pub unknown_ceiling_micros: u64,
    /// The model is a simulator, and the money is not real.
    pub simulated: bool,
}

impl Costs {
    /// Of the last days, today among them. What dead processes left open is told as unknown, not as under way.
    pub async fn of(llm: &Llm, days: i64, now_ms: i64) -> longhaul_llm::Result<Self> {
        let ledger = llm.ledger();
        ledger.abandon_dead(now_ms).await?;
        let rows = ledger.spend(&day_of(now_ms - (days - 1) * DAY_MS), &day_of(now_ms)).await?;
        let all = ledger.totals(&Scope::all()).await?;
        Ok(Self {
            items: rows.into_iter().map(CostLine::from).collect(),
            unknown_calls: all.unknown_calls,
            unknown_ceiling_micros: all.unknown_ceiling.0,
        })
    }
}

impl From<Spend> for CostLine {
    fn from(row: Spend) -> Self {
        // A row of calls of unknown end alone has a price too: nothing so far.
        let priced = row.unpriced_calls < row.calls || row.calls == 0;
        Self {
            day: row.day,
            profile: row.profile,
            calls: row.calls,
            input_tokens: row.usage.input(),
            output_tokens: row.usage.output(),
            cost_micros: priced.then_some(row.cost.0),
            unpriced_calls: row.unpriced_calls,
            unknown_calls: row.unknown_calls,
            unknown_ceiling_micros: row.unknown_ceiling.0,
            simulated: row.model.starts_with(SIM_MODEL_PREFIX),
            model: row.model,
        }
    }
}
