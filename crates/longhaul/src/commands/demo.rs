//! `demo`: the whole thing in a few seconds, with no key and no network. A few hundred jobs with a graph, run by a
//! worker process that may be killed on the way; then a run of prompts to the simulator, which may be killed too; then a batch over
//! HTTP, whose server may be killed; then a sheet that is scored, which may be killed. The tally is read from the store, the answers and the books, and not assumed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use longhaul_lab::Scratch;
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{ProcessId, State};
use tokio::process::Child;

use crate::app::App;
use crate::args::DemoArgs;
use crate::exit::Code;
use crate::progress::Status;

use super::lab;

mod answered;
mod batch;
mod plan;
mod prompts;
mod sheet;
mod tally;
mod work;

use plan::{PROCESS, Plan};
use prompts::PromptsPart;
use tally::{Kill, Tally};

pub(crate) use work::register;

const JOBS_DEFAULT: u32 = 300;
const PROMPTS_DEFAULT: u32 = 200;
/// Requests of the batch over HTTP.
const BATCHED: u64 = 40;
/// Rows of the sheet.
const SCORED: u64 = 150;
/// Between two looks at the store.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// A worker that stands still for so long is a failure of the demo.
const STANDSTILL_MAX: Duration = Duration::from_secs(30);

/// Runs the command.
pub(crate) async fn run(app: &App, args: &DemoArgs) -> Result<Code> {
    let started = Instant::now();
    let plan = Plan::new(args.jobs.unwrap_or(JOBS_DEFAULT));
    let mut scratch = Scratch::new(&lab::host(app)?, args.keep.as_deref()).await?;
    let enqueued = scratch.queue().enqueue_many(plan.jobs()?).await?;
    app.out.note(format_args!("{} jobs in a new store, one worker process", enqueued.len()));
    let mut show = Show { app, scratch: &scratch, started, kill: None };
    show.run(args.crash).await?;
    let Show { kill, .. } = show;
    let mut prompts = PromptsPart::prepare(app, &scratch, args.prompts.unwrap_or(PROMPTS_DEFAULT)).await?;
    prompts.run(args.crash).await?;
    let batched = batch::run(app, &scratch, BATCHED, args.crash).await?;
    let scored = sheet::run(app, &scratch, SCORED, args.crash, args.keep.is_some()).await?;
    let mut tally = Tally::read(&scratch, &plan, kill, (prompts.answered().await?, batched, scored)).await?;
    if args.keep.is_none() {
        prompts.consume().await?;
        tally.consume(&scratch).await?;
    }
    tally.elapsed = started.elapsed();
    tally.print(app)?;
    drop(prompts);
    if !tally.is_right() {
        let folder = scratch.keep().display();
        app.out.error(format_args!("the tally is not right; the store is kept in {folder}"));
        return Ok(Code::Failure);
    }
    what_next(app, args, &scratch);
    if args.keep.is_none() {
        scratch.remove().await;
    }
    Ok(Code::Ok)
}

/// The part of the demo that one watches.
struct Show<'a> {
    app: &'a App,
    scratch: &'a Scratch,
    started: Instant,
    kill: Option<Kill>,
}

impl Show<'_> {
    /// Keeps a worker going until all jobs have ended; with `crash` it is killed in the middle.
    async fn run(&mut self, crash: bool) -> Result<()> {
        let mut worker = self.worker()?;
        let mut crash_due = crash;
        let mut progress = self.app.progress()?;
        let mut last_change = (0, Instant::now());
        loop {
            let info = self.look().await?;
            let status = Status::of(&info, info.total());
            let (done, running) = (status.done, status.running);
            progress.update(status);
            if info.unfinished() == 0 {
                break;
            }
            if crash_due && running > 0 && done * 5 >= info.total() * 2 {
                crash_due = false;
                // The bar must not write over the lines that tell of the kill.
                drop(progress);
                worker = self.crash(worker).await?;
                progress = self.app.progress()?;
            }
            if last_change.0 != done {
                last_change = (done, Instant::now());
            }
            self.check(&mut worker, last_change.1)?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        drop(progress);
        end(worker).await
    }

    async fn look(&self) -> Result<ProcessInfo> {
        Ok(self.scratch.queue().process(&ProcessId::from(PROCESS)).await?)
    }

    /// A short lease, so that a worker's death is noticed within the patience of an onlooker.
    fn worker(&self) -> Result<Child> {
        let words = ["-q", "work", "--instrument", "demo", "--concurrency", "4", "--lease", "1s"];
        self.scratch.spawn(&words, "worker.log")
    }

    async fn crash(&mut self, mut worker: Child) -> Result<Child> {
        let pid = worker.id().unwrap_or(0);
        worker.kill().await.context("killing the worker")?;
        // Nobody else works on the store now, so this is what the kill left.
        let info = self.look().await?;
        let kill = Kill {
            after_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            in_flight: info.counts[State::Running as usize],
            done: info.total() - info.unfinished(),
        };
        self.app.out.note(format_args!(
            "killed worker {pid} with SIGKILL after {:.1} s: {} of {} jobs done, {} in flight",
            self.started.elapsed().as_secs_f64(),
            kill.done,
            info.total(),
            kill.in_flight,
        ));
        self.kill = Some(kill);
        let worker = self.worker()?;
        self.app.out.note(format_args!("started worker {}", worker.id().unwrap_or(0)));
        Ok(worker)
    }

    fn check(&self, worker: &mut Child, last_change: Instant) -> Result<()> {
        if let Some(status) = worker.try_wait().context("looking at the worker")? {
            bail!("the worker ended by itself ({status}): {}", said(&self.scratch.path("worker.log")));
        }
        if last_change.elapsed() > STANDSTILL_MAX {
            bail!("no job has ended for {} s", STANDSTILL_MAX.as_secs());
        }
        Ok(())
    }
}

/// Asks the worker to end, as a person would.
async fn end(mut worker: Child) -> Result<()> {
    let pid = worker.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended by itself a moment ago.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    worker.wait().await.context("waiting for the worker")?;
    Ok(())
}

fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default().trim().to_owned()
}

fn what_next(app: &App, args: &DemoArgs, scratch: &Scratch) {
    let mut next = Vec::new();
    if args.keep.is_some() {
        next.push(format!("longhaul results {PROCESS} --store {}", scratch.url()));
    }
    if !args.crash {
        next.push("longhaul demo --crash".to_owned());
    }
    next.push("echo 'Name a river.' | longhaul run - --profile sim".to_owned());
    next.push(r#"longhaul enqueue sleep '{"for":"2s"}' && longhaul work --drain"#.to_owned());
    next.push("longhaul verify crash --kills 25 --jobs 600".to_owned());
    next.push("longhaul --help".to_owned());
    next.truncate(3);
    app.out.note("try next:");
    for command in next {
        app.out.note(format_args!("  {command}"));
    }
}
