//! What was spent, by day and model: one report for the API, the command line and the tools of agents.

use longhaul_llm::ledger::{Spend, day_of};
use longhaul_llm::{CostRange, Llm, NanoUsd, Scope};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Days of a report, unless somebody wants others.
pub const DAYS: i64 = 31;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// What was spent, by day and model.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Costs {
    /// The last 31 days, in UTC.
    pub items: Vec<CostLine>,
    /// Calls of all days whose end was never seen; they may have been billed.
    pub unknown_calls: u64,
    /// The most that those can have cost, in dollars.
    #[schema(value_type = f64)]
    pub unknown_ceiling_usd: NanoUsd,
}

/// Spending of a day with a model.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CostLine {
    /// Such as `2026-11-15`.
    pub day: String,
    /// The profile that was used.
    pub profile: String,
    /// Which model.
    pub model: String,
    /// Requests that were paid for.
    pub calls: u64,
    /// All input.
    pub input_tokens: u64,
    /// All output.
    pub output_tokens: u64,
    /// What is booked, in dollars; absent when the model has no price.
    #[schema(value_type = Option<f64>)]
    pub cost_usd: Option<NanoUsd>,
    /// The same, with every call that may have been billed at the most it can have cost: the bill is between the two.
    #[schema(value_type = Option<f64>)]
    pub cost_max_usd: Option<NanoUsd>,
    /// Requests without a price.
    pub unpriced_calls: u64,
    /// Calls whose end was never seen; they may have been billed.
    pub unknown_calls: u64,
    /// The most that those can have cost, in dollars.
    #[schema(value_type = f64)]
    pub unknown_ceiling_usd: NanoUsd,
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
            items: rows.into_iter().map(|row| CostLine::new(llm, row)).collect(),
            unknown_calls: all.unknown_calls,
            unknown_ceiling_usd: all.unknown_ceiling,
        })
    }
}

impl CostLine {
    fn new(llm: &Llm, row: Spend) -> Self {
        // A row of calls of unknown end alone has a price too: nothing so far.
        let priced = row.unpriced_calls < row.calls || row.calls == 0;
        Self {
            day: row.day,
            calls: row.calls,
            input_tokens: row.usage.input(),
            output_tokens: row.usage.output(),
            cost_usd: priced.then_some(row.cost),
            cost_max_usd: priced.then_some(row.cost.saturating_add(row.unknown_ceiling)),
            unpriced_calls: row.unpriced_calls,
            unknown_calls: row.unknown_calls,
            unknown_ceiling_usd: row.unknown_ceiling,
            simulated: llm.is_simulated(&row.profile, &row.model),
            profile: row.profile,
            model: row.model,
        }
    }

    /// What it came to, for people.
    pub fn cost(&self) -> String {
        match self.cost_usd.zip(self.cost_max_usd) {
            Some((low, high)) => CostRange { low, high }.to_string(),
            None => "unpriced".to_owned(),
        }
    }
}
