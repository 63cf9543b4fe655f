//! The ends of runs, as workers tell them.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_api::AnyJson;
use longhaul_api::settle::{
    ContinueIn, FailIn, ItemIn, OutcomeIn, ParkIn, RetryIn, SettleIn, SettledOut, Settlements, ThrottleIn,
};
use longhaul_queue::remote::{self, Ended};
use longhaul_queue::state::{Event, JobError, Outcome, Park, Reason};
use longhaul_queue::store::{SettleItem, Settled};
use longhaul_queue::{JobId, Lease, Timestamp};

use super::{check_count, holds, jobs_of, seconds_of, wrong};
use crate::api::ApiResult;
use crate::api::extract::ApiJson;
use crate::api::job_in::new_jobs;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Ends runs. Each item tells what became of it: its lease may be stale, or it or its follow-up jobs refused.
#[utoipa::path(post, path = "/api/v1/work/settle", tag = "work", request_body = SettleIn, responses((status = 200, body = Settlements)))]
pub(in crate::api) async fn settle_work(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<SettleIn>,
) -> ApiResult<Answer<Settlements>> {
    check_count("items", asked.items.len())?;
    let now = ctx.queue().clock().now();
    let mut settled = Vec::with_capacity(asked.items.len());
    let mut ends = Vec::with_capacity(asked.items.len());
    for (index, item) in asked.items.into_iter().enumerate() {
        let lease: Lease = item.lease.clone().into();
        match read(&ctx, &caller, item, now).await {
            Ok(end) => {
                settled.push(SettledOut::new(lease.job_id, Settled::LostLease));
                ends.push((index, end));
            }
            // One that cannot be read does not keep the others from ending.
            Err(problem) if problem.status.is_client_error() => {
                settled.push(refused(lease.job_id, &problem));
            }
            Err(problem) => return Err(problem.into()),
        }
    }
    let jobs = jobs_of(&ctx, ends.iter().map(|(_, end)| &end.lease)).await?;
    let mut places: Vec<(usize, Lease)> = Vec::with_capacity(ends.len());
    let mut items: Vec<SettleItem> = Vec::with_capacity(ends.len());
    for (index, end) in ends {
        let lease = end.lease.clone();
        let Some(job) = jobs.get(&lease.job_id).filter(|job| holds(&caller, job, &lease)) else { continue };
        match remote::settle(job, end, &ctx.queue().limits(), now, fastrand::f64()) {
            Ok(item) => {
                places.push((index, lease));
                items.push(item);
            }
            Err(error) => settled[index] = SettledOut::new(lease.job_id, Settled::Refused(error)),
        }
    }
    let applied = if items.is_empty() { Vec::new() } else { ctx.engine().store().settle(items, now).await? };
    for ((index, lease), reply) in places.into_iter().zip(applied) {
        if matches!(reply, Settled::Applied(_)) {
            ctx.remote_workers.holds(&lease.worker, -1);
        }
        settled[index] = SettledOut::new(lease.job_id, reply);
    }
    Ok(Answer(Settlements { items: settled }))
}

async fn read(ctx: &Ctx, caller: &Caller, item: ItemIn, now: Timestamp) -> Result<Ended, Problem> {
    let ItemIn { lease, outcome, follow_ups, usage } = item;
    if let Some(usage) = &usage {
        ctx.queue().limits().check_value("usage", usage).map_err(|error| wrong("usage", error))?;
    }
    if follow_ups.iter().any(|job| job.webhook.is_some()) {
        return Err(wrong("follow_ups", "webhook is for jobs that are handed in, not for follow-ups"));
    }
    let follow_ups = new_jobs(&ctx.names, follow_ups, now, |_| None)?;
    access::check_awaited(ctx, caller, &follow_ups).await?;
    Ok(Ended { lease: lease.into(), event: event(outcome)?, follow_ups, usage })
}

fn event(outcome: OutcomeIn) -> Result<Event, Problem> {
    let after =
        |seconds: Option<f64>| seconds.map(|seconds| seconds_of("after_seconds", seconds)).transpose();
    Ok(Event::Outcome(match outcome {
        OutcomeIn::Done(AnyJson(result)) => Outcome::Done(result),
        OutcomeIn::Continue(ContinueIn { after_seconds, data }) => {
            Outcome::Continue { after: after(after_seconds)?, data }
        }
        OutcomeIn::Park(ParkIn { key, until, on_timeout, data }) => {
            Outcome::Park { park: Park { key, until, on_timeout }, data }
        }
        OutcomeIn::Retry(RetryIn { error, after_seconds, data }) => {
            let error = JobError::new(Reason::Failure, error);
            Outcome::Retry { error, after: after(after_seconds)?, data }
        }
        OutcomeIn::Throttle(ThrottleIn { after_seconds, error }) => {
            let error = JobError::new(Reason::Throttle, error.as_deref().unwrap_or("rate limited"));
            Outcome::Retry { error, after: after(after_seconds)?, data: None }
        }
        OutcomeIn::Fail(FailIn { error }) => Outcome::Fail(JobError::new(Reason::Failure, error)),
        OutcomeIn::Release => return Ok(Event::Release),
        OutcomeIn::Cancel => return Ok(Event::Cancel),
    }))
}

fn refused(job_id: JobId, problem: &Problem) -> SettledOut {
    let Problem { detail, field, .. } = problem;
    let refused = match field {
        Some(field) if !detail.starts_with(field) => format!("{field}: {detail}"),
        _ => detail.clone(),
    };
    SettledOut { job_id, applied: None, lost_lease: false, refused: Some(refused) }
}
