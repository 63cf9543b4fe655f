//! Schedules: jobs that recur.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::Listed;
use longhaul_api::job_out::EnqueuedOut;
use longhaul_api::schedules::{Removed, ScheduleIn, ScheduleOut};
use longhaul_queue::NewJob;
use longhaul_queue::limits::check_name;
use longhaul_queue::maintenance::next_after;
use longhaul_queue::store::Schedule;

use super::ApiResult;
use super::extract::ApiJson;
use super::job_in::new_jobs;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;

/// Lists schedules by name.
#[utoipa::path(get, path = "/api/v1/schedules", tag = "schedules", responses((status = 200, body = Listed<ScheduleOut>)))]
pub(super) async fn list_schedules(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
) -> ApiResult<Answer<Listed<ScheduleOut>>> {
    let hide = redact::hides_from(&caller);
    let schedules = ctx.queue().store().schedules().await?;
    let shown = |schedule: Schedule| if hide { redact::schedule(schedule) } else { schedule };
    Ok(Answer(Listed::whole(schedules.into_iter().map(|schedule| shown(schedule).into()).collect())))
}

/// Adds or replaces a schedule.
#[utoipa::path(put, path = "/api/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)), request_body = ScheduleIn, responses((status = 200, body = ScheduleOut)))]
pub(super) async fn put_schedule(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
    ApiJson(wanted): ApiJson<ScheduleIn>,
) -> ApiResult<Answer<ScheduleOut>> {
    let ScheduleIn { cron, timezone, missed, job } = wanted;
    check_name("schedule", &name).map_err(Problem::unfit)?;
    let given = [
        ("id", job.id.is_some()),
        ("ref", job.r#ref.is_some()),
        ("run_at", job.run_at.is_some()),
        ("delay_ms", job.delay_ms.is_some()),
        ("expires_at", job.expires_at.is_some()),
        ("depends_on", !job.depends_on.is_empty()),
        ("after_process", job.after_process.is_some()),
        ("webhook", job.webhook.is_some()),
    ];
    if let Some((field, _)) = given.iter().find(|(_, given)| *given) {
        let text = format!("{field} makes no sense for a job that recurs");
        return Err(unusable(text, format!("job.{field}")).into());
    }
    let now = ctx.queue().clock().now();
    let timezone = timezone.unwrap_or_else(|| "UTC".to_owned());
    let next_at = next_after(&cron, &timezone, now).map_err(|error| unusable(error.to_string(), "cron"))?;
    let job = new_jobs(&ctx.names, vec![job], now, |_| None)?.pop();
    let job = job.ok_or_else(|| Problem::internal("a schedule without a job"))?;
    ctx.queue().limits().check_job(&job).map_err(Problem::unfit)?;
    let schedule = Schedule { name, cron, timezone, job, missed, next_at, last_at: None };
    ctx.queue().store().put_schedule(schedule.clone()).await?;
    Ok(Answer(schedule.into()))
}

fn unusable(text: String, field: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(field)
}

/// Removes a schedule.
#[utoipa::path(delete, path = "/api/v1/schedules/{name}", tag = "schedules", params(("name" = String, Path)), responses((status = 200, body = Removed)))]
pub(super) async fn delete_schedule(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<Answer<Removed>> {
    match ctx.queue().store().delete_schedule(name.clone()).await? {
        true => Ok(Answer(Removed { removed: name })),
        false => Err(missing(&name).into()),
    }
}

/// Enqueues a schedule's job now; its times stay.
#[utoipa::path(post, path = "/api/v1/schedules/{name}/run", tag = "schedules", params(("name" = String, Path)), responses((status = 201, body = EnqueuedOut)))]
pub(super) async fn run_schedule(
    Shared(ctx): Shared<Ctx>,
    Path(name): Path<String>,
) -> ApiResult<(StatusCode, Answer<EnqueuedOut>)> {
    let schedules = ctx.queue().store().schedules().await?;
    let found = schedules.into_iter().find(|schedule| schedule.name == name);
    let job = found.ok_or_else(|| missing(&name))?.job;
    let enqueued = ctx.queue().enqueue(NewJob { id: None, ..job }).await?;
    Ok((StatusCode::CREATED, Answer(enqueued.into())))
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("there is no schedule {name}"))
}
