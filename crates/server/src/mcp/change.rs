//! What changes jobs: enqueue, edit, cancel, retry.

use longhaul_api::job_in::JobIn;
use longhaul_api::job_out::EnqueuedOut;
use longhaul_api::processes::Number;
use longhaul_api::verbs::{ChangeMade, Changed};
use longhaul_pipeline::Retry;
use longhaul_prompts::{manage, sdk_batches};
use longhaul_queue::store::{CancelReply, Filter};
use longhaul_queue::{Job, JobChange, JobDetail, Json, State};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::target::Target;
use super::{reports, show};
use crate::api;
use crate::batches;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// `enqueue_job`.
pub(super) async fn enqueue(ctx: &Ctx, caller: &Caller, job: JobIn) -> Result<Value, Problem> {
    // There is one job, so its place says nothing.
    let own = |problem: Problem| {
        let field = problem.field.as_deref().map(|field| field.trim_start_matches("jobs[0].").to_owned());
        Problem { field, ..problem }
    };
    let enqueued = api::jobs::enqueue(ctx, caller, None, vec![job]).await.map_err(own)?.pop();
    let enqueued = enqueued.ok_or_else(|| Problem::internal("no job was stored"))?;
    noted(ctx, &EnqueuedOut::from(enqueued)).await
}

/// What was stored, with a word for whoever would otherwise wait for nothing.
pub(super) async fn noted<T: Serialize>(ctx: &Ctx, stored: &T) -> Result<Value, Problem> {
    let mut shown = show::value(stored)?;
    if reports::living(ctx).await?.is_empty() {
        shown["note"] =
            "it is stored, but no worker is running: longhaul work, or longhaul up, starts one".into();
    }
    Ok(shown)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditArguments {
    /// The job's id (a UUID).
    id: String,
    /// Lower runs first.
    priority: Option<i32>,
    /// A name for people; an empty one takes it away.
    title: Option<String>,
    /// The input of the next run, which begins without a checkpoint: any JSON. Put no secrets into it.
    #[serde(default, deserialize_with = "Json::present")]
    #[schema(value_type = serde_json::Value)]
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
    show::value(&Changed { id: detail.job.id, change: ChangeMade::Edited, state: Some(state) })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CancelArguments {
    /// A job's id (a UUID), or the name of a run (run-…) or of a process.
    id: String,
}

/// `cancel_job`.
pub(super) async fn cancel(ctx: &Ctx, caller: &Caller, asked: CancelArguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => cancel_one(ctx, caller, *detail).await,
        Target::Run(run) => show::value(&Number { changed: run.cancel().await? }),
        Target::Process(process) => {
            let filter = Filter { process_id: Some(process), ..Filter::default() };
            let outcome = manage::cancel_where(ctx.queue(), filter).await?;
            show::value(&Number { changed: outcome.cancelled })
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
    let (change, state) = match ctx.queue().cancel(job.id).await? {
        CancelReply::Cancelled => (ChangeMade::Cancelled, State::Cancelled),
        CancelReply::Requested => (ChangeMade::Requested, State::Running),
        CancelReply::Ended(state) => {
            return Err(Problem::invalid(format!("job {} had {state} before", job.id)));
        }
        CancelReply::NotFound => return Err(Problem::not_found(format!("there is no job {}", job.id))),
    };
    show::value(&Changed { id: job.id, change, state: Some(state) })
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

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryArguments {
    /// A job's id (a UUID), or the name of a run (run-…) or of a process.
    id: String,
    /// Of a single job: forget its checkpoint. Default: go on from there.
    #[serde(default)]
    from_start: bool,
}

/// `retry_job`.
pub(super) async fn retry(ctx: &Ctx, caller: &Caller, asked: RetryArguments) -> Result<Value, Problem> {
    match Target::find(ctx, caller, &asked.id).await? {
        Target::Job(detail) => {
            let state = ctx.queue().retry(detail.job.id, !asked.from_start).await?;
            show::value(&Changed { id: detail.job.id, change: ChangeMade::Retried, state: Some(state) })
        }
        Target::Run(run) => show::value(&Number { changed: run.retry(Retry::Failed).await? }),
        Target::Process(process) => {
            let filter = Filter { process_id: Some(process), ..Filter::default() };
            show::value(&Number { changed: ctx.queue().retry_where(filter, !asked.from_start).await? })
        }
    }
}
