//! What a sheet will cost, before anything is sent: input is counted from the prompts themselves, output from what an
//! answer of this shape looks like. Nobody knows that exactly, so the cost is told as a range, as that of runs is. Where a sheet was
//! asked the same before, such as a sample, what that one really cost makes it one amount.

use longhaul_llm::{Billing, CostRange, Error as LlmError, NanoUsd, Request, Route, Scope, Usage, tokens};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use longhaul_pipeline::expected::Basis;

use super::layout::Plan;
use super::prompt::Prompt;
use super::scheduler;
use super::settings::{Mode, SheetSettings};
use super::tables::StoredSheet;
use super::{Result, Sheets};
use longhaul_pipeline::expected::{self, INPUT_SPREAD};

/// Tokens of an answer: around all scores, for each score, for each reason, for each field of a schema. Digits, points and
/// commas are tokens of their own, so `0.85,` is four and not its bytes by four.
const SHAPE: Shape = Shape { answer: 6.0, score: 4.0, reason: 30.0, field: 10.0 };
/// The simulator counts four bytes as a token.
const SIM_SHAPE: Shape = Shape { answer: 3.25, score: 1.0, reason: 30.0, field: 10.0 };

/// Models write numbers and reasons in more or fewer tokens than that.
const SHAPE_MIN: Shape = Shape { answer: 3.0, score: 1.0, reason: 8.0, field: 0.0 };
const SHAPE_MAX: Shape = Shape { answer: 10.0, score: 6.0, reason: 60.0, field: 0.0 };

/// Tokens of the parts of an answer. A schema of the user's own tells itself how long its fields may be.
struct Shape {
    answer: f64,
    score: f64,
    reason: f64,
    field: f64,
}

/// Sheets that are looked at for one that was asked the same, and calls that such a one must have made.
const SHEETS_LOOKED_AT: usize = 50;
const CALLS_MIN: u64 = 3;

/// What a sheet will cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SheetEstimate)]
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
    /// Output tokens, at least.
    pub output_tokens: u64,
    /// Output tokens, at most as expected.
    pub output_tokens_max: u64,
    /// What the expected cost is based on: the shape of answers, or an earlier sheet that was asked the same.
    #[schema(value_type = String)]
    pub basis: Basis,
    /// Expected: the lower end; absent without a price.
    #[schema(value_type = Option<f64>)]
    pub cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    pub cost_max_usd: Option<NanoUsd>,
    /// One amount by the count of tokens alone. What later sheets cost is measured by it.
    #[serde(skip)]
    pub raw_cost_usd: Option<NanoUsd>,
    /// Calls of an earlier sheet whose cost makes it one amount; 0 for none.
    pub measured_calls: u64,
    /// Day of the price.
    pub price_as_of: Option<String>,
    /// It is self-hosted and costs nothing.
    pub free: bool,
    /// The price is that of a simulator.
    pub simulated: bool,
}

impl Estimate {
    /// What the sheet is expected to cost.
    pub fn cost(&self) -> Option<CostRange> {
        Some(CostRange { low: self.cost_usd?, high: self.cost_max_usd? })
    }

    /// Adds a request with this many tokens of input.
    fn add(&mut self, route: &Route, input: u64, output: &OutputTokens) {
        self.units += 1;
        self.input_tokens += input;
        self.output_tokens += output.least;
        self.output_tokens_max += output.most;
        let cost = |part: f64, out: u64| {
            let usage = Usage { fresh_in: (input as f64 * part) as u64, out, ..Usage::default() };
            route.cost(&usage, Billing::Sync).unwrap_or(NanoUsd::ZERO)
        };
        let add = |sum: &mut Option<NanoUsd>, cost| *sum = sum.map(|sum| sum.saturating_add(cost));
        add(&mut self.cost_usd, cost(1.0 - INPUT_SPREAD, output.least));
        add(&mut self.cost_max_usd, cost(1.0 + INPUT_SPREAD, output.most));
        add(&mut self.raw_cost_usd, cost(1.0, output.likely));
    }
}

/// Tokens of an answer.
struct OutputTokens {
    least: u64,
    likely: u64,
    most: u64,
}

/// Estimates a sheet by reading its table; nothing is kept and nothing is sent.
pub async fn estimate(sheets: &Sheets, settings: &SheetSettings) -> Result<Estimate> {
    let (plan, mut table) = scheduler::preview(sheets, settings).await?;
    let route = sheets.inner.llm.route(&settings.model.profile, &settings.model.model).await?;
    let sheet = StoredSheet::unmade(settings.clone(), plan);
    let prompt = Prompt::of(&sheet);
    let priced = route.price().map(|_| NanoUsd::ZERO);
    let mut estimate = Estimate {
        model: route.model().to_owned(),
        basis: Basis::Schema,
        cost_usd: priced,
        cost_max_usd: priced,
        raw_cost_usd: priced,
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
            let output = output_tokens(&sheet.plan, settings, block, route.is_simulated());
            estimate.add(&route, tokens::estimate(&request, 1.0), &output);
            let blank = |target: &usize| !filled.iter().any(|filled| *filled as usize == *target);
            estimate.cells += sheet.targets(block).filter(blank).count() as u64;
        }
    }
    if let (Some(raw @ NanoUsd(1..)), Some((part, calls))) =
        (estimate.raw_cost_usd, measured(sheets, settings).await?)
    {
        estimate.cost_usd = Some(raw.scaled(part));
        estimate.cost_max_usd = estimate.cost_usd;
        (estimate.basis, estimate.measured_calls) = (Basis::Sample, calls);
    }
    Ok(estimate)
}

/// What the newest sheet that was asked the same has cost, in parts of what it was estimated at, and by how many calls.
async fn measured(sheets: &Sheets, settings: &SheetSettings) -> Result<Option<(f64, u64)>> {
    let same = |other: &SheetSettings| {
        (&other.model, &other.mode, &other.categories, &other.instructions, other.work.block_categories)
            == (
                &settings.model,
                &settings.mode,
                &settings.categories,
                &settings.instructions,
                settings.work.block_categories,
            )
    };
    for sheet in
        sheets.inner.tables.list(SHEETS_LOOKED_AT).await?.iter().filter(|sheet| same(&sheet.settings))
    {
        let totals = sheets.inner.tables.totals(sheet.seq).await?;
        let spent = sheets.inner.llm.ledger().totals(&Scope::run(&sheet.id)).await.map_err(LlmError::from)?;
        let whole = totals.units > 0 && totals.cached == 0 && totals.written == totals.units;
        if let (true, 0, Some(NanoUsd(estimated @ 1..))) =
            (whole, spent.unpriced_calls, sheet.settings.raw_estimate_usd)
            && spent.calls >= CALLS_MIN
        {
            return Ok(Some((spent.cost.0 as f64 / estimated as f64, spent.calls)));
        }
    }
    Ok(None)
}

fn output_tokens(plan: &Plan, settings: &SheetSettings, block: u32, simulated: bool) -> OutputTokens {
    let categories = plan.block_categories(block, settings.work.block_categories).len() as f64;
    let tokens = |Shape { answer, score, reason, field }: Shape| match &settings.mode {
        Mode::Scores => answer + categories * score,
        Mode::Rationale => answer + categories * (score + reason),
        Mode::Free { .. } => plan.targets.len() as f64 * field,
    };
    let model = &settings.model.model;
    let (least, most) = match &settings.mode {
        Mode::Free { schema } => expected::of_schema(schema, model),
        Mode::Scores | Mode::Rationale => {
            (tokens(SHAPE_MIN), tokens(SHAPE_MAX) + expected::reasoning_tokens_max(model))
        }
    };
    let likely = tokens(if simulated { SIM_SHAPE } else { SHAPE });
    OutputTokens { least: least as u64, likely: likely as u64, most: most.ceil() as u64 }
}
