//! `process …`: groups of jobs of one caller. `consume` is here too: it ends a process for good.

use anyhow::Result;
use longhaul_api::Listed;
use longhaul_api::processes::{Number, ProcessOut};
use longhaul_pipeline::{Run, RunId};
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{ProcessId, Queue, State};

use crate::app::App;
use crate::args::ProcessCommand;
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, counted, state_style};
use crate::run_client::{self, RunClient};

/// `3 ready · 1 failed`, zeros left out.
fn counts_text(counts: [u64; 8]) -> String {
    let present = State::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
    present.map(|(state, count)| format!("{count} {state}")).collect::<Vec<_>>().join(" · ")
}

/// Runs the command.
pub(crate) async fn run(app: &App, command: &ProcessCommand) -> Result<Code> {
    let queue = app.queue().await?;
    match command {
        ProcessCommand::Ls { limit, cursor } => ls(app, &queue, *limit, cursor.clone()).await,
        ProcessCommand::Show { id } => print(app, &queue.process(&id.as_str().into()).await?),
        ProcessCommand::Cancel { id } => cancel(app, &queue, &id.as_str().into()).await,
        ProcessCommand::Seal { id } => {
            let id = ProcessId::from(id.as_str());
            queue.process(&id).await?;
            queue.seal(id.clone()).await?;
            print(app, &queue.process(&id).await?)
        }
        ProcessCommand::Open { id } => {
            let id = ProcessId::from(id.as_str());
            queue.open_process(id.clone()).await?;
            let info = queue.store().process(id.clone()).await?;
            let info = info.unwrap_or_else(|| ProcessInfo::empty(id.clone()));
            app.out.one(&ProcessOut::from(info), || format!("process {id} is open for more jobs"))?;
            Ok(Code::Ok)
        }
    }
}

async fn ls(app: &App, queue: &Queue, limit: usize, cursor: Option<String>) -> Result<Code> {
    let list = queue.store().processes(cursor.map(ProcessId::from), limit).await?;
    let next = list.last().filter(|_| list.len() == limit).map(|last| last.id.as_str().to_owned());
    let items = list.iter().cloned().map(ProcessOut::from).collect();
    let shown = Listed { items, next, partial: false };
    app.out.listed(&shown, || table(&list))?;
    if list.is_empty() {
        app.out.note("there are no processes; a job joins one with --process ID");
    } else if let Some(next) = shown.next {
        app.out.hint(format_args!("there may be more: add --cursor {next}"));
    }
    Ok(Code::Ok)
}

fn table(list: &[ProcessInfo]) -> Table {
    let mut table = Table::new(&["PROCESS", "DONE", "OF", "FAILED", "SEALED", "JOBS"]);
    for info in list {
        let failed = info.counts[State::Failed as usize] + info.counts[State::Cancelled as usize];
        let style = if failed > 0 { state_style(State::Failed) } else { anstyle::Style::new() };
        table.row(vec![
            Cell::new(info.id.as_str()),
            Cell::number(info.total() - info.unfinished()),
            Cell::number(info.total()),
            Cell::number(failed).style(style),
            Cell::new(if info.sealed { "yes" } else { "open" }),
            Cell::new(counts_text(info.counts)),
        ]);
    }
    table
}

/// One process.
pub(super) fn print(app: &App, info: &ProcessInfo) -> Result<Code> {
    app.out.one(&ProcessOut::from(info.clone()), || {
        let open = if info.sealed { "" } else { " · open for more jobs" };
        let done = info.total() - info.unfinished();
        format!("process {}: {done} of {} done ({}){open}", info.id, info.total(), counts_text(info.counts))
    })?;
    Ok(Code::Ok)
}

async fn cancel(app: &App, queue: &Queue, id: &ProcessId) -> Result<Code> {
    let info = queue.process(id).await?;
    let helpers: u64 = State::ALL
        .iter()
        .zip(info.helpers)
        .filter(|(state, _)| !state.is_terminal())
        .map(|(_, count)| count)
        .sum();
    let count = info.unfinished() + helpers;
    if count == 0 {
        return Err(Failure::new(Code::NothingMatched, format!("process {id} has no unfinished jobs")).into());
    }
    app.confirm(&format!("cancel {} of process {id}", counted(count, "unfinished job")))?;
    let (changed, text) = match run_of(app, queue, id).await? {
        Some(run) => (run.cancel().await?, format!("{id} is a run and is cancelled; what was done is kept")),
        None => {
            let cancelled = queue.cancel_process(id.clone()).await?;
            (cancelled, format!("{cancelled} cancelled"))
        }
    };
    app.out.one(&Number { changed }, || text)?;
    Ok(Code::Ok)
}

/// The run that a process is, if it is one: what it has beside its jobs, at a provider or in tables, only its own verbs know. Of any other
/// process nothing more is opened than the queue.
async fn run_of(app: &App, queue: &Queue, id: &ProcessId) -> Result<Option<Box<dyn RunClient>>> {
    if Run::find(queue, &RunId::named(id.as_str())).await?.is_none() {
        return Ok(None);
    }
    let run = run_client::open(app).await?.find(id.as_str()).await?;
    Ok(run.filter(|run| run.id().as_str() == id.as_str()))
}

/// `consume ID`.
pub(crate) async fn consume(app: &App, id: &str) -> Result<Code> {
    let queue = app.queue().await?;
    let id = ProcessId::from(id);
    // A process that is not there is either a typing error or consumed already; both deserve to be told.
    queue.process(&id).await?;
    let deleted = match run_of(app, &queue, &id).await? {
        Some(run) => run.remove().await?,
        None => queue.consume_process(&id).await?,
    };
    app.out.one(&Number { changed: deleted }, || {
        format!("{} of process {id} deleted for good", counted(deleted, "job"))
    })?;
    Ok(Code::Ok)
}
