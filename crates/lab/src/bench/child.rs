//! A worker process of a benchmark: says that it is ready, waits for the word, works, and reports in one line.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use longhaul_queue::maintenance::MaintenanceOptions;
use longhaul_queue::{Engine, Failure, JobContext, Json, Shutdown, Worker, WorkerOptions};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncBufReadExt as _;

use super::place::Place;

/// Slots of a worker that is measured.
pub(super) const CONCURRENCY: usize = 500;

/// What a worker process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Role {
    pub(super) place: Place,
    /// End after so many jobs; `None` when nothing is left.
    pub(super) jobs: Option<usize>,
    /// Report when each job started.
    pub(super) starts: bool,
}

/// What it reports. Times are microseconds since 1970.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    pub(super) done: usize,
    pub(super) rss_mb: f64,
    /// Payload and start of each job, if asked for.
    pub(super) starts: Vec<(u64, u64)>,
}

/// A worker process under way.
pub(super) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a process and waits until it is ready.
    pub(super) fn start(role: &Role) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args(["bench", "--child"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker process")?;
        let lines = BufReader::new(child.stdout.take().context("a worker process without stdout")?);
        let mut running = Self { child, lines };
        // Not as an argument, which everybody can read: the URL may have a password.
        running.say(&serde_json::to_string(role)?)?;
        if running.line()? != "ready" {
            bail!("a worker process did not start");
        }
        Ok(running)
    }

    /// Gives the word.
    pub(super) fn go(&mut self) -> Result<()> {
        self.say("go")
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("a worker process without stdin")?;
        writeln!(stdin, "{line}").context("telling a worker process what to do")
    }

    /// Waits for its report.
    pub(super) fn report(mut self) -> Result<Report> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("a worker process reported {line:?}"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).context("reading from a worker process")?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has reported is about to end anyway.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: runs as the worker process, and ends with the one that started it.
pub async fn run() -> Result<()> {
    let mut orders = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    let role = orders.next_line().await?.context("a worker process without a role")?;
    let role: Role = serde_json::from_str(&role).context("the role of a worker process")?;
    let queue = role.place.engine().await?;
    println!("ready");
    orders.next_line().await?.context("nobody waits for this worker process any more")?;
    let report = tokio::select! {
        report = work(&queue, &role) => report?,
        _ = orders.next_line() => bail!("nobody waits for this worker process any more"),
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Runs no-op jobs in this process.
pub(super) async fn work(engine: &Engine, role: &Role) -> Result<Report> {
    let shutdown = Shutdown::new();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let first_us = Arc::new(AtomicU64::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let options = WorkerOptions {
        concurrency: CONCURRENCY,
        until_empty: role.jobs.is_none(),
        poll: Duration::from_millis(200),
        // In a drain nothing waits for a time, and the sweeps of a backlog are not what is measured.
        maintenance: role.starts.then(MaintenanceOptions::default),
        ..WorkerOptions::default()
    };
    let mut worker = Worker::new(engine.clone(), options);
    let (seen, first, count, stop) =
        (Arc::clone(&starts), Arc::clone(&first_us), Arc::clone(&done), shutdown.clone());
    let (limit, keep_starts) = (role.jobs.unwrap_or(usize::MAX), role.starts);
    worker.handle("noop", move |_context: JobContext, payload: Json| {
        if first.load(Ordering::Relaxed) == 0 {
            first.store(micros(), Ordering::Relaxed);
        }
        if keep_starts {
            let number = payload.to().unwrap_or(0);
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((number, micros()));
        }
        if count.fetch_add(1, Ordering::Relaxed) + 1 == limit {
            stop.drain();
        }
        async move { Ok::<_, Failure>(()) }
    });
    let report = worker.run(shutdown).await?;
    let starts = std::mem::take(&mut *starts.lock().unwrap_or_else(PoisonError::into_inner));
    let done = usize::try_from(report.done).unwrap_or(usize::MAX);
    Ok(Report {
        first_us: first_us.load(Ordering::Relaxed),
        last_us: micros(),
        done,
        rss_mb: memory_mb("self", "VmHWM"),
        starts,
    })
}

/// The wall clock in microseconds: the only clock that two processes share.
pub(super) fn micros() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// Memory of a process as Linux tells it: `VmRSS` now, `VmHWM` at its peak.
pub(super) fn memory_mb(process: &str, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) / 1024.0
}
