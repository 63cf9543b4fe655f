//! Sharing: several processes on one file at once, each with a worker, maintenance and a caller that does a
//! bit of everything. An error that reaches a caller, such as "database is locked", is a violation.

use std::time::Duration;

use anyhow::{Context as _, Result};
use longhaul_stores::shown;
use serde::{Deserialize, Serialize};

use super::report::Report;
use super::{Role, Sharing, rows};
use crate::{Host, Scratch};

mod caller;

pub(super) use caller::Share;

/// On top of the time that was asked for: the processes run what is left and consume it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What one process did; it prints this at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Shared {
    calls: u64,
    enqueued: u64,
    consumed: u64,
    cancelled: u64,
    slowest_ms: u64,
    errors: Vec<String>,
}

/// Verifies.
pub async fn run(host: &Host, args: &Sharing) -> Result<Report> {
    let scratch = Scratch::new(host, args.keep.as_deref()).await?;
    host.note(format_args!(
        "{} processes on {} for {} s",
        args.processes,
        shown(scratch.url()),
        args.seconds
    ));
    let mut children = Vec::new();
    for number in 0..args.processes {
        let role = Role::Share(Share { seconds: args.seconds, number });
        children.push(scratch.spawn(&role.words()?, &format!("process-{number}.log"))?);
    }
    let (mut all, mut errors, mut surprises) = (Shared::default(), Vec::new(), Vec::new());
    for (number, child) in children.into_iter().enumerate() {
        let allowed = Duration::from_secs(args.seconds) + PATIENCE;
        let Ok(ended) = tokio::time::timeout(allowed, child.wait_with_output()).await else {
            surprises.push(format!("process {number} did not end in time"));
            continue;
        };
        let ended = ended.context("waiting for a process")?;
        match serde_json::from_slice::<Shared>(&ended.stdout) {
            Ok(shared) => all.add(number, shared, &mut errors),
            Err(error) => surprises.push(format!("process {number} ended with {}: {error}", ended.status)),
        }
    }
    let mut report = Report::new("sharing");
    report.fact("processes", u64::from(args.processes));
    report.fact("seconds", args.seconds);
    report.fact("calls", all.calls);
    report.fact("jobs enqueued", all.enqueued);
    report.fact("jobs cancelled", all.cancelled);
    report.fact("results consumed", all.consumed);
    report.fact("slowest call in ms", all.slowest_ms);
    report.check("no error reached a caller", errors);
    report.check("every process came to its end", surprises);
    let lost = (all.enqueued != all.consumed)
        .then(|| format!("{} jobs were enqueued, {} results consumed", all.enqueued, all.consumed));
    report.check("every job came back once", lost.into_iter().collect());
    if let Some(file) = scratch.sqlite_file() {
        report.check("no row is left after consume", rows::left(file)?);
        report.check("SQLite finds the file sound", rows::damage(file)?);
    }
    Ok(report.finish(host, scratch).await)
}

impl Shared {
    fn add(&mut self, number: usize, other: Self, errors: &mut Vec<String>) {
        self.calls += other.calls;
        self.enqueued += other.enqueued;
        self.consumed += other.consumed;
        self.cancelled += other.cancelled;
        self.slowest_ms = self.slowest_ms.max(other.slowest_ms);
        errors.extend(other.errors.into_iter().map(|error| format!("process {number}: {error}")));
    }
}
