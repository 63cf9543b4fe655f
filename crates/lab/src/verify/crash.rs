//! Crashes: jobs with a graph, worker processes that are killed and paused at random, and the proof afterwards.

use std::time::Instant;

use anyhow::Result;
use longhaul_queue::store::ProcessInfo;
use longhaul_stores::shown;

use super::Crash;
use super::check::{self, Evidence};
use super::faults::Faults;
use super::plan::Plan;
use super::report::Report;
use super::supervisor::{Supervisor, Toll};
use super::{journal, submit};
use crate::servers::{self, Purpose};
use crate::{Host, Scratch};

/// Verifies, and shows on the way how far the jobs are.
pub async fn run(host: &Host, args: &Crash, show: &mut dyn FnMut(&ProcessInfo)) -> Result<Report> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let server = servers::start(args.own, Purpose::Faults).await?;
    let mut scratch = match &server {
        Some(server) => Scratch::at(host, args.keep.as_deref(), Some(server.url())).await?,
        None => Scratch::new(host, args.keep.as_deref()).await?,
    };
    let faults = if args.faults > 0 { format!(", {} faults", args.faults) } else { String::new() };
    host.note(format_args!(
        "seed {seed}: {} jobs, {} kills{faults}, {}",
        args.jobs,
        args.kills,
        shown(scratch.url())
    ));
    host.note(format_args!("durability: {}", scratch.queue().store().caps().durability));
    let started = Instant::now();
    let plan = Plan::draw(args.jobs, seed);
    let mut faults = Faults::prepare(args, &mut scratch, server).await?;
    let toll = Supervisor::new(&scratch, &plan, args, seed)?.run(&mut faults, show).await?;
    let seconds = started.elapsed().as_secs();
    let mut report = Report::new("crash");
    report.fact("seed", seed);
    report.fact("jobs", u64::from(args.jobs));
    tell(&mut report, &toll);
    report.fact("connections cut", faults.cuts);
    report.fact("server restarts", faults.restarts);
    let (lines, torn) = journal::read(&scratch.path("journal"))?;
    report.check("the journal is whole", torn);
    report.check("batches were stored whole and once", submit::violations(&scratch.path("acks"))?);
    report.check("processes ended only when killed or asked to", toll.surprises);
    report.check("all jobs ended in time", toll.late);
    let evidence = Evidence::gather(&scratch, &plan, &lines).await?;
    check::prove(&mut report, &scratch, &evidence).await?;
    report.fact("seconds", seconds);
    // Before the server goes, which the scratch store would miss loudly.
    Ok(report.finish(host, scratch).await)
}

fn tell(report: &mut Report, toll: &Toll) {
    report.fact("workers killed", toll.workers_killed);
    report.fact("submitters killed", toll.submitters_killed);
    report.fact("workers paused longer than their lease", toll.paused);
    report.fact("paused workers that met a newer run", toll.ambushed);
    report.fact("outcomes refused as stale", toll.refused);
}
