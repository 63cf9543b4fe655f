//! Verbs that change one job, and signals for those that wait for one.

use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::verbs::{ChangeIn, ChangeMade, Changed, RetryIn, SignalIn, Signalled};
use longhaul_prompts::manage;
use longhaul_queue::store::CancelReply;
use longhaul_queue::{JobChange, State};

use super::ApiResult;
use super::extract::{ApiJson, job_id};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// Puts a failed or cancelled job back.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path)), request_body = Option<RetryIn>, responses((status = 200, body = Changed)))]
pub(super) async fn retry_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
    ApiJson(how): ApiJson<Option<RetryIn>>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().retry(id, how.is_none_or(|how| how.keep_data)).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: ChangeMade::Retried, state: Some(state) }))
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
    let change = JobChange::from(change);
    ctx.queue().limits().check_change(&change).map_err(Problem::unfit)?;
    let state = ctx.queue().edit(id, change).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: ChangeMade::Edited, state: Some(state) }))
}

/// Starts a scheduled job now instead of at its time, or of its next try.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/run-now", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn run_job_now(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().run_now(id).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: ChangeMade::Started, state: Some(state) }))
}

/// Releases a job that failed parents hold: their edges are dropped.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/unhold", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = Changed)))]
pub(super) async fn unhold_job(
    Shared(ctx): Shared<Ctx>,
    Path(id): Path<String>,
) -> ApiResult<Answer<Changed>> {
    let id = job_id(&id)?;
    let state = ctx.queue().unhold(id).await.map_err(conflict)?;
    Ok(Answer(Changed { id, change: ChangeMade::Released, state: Some(state) }))
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
        CancelReply::Cancelled => (ChangeMade::Cancelled, State::Cancelled),
        CancelReply::Requested => (ChangeMade::Requested, State::Running),
        CancelReply::Ended(state) => (ChangeMade::Ended, state),
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
    Ok(Answer(Changed { id, change: ChangeMade::Deleted, state: None }))
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

/// Ends the wait of parked jobs.
#[utoipa::path(post, path = "/api/v1/signals", tag = "jobs", request_body = SignalIn, responses((status = 200, body = Signalled)))]
pub(super) async fn send_signal(
    Shared(ctx): Shared<Ctx>,
    ApiJson(asked): ApiJson<SignalIn>,
) -> ApiResult<Answer<Signalled>> {
    let signal = asked.signal.into();
    let unparked = match (asked.key, asked.ids) {
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
    Ok(Answer(unparked.into()))
}
