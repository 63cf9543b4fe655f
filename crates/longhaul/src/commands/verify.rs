//! `verify`: breaks things on purpose and proves from the store, and from what the jobs themselves wrote down, that
//! nothing was lost, run out of turn or taken from a stale writer. What is proved and how: docs/verify.md.
//!
//! Reading order: `plan` (the jobs and what must come out), `step` (what a job does), `journal` (what it writes
//! down), `supervisor` (kills and pauses), `check` (the proof), `report`.

use anyhow::Result;
use longhaul_queue::Worker;

use crate::app::App;
use crate::args::{FairArgs, LeaseArgs, SharingArgs, VerifyArgs, VerifyCommand};
use crate::exit::Code;
use crate::own_server;

mod check;
mod crash;
mod fair;
mod faults;
mod journal;
mod lease;
mod plan;
mod proxy;
mod report;
mod rows;
mod sharing;
mod step;
mod submit;
mod supervisor;

/// Registers the kinds that verifications run.
pub(crate) fn register(worker: &mut Worker) {
    step::register(worker);
    fair::register(worker);
}

/// Runs the command.
pub(crate) async fn run(app: &App, args: &VerifyArgs) -> Result<Code> {
    match &args.what {
        None => everything(app, args).await,
        Some(VerifyCommand::Crash(args)) => crash::run(app, args).await,
        Some(VerifyCommand::Sharing(args)) => sharing::run(app, args).await,
        Some(VerifyCommand::Fair(args)) => fair::run(app, args).await,
        Some(VerifyCommand::Lease(args)) => lease::run(app, args).await,
        Some(VerifyCommand::Step) => step::run_as_command(),
        Some(VerifyCommand::Submit(args)) => submit::run(app, args).await,
        Some(VerifyCommand::Share(args)) => sharing::share(app, args).await,
        Some(VerifyCommand::Host(args)) => own_server::host(app, args).await,
        Some(VerifyCommand::Hold(args)) => lease::hold(app, args).await,
    }
}

async fn everything(app: &App, args: &VerifyArgs) -> Result<Code> {
    let sharing = SharingArgs { processes: 4, seconds: 20, keep: None };
    let lease = LeaseArgs { seconds: 30, lease: std::time::Duration::from_secs(5), keep: None };
    let fair = FairArgs { processes: 4, jobs: 25, job_ms: 100, rounds: 3, own: None, keep: None };
    let codes = [
        crash::run(app, &args.crash).await?,
        sharing::run(app, &sharing).await?,
        fair::run(app, &fair).await?,
        lease::run(app, &lease).await?,
    ];
    Ok(codes.into_iter().find(|code| *code != Code::Ok).unwrap_or(Code::Ok))
}
