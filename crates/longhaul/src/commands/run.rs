//! `run`: prompts in, answers out, in order. It stores the requests, answers them with a worker of its own, and writes
//! the answers; interrupted at any point, the same command goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use longhaul_pipeline::{Found, Pipeline as _, RunId, Status};
use longhaul_prompts::{Details, Estimate, Mode, NewRequest, Prompts, Run, Submission};
use longhaul_queue::{Engine, Worker};

use super::follow::{self, Asks, Shown};
use super::interrupts::{EndAtOnce, Interrupts};
use super::provider_outage;
use super::working::{self, Working};
use crate::app::App;
use crate::args::{PromptArgs, RunArgs};
use crate::config::concurrency;
use crate::exit::{Code, Failure};
use crate::output::{counted, grouped};
use crate::progress::Fact;
use crate::prompts::{Pick, PromptFile, Summary};
use crate::remote::RemoteRuns;
use crate::{answers, models, outputs, store};

pub(crate) mod estimate;
mod finish;
mod remote;
mod settings;

pub(crate) use finish::{Access, write_results};
use finish::{Took, print_object};
pub(crate) use remote::{named_profile, not_through_server};
pub(crate) use settings::shown_model;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &RunArgs) -> Result<Code> {
    let mut interrupts = Interrupts::new()?;
    let reading = EndAtOnce::start(&app.out)?;
    outputs::refuse_inputs(&places(args), &settings::inputs(&args.prompts), "name another file")?;
    let input = Input::read(app, &args.prompts, args.sample)?;
    answers::check_places(&places(args))?;
    if let Some(server) = store::remote(&app.settings)? {
        return remote::run(app, args, RemoteRuns::new(server), input, (reading, interrupts)).await;
    }
    let models = models::Setup::new(app, args.prompts.base_url.as_deref())?;
    let engine = app.engine_or_new().await?;
    let pipeline = Prompts::new(engine.queue().clone(), models.llm(app)?).with_trace(app.trace.traceparent());
    let sharing = models::open_books(app, &engine, pipeline.llm()).await?;
    let (wanted, estimate) = settings::of(app, args, &models, &pipeline, &input).await?;
    let id = wanted.run_id();
    if !args.force {
        outputs::refuse_foreign(Some(&engine), id.as_str(), &places(args)).await?;
    }
    let simulated = pipeline.llm().is_simulated(&wanted.profile, &wanted.model);
    if args.dry_run {
        return settings::describe(app, (&wanted, estimate.as_ref()), args.spending.max_cost, simulated);
    }
    models::set_limits(pipeline.llm(), id.as_str(), &args.spending).await?;
    drop(reading);
    let submission = Submission::begin(&pipeline, wanted).await?;
    settings::introduce(app, &submission, args.spending.max_cost, simulated);
    let resumed = submission.is_resumed();
    if resumed {
        tell_asked_again(app, found(&pipeline, &id).await?.go_on().await?);
    }
    let started = Instant::now();
    let mut working = match args.detach || args.watch {
        true => None,
        false => Some(work(app, args, (&engine, &pipeline), &id)?),
    };
    tokio::select! {
        stored = submit(&input.prompts, submission) => stored?,
        () = interrupts.next() => return half_stored(app, (&pipeline, &id), working, &mut interrupts).await,
    }
    if args.detach {
        return detached(app, &id);
    }
    let found = found(&pipeline, &id).await?;
    let run = Run::read(found.run.clone())?;
    let route = pipeline.llm().route(&run.settings.profile, &run.settings.model).await?;
    let asks = Asks { route: &route, one_by_one: run.settings.mode == Mode::Sync };
    let ended = follow::until_the_end(app, &found, (working.as_mut(), asks), &mut interrupts).await;
    let unstored = stop(working).await?;
    pipeline.llm().save_learnt().await;
    sharing.end().await;
    match ended? {
        Shown::Ended(status) => {
            let took = Took { time: started.elapsed(), all: !resumed };
            end(app, args, (&engine, &pipeline, &found), (&run, input), (&status, took)).await
        }
        Shown::NeverReached => {
            let why = found.status().await?.standing.message;
            Err(provider_outage::unreached(&route, id.as_str(), why).into())
        }
        Shown::Interrupted => {
            print_object(app, &found.status().await?, None)?;
            Ok(interrupted(app, &id, unstored))
        }
        Shown::WorkerEnded => Err(worker_ended(&id).into()),
    }
}

/// The prompts of a run, checked.
struct Input {
    prompts: PromptFile,
    summary: Summary,
    pick: Pick,
}

impl Input {
    /// Reads and checks all of them, before anything is stored or sent.
    fn read(app: &App, args: &PromptArgs, sample: Option<u64>) -> Result<Self> {
        let prompts = settings::prompts(args, app.limits()?.value_bytes_max)?;
        let summary = prompts.check()?;
        let pick = Pick { prompts: summary.prompts, limit: args.limit, sample };
        Ok(Self { prompts: prompts.picking(pick), summary, pick })
    }
}

/// Where answers go.
fn places(args: &RunArgs) -> [(&'static str, Option<&Path>); 2] {
    [("--out", args.out.as_deref()), ("--errors", args.errors.as_deref())]
}

/// Writes the answers of a run that has ended or cannot go on, and says what it came to.
async fn end(
    app: &App,
    args: &RunArgs,
    (engine, pipeline, found): (&Engine, &Prompts, &Found),
    (run, input): (&Run, Input),
    (status, took): (&Status, Took),
) -> Result<Code> {
    let code = finish::finish(app, args, Access::here(engine), (run, &input.prompts), (status, took)).await?;
    let ended = status.standing.state.is_end();
    if ended && args.consume {
        found.remove().await?;
        outputs::forget(engine, run.id.as_str()).await?;
        app.out.note(format_args!("{} is consumed", run.id));
    }
    let estimate = estimate_all(app, args, pipeline, run, input).await?;
    if args.out.is_some() || !ended {
        print_object(app, status, estimate.as_ref())?;
    }
    Ok(code)
}

async fn found(pipeline: &Prompts, id: &RunId) -> Result<Found> {
    let run = longhaul_pipeline::Run::get(pipeline.queue(), id).await?;
    Ok(Found { pipeline: Arc::new(pipeline.clone()), run })
}

/// What a run that was there before had no answer for.
pub(crate) fn tell_asked_again(app: &App, again: u64) {
    if again > 0 {
        app.out.note(format_args!("asking again what has no answer: {}", counted(again, "request")));
    }
}

/// After a sample: what all prompts will cost.
async fn estimate_all(
    app: &App,
    args: &RunArgs,
    pipeline: &Prompts,
    run: &Run,
    Input { prompts, pick, .. }: Input,
) -> Result<Option<Estimate>> {
    if args.sample.is_none() || args.consume {
        return Ok(None);
    }
    let all = prompts.picking(Pick { sample: None, ..pick });
    Ok(Some(estimate::of_all(app, pipeline, run, &all).await?))
}

/// Starts a worker for this run alone.
fn work(app: &App, args: &RunArgs, (engine, pipeline): (&Engine, &Prompts), id: &RunId) -> Result<Working> {
    let slots = match args.concurrency {
        Some(slots) => slots,
        None => app.settings.read("llm.concurrency", concurrency)?,
    };
    let mut worker = Worker::new(engine.clone(), working::options(app, id.as_str(), slots as usize)?);
    pipeline.register(&mut worker);
    Ok(Working::start(worker))
}

/// Stores the requests. What is stored already is left alone, so this is also how an interrupted submission goes on.
async fn submit(prompts: &PromptFile, mut submission: Submission) -> Result<()> {
    if submission.is_complete().await? {
        return Ok(());
    }
    for prompt in prompts.lines()? {
        let prompt = prompt?;
        let request = NewRequest { custom_id: prompt.custom_id, body: prompt.body, ..NewRequest::default() };
        submission
            .push(request)
            .await
            .with_context(|| format!("storing the prompt of line {}", prompt.line))?;
    }
    submission.finish().await?;
    Ok(())
}

/// Names a run that is left to workers, which a server has itself.
pub(crate) fn detached(app: &App, id: &RunId) -> Result<Code> {
    app.out.one(&serde_json::json!({ "id": id.as_str() }), || id.to_string())?;
    let work = if store::server(&app.settings)?.is_none() { "do it with longhaul work, " } else { "" };
    app.out.hint(format_args!("{work}follow it with longhaul runs wait {id}"));
    Ok(Code::Ok)
}

/// Ends the worker, if there is one. Answers how many answers it could not store.
async fn stop(working: Option<Working>) -> Result<u64> {
    match working {
        Some(working) => Ok(working.stop().await?.unstored),
        None => Ok(0),
    }
}

/// Somebody does not want to wait until all requests are stored.
async fn half_stored(
    app: &App,
    (pipeline, id): (&Prompts, &RunId),
    mut working: Option<Working>,
    interrupts: &mut Interrupts,
) -> Result<Code> {
    if let Some(working) = &mut working {
        interrupts.drain(app, working).await;
    }
    let unstored = stop(working).await?;
    let stored = pipeline.queue().process(&id.process()).await?.total();
    print_object(app, &found(pipeline, id).await?.status().await?, None)?;
    app.out.note(format_args!("{} of {id} are stored so far", counted(stored, "request")));
    if unstored > 0 {
        return Ok(interrupted(app, id, unstored));
    }
    app.out.note("interrupted; nothing is lost");
    app.out.hint("go on with the same command");
    Ok(Code::Interrupted)
}

/// `unstored` answers came while nothing could be stored.
fn interrupted(app: &App, id: &RunId, unstored: u64) -> Code {
    match unstored {
        0 => app.out.note(format_args!("interrupted; nothing is lost, {id} is stored")),
        _ => app.out.warn(format_args!(
            "interrupted; {} could not be stored: asked again, they may be billed twice; the rest of {id} is stored",
            counted(unstored, "answer")
        )),
    }
    app.out.hint(format_args!("go on with the same command, or in the background: longhaul work"));
    Code::Interrupted
}

fn worker_ended(id: &RunId) -> Failure {
    Failure::new(Code::Failure, format!("the worker ended before {id} did; nothing is lost"))
        .hint("go on with the same command")
}

/// Lines of a run that only runs of prompts have.
pub(crate) fn detail_lines(status: &Status) -> Vec<String> {
    let Some(Details { mode, parked, at_provider }) = Details::of(status) else { return Vec::new() };
    let mut lines = vec![format!("mode         {mode}")];
    if mode == Mode::Batch && parked > 0 {
        let there = at_provider
            .map_or_else(String::new, |there| format!(", {} answered there", grouped(there.answered)));
        lines.push(format!("in batches   {} wait for the provider{there}", grouped(parked)));
    }
    lines
}

/// What only runs of prompts tell beside the bar.
pub(crate) fn facts(status: &Status) -> Vec<Fact> {
    let mut facts = Fact::counts(&[("cached", status.spent.cached, "cached")]);
    let Some(Details { mode, parked, at_provider }) = Details::of(status) else { return facts };
    if mode == Mode::Batch && parked > 0 {
        let text = format!("{parked} wait for a provider batch, usually 1 to 24 h");
        facts.push(Fact::new("in_batch", parked.to_string(), text));
        if let Some(there) = at_provider.filter(|there| there.answered > 0) {
            let text = format!("{} answered there", there.answered);
            facts.push(Fact::new("answered_in_batch", there.answered.to_string(), text));
        }
    }
    facts
}
