//! Prompts to a model: what they would cost, and a run of them. Both take what `POST /api/v1/prompts` takes.

use longhaul_api::prompts::RunIn;
use longhaul_prompts::{Estimate, Mode};
use serde_json::Value;

use super::change::noted;
use crate::api::prompts;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// `estimate_cost`.
pub(super) async fn estimate(ctx: &Ctx, caller: &Caller, asked: RunIn) -> Result<Value, Problem> {
    let estimate = prompts::estimate(ctx, caller, asked).await?;
    let mut shown = serde_json::to_value(&estimate).map_err(Problem::internal)?;
    shown["summary"] = summary(&estimate).into();
    Ok(shown)
}

/// `submit_batch`.
pub(super) async fn submit(ctx: &Ctx, caller: &Caller, asked: RunIn) -> Result<Value, Problem> {
    noted(ctx, &prompts::hand_in(ctx, caller, asked).await?).await
}

/// What it comes to, in a sentence.
fn summary(estimate: &Estimate) -> String {
    let Estimate { requests, model, .. } = estimate;
    let (Some(cost), Some(ceiling)) = (estimate.cost(Mode::Sync), estimate.ceiling_usd) else {
        return match estimate.free {
            true => format!("{requests} requests to {model} cost nothing: the model is self-hosted"),
            false => format!("{requests} requests to {model}: its price is not known here"),
        };
    };
    let batch = estimate.cost(Mode::Batch).map(|cost| format!(", in provider batches {cost}"));
    let made_up = if estimate.simulated { "; the price is made up, for the simulator" } else { "" };
    format!(
        "{requests} requests to {model} cost {} one by one ({}), at most {}{}{made_up}",
        cost,
        estimate.basis_text(),
        ceiling,
        batch.unwrap_or_default()
    )
}
