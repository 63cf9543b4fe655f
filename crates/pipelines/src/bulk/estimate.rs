//! What prompts will cost, before anything is sent. Output is unknown beforehand: the estimate says what it assumes, and
//! the ceiling is what `max_tokens` allows.

use longhaul_llm::types::Dialect;
use longhaul_llm::{Billing, Endpoint, MicroUsd, Route, Usage, tokens};
use serde::Serialize;
use serde_json::Value;

use super::request;
use super::run::{Mode, RunSettings};

/// Output tokens assumed for an answer that `max_tokens` does not bound lower.
const OUTPUT_ASSUMED: u64 = 250;

/// What prompts will cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The model.
    pub model: String,
    /// Requests.
    pub requests: u64,
    /// Input tokens, estimated from the bytes.
    pub input_tokens: u64,
    /// Output tokens, assumed.
    pub output_tokens_assumed: u64,
    /// Expected, one by one; absent without a price.
    pub cost_micros: Option<u64>,
    /// Expected in provider batches; absent without a price or batches.
    pub batch_cost_micros: Option<u64>,
    /// The most it can be, one by one.
    pub ceiling_micros: Option<u64>,
    /// Day of the price.
    pub price_as_of: Option<String>,
    /// It runs on a machine of one's own and costs nothing.
    pub free: bool,
    /// The price is that of a simulator.
    pub simulated: bool,
}

impl Estimate {
    /// Of no prompts yet.
    pub fn new(route: &Route, endpoint: Endpoint) -> Self {
        let priced = route.price().map(|_| 0);
        Self {
            model: route.model().to_owned(),
            cost_micros: priced,
            ceiling_micros: priced,
            batch_cost_micros: priced.filter(|_| route.batch_limits(endpoint).is_some()),
            price_as_of: route.price().filter(|_| !route.is_free()).map(|price| price.as_of.to_string()),
            free: route.is_free(),
            simulated: route.is_simulated(),
            ..Self::default()
        }
    }

    /// Adds a prompt, in the form in which runs take it. One that the provider cannot take is told before anything is stored.
    pub fn add(&mut self, body: Value, settings: &RunSettings, route: &Route) -> longhaul_llm::Result<()> {
        let request = request::compose(body, Dialect::OpenAi, settings)?;
        route.caps().check(&request, settings.mode == Mode::Batch)?;
        let input = tokens::estimate(&request, 1.0);
        let output = request.max_tokens().map_or(OUTPUT_ASSUMED, |max| OUTPUT_ASSUMED.min(u64::from(max)));
        let output = output.saturating_mul(request.choices());
        self.requests += 1;
        self.input_tokens += input;
        self.output_tokens_assumed += output;
        let usage = Usage { fresh_in: input, out: output, ..Usage::default() };
        let add = |sum: &mut Option<u64>, cost: Option<MicroUsd>| {
            *sum = sum.map(|sum| sum.saturating_add(cost.unwrap_or(MicroUsd::ZERO).0));
        };
        add(&mut self.cost_micros, route.cost(&usage, Billing::Sync));
        add(&mut self.batch_cost_micros, route.cost(&usage, Billing::Batch));
        add(&mut self.ceiling_micros, route.ceiling(&request, Billing::Sync));
        Ok(())
    }

    /// What a run in this mode is expected to cost.
    pub fn for_mode(&self, mode: Mode) -> Option<u64> {
        match mode {
            Mode::Sync => self.cost_micros,
            Mode::Batch => self.batch_cost_micros,
        }
    }
}
