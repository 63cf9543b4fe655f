//! Leases: a handler that blocks its worker's only thread for much longer than the lease. The heartbeat must
//! keep the lease all the same, so that a second worker with a rescuer, which watches, never gets the job.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use longhaul_queue::{
    Failure, JobContext, JobId, Json, NewJob, Queue, Shutdown, State, Worker, WorkerOptions, WorkerReport,
};
use serde::{Deserialize, Serialize};
use tokio::process::Child;

use super::journal::{self, Line, Pen, What};
use super::report::Report;
use super::{Lease, Role};
use crate::{Host, Scratch};

const KIND: &str = "verify.block";
/// Between two looks at the store or the journal.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// On top of the time that the handler blocks.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
struct Block {
    journal: PathBuf,
    seconds: u64,
}

/// Registers the kind: in the worker that is blocked, and in the one that watches, which would run the job if it got it.
pub(super) fn register(worker: &mut Worker) {
    worker.handle(KIND, |context: JobContext, payload: Block| async move { block(&context, &payload) });
}

/// Blocks the thread on purpose: no timer, no other task of this runtime goes on meanwhile.
fn block(context: &JobContext, payload: &Block) -> Result<u64, Failure> {
    let mut pen = Pen::open(&payload.journal, 0, context.fence())?;
    pen.write(What::Start, 0)?;
    std::thread::sleep(Duration::from_secs(payload.seconds));
    pen.write(What::End, payload.seconds)?;
    Ok(payload.seconds)
}

/// The worker that is blocked: one thread runs its claims, its handler and its settlements. It runs no rescuer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    lease: Duration,
}

impl Hold {
    pub(super) async fn run(&self, host: &Host) -> Result<()> {
        let engine = super::engine(host).await?;
        let options = WorkerOptions {
            concurrency: 1,
            lease: self.lease,
            kinds: Some(vec![KIND.to_owned()]),
            until_empty: true,
            maintenance: None,
            ..WorkerOptions::default()
        };
        let serve = move || -> Result<WorkerReport> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let mut worker = Worker::new(engine, options);
            register(&mut worker);
            Ok(runtime.block_on(worker.run(Shutdown::new()))?)
        };
        // A thread of its own, since a runtime cannot be started inside another.
        let report = std::thread::spawn(serve).join().map_err(|_| anyhow!("the worker panicked"))??;
        anyhow::ensure!(report.done == 1 && report.total() == 1, "the worker did something else: {report:?}");
        Ok(())
    }
}

/// Verifies.
pub async fn run(host: &Host, args: &Lease) -> Result<Report> {
    let scratch = Scratch::new(host, args.keep.as_deref()).await?;
    let lease_ms = u64::try_from(args.lease.as_millis()).context("the lease")?;
    host.note(format_args!(
        "a handler blocks its worker's only thread for {} s under a lease of {lease_ms} ms",
        args.seconds
    ));
    let journal = scratch.path("journal");
    let payload = Json::of(&Block { journal: journal.clone(), seconds: args.seconds })?;
    let id = scratch.queue().enqueue(NewJob::new(KIND, payload)).await?.id;
    let deadline = Instant::now() + Duration::from_secs(args.seconds) + PATIENCE;
    let holder = scratch.spawn(&Role::Hold(Hold { lease: args.lease }).words()?, "holder.log")?;
    wait_for_start(&journal, deadline).await?;
    // Its lease is short, so that it would be quick to take the job over.
    let words = ["work", "--instrument", "verify", "--kind", KIND, "--lease", "1s"];
    let watcher = scratch.spawn(&words, "watcher.log")?;
    let ended = wait_for_end(scratch.queue(), id, deadline).await?;
    let report = judge(args, &scratch, id, Processes { holder, watcher, ended }).await?;
    Ok(report.finish(host, scratch).await)
}

struct Processes {
    holder: Child,
    watcher: Child,
    ended: bool,
}

async fn judge(args: &Lease, scratch: &Scratch, id: JobId, mut processes: Processes) -> Result<Report> {
    let still_watching = processes.watcher.try_wait()?.is_none();
    processes.watcher.kill().await.context("ending the watching worker")?;
    let mut report = Report::new("lease");
    report.fact("seconds blocked", args.seconds);
    report.fact("lease in ms", u64::try_from(args.lease.as_millis()).unwrap_or(u64::MAX));
    let unless = |right: bool, text: &str| if right { Vec::new() } else { vec![text.to_owned()] };
    report.check("the job ended in time", unless(processes.ended, "it has not ended"));
    report.check("a second worker watched all the time", unless(still_watching, "it ended by itself"));
    if processes.ended {
        let status = processes.holder.wait().await.context("waiting for the blocked worker")?;
        report.check("the blocked worker settled its job", unless(status.success(), &status.to_string()));
    }
    let (lines, torn) = journal::read(&scratch.path("journal"))?;
    let count = |what| lines.iter().filter(|line: &&Line| line.what == what).count();
    report.fact("runs", count(What::Start) as u64);
    report.check("the journal is whole", torn);
    let once = count(What::Start) == 1 && count(What::End) == 1;
    report.check("the job ran exactly once", unless(once, &format!("{lines:?}")));
    let detail = scratch.queue().get(id).await?;
    let first = detail.job.fence == 1 && detail.job.spent.crashes == 0 && detail.runs.len() == 1;
    let succeeded = detail.job.state == State::Succeeded;
    report.check(
        "the store knows of one claim and no crash",
        unless(first && succeeded, &format!("{:?}", detail.job)),
    );
    Ok(report)
}

async fn wait_for_start(journal: &Path, deadline: Instant) -> Result<()> {
    while !std::fs::metadata(journal).is_ok_and(|metadata| metadata.len() > 0) {
        anyhow::ensure!(Instant::now() < deadline, "the worker has not started the job");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn wait_for_end(queue: &Queue, id: JobId, deadline: Instant) -> Result<bool> {
    while Instant::now() < deadline {
        if queue.get(id).await?.job.state.is_terminal() {
            return Ok(true);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(false)
}
