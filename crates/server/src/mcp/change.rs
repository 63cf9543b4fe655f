//! What changes jobs: enqueue, edit, cancel, retry.

use std::time::Duration;

use longhaul_pipeline::Retry;
use longhaul_prompts::{manage, sdk_batches};
use longhaul_queue::job::Unique;
use longhaul_queue::limits::WORKER_SILENT_AFTER;
use longhaul_queue::store::{CancelReply, Filter};
use longhaul_queue::{Job, JobChange, JobDetail, JobId, Json, NewJob, ProcessId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::target::Target;
use crate::batches;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EnqueueArguments {
    kind: String,
    payload: Option<Json>,
    id: Option<String>,
    queue: Option<String>,
    process: Option<ProcessId>,
    priority: Option<i32>,
    delay_seconds: Option<u64>,
    unique_key: Option<String>,
    max_attempts: Option<u32>,
    title: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
}

/// `enqueue_job`.
pub(super) async fn enqueue(ctx: &Ctx, asked: EnqueueArguments) -> Result<Value, Problem> {
    ctx.names.check_kind(&asked.kind).map_err(|error| Problem::from(error).at("kind"))?;
    let mut job = NewJob::new(asked.kind, asked.payload.unwrap_or_else(Json::null));
    job.id =
        asked.id.map(|id| id.parse::<JobId>().map_err(|error| Problem::from(error).at("id"))).transpose()?;
    job.id.map_or(Ok(()), |id| ctx.names.check_id(id)).map_err(|error| Problem::from(error).at("id"))?;
    if let Some(queue) = asked.queue {
        ctx.names.check_queue(&queue).map_err(|error| Problem::from(error).at("queue"))?;
        job.queue = queue;
    }
    if let Some(process) = &asked.process {
        ctx.names.check_process(process.as_str()).map_err(|error| Problem::from(error).at("process"))?;
    }
    job.process_id = asked.process;
    job.priority = asked.priority.unwrap_or_default();
    let delay = asked.delay_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
    job.run_at = delay.map(|delay| ctx.queue().clock().now() + delay);
    job.options.unique = asked.unique_key.map(Unique::key);
    job.options.max_attempts = asked.max_attempts;
    job.options.title = asked.title;
    job.options.tags = asked.tags;
    let enqueued = ctx.queue().enqueue(job).await?;
    let mut shown = json!({ "id": enqueued.id, "state": enqueued.state, "how": enqueued.how });
    if let Some(word) = no_worker(ctx).await? {
        shown["note"] = word.into();
    }
    Ok(shown)
}

/// A word for whoever would otherwise wait for nothing.
pub(super) async fn no_worker(ctx: &Ctx) -> Result<Option<&'static str>, Problem> {
    let now = ctx.queue().clock().now();
    let workers = ctx.queue().store().workers(now).await?;
    let alive = workers.iter().any(|worker| !worker.gone && now.since(worker.seen_at) < WORKER_SILENT_AFTER);
    Ok((!alive)
        .then_some("it is stored, but no worker is running: longhaul work, or longhaul up, starts one"))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    id: String,
    priority: Option<i32>,
    title: Option<String>,
    #[serde(default, deserialize_with = "Json::present")]
    payload: Option<Json>,
}

/// `edit_job`.
pub(super) async fn edit(ctx: &Ctx, caller: &Caller, asked: EditArguments) -> Result<Value, Problem> {
    let EditArguments { id, priority, title, payload } = asked;
    let Target::Job(detail) = Target::find(ctx, caller, &id).await? else {
        return Err(Problem::invalid(format!("{id} is not a job, and only jobs can be edited")).at("id"));
    };
    ctx.names.check_change(&detail.job)?;
    let state = ctx.queue().edit(detail.job.id, JobChange { priority, title, payload }).await?;
    Ok(json!({ "id": detail.job.id, "state": state }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelArguments {
    id: String,
}

/// `cancel_job`.
pub(super) async fn cancel(ctx: &Ctx, caller: &Caller, asked: CancelArguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => cancel_one(ctx, caller, *detail).await,
        Target::Run(run) => {
            let cancelled = run.cancel().await?;
            Ok(json!({
                "run": run.run.id.as_str(),
                "cancelled": cancelled,
                "note": "provider batches are asked to end; what has an answer keeps it",
            }))
        }
        Target::Process(process) => {
            let filter = Filter { process_id: Some(process.clone()), ..Filter::default() };
            let outcome = manage::cancel_where(ctx.queue(), filter).await?;
            Ok(json!({ "process": process, "cancelled": outcome.cancelled }))
        }
    }
}

async fn cancel_one(ctx: &Ctx, caller: &Caller, detail: JobDetail) -> Result<Value, Problem> {
    let job = &detail.job;
    refuse_batch(job)?;
    if job.kind == sdk_batches::KIND {
        // It stands for a run, and has to end that first.
        let form = detail.payload.to::<sdk_batches::BatchPayload>()?.form;
        let batch = batches::cancel(ctx, caller, job.id, form).await?;
        return Ok(json!({ "id": job.id, "change": batch.state }));
    }
    let (change, note) = match ctx.queue().cancel(job.id).await? {
        CancelReply::Cancelled => ("cancelled", None),
        CancelReply::Requested => {
            ("requested", Some("it is running, and is asked to end: wait_job waits for it"))
        }
        CancelReply::Ended(state) => {
            return Err(Problem::invalid(format!("job {} had {state} before", job.id)));
        }
        CancelReply::NotFound => return Err(Problem::not_found(format!("there is no job {}", job.id))),
    };
    Ok(json!({ "id": job.id, "change": change, "note": note }))
}

/// Requests wait for a provider's batch: it ends with its run.
fn refuse_batch(job: &Job) -> Result<(), Problem> {
    match manage::cancelled_with(job) {
        None => Ok(()),
        Some(run) => {
            let text = format!("job {} is a batch of {run}, and requests wait for it: cancel {run}", job.id);
            Err(Problem::invalid(text).at("id"))
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryArguments {
    id: String,
    #[serde(default)]
    from_start: bool,
}

/// `retry_job`.
pub(super) async fn retry(ctx: &Ctx, caller: &Caller, asked: RetryArguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => {
            let state = ctx.queue().retry(detail.job.id, !asked.from_start).await?;
            Ok(json!({ "id": detail.job.id, "state": state }))
        }
        Target::Run(run) => {
            let retried = run.retry(Retry::Failed).await?;
            Ok(json!({ "run": run.run.id.as_str(), "retried": retried }))
        }
        Target::Process(process) => {
            let filter = Filter { process_id: Some(process.clone()), ..Filter::default() };
            let retried = ctx.queue().retry_where(filter, !asked.from_start).await?;
            Ok(json!({ "process": process, "retried": retried }))
        }
    }
}
