//! What a sheet will cost, before anything is sent: input is counted from the prompts themselves, output from what an
//! answer of this shape looks like.

use longhaul_llm::{Billing, Request, Usage, tokens};
use serde::Serialize;

use super::layout::Plan;
use super::prompt::Prompt;
use super::scheduler;
use super::settings::{Mode, SheetSettings};
use super::tables::StoredSheet;
use super::{Result, Scoring};

/// Bytes of an answer: around all scores, for each score, for each reason, for each field of a schema.
const ANSWER_BYTES: u64 = 14;
const SCORE_BYTES: u64 = 5;
const REASON_BYTES: u64 = 120;
const FIELD_BYTES: u64 = 40;
const BYTES_PER_TOKEN: u64 = 4;

/// What a sheet will cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The model.
    pub model: String,
    /// Rows with a text.
    pub rows: u64,
    /// Requests.
    pub units: u64,
    /// Cells that get a value.
    pub cells: u64,
    /// Requests that had all their cells already, and are not paid for.
    pub filled: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens, assumed.
    pub output_tokens: u64,
    /// Expected; absent without a price.
    pub cost_micros: Option<u64>,
    /// Day of the price.
    pub price_as_of: Option<String>,
    /// It runs on a machine of one's own and costs nothing.
    pub free: bool,
    /// The price is that of a simulator.
    pub simulated: bool,
}

/// Estimates a sheet by reading its table; nothing is kept and nothing is sent.
pub async fn estimate(scoring: &Scoring, settings: &SheetSettings) -> Result<Estimate> {
    let (plan, mut table) = scheduler::preview(scoring, settings).await?;
    let route = scoring.inner.llm.route(&settings.model.profile, &settings.model.model).await?;
    let sheet = StoredSheet::unmade(settings.clone(), plan);
    let prompt = Prompt::of(&sheet);
    let mut estimate = Estimate {
        model: route.model().to_owned(),
        cost_micros: route.price().map(|_| 0),
        price_as_of: route.price().filter(|_| !route.is_free()).map(|price| price.as_of.to_string()),
        free: route.is_free(),
        simulated: route.is_simulated(),
        ..Estimate::default()
    };
    let limit = settings.limit.unwrap_or(u64::MAX);
    while estimate.rows < limit
        && let Some(row) = table.next().await?
    {
        let text = scheduler::text_of(&row, &sheet.plan)?;
        if text.is_empty() {
            continue;
        }
        estimate.rows += 1;
        let filled = scheduler::filled(&row, &sheet);
        for block in 0..sheet.blocks() {
            if sheet.is_filled(block, &filled) {
                estimate.filled += 1;
                continue;
            }
            let request = Request::Chat(prompt.request(text, block, route.model()));
            let usage = Usage {
                fresh_in: tokens::estimate(&request, 1.0),
                out: output_tokens(&sheet.plan, settings, block),
                ..Usage::default()
            };
            estimate.units += 1;
            let blank = |target: &usize| !filled.iter().any(|filled| *filled as usize == *target);
            estimate.cells += sheet.targets(block).filter(blank).count() as u64;
            estimate.input_tokens += usage.fresh_in;
            estimate.output_tokens += usage.out;
            let cost = route.cost(&usage, Billing::Sync).map_or(0, |cost| cost.0);
            estimate.cost_micros = estimate.cost_micros.map(|sum| sum.saturating_add(cost));
        }
    }
    Ok(estimate)
}

fn output_tokens(plan: &Plan, settings: &SheetSettings, block: u32) -> u64 {
    let categories = plan.block_categories(block, settings.work.block_categories).len() as u64;
    let bytes = match &settings.mode {
        Mode::Scores => ANSWER_BYTES + categories * SCORE_BYTES,
        Mode::Rationale => ANSWER_BYTES + categories * (SCORE_BYTES + REASON_BYTES),
        Mode::Free { .. } => plan.targets.len() as u64 * FIELD_BYTES,
    };
    bytes.div_ceil(BYTES_PER_TOKEN)
}
