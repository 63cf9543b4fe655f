//! Keeps worker processes alive and kills them: with SIGKILL at moments drawn at random, a few milliseconds apart at
//! times, so that kills land inside group commits; and by SIGSTOP for longer than the lease, so that their late writes
//! meet jobs that are somebody else's by then.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use longhaul_queue::{ProcessId, State};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use super::journal::LINE_BYTES;
use super::plan::{EXEC, PROCESS, STEP};
use crate::app::App;
use crate::args::CrashArgs;
use crate::commands::fleet::Stage;
use crate::progress::{Progress, Status};

mod submitter;

use submitter::Submitter;

const WORKERS: usize = 4;
const LEASE: &str = "1s";
/// A pause takes the lease and at least so much longer.
const PAUSE: std::ops::Range<u64> = 1_300..2_200;
/// A worker that was paused is left alone for so long: its late writes are what the pause was for.
const AFTER_PAUSE: Duration = Duration::from_millis(300);
/// A kill comes after so long even if no job has written anything meanwhile.
const KILL_WAIT_MAX: Duration = Duration::from_millis(500);
/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(1);
/// Between two looks at the store.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Lines that a job leaves in the journal, about.
const LINES_PER_JOB: u64 = 3;

/// What was done to the processes, and what they did of themselves.
#[derive(Debug, Default)]
pub(super) struct Toll {
    pub(super) workers_killed: u64,
    pub(super) submitters_killed: u64,
    pub(super) paused: u64,
    /// Outcomes that living workers had to drop, by their own logs.
    pub(super) refused: u64,
    /// Ends that nobody asked for.
    pub(super) surprises: Vec<String>,
    /// What had not ended in time.
    pub(super) late: Vec<String>,
}

/// A place for a worker; killed ones are replaced at once.
struct Slot {
    child: Child,
    paused_until: Option<Instant>,
    spared_until: Option<Instant>,
}

/// See the module.
pub(super) struct Supervisor<'a> {
    stage: &'a Stage,
    progress: Progress,
    random: fastrand::Rng,
    journal: PathBuf,
    slots: Vec<Slot>,
    submitter: Submitter,
    kills: u64,
    pauses: u64,
    /// Journal bytes between two kills, on average.
    bytes_per_kill: u64,
    deadline: Instant,
    toll: Toll,
}

/// When the next worker dies.
struct NextKill {
    at_bytes: u64,
    latest: Instant,
}

impl<'a> Supervisor<'a> {
    /// Starts the workers.
    pub(super) fn new(app: &App, stage: &'a Stage, args: &CrashArgs, seed: u64) -> Result<Self> {
        let kills = u64::from(args.kills);
        // Kills are spread over four fifths of the work; the rest shows that nothing is left behind.
        let bytes = u64::from(args.jobs) * LINES_PER_JOB * LINE_BYTES * 4 / 5;
        let allowed = Duration::from_secs(120) + args.jobs * Duration::from_millis(30);
        let mut supervisor = Self {
            stage,
            progress: app.progress()?,
            random: fastrand::Rng::with_seed(seed.wrapping_add(1)),
            journal: stage.path("journal"),
            slots: Vec::new(),
            submitter: Submitter::new(args, seed, stage),
            kills,
            pauses: (kills / 10).clamp(u64::from(kills > 0), 20),
            bytes_per_kill: bytes / kills.max(1),
            deadline: Instant::now() + allowed + args.kills * Duration::from_millis(500),
            toll: Toll::default(),
        };
        for slot in 0..WORKERS {
            let child = supervisor.worker(slot)?;
            supervisor.slots.push(Slot { child, paused_until: None, spared_until: None });
        }
        Ok(supervisor)
    }

    /// Kills and pauses until all jobs have ended.
    pub(super) async fn run(mut self) -> Result<Toll> {
        let mut next = self.next_kill();
        let mut looked_at = Instant::now();
        loop {
            self.submitter.tend(self.stage, &mut self.random, &mut self.toll).await?;
            self.tend_workers()?;
            let due = self.bytes() >= next.at_bytes || Instant::now() >= next.latest;
            if due && self.toll.workers_killed < self.kills {
                self.strike().await?;
                next = self.next_kill();
            }
            if looked_at.elapsed() >= LOOK_EVERY {
                looked_at = Instant::now();
                if self.look().await? {
                    break;
                }
            }
            tokio::time::sleep(TICK).await;
        }
        self.end().await?;
        Ok(self.toll)
    }

    /// Half of the workers run jobs themselves, half run a command for each.
    fn worker(&self, slot: usize) -> Result<Child> {
        let log = format!("worker-{slot}.log");
        if slot.is_multiple_of(2) {
            let args = ["work", "--kind", STEP, "--concurrency", "8", "--lease", LEASE];
            return self.stage.spawn(&args, &log);
        }
        let exe = self.stage.exe().to_string_lossy().replace('\'', r"'\''");
        let command = format!("'{exe}' verify step");
        let args = ["work", "--kind", EXEC, "--concurrency", "3", "--lease", LEASE, "--exec", &command];
        self.stage.spawn(&args, &log)
    }

    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.journal).map_or(0, |metadata| metadata.len())
    }

    fn next_kill(&mut self) -> NextKill {
        let burst = self.random.u8(0..5) == 0;
        let wait = if burst { 0 } else { self.random.u64(0..=self.bytes_per_kill * 5 / 2) };
        NextKill { at_bytes: self.bytes() + wait, latest: Instant::now() + KILL_WAIT_MAX }
    }

    /// Kills one worker, or pauses one, so that pauses are spread over the kills.
    async fn strike(&mut self) -> Result<()> {
        // A moment of its own, or every kill would come just after a job wrote its line.
        tokio::time::sleep(Duration::from_micros(self.random.u64(0..3_000))).await;
        let now = Instant::now();
        let idle =
            |slot: &Slot| slot.paused_until.is_none() && slot.spared_until.is_none_or(|until| until <= now);
        let free: Vec<usize> = (0..WORKERS).filter(|slot| idle(&self.slots[*slot])).collect();
        let Some(chosen) = self.random.choice(free) else { return Ok(()) };
        let pauses_due = self.pauses * (self.toll.workers_killed + 1) / self.kills.max(1);
        let anybody_paused = self.slots.iter().any(|slot| slot.paused_until.is_some());
        if self.toll.paused < pauses_due && !anybody_paused {
            let length = Duration::from_millis(self.random.u64(PAUSE));
            signal(&self.slots[chosen].child, Signal::STOP);
            self.slots[chosen].paused_until = Some(now + length);
            self.toll.paused += 1;
            return Ok(());
        }
        self.slots[chosen].child.kill().await.context("killing a worker")?;
        self.slots[chosen].child = self.worker(chosen)?;
        self.toll.workers_killed += 1;
        Ok(())
    }

    /// Lets paused workers go on, and replaces those that ended by themselves.
    fn tend_workers(&mut self) -> Result<()> {
        let now = Instant::now();
        for number in 0..WORKERS {
            let slot = &mut self.slots[number];
            if slot.paused_until.is_some_and(|until| until <= now) {
                slot.paused_until = None;
                slot.spared_until = Some(now + AFTER_PAUSE);
                signal(&slot.child, Signal::CONT);
            }
            if let Some(status) = slot.child.try_wait().context("looking at a worker")? {
                self.toll.surprises.push(format!("worker {number} ended by itself: {status}"));
                self.slots[number].child = self.worker(number)?;
            }
        }
        Ok(())
    }

    /// Shows how far things are; true at the end.
    async fn look(&mut self) -> Result<bool> {
        let jobs = self.submitter.jobs();
        let info = self.stage.queue().store().process(ProcessId::from(PROCESS)).await?;
        let Some(info) = info else { return Ok(self.is_late("no job was stored")) };
        let failed = info.counts[State::Failed as usize] + info.counts[State::Cancelled as usize];
        let running = info.counts[State::Running as usize];
        let done = info.total() - info.unfinished();
        self.progress.update(Status { done, total: jobs, failed, running });
        if self.submitter.is_done() && info.unfinished() == 0 {
            return Ok(true);
        }
        let counts = crate::commands::process::counts_text(info.counts);
        Ok(self.is_late(&format!("{counts} of {jobs} jobs when the time was over")))
    }

    fn is_late(&mut self, text: &str) -> bool {
        let late = Instant::now() >= self.deadline;
        if late {
            self.toll.late.push(text.to_owned());
        }
        late
    }

    /// Asks the workers to end and reads their logs.
    async fn end(&mut self) -> Result<()> {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            signal(&slot.child, Signal::CONT);
            signal(&slot.child, Signal::TERM);
            let status = slot.child.wait().await.context("waiting for a worker")?;
            if !status.success() {
                self.toll.surprises.push(format!("worker {number}, asked to end: {status}"));
            }
            let path = self.stage.path(&format!("worker-{number}.log"));
            let log = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            for line in String::from_utf8_lossy(&log).lines() {
                self.toll.refused += u64::from(line.contains("lease lost, the outcome is dropped"));
                if line.starts_with("error:") || line.contains(r#""level":"ERROR""#) {
                    self.toll.surprises.push(format!("worker {number} says: {line}"));
                }
            }
        }
        Ok(())
    }
}

/// Sends a signal; a child that has just ended cannot be told anything.
fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
