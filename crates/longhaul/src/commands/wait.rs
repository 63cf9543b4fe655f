//! `jobs wait`: until jobs or a process have ended. Woken by the store; a slow poll guards against a missed wake-up.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use longhaul_queue::job::Job;
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{JobId, ProcessId, Queue, State};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::{App, resolve_all};
use crate::args::WaitArgs;
use crate::exit::Code;
use crate::output::{Cell, Table, state_style};
use crate::progress::{Progress, Status};

mod look;

use look::Place;

/// Between two looks when no wake-up comes.
const POLL: Duration = Duration::from_secs(2);
/// Between two looks while the store changes all the time.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) async fn run(app: &App, queue: &Queue, args: &WaitArgs) -> Result<Code> {
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let ids = resolve_all(queue, &args.ids).await?;
    let by_id = if ids.is_empty() { Code::Ok } else { jobs(app, queue, &ids, deadline).await? };
    let Some(process) = &args.process else { return Ok(by_id) };
    if by_id == Code::TimedOut {
        return Ok(by_id);
    }
    let process = ProcessId::from(process.as_str());
    match process_ended(app, queue, &process, deadline).await? {
        Some(info) => print_process(app, &info).map(|code| if by_id == Code::Ok { code } else { by_id }),
        None => Ok(timed_out(app)),
    }
}

/// Waits for the next change of the store, the poll time or the deadline, whatever comes first.
pub(crate) async fn changed(changes: &mut watch::Receiver<u64>, deadline: Option<Instant>) {
    tokio::time::sleep(PAUSE).await;
    let poll = Instant::now() + POLL;
    let until = deadline.map_or(poll, |deadline| deadline.min(poll));
    if let Ok(Err(_)) = tokio::time::timeout_at(until, changes.changed()).await {
        // The store has stopped telling; only the poll is left.
        tokio::time::sleep_until(until).await;
    }
}

fn passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn timed_out(app: &App) -> Code {
    app.out.note("the wait timed out; the jobs go on");
    Code::TimedOut
}

/// How a job that was waited for ended.
#[derive(Debug, Serialize)]
struct Ended {
    id: JobId,
    /// `None` when its row went with its end, as its retention says.
    state: Option<State>,
    error: Option<String>,
}

impl Ended {
    /// The end of a job that was there at the first look, if it has ended.
    fn of(id: JobId, job: Option<&Job>) -> Option<Self> {
        let Some(job) = job else { return Some(Self { id, state: None, error: None }) };
        let error = job.error.as_ref().filter(|_| job.state != State::Succeeded).map(ToString::to_string);
        job.state.is_terminal().then_some(Self { id, state: Some(job.state), error })
    }

    fn is_failure(&self) -> bool {
        self.state.is_some_and(|state| state != State::Succeeded)
    }
}

async fn jobs(app: &App, queue: &Queue, ids: &[JobId], deadline: Option<Instant>) -> Result<Code> {
    let mut changes = queue.store().watch();
    let mut progress = app.progress()?;
    let mut found = look::first(queue, ids).await?;
    let mut open: Vec<Place> = found.values().map(|job| Place { seq: job.seq, id: job.id }).collect();
    open.sort_unstable();
    let total = open.len();
    let mut ended: HashMap<JobId, Ended> = HashMap::with_capacity(total);
    loop {
        open.retain(|place| match Ended::of(place.id, found.get(&place.id)) {
            Some(end) => {
                ended.insert(place.id, end);
                false
            }
            None => true,
        });
        let running = found.values().filter(|job| job.state == State::Running).count();
        progress.update(Status {
            done: ended.len() as u64,
            total: total as u64,
            failed: ended.values().filter(|end| end.is_failure()).count() as u64,
            running: running as u64,
        });
        if open.is_empty() || passed(deadline) {
            break;
        }
        changed(&mut changes, deadline).await;
        changes.mark_unchanged();
        found = look::again(queue, &open).await?;
    }
    drop(progress);
    let list: Vec<&Ended> = ids.iter().filter_map(|id| ended.get(id)).collect();
    print_ended(app, &list)?;
    if !open.is_empty() {
        return Ok(timed_out(app));
    }
    let any_failed = list.iter().any(|end| end.is_failure());
    Ok(if any_failed { Code::JobsFailed } else { Code::Ok })
}

fn print_ended(app: &App, list: &[&Ended]) -> Result<()> {
    app.out.list(list, None, || {
        let mut table = Table::new(&["ID", "STATE", "ERROR"]);
        for end in list {
            let state = end.state.map_or_else(
                || Cell::new("gone"),
                |state| Cell::new(state.as_str()).style(state_style(state)),
            );
            table.row(vec![
                Cell::new(end.id.to_string()),
                state,
                Cell::new(end.error.as_deref().unwrap_or_default()),
            ]);
        }
        table
    })
}

/// Waits until a process has no unfinished job; `None` when the time is over.
pub(crate) async fn process_ended(
    app: &App,
    queue: &Queue,
    id: &ProcessId,
    deadline: Option<Instant>,
) -> Result<Option<ProcessInfo>> {
    let mut changes = queue.store().watch();
    let mut progress = app.progress()?;
    loop {
        changes.mark_unchanged();
        let info = queue.process(id).await?;
        show(&mut progress, &info);
        if info.unfinished() == 0 && info.sealed {
            return Ok(Some(info));
        }
        if passed(deadline) {
            return Ok(None);
        }
        changed(&mut changes, deadline).await;
    }
}

fn show(progress: &mut Progress, info: &ProcessInfo) {
    let count = |state: State| info.counts[state as usize];
    progress.update(Status {
        done: info.total() - info.unfinished(),
        total: info.total(),
        failed: count(State::Failed) + count(State::Cancelled),
        running: count(State::Running),
    });
}

fn print_process(app: &App, info: &ProcessInfo) -> Result<Code> {
    super::process::print(app, info)?;
    let failed = info.counts[State::Failed as usize] + info.counts[State::Cancelled as usize];
    if failed > 0 {
        app.out.hint(format_args!("longhaul jobs ls --process {} --state failed", info.id));
        return Ok(Code::JobsFailed);
    }
    Ok(Code::Ok)
}
