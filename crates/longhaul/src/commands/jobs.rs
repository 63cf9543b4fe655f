//! `jobs …`: list, show, explain, log, and the changes by id or by filter.

use anyhow::Result;
use longhaul_api::job_out::JobOut;
use longhaul_api::page::cursor_of;
use longhaul_api::processes::Number;
use longhaul_api::verbs::{ChangeMade, Changed, Signalled};
use longhaul_prompts::manage;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::store::{CancelReply, Filter, ListRequest, RetryRequest, Signal};
use longhaul_queue::{Job, JobChange, JobId, Queue, State};
use serde::Serialize;

use crate::app::{App, resolve, resolve_all};
use crate::args::{BulkArgs, EditArgs, JobsCommand, ListArgs, RetryArgs, UnparkArgs};
use crate::exit::{Code, Failure};
use crate::output::{Cell, Table, state_style};
use crate::pipelines::own_names;

mod show;

/// Runs the command.
pub(crate) async fn run(app: &App, command: &JobsCommand) -> Result<Code> {
    let queue = app.queue().await?;
    match command {
        JobsCommand::Ls(args) => ls(app, &queue, args).await,
        JobsCommand::Show { id } => show::show(app, &queue, id).await,
        JobsCommand::Wait(args) => super::wait::run(app, &queue, args).await,
        JobsCommand::Retry(args) => retry(app, &queue, args).await,
        JobsCommand::Edit(args) => edit(app, &queue, args).await,
        JobsCommand::Cancel(args) => cancel(app, &queue, args).await,
        JobsCommand::Rm(args) => rm(app, &queue, args).await,
        JobsCommand::Explain { id } => show::explain(app, &queue, id).await,
        JobsCommand::Log { id, follow } => show::log(app, &queue, id, *follow).await,
        JobsCommand::Unpark(args) => unpark(app, &queue, args).await,
        JobsCommand::Unhold { id } => unhold(app, &queue, id).await,
    }
}

async fn ls(app: &App, queue: &Queue, args: &ListArgs) -> Result<Code> {
    let request = ListRequest {
        filter: args.filter.filter()?,
        newest_first: !args.oldest,
        cursor: args.cursor,
        limit: args.limit,
    };
    let page = queue.list(request).await?;
    let shown: Vec<JobOut> = page.items.iter().cloned().map(Into::into).collect();
    app.out.list(&shown, page.next, || table(app, &page.items))?;
    if page.items.is_empty() {
        let any = args.filter.is_empty() && args.cursor.is_none();
        app.out.note(if any {
            "there are no jobs; add one: longhaul enqueue echo '{\"hello\":1}'"
        } else {
            "no jobs match"
        });
        // An empty store is an answer; a filter that finds nothing may be a mistake.
        return Ok(if any { Code::Ok } else { Code::NothingMatched });
    }
    if let Some(next) = page.next {
        app.out.hint(format_args!("there are more: add --cursor {}", cursor_of(next)));
    }
    Ok(Code::Ok)
}

fn table(app: &App, jobs: &[Job]) -> Table {
    let now = app.now();
    let mut table = Table::new(&["ID", "STATE", "QUEUE", "KIND", "PROCESS", "TRIES", "CREATED", "NOTE"]);
    for job in jobs {
        table.row(vec![
            Cell::new(job.id.to_string()),
            Cell::new(job.state.as_str()).style(state_style(job.state)),
            Cell::new(&job.queue),
            Cell::new(&job.kind),
            Cell::optional(job.process_id.as_ref().map(longhaul_queue::ProcessId::as_str)),
            Cell::number(job.spent.attempt),
            Cell::new(app.out.list_time(job.created_at, now)),
            Cell::new(note(app, job)),
        ]);
    }
    table
}

/// What people want to know beside the state: when it goes on, why it failed, or what it is about.
fn note(app: &App, job: &Job) -> String {
    const NOTE_CHARS_MAX: usize = 60;
    let text = match (job.state, &job.error, &job.park) {
        (State::Scheduled, _, _) => app.out.list_time(job.run_at, app.now()),
        (State::Parked, _, Some(park)) => format!("waits for {}", park.key),
        (State::Failed | State::Cancelled, Some(error), _) => error.to_string(),
        _ => job.options.title.clone().unwrap_or_default(),
    };
    if text.chars().count() <= NOTE_CHARS_MAX {
        return text;
    }
    text.chars().take(NOTE_CHARS_MAX).chain(['…']).collect()
}

/// What became of one job of many.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Change {
    /// As the API tells it.
    Done(Changed),
    /// It stays as it was.
    Refused { id: JobId, change: &'static str, error: String },
}

impl Change {
    fn done(id: JobId, change: ChangeMade, state: Option<State>) -> Self {
        Self::Done(Changed { id, change, state })
    }

    fn refused(id: JobId, error: &dyn std::fmt::Display) -> Self {
        Self::Refused { id, change: "refused", error: error.to_string() }
    }

    /// The job, what people are told of it, and why nothing was done.
    fn row(&self) -> (JobId, &str, &str) {
        match self {
            Self::Refused { id, change, error } => (*id, change, error),
            Self::Done(Changed { id, change, state }) => {
                let word = match change {
                    ChangeMade::Cancelled => "cancelled",
                    ChangeMade::Requested => "requested",
                    ChangeMade::Deleted => "deleted",
                    ChangeMade::Edited
                    | ChangeMade::Retried
                    | ChangeMade::Started
                    | ChangeMade::Released
                    | ChangeMade::Ended => state.map_or("", State::as_str),
                };
                (*id, word, "")
            }
        }
    }
}

fn print_changes(app: &App, changes: &[Change]) -> Result<Code> {
    app.out.list(changes, None, || {
        let mut table = Table::new(&["ID", "CHANGE", "REASON"]);
        for (id, change, reason) in changes.iter().map(Change::row) {
            table.row(vec![Cell::new(id.to_string()), Cell::new(change), Cell::new(reason)]);
        }
        table
    })?;
    let refused = changes.iter().filter(|change| matches!(change, Change::Refused { .. })).count();
    if refused > 0 {
        app.out.note(format_args!("{refused} of {} refused", changes.len()));
        return Ok(Code::Failure);
    }
    Ok(Code::Ok)
}

/// Asks with the exact number, since a filter may match more than was meant.
async fn confirm_bulk(app: &App, queue: &Queue, verb: &str, filter: &Filter) -> Result<()> {
    let count = count(queue, filter).await?;
    if count == 0 {
        return Err(Failure::new(Code::NothingMatched, format!("no jobs to {verb} match"))
            .hint("see what there is: longhaul jobs ls with the same filter")
            .into());
    }
    app.confirm(&format!("{verb} {count} {}", if count == 1 { "job" } else { "jobs" }))
}

async fn count(queue: &Queue, filter: &Filter) -> Result<u64> {
    // The maintained counters answer at once what they can answer.
    if filter.is_counted() {
        let fits =
            |wanted: &Option<String>, name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        let counts = queue.store().counts().await?;
        let matching = counts.iter().filter(|count| {
            fits(&filter.queue, &count.queue)
                && fits(&filter.kind, &count.kind)
                && filter.states.contains(&count.state)
        });
        return Ok(matching.map(|count| count.jobs).sum());
    }
    let (mut total, mut cursor) = (0, None);
    loop {
        let request = ListRequest { filter: filter.clone(), newest_first: false, cursor, limit: PAGE_MAX };
        let page = queue.list(request).await?;
        total += page.items.len() as u64;
        cursor = page.next;
        if cursor.is_none() {
            return Ok(total);
        }
    }
}

fn check_bulk(args: &BulkArgs) -> Result<()> {
    if args.ids.is_empty() || args.filter.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, "ids and a filter were given; use one or the other").into())
}

/// A filter narrowed to the states that a verb applies to.
fn narrowed(args: &BulkArgs, default: &[State], allowed: fn(State) -> bool) -> Result<Filter> {
    let mut filter = args.filter.filter()?;
    if filter.states.is_empty() {
        filter.states = default.to_vec();
    }
    filter.states.retain(|state| allowed(*state));
    Ok(filter)
}

fn print_bulk(app: &App, what: &str, count: u64) -> Result<Code> {
    app.out.one(&Number { changed: count }, || format!("{count} {what}"))?;
    Ok(Code::Ok)
}

async fn retry(app: &App, queue: &Queue, args: &RetryArgs) -> Result<Code> {
    check_bulk(&args.jobs)?;
    let keep_data = !args.reset;
    if args.jobs.ids.is_empty() {
        // Cancelled jobs come back only when named: somebody meant it.
        let filter = narrowed(&args.jobs, &[State::Failed], |state| {
            matches!(state, State::Failed | State::Cancelled)
        })?;
        confirm_bulk(app, queue, "retry", &filter).await?;
        return print_bulk(app, "retried", queue.retry_where(filter, keep_data).await?);
    }
    let ids = resolve_all(queue, &args.jobs.ids).await?;
    let replies =
        queue.store().retry(RetryRequest { ids: ids.clone(), keep_data, now: queue.clock().now() }).await?;
    let changes: Vec<Change> = ids
        .into_iter()
        .zip(replies)
        .map(|(id, reply)| {
            let done = |state| Change::done(id, ChangeMade::Retried, Some(state));
            reply.map_or_else(|error| Change::refused(id, &error), done)
        })
        .collect();
    print_changes(app, &changes)
}

async fn edit(app: &App, queue: &Queue, args: &EditArgs) -> Result<Code> {
    let id = resolve(queue, &args.id).await?;
    own_names().check_change(&queue.get(id).await?.job)?;
    let payload = args.payload.as_deref().map(|payload| app.json_argument(Some(payload))).transpose()?;
    let change = JobChange { priority: args.priority, title: args.title.clone(), payload };
    let (mut change, mut state) = (ChangeMade::Edited, queue.edit(id, change).await?);
    if args.retry && state.is_terminal() {
        (change, state) = (ChangeMade::Retried, queue.retry(id, true).await?);
    }
    print_changes(app, &[Change::done(id, change, Some(state))])
}

async fn cancel(app: &App, queue: &Queue, args: &BulkArgs) -> Result<Code> {
    check_bulk(args)?;
    if args.ids.is_empty() {
        let filter = narrowed(args, &State::ALL, |state| !state.is_terminal())?;
        confirm_bulk(app, queue, "cancel", &filter).await?;
        let outcome = manage::cancel_where(queue, filter).await?;
        for run in &outcome.kept {
            app.out.warn(format_args!("batches of {run} are not cancelled: requests wait for them"));
            app.out.hint(format_args!("end the whole run: longhaul runs cancel {run}"));
        }
        return print_bulk(app, "cancelled", outcome.cancelled);
    }
    let ids = resolve_all(queue, &args.ids).await?;
    refuse_batches(queue, &ids).await?;
    let replies = queue.store().cancel(ids.clone(), queue.clock().now()).await?;
    let change = |(id, reply)| match reply {
        CancelReply::Cancelled => Change::done(id, ChangeMade::Cancelled, Some(State::Cancelled)),
        CancelReply::Requested => Change::done(id, ChangeMade::Requested, Some(State::Running)),
        CancelReply::Ended(state) => Change::refused(id, &format_args!("it had {state} before")),
        CancelReply::NotFound => Change::refused(id, &"there is no such job"),
    };
    let changes: Vec<Change> = ids.into_iter().zip(replies).map(change).collect();
    print_changes(app, &changes)
}

/// Somebody waits for a batch: it ends with its run.
async fn refuse_batches(queue: &Queue, ids: &[JobId]) -> Result<()> {
    for page in ids.chunks(PAGE_MAX) {
        for detail in queue.store().get(page.to_vec()).await? {
            if let Some(run) = manage::cancelled_with(&detail.job) {
                let id = detail.job.id;
                let text =
                    format!("job {id} is a batch of {run}, and requests wait for it; nothing was cancelled");
                return Err(Failure::new(Code::Failure, text)
                    .hint(format_args!("end the whole run: longhaul runs cancel {run}"))
                    .into());
            }
        }
    }
    Ok(())
}

async fn rm(app: &App, queue: &Queue, args: &BulkArgs) -> Result<Code> {
    check_bulk(args)?;
    if args.ids.is_empty() {
        let filter = narrowed(args, &State::ALL, State::is_terminal)?;
        confirm_bulk(app, queue, "delete", &filter).await?;
        return print_bulk(app, "deleted", queue.delete_where(filter).await?);
    }
    let ids = resolve_all(queue, &args.ids).await?;
    let known: Vec<JobId> =
        queue.store().get(ids.clone()).await?.iter().map(|detail| detail.job.id).collect();
    if let Some(unknown) = ids.iter().find(|id| !known.contains(id)) {
        return Err(Failure::new(
            Code::NothingMatched,
            format!("there is no job {unknown}; nothing was deleted"),
        )
        .into());
    }
    let deleted = queue.consume(ids.clone()).await?;
    let change = |id: JobId| match deleted.refused.iter().find(|(refused, _)| *refused == id) {
        Some((_, error)) => Change::refused(id, error),
        None => Change::done(id, ChangeMade::Deleted, None),
    };
    let changes: Vec<Change> = ids.into_iter().map(change).collect();
    print_changes(app, &changes)
}

async fn unpark(app: &App, queue: &Queue, args: &UnparkArgs) -> Result<Code> {
    let signal = match (&args.retry, &args.fail) {
        (Some(text), _) => Signal::Retry(JobError::new(Reason::Failure, text)),
        (_, Some(text)) => Signal::Fail(JobError::new(Reason::Failure, text)),
        (None, None) if args.done => Signal::Done(app.json_argument(args.value.as_deref())?),
        (None, None) => Signal::Resume(app.json_argument(args.value.as_deref())?),
    };
    let unparked = match &args.key {
        Some(key) => queue.unpark(key, signal).await?,
        None => queue.unpark_jobs(resolve_all(queue, &args.ids).await?, signal).await?,
    };
    let unparked = Signalled::from(unparked);
    app.out.one(&unparked, || unparked.jobs.iter().map(|id| format!("{id}\n")).collect())?;
    if unparked.jobs.is_empty() && unparked.kept {
        app.out.note("nobody waits for this key yet; the signal is kept for 7 days");
    } else if unparked.jobs.is_empty() {
        app.out.note("no parked job was waiting");
        return Ok(Code::NothingMatched);
    }
    Ok(Code::Ok)
}

async fn unhold(app: &App, queue: &Queue, id: &str) -> Result<Code> {
    let id = resolve(queue, id).await?;
    let state = queue.unhold(id).await?;
    print_changes(app, &[Change::done(id, ChangeMade::Released, Some(state))])
}
