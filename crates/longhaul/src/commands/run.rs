//! `run`: prompts in, answers out, in order. It stores the requests, answers them with a worker of its own, and writes
//! the answers; interrupted at any point, the same command goes on.

use std::time::Instant;

use anyhow::{Context as _, Result};
use longhaul_pipelines::bulk::{Bulk, Estimate, NewRequest, Progress, Run, RunId, Submission, gate, manage};
use longhaul_queue::Worker;

use super::interrupts::{EndAtOnce, Interrupts};
use super::provider_outage;
use super::working::{self, Working};
use crate::app::App;
use crate::args::RunArgs;
use crate::config::concurrency;
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::prompts::{Pick, Prompts};
use crate::{answers, models, outputs};

pub(crate) mod estimate;
mod finish;
mod follow;
mod outage;
mod settings;

use finish::Took;
pub(crate) use finish::{
    Answers, STDOUT, budget_way_out, consume, form_of, print_object, print_summary, spending, way_out,
    write_answers,
};
pub(crate) use follow::{Shown, code_of, show};
pub(crate) use settings::shown_model;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &RunArgs) -> Result<Code> {
    let mut interrupts = Interrupts::new()?;
    let reading = EndAtOnce::start(&app.out)?;
    let places = [("--out", args.out.as_deref()), ("--errors", args.errors.as_deref())];
    outputs::refuse_inputs(&places, &settings::inputs(&args.prompts), "name another file")?;
    let prompts = open(app, args)?;
    let summary = prompts.check()?;
    answers::check_places(&places)?;
    let pick = Pick { prompts: summary.prompts, limit: args.prompts.limit, sample: args.sample };
    let prompts = prompts.picking(pick);
    let models = models::Setup::new(app, args.prompts.base_url.as_deref())?;
    let bulk = Bulk::new(app.engine_or_new().await?, models.llm(app)?).with_trace(app.trace.traceparent());
    let sharing = models::open_books(app, bulk.engine(), bulk.llm()).await?;
    let wanted = settings::of(app, args, &models, &bulk, (&prompts, &summary, pick)).await?;
    let id = RunId::of(&wanted);
    if !args.force {
        outputs::refuse_foreign(bulk.engine(), id.as_str(), &places).await?;
    }
    let simulated = bulk.llm().is_simulated(&wanted.profile, &wanted.model);
    if args.dry_run {
        return settings::describe(app, &wanted, args.spending.max_cost, simulated);
    }
    models::set_limits(bulk.llm(), id.as_str(), &args.spending).await?;
    drop(reading);
    let submission = Submission::begin(&bulk, wanted).await?;
    settings::introduce(app, &submission, args.spending.max_cost, simulated);
    let resumed = submission.is_resumed();
    if resumed {
        go_on(app, &bulk, &id).await?;
    }
    let started = Instant::now();
    let mut working = match args.detach || args.watch {
        true => None,
        false => Some(work(app, args, &bulk, &id)?),
    };
    tokio::select! {
        stored = submit(&prompts, submission) => stored?,
        () = interrupts.next() => {
            if let Some(working) = &mut working {
                interrupts.drain(app, working).await;
            }
            return half_stored(app, &bulk, &id, working).await;
        }
    }
    if args.detach {
        return detached(app, &id);
    }
    let run = Run::get(bulk.queue(), &id).await?;
    let ended = follow::until_the_end(app, &bulk, &run, working.as_mut(), &mut interrupts).await;
    let unstored = stop(working).await?;
    bulk.llm().save_learnt().await;
    sharing.end().await;
    match ended? {
        Shown::Ended(progress) => {
            let took = Took { time: started.elapsed(), all: !resumed };
            let code = finish::finish(app, args, &bulk, (&run, &prompts), &progress, took).await?;
            let estimate = estimate_all(app, args, &bulk, &run, (prompts, pick)).await?;
            if args.out.is_some() || !progress.status.is_end() {
                print_object(app, &run, &progress, estimate.as_ref())?;
            }
            Ok(code)
        }
        Shown::NeverReached => Err(never_reached(&bulk, &run).await?.into()),
        Shown::Interrupted => {
            print_object(app, &run, &Progress::of(&bulk, &id, &run.settings).await?, None)?;
            Ok(interrupted(app, &id, unstored))
        }
        Shown::WorkerEnded => Err(worker_ended(&id).into()),
    }
}

/// Asks again what a run that was there before has no answer for.
async fn go_on(app: &App, bulk: &Bulk, id: &RunId) -> Result<()> {
    let again = manage::go_on(bulk, id).await?;
    if again > 0 {
        app.out.note(format_args!("asking again what has no answer: {}", counted(again, "request")));
    }
    Ok(())
}

async fn never_reached(bulk: &Bulk, run: &Run) -> Result<Failure> {
    let route = bulk.llm().route(&run.settings.profile, &run.settings.model).await?;
    let why = gate::why(bulk, &run.id).await?.map(|(_, why)| why);
    Ok(provider_outage::unreached(&route, run.id.as_str(), why))
}

/// After a sample: what all prompts will cost.
async fn estimate_all(
    app: &App,
    args: &RunArgs,
    bulk: &Bulk,
    run: &Run,
    (prompts, pick): (Prompts, Pick),
) -> Result<Option<Estimate>> {
    if args.sample.is_none() || args.consume {
        return Ok(None);
    }
    let all = prompts.picking(Pick { sample: None, ..pick });
    Ok(Some(estimate::of_all(app, bulk, run, &all).await?))
}

/// Starts a worker for this run alone.
fn work(app: &App, args: &RunArgs, bulk: &Bulk, id: &RunId) -> Result<Working> {
    let slots = match args.concurrency {
        Some(slots) => slots,
        None => app.settings.read("llm.concurrency", concurrency)?,
    };
    let mut worker = Worker::new(bulk.engine().clone(), working::options(app, id.as_str(), slots as usize)?);
    bulk.register(&mut worker);
    Ok(Working::start(worker))
}

fn open(app: &App, args: &RunArgs) -> Result<Prompts> {
    let limits = app.limits()?;
    settings::prompts(&args.prompts, limits.value_bytes_max)
}

/// Stores the requests. What is stored already is left alone, so this is also how an interrupted submission goes on.
async fn submit(prompts: &Prompts, mut submission: Submission) -> Result<()> {
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

fn detached(app: &App, id: &RunId) -> Result<Code> {
    app.out.one(&serde_json::json!({ "id": id.as_str() }), || id.to_string())?;
    app.out.hint(format_args!("answer it with longhaul work, follow it with longhaul runs wait {id}"));
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
async fn half_stored(app: &App, bulk: &Bulk, id: &RunId, working: Option<Working>) -> Result<Code> {
    let unstored = stop(working).await?;
    let stored = bulk.queue().process(&id.process()).await?.total();
    let run = Run::get(bulk.queue(), id).await?;
    print_object(app, &run, &Progress::of(bulk, id, &run.settings).await?, None)?;
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
