//! `jobs wait`: until jobs or a process have ended. Woken by the store; a slow poll guards against a missed wake-up.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{JobId, ProcessId, Queue, State};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::{App, resolve_all};
use crate::args::WaitArgs;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, state_style};
use crate::progress::{Progress, Status};

/// Between two looks when no wake-up comes.
const POLL: Duration = Duration::from_secs(2);
/// Between two looks while the store changes all the time.
const PAUSE: Duration = Duration::from_millis(50);

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

async fn jobs(app: &App, queue: &Queue, ids: &[JobId], deadline: Option<Instant>) -> Result<Code> {
    let mut changes = queue.store().watch();
    let mut progress = app.progress()?;
    let mut ended: HashMap<JobId, Ended> = HashMap::new();
    let mut seen = false;
    loop {
        changes.mark_unchanged();
        let open: Vec<JobId> = ids.iter().copied().filter(|id| !ended.contains_key(id)).collect();
        let running = look(queue, &open, &mut ended, seen).await?;
        seen = true;
        let failed =
            ended.values().filter(|end| end.state.is_some_and(|state| state != State::Succeeded)).count();
        progress.update(Status {
            done: ended.len() as u64,
            total: ids.len() as u64,
            failed: failed as u64,
            running,
        });
        if ended.len() == ids.len() || passed(deadline) {
            break;
        }
        changed(&mut changes, deadline).await;
    }
    drop(progress);
    let list: Vec<&Ended> = ids.iter().filter_map(|id| ended.get(id)).collect();
    print_ended(app, &list)?;
    if list.len() < ids.len() {
        return Ok(timed_out(app));
    }
    let any_failed = list.iter().any(|end| end.state.is_some_and(|state| state != State::Succeeded));
    Ok(if any_failed { Code::JobsFailed } else { Code::Ok })
}

/// Looks at the jobs that are still open and answers how many run.
async fn look(queue: &Queue, open: &[JobId], ended: &mut HashMap<JobId, Ended>, seen: bool) -> Result<u64> {
    let mut running = 0;
    for ids in open.chunks(PAGE_MAX) {
        let found = queue.store().get(ids.to_vec()).await?;
        let found: HashMap<JobId, _> = found.into_iter().map(|detail| (detail.job.id, detail.job)).collect();
        for id in ids {
            match found.get(id) {
                Some(job) if job.state.is_terminal() => {
                    let error =
                        job.error.as_ref().filter(|_| job.state != State::Succeeded).map(ToString::to_string);
                    ended.insert(*id, Ended { id: *id, state: Some(job.state), error });
                }
                Some(job) => running += u64::from(job.state == State::Running),
                // It was there at the first look, so it has ended and its row is gone.
                None if seen => {
                    ended.insert(*id, Ended { id: *id, state: None, error: None });
                }
                None => {
                    return Err(Failure::new(Code::NothingMatched, format!("there is no job {id}"))
                        .hint("list jobs with: longhaul jobs ls")
                        .into());
                }
            }
        }
    }
    Ok(running)
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
