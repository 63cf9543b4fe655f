//! Keeps worker processes alive and kills them: with SIGKILL at moments drawn at random, a few milliseconds apart at
//! times, so that kills land inside group commits; and by SIGSTOP for longer than the lease, so that their late writes
//! meet jobs that are somebody else's by then. Some pauses are ambushes: the worker is stopped while it runs a slow
//! job, and let go at the moment at which somebody else runs that job again.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{ProcessId, State};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tracing::info;

use super::Crash;
use super::Role;
use super::faults::Faults;
use super::journal::{LINE_BYTES, Line, What};
use super::plan::{EXEC, PROCESS, Plan, Planned, STEP};
use super::rows;
use crate::Scratch;

mod submitter;
mod tail;

use submitter::Submitter;
use tail::Tail;

const WORKERS: usize = 4;
const LEASE: &str = "1s";
/// Longer than the lease: a late write meets a job that waits to be run again, or one that has ended.
const PAUSE_MS: std::ops::Range<u64> = 1_300..3_000;
/// An ambush ends after so long even if nobody else ran the job.
const AMBUSH_MAX: Duration = Duration::from_secs(10);
/// Workers that are paused at the same time.
const PAUSED_MAX: usize = 2;
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
    /// Pauses in the middle of a run that ended while a newer run of the same job went on.
    pub(super) ambushed: u64,
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
    /// The run for which it was ambushed.
    prey: Option<Line>,
}

impl Slot {
    /// Neither paused nor about to write what it was paused for.
    fn is_free(&self) -> bool {
        self.paused_until.is_none() && self.spared_until.is_none_or(|until| until <= Instant::now())
    }
}

/// See the module.
pub(super) struct Supervisor<'a> {
    scratch: &'a Scratch,
    random: fastrand::Rng,
    plan: &'a Plan,
    tail: Tail,
    slots: Vec<Slot>,
    submitter: Submitter,
    kills: u64,
    /// Pauses at random, and half as many ambushes.
    pauses: u64,
    ambushes: u64,
    /// Size of the journal by which all kills should have happened.
    bytes_of_kills: u64,
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
    pub(super) fn new(scratch: &'a Scratch, plan: &'a Plan, args: &Crash, seed: u64) -> Result<Self> {
        let kills = u64::from(args.kills);
        // Kills are spread over three quarters of the work; the rest shows that nothing is left behind.
        let bytes_of_kills = u64::from(args.jobs) * LINES_PER_JOB * LINE_BYTES * 3 / 4;
        let allowed = Duration::from_secs(120) + args.jobs * Duration::from_millis(30);
        let mut supervisor = Self {
            scratch,
            random: fastrand::Rng::with_seed(seed.wrapping_add(1)),
            plan,
            tail: Tail::new(&scratch.path("journal")),
            slots: Vec::new(),
            submitter: Submitter::new(args, seed, scratch),
            kills,
            pauses: (kills / 25).clamp(u64::from(kills > 0), 8),
            ambushes: 0,
            bytes_of_kills,
            deadline: Instant::now() + allowed + (args.kills + 4 * args.faults) * Duration::from_millis(500),
            toll: Toll::default(),
        };
        for slot in 0..WORKERS {
            let child = supervisor.worker(slot)?;
            supervisor.slots.push(Slot { child, paused_until: None, spared_until: None, prey: None });
        }
        Ok(supervisor)
    }

    /// Kills and pauses until all jobs have ended.
    pub(super) async fn run(
        mut self,
        faults: &mut Faults,
        show: &mut dyn FnMut(&ProcessInfo),
    ) -> Result<Toll> {
        let mut next = self.next_kill();
        let mut looked_at = Instant::now();
        loop {
            self.submitter.tend(self.scratch, &mut self.random, &mut self.toll).await?;
            self.tend_workers()?;
            for line in self.tail.lines()? {
                self.ambush(line);
            }
            let due = self.tail.bytes >= next.at_bytes || Instant::now() >= next.latest;
            let (kills_left, faults_left) =
                (self.kills.saturating_sub(self.toll.workers_killed), faults.left());
            if due && kills_left + faults_left > 0 {
                if self.random.u64(0..kills_left + faults_left) < faults_left {
                    faults.strike().await?;
                } else {
                    self.strike().await?;
                }
                next = self.next_kill();
            }
            if looked_at.elapsed() >= LOOK_EVERY {
                looked_at = Instant::now();
                if self.look(show).await? {
                    break;
                }
            }
            tokio::time::sleep(TICK).await;
        }
        self.end().await?;
        Ok(self.toll)
    }

    /// Starts a worker.
    fn worker(&self, slot: usize) -> Result<Child> {
        let log = format!("worker-{slot}.log");
        if runs_jobs_itself(slot) {
            let args =
                ["work", "--instrument", "verify", "--kind", STEP, "--concurrency", "8", "--lease", LEASE];
            return self.scratch.spawn(&args, &log);
        }
        let words = [&[self.scratch.exe().to_string_lossy().into_owned()], &Role::Step.words()?[..]].concat();
        let quoted: Vec<String> =
            words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
        let command = quoted.join(" ");
        let args = ["work", "--kind", EXEC, "--concurrency", "3", "--lease", LEASE, "--exec", &command];
        self.scratch.spawn(&args, &log)
    }

    fn next_kill(&mut self) -> NextKill {
        let burst = self.random.u8(0..5) == 0;
        let bytes = self.tail.bytes;
        let kills_left = self.kills.saturating_sub(self.toll.workers_killed).max(1);
        let mean = self.bytes_of_kills.saturating_sub(bytes) / kills_left;
        let wait = if burst { 0 } else { self.random.u64(0..=mean * 2) };
        NextKill { at_bytes: bytes + wait, latest: Instant::now() + KILL_WAIT_MAX }
    }

    /// Kills one worker, or pauses one, so that pauses are spread over the kills.
    async fn strike(&mut self) -> Result<()> {
        // A moment of its own, or every kill would come just after a job wrote its line.
        tokio::time::sleep(Duration::from_micros(self.random.u64(0..3_000))).await;
        let mut free: Vec<usize> = (0..WORKERS).filter(|slot| self.slots[*slot].is_free()).collect();
        // During an ambush somebody must live long enough to run the job again.
        if self.slots.iter().any(|slot| slot.prey.is_some()) {
            free.retain(|slot| !runs_jobs_itself(*slot));
        }
        let Some(chosen) = self.random.choice(free) else { return Ok(()) };
        if self.pause_is_due(self.pauses, self.toll.paused - self.ambushes) {
            let length = Duration::from_millis(self.random.u64(PAUSE_MS));
            self.pause(chosen, length);
            return Ok(());
        }
        self.slots[chosen].child.kill().await.context("killing a worker")?;
        self.slots[chosen].child = self.worker(chosen)?;
        self.toll.workers_killed += 1;
        Ok(())
    }

    /// Whether `done` of `all` pauses of one sort are fewer than there should be by now.
    fn pause_is_due(&self, all: u64, done: u64) -> bool {
        let due = all * (self.toll.workers_killed + 1) / self.kills.max(1);
        let paused = self.slots.iter().filter(|slot| slot.paused_until.is_some()).count();
        done < due && paused < PAUSED_MAX
    }

    fn pause(&mut self, slot: usize, length: Duration) {
        signal(&self.slots[slot].child, Signal::STOP);
        self.slots[slot].paused_until = Some(Instant::now() + length);
        self.toll.paused += 1;
    }

    /// Pauses the worker that has just begun a slow job, and lets it go when the job runs elsewhere.
    fn ambush(&mut self, line: Line) {
        if line.what != What::Start || !self.plan.jobs.get(line.job).is_some_and(Planned::is_slow) {
            return;
        }
        let newer = |prey: Line| prey.job == line.job && prey.fence < line.fence;
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.prey.is_some_and(newer)) {
            info!(job = line.job, fence = line.fence, "the job runs elsewhere");
            slot.prey = None;
            slot.paused_until = Some(Instant::now());
            self.toll.ambushed += 1;
            return;
        }
        // The next run of a job that crashed before comes too late for the paused worker to meet it.
        if line.fence > 1 {
            return;
        }
        // A command's lines carry its own pid, so only workers that run jobs themselves are caught.
        let is_its = |slot: &Slot| slot.child.id() == Some(line.pid) && slot.is_free();
        if let Some(slot) = self.slots.iter().position(is_its)
            && self.pause_is_due(self.pauses.div_ceil(2), self.ambushes)
        {
            signal(&self.slots[slot].child, Signal::STOP);
            // If it holds the write lock, nobody else can get the job; there will be another moment.
            if self.scratch.sqlite_file().is_some_and(|file| !rows::lock_is_free(file)) {
                signal(&self.slots[slot].child, Signal::CONT);
                return;
            }
            info!(slot, job = line.job, fence = line.fence, "ambush");
            self.pause(slot, AMBUSH_MAX);
            self.slots[slot].prey = Some(line);
            self.ambushes += 1;
        }
    }

    /// Lets paused workers go on, and replaces those that ended by themselves.
    fn tend_workers(&mut self) -> Result<()> {
        let now = Instant::now();
        for number in 0..WORKERS {
            let slot = &mut self.slots[number];
            if slot.paused_until.is_some_and(|until| until <= now) {
                slot.paused_until = None;
                slot.prey = None;
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
    async fn look(&mut self, show: &mut dyn FnMut(&ProcessInfo)) -> Result<bool> {
        let jobs = self.submitter.jobs();
        let info = match self.scratch.queue().store().process(ProcessId::from(PROCESS)).await {
            Err(error) if error.is_transient() => return Ok(self.is_late("the store could not be read")),
            answer => answer?,
        };
        let Some(info) = info else { return Ok(self.is_late("no job was stored")) };
        show(&info);
        if self.submitter.is_done() && info.unfinished() == 0 {
            return Ok(true);
        }
        let left =
            State::ALL.iter().zip(info.counts).filter(|(state, count)| !state.is_terminal() && *count > 0);
        let left: Vec<String> = left.map(|(state, count)| format!("{count} {state}")).collect();
        Ok(self.is_late(&format!("of {jobs} jobs, {} when the time was over", left.join(", "))))
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
            // One that was started a moment ago does not catch the signal yet, and has done nothing.
            let too_early = status.signal() == Some(Signal::TERM.as_raw());
            if !status.success() && !too_early {
                self.toll.surprises.push(format!("worker {number}, asked to end: {status}"));
            }
            let path = self.scratch.path(&format!("worker-{number}.log"));
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

/// Half of the workers do; the others run a command for each.
fn runs_jobs_itself(slot: usize) -> bool {
    slot.is_multiple_of(2)
}

/// Sends a signal; a child that has just ended cannot be told anything.
fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
