//! `verify`: breaks things on purpose and prints what that proved. The laboratory does it.

use std::time::Duration;

use anyhow::Result;
use longhaul_lab::verify::{self, Crash, Fair, Lease, Report, Sharing};

use super::lab;
use crate::app::App;
use crate::args::{CrashArgs, FairArgs, LeaseArgs, SharingArgs, VerifyArgs, VerifyCommand};
use crate::exit::Code;
use crate::output::{Cell, Table, plain};
use crate::progress::Status;

/// Runs the command.
pub(crate) async fn run(app: &App, args: &VerifyArgs) -> Result<Code> {
    match &args.what {
        None => everything(app, &args.crash).await,
        Some(VerifyCommand::Crash(args)) => crash(app, args).await,
        Some(VerifyCommand::Sharing(args)) => sharing(app, args).await,
        Some(VerifyCommand::Fair(args)) => fair(app, args).await,
        Some(VerifyCommand::Lease(args)) => lease(app, args).await,
        Some(VerifyCommand::Child { role }) => {
            verify::child(&lab::child_host(app)?, role).await?;
            Ok(Code::Ok)
        }
    }
}

async fn everything(app: &App, args: &CrashArgs) -> Result<Code> {
    let sharing_args = SharingArgs { processes: 4, seconds: 20, keep: None };
    let lease_args = LeaseArgs { seconds: 30, lease: Duration::from_secs(5), keep: None };
    let fair_args = FairArgs { processes: 4, jobs: 25, job_ms: 100, rounds: 3, own: None, keep: None };
    let codes = [
        crash(app, args).await?,
        sharing(app, &sharing_args).await?,
        fair(app, &fair_args).await?,
        lease(app, &lease_args).await?,
    ];
    Ok(codes.into_iter().find(|code| *code != Code::Ok).unwrap_or(Code::Ok))
}

async fn crash(app: &App, args: &CrashArgs) -> Result<Code> {
    let CrashArgs { kills, jobs, faults, own, seed, keep } = args.clone();
    let request = Crash { kills, jobs, faults, own: own.map(Into::into), seed, keep };
    let mut progress = app.progress()?;
    let mut show = |info: &_| progress.update(Status::of(info, jobs.into()));
    let report = verify::crash(&lab::host(app)?, &request, &mut show).await?;
    drop(progress);
    print(app, &report)
}

async fn sharing(app: &App, args: &SharingArgs) -> Result<Code> {
    let SharingArgs { processes, seconds, keep } = args.clone();
    print(app, &verify::sharing(&lab::host(app)?, &Sharing { processes, seconds, keep }).await?)
}

async fn fair(app: &App, args: &FairArgs) -> Result<Code> {
    let FairArgs { processes, jobs, job_ms, rounds, own, keep } = args.clone();
    let request = Fair { processes, jobs, job_ms, rounds, own: own.map(Into::into), keep };
    print(app, &verify::fair(&lab::host(app)?, &request).await?)
}

async fn lease(app: &App, args: &LeaseArgs) -> Result<Code> {
    let LeaseArgs { seconds, lease, keep } = args.clone();
    print(app, &verify::lease(&lab::host(app)?, &Lease { seconds, lease, keep }).await?)
}

fn print(app: &App, report: &Report) -> Result<Code> {
    app.out.one(report, || text(report))?;
    if report.ok {
        return Ok(Code::Ok);
    }
    app.out.error(format_args!(
        "{} violations; store, journal and logs are kept in {}",
        report.violation_count(),
        report.folder.as_deref().unwrap_or_default()
    ));
    Ok(Code::Failure)
}

fn text(report: &Report) -> String {
    let mut facts = Table::new(&["FACT", "COUNT"]);
    for (name, number) in &report.facts {
        facts.row(vec![Cell::new(name), Cell::number(*number)]);
    }
    let mut checks = Table::new(&["CHECK", "RESULT"]);
    for check in &report.checks {
        let result = match check.violations {
            0 => "ok".to_owned(),
            count => format!("{count} violations"),
        };
        checks.row(vec![Cell::new(check.check), Cell::new(result)]);
    }
    let mut text = format!("{}\n{}", facts.render(false), checks.render(false));
    if !report.violations.is_empty() {
        text += "\nVIOLATIONS\n";
    }
    for violation in &report.violations {
        text += &format!("{}\n", plain(violation));
    }
    text
}
