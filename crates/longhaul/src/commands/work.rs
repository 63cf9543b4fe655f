//! `work`: claims and runs jobs until told to end, or until nothing is left.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::{
    Engine, Error, KindOptions, Queue, QueueShare, Shutdown, State, Worker, WorkerOptions, WorkerReport,
};
use longhaul_stores::sqlite::Db;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::app::App;
use crate::args::WorkArgs;
use crate::backend::{Backend, Serving};
use crate::config::{Origin, concurrency, lease, list};
use crate::exec::{Exec, ExecOptions, Spawner};
use crate::exit::{Code, Failure};
use crate::output::counted;
use crate::pipelines::{abouts, own_names};
use crate::{builtin, config, models, parse, store};

/// Jobs of a dead worker that run at once where no command is run.
const SUSPECTS_MAX: usize = 64;

/// How a worker says that it cannot run any of its kinds.
const NO_HANDLER: &str = "no handler for any kind";

/// Runs the command.
pub(crate) async fn run(app: &App, args: &WorkArgs) -> Result<Code> {
    let (engine, data) = app.engine_for_long().await?;
    let options = options(app, args)?;
    let mut worker = Worker::new(engine.clone(), options.clone());
    let spawner = Spawner::start().context("starting the thread that starts commands")?;
    match &args.exec {
        Some(command) => register_exec(app, args, &mut worker, command, spawner.clone())?,
        None => builtin::register(&mut worker),
    }
    if let Some(instrument) = args.instrument {
        builtin::register_instrument(&mut worker, instrument);
    }
    let serving = serve_runs(app, args, (&engine, data), &mut worker, &options).await?;
    // Before the introduction: a supervisor that reads it may ask the worker to end.
    let (mut interrupts, mut terms) = signals()?;
    introduce(app, &engine, &worker, &options, args)?;
    let shutdown = Shutdown::new();
    let mut running = std::pin::pin!(worker.run(shutdown.clone()));
    let mut asked = 0;
    let report = loop {
        tokio::select! {
            report = &mut running => break report,
            _ = interrupts.recv() => {}
            _ = terms.recv() => {}
        }
        asked += 1;
        if asked == 1 {
            app.out.note("draining: no new jobs, running ones may end; once more to stop at once");
            shutdown.drain();
        } else {
            app.out.note("stopping: running jobs are given back");
            shutdown.stop();
        }
    };
    spawner.finish().await;
    if let Some(serving) = serving {
        serving.stop().await;
    }
    let report = report.map_err(|error| name_kinds(error, args))?;
    summarise(app, &report)?;
    if args.drain {
        tell_what_is_left(app, &engine).await?;
    }
    Ok(match (asked, report.failed) {
        (2.., _) => Code::Interrupted,
        (_, 1..) if args.drain => Code::JobsFailed,
        _ => Code::Ok,
    })
}

/// A worker refuses to run with nothing to do; the kinds that it was to serve stood on the command line. What else it may refuse,
/// such as limits, has nothing to do with them.
fn name_kinds(error: Error, args: &WorkArgs) -> anyhow::Error {
    let is_of_kinds = matches!(&error, Error::Invalid(text) if text.contains(NO_HANDLER));
    if args.kinds.is_empty() || !is_of_kinds {
        return error.into();
    }
    Failure::new(Code::Usage, format!("--kind {}: {error}", args.kinds.join(", ")))
        .hint(format_args!("built in are {}; for others name what to run: --exec CMD", builtin::KINDS))
        .into()
}

/// Registers what serves runs, batches and webhooks, unless this worker runs a command for every job, or other kinds only.
async fn serve_runs(
    app: &App,
    args: &WorkArgs,
    store: (&Engine, Option<Db>),
    worker: &mut Worker,
    options: &WorkerOptions,
) -> Result<Option<Serving>> {
    let wanted = args.kinds.is_empty()
        || args.kinds.iter().any(|kind| abouts().any(|about| kind.starts_with(about.kind_prefix)));
    if args.exec.is_some() || !wanted {
        return Ok(None);
    }
    let models = models::Setup::new(app, None)?;
    let backend = Backend::open(app, store, &models, models.catalog()).await?;
    Ok(Some(backend.serve(app, worker, options).await?))
}

/// A drain ends although jobs wait that this worker cannot move.
async fn tell_what_is_left(app: &App, queue: &Queue) -> Result<()> {
    let counts = queue.store().counts().await?;
    let left = |state: State| -> u64 {
        counts.iter().filter(|count| count.state == state).map(|count| count.jobs).sum()
    };
    let unfinished = State::ALL.into_iter().filter(|state| !state.is_terminal());
    let present: Vec<String> = unfinished
        .map(|state| (left(state), state))
        .filter(|(jobs, _)| *jobs > 0)
        .map(|(jobs, state)| format!("{jobs} {state}"))
        .collect();
    if !present.is_empty() {
        app.out.note(format_args!("left in the store: {}", present.join(" · ")));
        app.out.hint("longhaul jobs explain ID tells what one waits for");
    }
    Ok(())
}

pub(crate) fn signals() -> Result<(Signal, Signal)> {
    let catch = |kind| signal(kind).context("catching signals");
    Ok((catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?))
}

pub(crate) fn options(app: &App, args: &WorkArgs) -> Result<WorkerOptions> {
    let settings = &app.settings;
    let grace = settings.read("worker.grace", parse::duration)?;
    Ok(WorkerOptions {
        queues: settings
            .read("worker.queues", |text| Ok(list(text)))?
            .into_iter()
            .map(QueueShare::from)
            .collect(),
        kinds: (!args.kinds.is_empty()).then(|| args.kinds.clone()),
        concurrency: slots(app, args)? as usize,
        // A command can take its worker down, a request to a model cannot.
        suspects_max: if args.exec.is_some() { 1 } else { SUSPECTS_MAX },
        lease: settings.read("worker.lease", lease)?,
        cancel_grace: grace,
        drain_grace: grace,
        host: host(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        until_empty: args.drain,
        ..WorkerOptions::default()
    })
}

/// Commands need a core each; requests to models mostly wait, so a worker without a command has room for many.
fn slots(app: &App, args: &WorkArgs) -> Result<u32> {
    let setting = app.settings.get("worker.concurrency")?;
    let name = match setting.origin {
        Origin::Default if args.exec.is_none() => "llm.concurrency",
        _ => "worker.concurrency",
    };
    app.settings.read(name, concurrency)
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn register_exec(
    app: &App,
    args: &WorkArgs,
    worker: &mut Worker,
    command: &str,
    spawner: Spawner,
) -> Result<()> {
    // The shell would run it, do nothing, and every job would succeed.
    if command.trim().is_empty() {
        let hint = "name what to run for each job: longhaul work --exec 'exec ./deploy.sh'";
        return Err(Failure::new(Code::Usage, "--exec is empty").hint(hint).into());
    }
    let queues = app.settings.read("worker.queues", |text| Ok(list(text)))?;
    if let Some(queue) = queues.iter().find(|queue| own_names().is_own_queue(queue)) {
        return Err(Failure::new(
            Code::Usage,
            format!("--exec cannot run the jobs of queue {queue:?}: they are Longhaul's own"),
        )
        .hint("longhaul work without --exec runs them")
        .into());
    }
    let variables = config::variables();
    let is_missing = |name: &&String| !variables.iter().any(|(known, _)| known == name.as_str());
    if let Some(name) = args.env.iter().find(is_missing) {
        return Err(Failure::new(Code::Usage, format!("--env {name}: there is no such variable"))
            .hint(format_args!("set it for the worker: export {name}=…"))
            .into());
    }
    let exec = Arc::new(Exec::new(ExecOptions {
        command: command.to_owned(),
        pass: args.env.clone(),
        spawner,
        limits: app.limits()?,
        grace: app.settings.read("worker.grace", parse::duration)?,
    }));
    worker
        .handle_any(KindOptions::default(), move |context, payload| Arc::clone(&exec).run(context, payload));
    Ok(())
}

/// What one wants to see in the first lines of a log.
fn introduce(
    app: &App,
    queue: &Queue,
    worker: &Worker,
    options: &WorkerOptions,
    args: &WorkArgs,
) -> Result<()> {
    let queues: Vec<&str> = options.queues.iter().map(|share| share.name.as_str()).collect();
    let all_kinds = if args.exec.is_some() { "any" } else { "built-in" };
    let kinds = options.kinds.as_ref().map_or_else(|| all_kinds.to_owned(), |kinds| kinds.join(", "));
    let handlers = args
        .exec
        .as_ref()
        .map_or_else(|| format!("built-in: {}", builtin::KINDS), |command| format!("sh -c {command:?}"));
    app.out.note(format_args!("store        {}", store::shown_url(&app.settings)?));
    app.out.note(format_args!("durability   {}", queue.store().caps().durability));
    let slots = counted(options.concurrency as u64, "slot");
    app.out.note(format_args!("worker       {} ({slots})", worker.id()));
    app.out.note(format_args!("queues       {} (kinds: {kinds})", queues.join(", ")));
    app.out.note(format_args!("handlers     {handlers}"));
    if args.exec.is_none() {
        let names: Vec<&str> = abouts().map(|about| about.name).collect();
        app.out.note(format_args!("runs         all, of {}", names.join(", ")));
    }
    Ok(())
}

pub(crate) fn summarise(app: &App, report: &WorkerReport) -> Result<()> {
    let counts = [
        ("done", report.done),
        ("continued", report.continued),
        ("parked", report.parked),
        ("retried", report.retried),
        ("throttled", report.throttled),
        ("failed", report.failed),
        ("cancelled", report.cancelled),
        ("given back", report.released),
        ("lost", report.lost_leases),
        ("not stored", report.unstored),
    ];
    let present: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| match *name {
            // A job may be continued many times, and each is a run of its own.
            "continued" => format!("{} to be continued", counted(*count, "run")),
            name => format!("{count} {name}"),
        })
        .collect();
    let text = if present.is_empty() { "no jobs".to_owned() } else { present.join(" · ") };
    if app.out.format == crate::output::Format::Text {
        app.out.note(format_args!("worker ended: {text}"));
        return Ok(());
    }
    app.out.one(report, || text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::code_of;

    /// What a worker says of its kinds is checked by `a_kind_without_a_handler_is_a_usage_error`.
    #[test]
    fn kinds_are_not_to_blame_for_what_else_a_worker_refuses() {
        let args = WorkArgs { kinds: vec!["echo".to_owned()], ..WorkArgs::default() };
        for text in ["the worker has no queue to serve", "value_bytes_max is 0"] {
            let error = name_kinds(Error::invalid(text), &args);
            assert_eq!((code_of(&error), format!("{error:#}").as_str()), (Code::Failure, text));
        }
        let error = name_kinds(Error::invalid(format!("the worker has {NO_HANDLER}")), &args);
        assert_eq!(code_of(&error), Code::Usage);
    }
}
