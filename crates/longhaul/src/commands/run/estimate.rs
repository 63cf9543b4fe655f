//! `estimate`: what prompts will cost, before anything is sent.

use anyhow::{Context as _, Result};
use longhaul_llm::{CostRange, Llm, NanoUsd, Route};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::{Basis, Draft, Estimate, Mode, Prompts, Run, RunSettings};
use longhaul_queue::Queue;

use super::Input;
use crate::app::App;
use crate::args::EstimateArgs;
use crate::commands::score;
use crate::exit::Code;
use crate::output::grouped;
use crate::prompts::PromptFile;
use crate::remote::RemoteRuns;
use crate::{models, store};

/// Reads all prompts and adds up.
pub(crate) async fn of(
    prompts: &PromptFile,
    queue: Option<&Queue>,
    llm: &Llm,
    (settings, route): (&RunSettings, &Route),
) -> Result<Estimate> {
    let mut estimate = Estimate::new(queue, llm, route, settings).await?;
    for prompt in prompts.lines()? {
        let prompt = prompt?;
        estimate
            .add(prompt.body, (llm, settings), route)
            .await
            .with_context(|| format!("the request of line {} cannot be sent", prompt.line))?;
    }
    Ok(estimate)
}

/// After a sample: what all prompts will cost.
pub(super) async fn of_all(
    app: &App,
    pipeline: &Prompts,
    sample: &Run,
    prompts: &PromptFile,
) -> Result<Estimate> {
    let settings = &sample.settings;
    let route = pipeline.llm().route(&settings.profile, &settings.model).await?;
    let estimate = of(prompts, Some(pipeline.queue()), pipeline.llm(), (settings, &route)).await?;
    tell_all(app, &estimate, settings.mode == Mode::Batch);
    Ok(estimate)
}

/// Says what all prompts will cost.
pub(super) fn tell_all(app: &App, estimate: &Estimate, batch: bool) {
    let Some(cost) = estimate.cost(if batch { Mode::Batch } else { Mode::Sync }) else { return };
    let prompts = match estimate.answered {
        0 => format!("all {} prompts", grouped(estimate.requests)),
        answered => {
            format!(
                "the other {} of {} prompts",
                grouped(estimate.requests - answered),
                grouped(estimate.requests)
            )
        }
    };
    let (cost, basis) = (about(cost), estimate.basis_text());
    app.out.note(format_args!("{prompts} cost {cost}, {basis}: repeat the command without --sample"));
}

/// One amount is about right; a range says so itself.
pub(crate) fn about(cost: CostRange) -> String {
    if cost.is_exact() { format!("about {cost}") } else { cost.to_string() }
}

/// An estimate for people.
pub(super) fn text(estimate: &Estimate, batch: bool) -> String {
    let cost = |mode: Mode| estimate.cost(mode).map_or_else(|| "unpriced".to_owned(), about);
    let output = match (estimate.output_tokens, estimate.output_tokens_max) {
        (low, high) if low == high => grouped(low),
        (low, high) => format!("{} to {}", grouped(low), grouped(high)),
    };
    let mut lines = vec![
        format!("model        {}", super::shown_model(&estimate.model)),
        format!("requests     {}", grouped(estimate.requests)),
        format!("input        {} tokens, estimated", grouped(estimate.input_tokens)),
        format!("output       {output} tokens, {}", estimate.basis_text()),
    ];
    if estimate.answered > 0 {
        lines.push(format!("answered     {} before, which cost nothing", grouped(estimate.answered)));
    }
    if !batch {
        let most = estimate.ceiling_usd.map_or_else(|| "unpriced".to_owned(), NanoUsd::short);
        lines.push(format!("one by one   {}, at most {most}", cost(Mode::Sync)));
    }
    if estimate.batch_cost_usd.is_some() {
        lines.push(format!("in batches   {}", cost(Mode::Batch)));
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

/// Runs `estimate`. Nothing is sent, so no key is needed; what is stored is only looked at.
pub(crate) async fn run(app: &App, args: &EstimateArgs) -> Result<Code> {
    if args.scoring.is_given() {
        return score::estimate::run(app, args).await;
    }
    let input = Input::read(app, &args.prompts, None)?;
    if let Some(server) = store::remote(&app.settings)? {
        let server = RemoteRuns::new(server);
        let estimate = super::remote::estimate(app, args, &server, &input).await?;
        return tell(app, &estimate, args.batch);
    }
    let Input { prompts, summary, pick } = input;
    let mut models = models::Setup::new(app, args.prompts.base_url.as_deref())?;
    let profile = models.for_estimate(app, args.prompts.model.as_deref())?;
    let llm = models.llm_to_read(app)?;
    let draft = Draft {
        strategy: if args.batch { Strategy::Batch } else { Strategy::Sync },
        ..super::settings::shape(&args.prompts, &models, profile, (&prompts, &summary, pick))?
    };
    let route = llm.route(&draft.profile, &draft.model).await?;
    let settings = draft.settings(&route, app.now()).map_err(longhaul_llm::Error::from)?;
    // Without a store there are no samples.
    let queue = app.queue().await.ok();
    let estimate = of(&prompts, queue.as_ref(), &llm, (&settings, &route)).await?;
    let code = tell(app, &estimate, settings.mode == Mode::Batch)?;
    if let Some(note) = &settings.mode_note {
        app.out.warn(note);
    }
    Ok(code)
}

fn tell(app: &App, estimate: &Estimate, batch: bool) -> Result<Code> {
    app.out.one(estimate, || text(estimate, batch))?;
    if estimate.basis != Basis::Sample && estimate.basis != Basis::None && !estimate.free {
        app.out.hint(
            "for one amount, ask a few of them first: longhaul run FILE --sample 20, with the same options",
        );
    }
    Ok(Code::Ok)
}
