//! What prompts will cost, before anything is sent. Output is unknown beforehand: the estimate says what it assumes, and
//! the ceiling is what `max_tokens` allows.

use anyhow::{Context as _, Result};
use longhaul_llm::{Billing, MicroUsd, Request, Route, Usage, tokens};
use longhaul_pipelines::bulk::request;
use longhaul_pipelines::bulk::{Mode, RunSettings};
use serde::Serialize;
use serde_json::Value;

use crate::app::App;
use crate::args::PromptArgs;
use crate::exit::Code;
use crate::models;
use crate::output::{dollars, grouped};
use crate::prompts::Prompts;

/// Output tokens assumed for an answer that `max_tokens` does not bound lower.
const OUTPUT_ASSUMED: u64 = 250;

/// What prompts will cost.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Estimate {
    /// The model.
    pub(crate) model: String,
    /// Requests.
    pub(crate) requests: u64,
    /// Input tokens, estimated from the bytes.
    pub(crate) input_tokens: u64,
    /// Output tokens, assumed.
    pub(crate) output_tokens_assumed: u64,
    /// Expected, one by one; absent without a price.
    pub(crate) cost_micros: Option<u64>,
    /// Expected in provider batches; absent without a price or batches.
    pub(crate) batch_cost_micros: Option<u64>,
    /// The most it can be, one by one.
    pub(crate) ceiling_micros: Option<u64>,
    /// Day of the price.
    pub(crate) price_as_of: Option<String>,
    /// It runs on a machine of one's own and costs nothing.
    pub(crate) free: bool,
    /// The price is that of a simulator.
    pub(crate) simulated: bool,
}

/// Reads all prompts and adds up.
pub(crate) fn of(
    prompts: &Prompts,
    limit: Option<u64>,
    settings: &RunSettings,
    route: &Route,
) -> Result<Estimate> {
    let mut estimate = Estimate {
        model: route.model().to_owned(),
        free: route.is_free(),
        price_as_of: route.price().filter(|_| !route.is_free()).map(|price| price.as_of.to_string()),
        simulated: route.is_simulated(),
        ..Estimate::default()
    };
    let (mut sync, mut batch, mut ceiling) = (MicroUsd::ZERO, MicroUsd::ZERO, MicroUsd::ZERO);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    for prompt in prompts.lines()?.take(limit) {
        let prompt = prompt?;
        let request = composed(prompt.body, settings, route)
            .with_context(|| format!("the request of line {} cannot be sent", prompt.line))?;
        let input = tokens::estimate(&request, 1.0);
        let output = request.max_tokens().map_or(OUTPUT_ASSUMED, |max| OUTPUT_ASSUMED.min(u64::from(max)));
        estimate.requests += 1;
        estimate.input_tokens += input;
        estimate.output_tokens_assumed += output;
        let usage = Usage { fresh_in: input, out: output, ..Usage::default() };
        sync = sync.saturating_add(route.cost(&usage, Billing::Sync).unwrap_or(MicroUsd::ZERO));
        batch = batch.saturating_add(route.cost(&usage, Billing::Batch).unwrap_or(MicroUsd::ZERO));
        ceiling = ceiling.saturating_add(route.ceiling(&request, Billing::Sync).unwrap_or(MicroUsd::ZERO));
    }
    if route.price().is_some() {
        estimate.cost_micros = Some(sync.0);
        estimate.ceiling_micros = Some(ceiling.0);
        estimate.batch_cost_micros = route.batch_limits(settings.endpoint).map(|_| batch.0);
    }
    Ok(estimate)
}

/// A request that the provider can take; one that it cannot is told before anything is stored.
fn composed(body: Value, settings: &RunSettings, route: &Route) -> longhaul_llm::Result<Request> {
    let request = request::compose(body, settings)?;
    route.caps().check(&request, settings.mode == Mode::Batch)?;
    Ok(request)
}

impl Estimate {
    /// What a run in this mode is expected to cost.
    pub(crate) fn for_mode(&self, mode: Mode) -> Option<u64> {
        match mode {
            Mode::Sync => self.cost_micros,
            Mode::Batch => self.batch_cost_micros,
        }
    }

    fn text(&self) -> String {
        let unpriced = || "unpriced".to_owned();
        let cost = |micros: Option<u64>| micros.map_or_else(unpriced, dollars);
        let mut lines = vec![
            format!("model        {}", self.model),
            format!("requests     {}", grouped(self.requests)),
            format!("input        {} tokens, estimated", grouped(self.input_tokens)),
            format!("output       {} tokens, assumed", grouped(self.output_tokens_assumed)),
            format!("one by one   {}, at most {}", cost(self.cost_micros), cost(self.ceiling_micros)),
        ];
        if let Some(batch) = self.batch_cost_micros {
            lines.push(format!("in batches   {}", dollars(batch)));
        }
        match &self.price_as_of {
            Some(_) if self.simulated => lines.push("price        made up, for the simulator".to_owned()),
            Some(day) => lines.push(format!("price        as of {day}; check it against your provider's")),
            None if self.free => lines.push("price        free: it runs on this machine".to_owned()),
            None => {
                lines.push("price        unknown: name it in a file, and that file in llm.prices".to_owned());
            }
        }
        lines.join("\n")
    }
}

/// Runs `estimate`.
pub(crate) async fn run(app: &App, args: &PromptArgs) -> Result<Code> {
    let prompts = super::settings::prompts(args, app.limits()?.value_bytes_max)?;
    let summary = prompts.check()?;
    let models = models::Setup::new(app, args.base_url.as_deref())?;
    let llm = models.llm_in_memory(app)?;
    let settings = super::settings::shape(args, &models, &summary)?;
    let route = llm.route(&settings.profile, &settings.model).await?;
    settings.check(&route)?;
    let estimate = of(&prompts, args.limit, &settings, &route)?;
    app.out.one(&estimate, || estimate.text())?;
    Ok(Code::Ok)
}
