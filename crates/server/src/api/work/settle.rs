//! The ends of runs, as workers tell them.

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_queue::remote::{self, Ended};
use longhaul_queue::state::{Event, JobError, OnTimeout, Outcome, Park, Reason};
use longhaul_queue::store::{SettleItem, Settled};
use longhaul_queue::{JobId, Json, Lease, State, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::forms::LeaseForm;
use super::{check_count, holds, jobs_of, seconds_of, wrong};
use crate::api::ApiResult;
use crate::api::extract::ApiJson;
use crate::api::job_in::{JobIn, new_jobs};
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Ends of runs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SettleIn {
    /// These, at most 1000, in one transaction.
    items: Vec<ItemIn>,
}

/// The end of a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ItemIn {
    /// The right to end it.
    lease: LeaseForm,
    /// How it ended.
    outcome: OutcomeIn,
    /// Jobs that are stored with it, or not at all. Dropped when the run is repeated, since its repetition enqueues them again.
    #[serde(default)]
    follow_ups: Vec<JobIn>,
    /// What the run used, for the history: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    usage: Option<Json>,
}

/// How a run ended.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Outcome)]
enum OutcomeIn {
    /// Finished, with a result.
    Done(Value),
    /// Not finished, nothing wrong: run again.
    Continue(ContinueIn),
    /// Wait for a signal from outside.
    Park(ParkIn),
    /// Failed this time; the job's policy says whether and when it is tried again.
    Retry(RetryIn),
    /// Held off by a rate limit: costs no attempt.
    Throttle(ThrottleIn),
    /// Failed for good.
    Fail(FailIn),
    /// Given back untouched.
    Release,
    /// Cancelled.
    Cancel,
}

/// Any JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = serde_json::Value)]
struct Value(Json);

/// Run again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ContinueIn {
    /// Default the job's own `delay_ms`.
    after_seconds: Option<f64>,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

/// Wait for a signal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ParkIn {
    /// What to wait for. A new one for each wait.
    key: String,
    /// Latest end of the wait; default never.
    #[schema(value_type = Option<i64>)]
    until: Option<Timestamp>,
    /// What happens then: `resume` (default), `retry` or `fail`.
    #[serde(default)]
    #[schema(value_type = String, default = "resume")]
    on_timeout: OnTimeout,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

/// Failed this time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryOutcome)]
struct RetryIn {
    /// Why.
    error: String,
    /// Default by the job's retry policy.
    after_seconds: Option<f64>,
    /// New checkpoint; left out keeps the old one.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Json>,
}

/// Held off by a rate limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ThrottleIn {
    /// What the other side asked for; default by the job's retry policy.
    after_seconds: Option<f64>,
    /// What it said.
    error: Option<String>,
}

/// Failed for good.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct FailIn {
    /// Why.
    error: String,
}

impl ItemIn {
    async fn read(self, ctx: &Ctx, caller: &Caller, now: Timestamp) -> Result<Ended, Problem> {
        let Self { lease, outcome, follow_ups, usage } = self;
        if let Some(usage) = &usage {
            ctx.queue().limits().check_value("usage", usage).map_err(|error| wrong("usage", error))?;
        }
        if follow_ups.iter().any(|job| job.webhook.is_some()) {
            return Err(wrong("follow_ups", "webhook is for jobs that are handed in, not for follow-ups"));
        }
        let follow_ups = new_jobs(&ctx.names, follow_ups, now, |_| None)?;
        access::check_awaited(ctx, caller, &follow_ups).await?;
        Ok(Ended { lease: lease.into(), event: outcome.event()?, follow_ups, usage })
    }
}

impl OutcomeIn {
    fn event(self) -> Result<Event, Problem> {
        let after =
            |seconds: Option<f64>| seconds.map(|seconds| seconds_of("after_seconds", seconds)).transpose();
        Ok(Event::Outcome(match self {
            Self::Done(Value(result)) => Outcome::Done(result),
            Self::Continue(ContinueIn { after_seconds, data }) => {
                Outcome::Continue { after: after(after_seconds)?, data }
            }
            Self::Park(ParkIn { key, until, on_timeout, data }) => {
                Outcome::Park { park: Park { key, until, on_timeout }, data }
            }
            Self::Retry(RetryIn { error, after_seconds, data }) => {
                let error = JobError::new(Reason::Failure, error);
                Outcome::Retry { error, after: after(after_seconds)?, data }
            }
            Self::Throttle(ThrottleIn { after_seconds, error }) => {
                let error = JobError::new(Reason::Throttle, error.as_deref().unwrap_or("rate limited"));
                Outcome::Retry { error, after: after(after_seconds)?, data: None }
            }
            Self::Fail(FailIn { error }) => Outcome::Fail(JobError::new(Reason::Failure, error)),
            Self::Release => return Ok(Event::Release),
            Self::Cancel => return Ok(Event::Cancel),
        }))
    }
}

/// What became of settlements, in the order sent.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::api) struct Settlements {
    /// One for each item.
    items: Vec<SettledOut>,
}

/// What became of a settlement.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Settled)]
struct SettledOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    job_id: JobId,
    /// The state that it is in now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    applied: Option<State>,
    /// The lease was stale; nothing changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost_lease: bool,
    /// The item cannot be read or its follow-up jobs not be stored; nothing changed and the lease still holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

impl SettledOut {
    fn new(job_id: JobId, settled: Settled) -> Self {
        let base = Self { job_id, applied: None, lost_lease: false, refused: None };
        match settled {
            Settled::Applied(state) => Self { applied: Some(state), ..base },
            Settled::LostLease => Self { lost_lease: true, ..base },
            Settled::Refused(error) => Self { refused: Some(error.to_string()), ..base },
        }
    }

    fn refused(job_id: JobId, problem: &Problem) -> Self {
        let Problem { detail, field, .. } = problem;
        let refused = match field {
            Some(field) if !detail.starts_with(field) => format!("{field}: {detail}"),
            _ => detail.clone(),
        };
        Self { job_id, applied: None, lost_lease: false, refused: Some(refused) }
    }
}

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
        match item.read(&ctx, &caller, now).await {
            Ok(end) => {
                settled.push(SettledOut::new(lease.job_id, Settled::LostLease));
                ends.push((index, end));
            }
            // One that cannot be read does not keep the others from ending.
            Err(problem) if problem.status.is_client_error() => {
                settled.push(SettledOut::refused(lease.job_id, &problem));
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
