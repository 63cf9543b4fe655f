//! `estimate`: what prompts will cost, before anything is sent.

use anyhow::{Context as _, Result};
use longhaul_llm::Route;
use longhaul_pipelines::bulk::{Estimate, RunSettings};

use crate::app::App;
use crate::args::PromptArgs;
use crate::exit::Code;
use crate::models;
use crate::output::{dollars, grouped};
use crate::prompts::Prompts;

/// Reads all prompts and adds up.
pub(crate) fn of(
    prompts: &Prompts,
    limit: Option<u64>,
    settings: &RunSettings,
    route: &Route,
) -> Result<Estimate> {
    let mut estimate = Estimate::new(route, settings.endpoint);
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    for prompt in prompts.lines()?.take(limit) {
        let prompt = prompt?;
        estimate
            .add(prompt.body, settings, route)
            .with_context(|| format!("the request of line {} cannot be sent", prompt.line))?;
    }
    Ok(estimate)
}

fn text(estimate: &Estimate) -> String {
    let unpriced = || "unpriced".to_owned();
    let cost = |micros: Option<u64>| micros.map_or_else(unpriced, dollars);
    let mut lines = vec![
        format!("model        {}", estimate.model),
        format!("requests     {}", grouped(estimate.requests)),
        format!("input        {} tokens, estimated", grouped(estimate.input_tokens)),
        format!("output       {} tokens, assumed", grouped(estimate.output_tokens_assumed)),
        format!("one by one   {}, at most {}", cost(estimate.cost_micros), cost(estimate.ceiling_micros)),
    ];
    if let Some(batch) = estimate.batch_cost_micros {
        lines.push(format!("in batches   {}", dollars(batch)));
    }
    match &estimate.price_as_of {
        Some(_) if estimate.simulated => lines.push("price        made up, for the simulator".to_owned()),
        Some(day) => lines.push(format!("price        as of {day}; check it against your provider's")),
        None if estimate.free => lines.push("price        free: it runs on this machine".to_owned()),
        None => {
            lines.push("price        unknown: name it in a file, and that file in llm.prices".to_owned());
        }
    }
    lines.join("\n")
}

/// Runs `estimate`.
pub(crate) async fn run(app: &App, args: &PromptArgs) -> Result<Code> {
    let prompts = super::settings::prompts(args, app.limits()?.value_bytes_max)?;
    let summary = prompts.check()?;
    let models = models::Setup::new(app, args.base_url.as_deref())?;
    let llm = models.llm_in_memory(app)?;
    let draft = super::settings::shape(args, &models, (&prompts, &summary))?;
    let route = llm.route(&draft.profile, &draft.model).await?;
    let settings = draft.settings(&route, app.now()).map_err(longhaul_llm::Error::from)?;
    let estimate = of(&prompts, args.limit, &settings, &route)?;
    app.out.one(&estimate, || text(&estimate))?;
    Ok(Code::Ok)
}
