//! Looking at jobs, runs and processes, and waiting for them.

use std::time::Duration;

use longhaul_api::processes::ProcessOut;
use longhaul_pipeline::Found;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Job, ProcessId, State};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::schemas::{WAIT_DEFAULT_S, WAIT_MAX_S};
use super::target::Target;
use super::{page, runs, show};
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::wait::Wait;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListArguments {
    /// Any of these states; default all.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    states: Vec<State>,
    /// Only this queue.
    queue: Option<String>,
    /// Only this kind.
    kind: Option<String>,
    /// Only jobs of this process or run.
    #[schema(value_type = Option<String>)]
    process: Option<ProcessId>,
    /// Only jobs with this tag.
    tag: Option<String>,
    /// Text in the payload, title or error, or the start of an id.
    search: Option<String>,
    /// In submission order instead of newest first.
    #[serde(default)]
    oldest_first: bool,
    /// How many jobs; default 20.
    limit: Option<usize>,
    /// next_cursor of the page before.
    cursor: Option<String>,
}

/// `list_jobs`.
pub(super) async fn list(ctx: &Ctx, caller: &Caller, asked: ListArguments) -> Result<Value, Problem> {
    let given = Filter {
        states: asked.states,
        queue: asked.queue,
        kind: asked.kind,
        process_id: asked.process,
        tag: asked.tag,
        hide_secrets: true,
        ..Filter::default()
    };
    let mut filter = match &asked.search {
        Some(text) => given.and(Filter::parse(text)?)?,
        None => given,
    };
    let process = filter.process_id.as_ref().map(ProcessId::as_str);
    filter.hidden_queues = access::hidden_queues(ctx, caller, process).await?;
    let request = ListRequest {
        filter,
        newest_first: !asked.oldest_first,
        cursor: page::seq_of(asked.cursor.as_deref())?,
        limit: page::limit(asked.limit),
    };
    let page = ctx.queue().list(request).await?;
    let jobs = page.items.into_iter().map(show::job).collect::<Result<Vec<Value>, Problem>>()?;
    Ok(page::listed("jobs", &jobs, page.next))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetArguments {
    /// A job's id (a UUID), or the name of a run (run-…) or of a process.
    id: String,
}

/// `get_job`.
pub(super) async fn get(ctx: &Ctx, caller: &Caller, asked: GetArguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => {
            let explained = ctx.queue().explain(detail.job.id).await?;
            show::detail(*detail, explained)
        }
        Target::Run(run) => runs::detail(ctx, &run, run.status().await?).await,
        Target::Process(process) => show::value(&ProcessOut::from(ctx.queue().process(&process).await?)),
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WaitArguments {
    /// A job's id (a UUID), or the name of a run (run-…) or of a process.
    id: String,
    /// How long to wait; default 30.
    timeout_seconds: Option<u64>,
}

/// `wait_job`.
pub(super) async fn wait(ctx: &Ctx, caller: &Caller, asked: WaitArguments) -> Result<Value, Problem> {
    let seconds = asked.timeout_seconds.unwrap_or(WAIT_DEFAULT_S).min(WAIT_MAX_S);
    // Before the first look, so that no change falls in between.
    let mut wait = Wait::new(ctx, Some(Duration::from_secs(seconds)));
    let mut seen = match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => Waited::Job(Box::new(detail.job)),
        Target::Run(run) => Waited::Run(run),
        Target::Process(process) => Waited::Process(process),
    };
    loop {
        let (ended, mut shown) = look(ctx, &mut seen).await?;
        if ended || !wait.again().await {
            shown["ended"] = ended.into();
            if !ended {
                shown["more"] = "it has not ended: call wait_job again".into();
            }
            return Ok(shown);
        }
    }
}

/// What is waited for.
enum Waited {
    Job(Box<Job>),
    Run(Box<Found>),
    Process(ProcessId),
}

/// Whether it is over, and what it looks like. A held run ends the wait, unless it goes on by itself.
async fn look(ctx: &Ctx, waited: &mut Waited) -> Result<(bool, Value), Problem> {
    match waited {
        Waited::Job(job) => {
            let Some(now) = again(ctx, job).await? else {
                let gone = "it has ended, and its row was deleted as it was stored to be";
                return Ok((true, json!({ "id": job.id, "gone": gone })));
            };
            **job = now.clone();
            Ok((job.state.is_terminal(), show::job(now)?))
        }
        Waited::Run(run) => {
            let status = run.status().await?;
            let over = status.is_over();
            Ok((over, show::value(&runs::run(ctx, run, status).await?)?))
        }
        Waited::Process(process) => {
            let process = ProcessOut::from(ctx.queue().process(process).await?);
            Ok((process.ended, show::value(&process)?))
        }
    }
}

/// The row alone: asked for by id, a job brings its payload and log along each time.
async fn again(ctx: &Ctx, job: &Job) -> Result<Option<Job>, Problem> {
    let request =
        ListRequest { filter: Filter::default(), newest_first: false, cursor: Some(job.seq - 1), limit: 1 };
    let found = ctx.queue().list(request).await?.items.pop();
    Ok(found.filter(|found| found.id == job.id))
}
