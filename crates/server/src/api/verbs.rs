//! Verbs that change one job, and signals for those that wait for one.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_prompts::manage;
use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::store::{CancelReply, Signal, Unparked};
use longhaul_queue::{JobChange, JobId, Json, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ApiResult;
use super::extract::{ApiJson, job_id};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// How a job is put back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetryIn {
    /// With its checkpoint (default), or from the start.
    #[serde(default = "yes")]
    keep_data: bool,
}

pub(super) fn yes() -> bool {
    true
}

/// Where a job stands after a change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Changed {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    id: JobId,
    /// What happened: `edited`, `retried`, `started`, `released`, `cancelled`, `requested` (it runs, and was asked to end), `ended` (it had before) or `deleted`.
    change: &'static str,
    /// Its state now.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
}

/// Puts a failed or cancelled job back.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path)), request_body = Option<RetryIn>, responses((status = 200, body = Changed)))]
pub(super) async fn retry_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(how): ApiJson<Option<RetryIn>>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().retry(id, how.is_none_or(|how| how.keep_data)).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: "retried", state: Some(state) }))
}

/// What to change of a job; what is not named stays.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobChange)]
pub(super) struct ChangeIn {
    /// Lower runs first.
    priority: Option<i32>,
    /// A name for people; an empty one takes it away.
    #[schema(max_length = 512)]
    title: Option<String>,
    /// The input of the next run, which begins without a checkpoint.
    #[serde(default, deserialize_with = "Json::present")]
    #[schema(value_type = serde_json::Value)]
    payload: Option<Json>,
}

/// Changes a job that neither runs nor has succeeded. The payload of one that has run can be changed once it has failed or was
/// cancelled; `retry` then runs it again.
#[utoipa::path(patch, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path)), request_body = ChangeIn, responses((status = 200, body = Changed)))]
pub(super) async fn edit_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(change): ApiJson<ChangeIn>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    ctx.names.check_change(&ctx.queue().get(id).await?.job).map_err(conflict)?;
    let ChangeIn { priority, title, payload } = change;
    let change = JobChange { priority, title, payload };
    ctx.queue().limits().check_change(&change).map_err(Problem::unfit)?;
    let state = ctx.queue().edit(id, change).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: "edited", state: Some(state) }))
}

/// Starts a scheduled job now instead of at its time, or of its next try.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/run-now", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn run_job_now(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().run_now(id).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: "started", state: Some(state) }))
}

/// Releases a job that failed parents hold: their edges are dropped.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/unhold", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn unhold_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().unhold(id).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: "released", state: Some(state) }))
}

/// Cancels a job. A running one is asked to end.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn cancel_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let job = ctx.queue().get(id).await?.job;
    if let Some(run) = manage::cancelled_with(&job) {
        let text =
            format!("job {id} is a batch at the provider, and requests wait for it: cancel {run} instead");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "cancelled_with_run", text).into());
    }
    let (change, state) = match ctx.queue().cancel(id).await? {
        CancelReply::Cancelled => ("cancelled", State::Cancelled),
        CancelReply::Requested => ("requested", State::Running),
        CancelReply::Ended(state) => ("ended", state),
        CancelReply::NotFound => return Err(Problem::not_found(format!("there is no job {id}")).into()),
    };
    Ok(Answer(Changed { id, change, state: Some(state) }))
}

/// Deletes an ended job for good.
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn delete_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let deleted = ctx.queue().consume(vec![id]).await?;
    if let Some((_, error)) = deleted.refused.into_iter().next() {
        return Err(conflict(error).into());
    }
    if deleted.deleted == 0 {
        return Err(Problem::not_found(format!("there is no job {id}")).into());
    }
    Ok(Answer(Changed { id, change: "deleted", state: None }))
}

/// A verb that the job's state does not allow. Not 409, which some clients take for a reason to send the same again.
pub(super) fn conflict(error: longhaul_queue::Error) -> Problem {
    match error {
        longhaul_queue::Error::Invalid(text) => {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_state", text)
        }
        error => error.into(),
    }
}

/// A signal for parked jobs: for those that wait for `key`, now or later; for the jobs named; or for those of them that wait for
/// `key`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalIn {
    /// What they wait for. The first signal for a key counts, and is kept for a job that is yet to park.
    key: Option<String>,
    /// These parked jobs. With a key, those of them that wait for it, and nothing is kept.
    #[schema(value_type = Option<Vec<String>>)]
    ids: Option<Vec<JobId>>,
    /// The value for them.
    signal: Told,
}

/// The value for a parked job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Signal)]
enum Told {
    /// Run again, with this value at hand.
    Resume(Value),
    /// It is done, with this result.
    Done(Value),
    /// It failed this time, with this text.
    Retry(String),
    /// It failed for good, with this text.
    Fail(String),
}

/// Any JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = serde_json::Value)]
struct Value(Json);

/// Whom a signal reached.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Signalled {
    /// The jobs whose wait ended.
    #[schema(value_type = Vec<String>)]
    jobs: Vec<JobId>,
    /// It is kept for a job that is yet to park.
    kept: bool,
}

/// Ends the wait of parked jobs.
#[utoipa::path(post, path = "/api/v1/signals", tag = "jobs", request_body = SignalIn, responses((status = 200, body = Signalled)))]
pub(super) async fn send_signal(
    Shared(ctx): Shared<Ctx>,
    ApiJson(asked): ApiJson<SignalIn>,
) -> ApiResult<Answer<Signalled>> {
    let error = |text: String| JobError::new(Reason::Failure, text);
    let signal = match asked.signal {
        Told::Resume(Value(value)) => Signal::Resume(value),
        Told::Done(Value(value)) => Signal::Done(value),
        Told::Retry(text) => Signal::Retry(error(text)),
        Told::Fail(text) => Signal::Fail(error(text)),
    };
    let Unparked { jobs, kept } = match (asked.key, asked.ids) {
        (Some(key), None) => ctx.queue().unpark(&key, signal).await.map_err(Problem::unfit)?,
        (None, Some(ids)) => ctx.queue().unpark_jobs(ids, signal).await.map_err(conflict)?,
        (Some(key), Some(ids)) => {
            ctx.queue().unpark_waiting(&key, ids, signal).await.map_err(Problem::unfit)?
        }
        (None, None) => {
            let text = "a signal needs a key or ids";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at("key").into());
        }
    };
    Ok(Answer(Signalled { jobs, kept }))
}
