//! `run --server`: prompts are read and checked here and answered at the server; their answers are written here. Keys, profiles and
//! budgets are the server's, and it goes on when this command ends.

use std::io::{BufWriter, Write as _};
use std::time::Instant;

use anyhow::{Context as _, Result};
use longhaul_api::prompts::{ModeIn, PromptIn, RequestIn, RunIn, Submitted};
use longhaul_llm::CostRange;
use longhaul_prompts::{Estimate, Run};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::estimate::about;
use super::finish::{self, Access, Took, print_object};
use super::{Input, detached, places, settings, tell_asked_again};
use crate::app::App;
use crate::args::{EstimateArgs, PromptArgs, RunArgs};
use crate::commands::follow;
use crate::commands::interrupts::{EndAtOnce, Interrupts};
use crate::config::Origin;
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::outputs;
use crate::prompts::{Pick, PromptFile};
use crate::remote::RemoteRuns;
use crate::run_client::{RunClient, RunsClient as _};

/// Runs the command.
pub(super) async fn run(
    app: &App,
    args: &RunArgs,
    server: RemoteRuns,
    input: Input,
    (reading, mut interrupts): (EndAtOnce, Interrupts),
) -> Result<Code> {
    refuse_local(args)?;
    if !args.force {
        outputs::refuse_foreign(None, "this run", &places(args)).await?;
    }
    let asked = asked(app, args, &input)?;
    if args.dry_run {
        let estimate = estimated(&server, &asked, &input.prompts).await?;
        app.out.one(&estimate, || super::estimate::text(&estimate, args.batch))?;
        app.out.note("nothing was sent to a model or stored");
        return Ok(Code::Ok);
    }
    drop(reading);
    let started = Instant::now();
    let submitted: Submitted = tokio::select! {
        submitted = hand_in(&server, &["prompts"], &asked, &input.prompts) => submitted?,
        () = interrupts.next() => {
            app.out.note("interrupted while the prompts were handed in");
            app.out.hint("go on with the same command");
            return Ok(Code::Interrupted);
        }
    };
    introduce(app, args, &submitted);
    let run = server.get(&submitted.id).await?;
    if args.detach {
        return detached(app, run.id());
    }
    let status = tokio::select! {
        status = follow::show(app, &*run, None) => status?,
        () = interrupts.next() => {
            print_object(app, &run.status().await?, None)?;
            return Ok(follow::stopped(app, run.id()));
        }
    };
    let took = Took { time: started.elapsed(), all: !submitted.resumed };
    let stored = Run::read(longhaul_pipeline::Run::get(server.queue(), run.id()).await?)?;
    let access = Access { queue: server.queue(), engine: None };
    let code = finish::finish(app, args, access, (&stored, &input.prompts), (&status, took)).await?;
    let estimate = end(app, args, (&server, &*run), input, &asked).await?;
    if args.out.is_some() || !status.standing.state.is_end() {
        print_object(app, &status, estimate.as_ref())?;
    }
    Ok(code)
}

/// What is left to do when the answers are written. After a sample, answers what all prompts will cost.
async fn end(
    app: &App,
    args: &RunArgs,
    (server, run): (&RemoteRuns, &dyn RunClient),
    input: Input,
    asked: &RunIn,
) -> Result<Option<Estimate>> {
    if args.consume && run.status().await?.standing.state.is_end() {
        run.remove().await?;
        app.out.note(format_args!("{} is consumed", run.id()));
        return Ok(None);
    }
    if args.sample.is_none() {
        return Ok(None);
    }
    let all = input.prompts.picking(Pick { sample: None, ..input.pick });
    let estimate = estimated(server, asked, &all).await?;
    super::estimate::tell_all(app, &estimate, args.batch);
    Ok(Some(estimate))
}

/// Options that only a worker of this machine could follow.
fn refuse_local(args: &RunArgs) -> Result<()> {
    let given =
        [("--base-url", args.prompts.base_url.is_some()), ("--concurrency", args.concurrency.is_some())];
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(not_through_server(option)),
        None => Ok(()),
    }
}

/// The refusal of an option that is the server's own matter.
pub(crate) fn not_through_server(option: &str) -> anyhow::Error {
    Failure::new(Code::Usage, format!("{option} cannot be used with --server"))
        .hint("the server asks the models: it has its own profiles and limits")
        .into()
}

/// The profile that the command names; one of the settings is for this machine.
pub(crate) fn named_profile(app: &App) -> Result<Option<String>> {
    let named = app.settings.get("llm.profile")?;
    Ok(matches!(named.origin, Origin::Flag(_)).then(|| named.value.clone()))
}

/// What shapes answers.
fn shaped(app: &App, args: &PromptArgs, input: &Input) -> Result<RunIn> {
    Ok(RunIn {
        model: model(args, input)?,
        profile: named_profile(app)?,
        endpoint: Some(input.summary.endpoint.url().to_owned()),
        name: Some(settings::name_of(args)),
        content: Some(settings::digest(&input.prompts, &input.summary, Pick::default())),
        system: settings::system(args)?,
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        dimensions: args.dimensions,
        schema: settings::schema(args)?,
        ..RunIn::default()
    })
}

fn asked(app: &App, args: &RunArgs, input: &Input) -> Result<RunIn> {
    let mode = match (args.sync, args.batch) {
        (true, _) => Some(ModeIn::Sync),
        (_, true) => Some(ModeIn::Batch),
        _ => None,
    };
    Ok(RunIn {
        mode,
        by: settings::deadline(app, args)?,
        max_cost_usd: args.spending.max_cost.map(longhaul_llm::NanoUsd::as_dollars),
        allow_unpriced: args.spending.allow_unpriced,
        ask_again: true,
        fallback_model: args.fallback_model.clone(),
        cache: args.cache.into(),
        tags: args.tags.clone(),
        ..shaped(app, &args.prompts, input)?
    })
}

/// Where every prompt names its model, the first of them tells the server which provider it is.
fn model(args: &PromptArgs, input: &Input) -> Result<Option<String>> {
    if args.model.is_some() || input.summary.without_model > 0 {
        return Ok(args.model.clone());
    }
    let first = input.prompts.lines()?.next().transpose()?;
    Ok(first.and_then(|prompt| prompt.body.get("model")?.as_str().map(str::to_owned)))
}

/// `estimate --server`.
pub(super) async fn estimate(
    app: &App,
    EstimateArgs { prompts: args, batch, .. }: &EstimateArgs,
    server: &RemoteRuns,
    input: &Input,
) -> Result<Estimate> {
    if args.base_url.is_some() {
        return Err(not_through_server("--base-url"));
    }
    let mode = Some(if *batch { ModeIn::Batch } else { ModeIn::Sync });
    let asked = RunIn { mode, ..shaped(app, args, input)? };
    estimated(server, &asked, &input.prompts).await
}

async fn estimated(server: &RemoteRuns, asked: &RunIn, prompts: &PromptFile) -> Result<Estimate> {
    hand_in(server, &["prompts", "estimate"], asked, prompts).await
}

async fn hand_in<T: DeserializeOwned>(
    server: &RemoteRuns,
    path: &[&str],
    asked: &RunIn,
    prompts: &PromptFile,
) -> Result<T> {
    let name = asked.name.as_deref().unwrap_or_default();
    server.hand_in_file(path, (name, lines_of(prompts)?), ("input_file", asked)).await
}

/// The prompts in a temporary file, a request a line.
fn lines_of(prompts: &PromptFile) -> Result<std::fs::File> {
    let file = tempfile::tempfile().context("making a temporary file for the prompts")?;
    let mut writer = BufWriter::new(file);
    for prompt in prompts.lines()? {
        let prompt = prompt?;
        let Value::Object(body) = prompt.body else {
            anyhow::bail!("the request of line {} is not an object", prompt.line);
        };
        let line =
            PromptIn::Request(RequestIn { custom_id: prompt.custom_id, body: Some(body), prompt: None });
        serde_json::to_writer(&mut writer, &line)?;
        writer.write_all(b"\n").context("writing the prompts")?;
    }
    let mut file =
        writer.into_inner().map_err(std::io::IntoInnerError::into_error).context("writing the prompts")?;
    std::io::Seek::rewind(&mut file).context("reading the prompts")?;
    Ok(file)
}

fn introduce(app: &App, args: &RunArgs, submitted: &Submitted) {
    let verb = if submitted.resumed { "going on with" } else { "handed in" };
    let requests = counted(submitted.requests, "request");
    app.out.note(format_args!("{verb} {}: {requests}, {}", submitted.id, submitted.mode));
    if let Some(note) = &submitted.mode_note {
        app.out.warn(note);
    }
    let cost = submitted.estimate_usd.zip(submitted.estimate_max_usd);
    let cost = cost.map_or_else(|| "unpriced".to_owned(), |(low, high)| about(CostRange { low, high }));
    let limit = args.spending.max_cost.map_or_else(String::new, |max| format!(", stops before {max}"));
    app.out.note(format_args!("cost {cost}{limit}"));
    tell_asked_again(app, submitted.asked_again);
}
