//! `verify crash`: jobs with a graph, worker processes that are killed and paused at random, and the proof afterwards.

use std::time::Instant;

use anyhow::Result;

use super::check::{self, Evidence};
use super::faults::Faults;
use super::plan::Plan;
use super::report::Report;
use super::supervisor::{Supervisor, Toll};
use super::{journal, submit};
use crate::app::App;
use crate::args::CrashArgs;
use crate::commands::fleet::Stage;
use crate::exit::Code;
use crate::own_server::{Purpose, Server};
use crate::store;

/// Runs the command.
pub(super) async fn run(app: &App, args: &CrashArgs) -> Result<Code> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let server = match args.own {
        Some(kind) => Some(Server::start(kind, Purpose::Faults).await?),
        None => None,
    };
    let mut stage = match &server {
        Some(server) => Stage::at(app, args.keep.as_deref(), Some(server.url())).await?,
        None => Stage::new(app, args.keep.as_deref()).await?,
    };
    let faults = if args.faults > 0 { format!(", {} faults", args.faults) } else { String::new() };
    app.out.note(format_args!(
        "seed {seed}: {} jobs, {} kills{faults}, {}",
        args.jobs,
        args.kills,
        store::shown(stage.url())
    ));
    app.out.note(format_args!("durability: {}", stage.queue().store().caps().durability));
    let started = Instant::now();
    let plan = Plan::draw(args.jobs, seed);
    let mut faults = Faults::prepare(args, &mut stage, server).await?;
    let toll = Supervisor::new(app, &stage, &plan, args, seed)?.run(&mut faults).await?;
    let seconds = started.elapsed().as_secs();
    let mut report = Report::new("crash");
    report.fact("seed", seed);
    report.fact("jobs", u64::from(args.jobs));
    tell(&mut report, &toll);
    report.fact("connections cut", faults.cuts);
    report.fact("server restarts", faults.restarts);
    let (lines, torn) = journal::read(&stage.path("journal"))?;
    report.check("the journal is whole", torn);
    report.check("batches were stored whole and once", submit::violations(&stage.path("acks"))?);
    report.check("processes ended only when killed or asked to", toll.surprises);
    report.check("all jobs ended in time", toll.late);
    let evidence = Evidence::gather(&stage, &plan, &lines).await?;
    check::prove(&mut report, &stage, &evidence).await?;
    report.fact("seconds", seconds);
    let code = report.finish(app, &mut stage)?;
    // Before the server, which it would miss loudly.
    stage.leave(app, code).await;
    Ok(code)
}

fn tell(report: &mut Report, toll: &Toll) {
    report.fact("workers killed", toll.workers_killed);
    report.fact("submitters killed", toll.submitters_killed);
    report.fact("workers paused longer than their lease", toll.paused);
    report.fact("paused workers that met a newer run", toll.ambushed);
    report.fact("outcomes refused as stale", toll.refused);
}
