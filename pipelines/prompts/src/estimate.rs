//! What prompts will cost, before anything is sent. Nobody knows beforehand how long answers are: the cost is told as a range, by
//! what the schema allows or by what the model answered so far, and as one amount once some of the same prompts were answered.

use longhaul_llm::types::Dialect;
use longhaul_llm::{Billing, CostRange, Llm, NanoUsd, Route, Usage, tokens};
use longhaul_queue::Queue;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Result;
use super::request;
use super::run::{Expected, Mode, RunSettings};
use longhaul_pipeline::expected::INPUT_SPREAD;

mod lengths;

pub use lengths::Lengths;
pub use longhaul_pipeline::expected::Basis;

/// What prompts will cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Estimate {
    /// The model.
    pub model: String,
    /// Requests.
    pub requests: u64,
    /// Of them, answered before, such as in a sample: they are in the cache and cost nothing.
    pub answered: u64,
    /// Input tokens, estimated from the bytes.
    pub input_tokens: u64,
    /// Output tokens, at least.
    pub output_tokens: u64,
    /// Output tokens, at most as expected; what `max_tokens` allows may be more.
    pub output_tokens_max: u64,
    /// By what it was told how long answers are.
    #[schema(value_type = String)]
    pub basis: Basis,
    /// Answers behind that.
    pub measured_calls: u64,
    /// Expected, one by one: the lower end; absent without a price.
    #[schema(value_type = Option<f64>)]
    pub cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    pub cost_max_usd: Option<NanoUsd>,
    /// Expected in provider batches: the lower end; absent without a price or batches.
    #[schema(value_type = Option<f64>)]
    pub batch_cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[schema(value_type = Option<f64>)]
    pub batch_cost_max_usd: Option<NanoUsd>,
    /// The most it can be, one by one.
    #[schema(value_type = Option<f64>)]
    pub ceiling_usd: Option<NanoUsd>,
    /// Day of the price.
    pub price_as_of: Option<String>,
    /// It is self-hosted and costs nothing.
    pub free: bool,
    /// The price is that of a simulator.
    pub simulated: bool,
    #[serde(skip)]
    lengths: Lengths,
}

impl Estimate {
    /// Of no prompts yet. A store tells of samples, the ledger of what the model answered before.
    pub async fn new(
        queue: Option<&Queue>,
        llm: &Llm,
        route: &Route,
        settings: &RunSettings,
    ) -> Result<Self> {
        let lengths = Lengths::of(queue, llm, settings).await?;
        let priced = route.price().map(|_| NanoUsd::ZERO);
        let batches = priced.filter(|_| route.batch_limits(settings.endpoint).is_some());
        Ok(Self {
            model: route.model().to_owned(),
            basis: lengths.basis,
            measured_calls: lengths.calls,
            cost_usd: priced,
            cost_max_usd: priced,
            ceiling_usd: priced,
            batch_cost_usd: batches,
            batch_cost_max_usd: batches,
            price_as_of: route.price().filter(|_| !route.is_free()).map(|price| price.as_of.to_string()),
            free: route.is_free(),
            simulated: route.is_simulated(),
            lengths,
            ..Self::default()
        })
    }

    /// Adds a prompt, in the form in which runs take it. One that the provider cannot take is told before anything is stored.
    pub async fn add(
        &mut self,
        body: Value,
        (llm, settings): (&Llm, &RunSettings),
        route: &Route,
    ) -> longhaul_llm::Result<()> {
        let request = request::compose(body, Dialect::OpenAi, settings)?;
        route.caps().check(&request, settings.mode == Mode::Batch)?;
        // One that names another model than the run has that model's price.
        let other = match request.model() {
            "" => None,
            model if model == route.model() => None,
            model => Some(llm.route(&settings.profile, model).await?),
        };
        let route = other.as_ref().unwrap_or(route);
        self.requests += 1;
        // Which of them were answered is not known here; they are spread over the file, so that the first will do.
        let known = self.answered < self.lengths.answered;
        self.answered += u64::from(known);
        let (input, output) = match known {
            true => (0, (0, 0)),
            false => (
                tokens::estimate(&request, self.lengths.input_factor),
                self.lengths.next_output(request.max_tokens(), request.choices()),
            ),
        };
        self.input_tokens += input;
        self.output_tokens += output.0;
        self.output_tokens_max += output.1;
        let spread = if self.basis == Basis::Sample { 0.0 } else { INPUT_SPREAD };
        let usage =
            |part: f64, out: u64| Usage { fresh_in: (input as f64 * part) as u64, out, ..Usage::default() };
        let (least, most) = (usage(1.0 - spread, output.0), usage(1.0 + spread, output.1));
        let add = |sum: &mut Option<NanoUsd>, cost: Option<NanoUsd>| {
            *sum = sum.zip(cost).map(|(sum, cost)| sum.saturating_add(cost));
        };
        add(&mut self.cost_usd, route.cost(&least, Billing::Sync));
        add(&mut self.cost_max_usd, route.cost(&most, Billing::Sync));
        add(&mut self.batch_cost_usd, route.cost(&least, Billing::Batch));
        add(&mut self.batch_cost_max_usd, route.cost(&most, Billing::Batch));
        if !known {
            add(&mut self.ceiling_usd, route.ceiling(&request, Billing::Sync));
        }
        Ok(())
    }

    /// What a run in this mode is expected to cost.
    pub fn cost(&self, mode: Mode) -> Option<CostRange> {
        let (low, high) = match mode {
            Mode::Sync => (self.cost_usd, self.cost_max_usd),
            Mode::Batch => (self.batch_cost_usd, self.batch_cost_max_usd),
        };
        Some(CostRange { low: low?, high: high? })
    }

    /// What a run in this mode keeps of it.
    pub fn expected(&self, mode: Mode) -> Expected {
        let cost = self.cost(mode);
        Expected {
            cost_usd: cost.map(|cost| cost.low),
            cost_max_usd: cost.map(|cost| cost.high),
            input_tokens: self.input_tokens,
            requests: self.requests - self.answered,
        }
    }

    /// By what it was told how long answers are, for people.
    pub fn basis_text(&self) -> String {
        match (self.basis, self.measured_calls) {
            (Basis::Sample, 1) => "by 1 answer to these prompts".to_owned(),
            (Basis::Sample, calls) => format!("by {calls} answers to these prompts"),
            (Basis::Schema, _) => "by what the schema allows".to_owned(),
            (Basis::Past, calls) => format!("by {calls} past answers of this model to other prompts"),
            (Basis::Assumed, _) => "assumed".to_owned(),
            (Basis::None, _) => "none".to_owned(),
        }
    }
}
