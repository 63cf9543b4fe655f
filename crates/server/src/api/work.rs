//! Workers in any language: claim, extend, save, settle. Every write carries the lease with its fence, and a stale one changes
//! nothing and is told so. What the end of a run means for its job is judged by the queue ([`longhaul_queue::remote`]).

use std::collections::HashMap;
use std::time::Duration;

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use longhaul_api::work::{ClaimIn, ClaimedOut, Claims, ExtendIn, RenewalOut, Renewals, SaveIn, Saved};
use longhaul_queue::job::{LogLine, Progress};
use longhaul_queue::limits::{CLAIM_MAX, LOG_LINE_BYTES_MAX, LOG_LINES_MAX, check_name, shorten};
use longhaul_queue::remote::{self, Ended};
use longhaul_queue::state::Event;
use longhaul_queue::store::{ClaimRequest, ExtendRequest, Renewal, Save};
use longhaul_queue::{Claimed, Error, Job, JobId, Lease};
use tokio::sync::oneshot;

use super::ApiResult;
use super::extract::ApiJson;
use super::remote_workers::Hello;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::wait::Wait;

mod holder;
mod settle;

use holder::{holds, worker_of};
pub(super) use settle::{__path_settle_work, settle_work};

/// Bounds of a lease. A shorter one is lost to a busy moment, a longer one keeps a dead worker's job waiting.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3_600);
/// Jobs whose worker died that one claim takes: such a job may be what killed it.
const SUSPECTS_MAX: usize = 1;
/// Queues and kinds that one claim names.
const NAMES_MAX: usize = 1_000;

/// Claims jobs, each under a lease of its own; with `wait_seconds`, waits for the first.
#[utoipa::path(post, path = "/api/v1/work/claim", tag = "work", request_body = ClaimIn, responses((status = 200, body = Claims)))]
pub(super) async fn claim_work(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<ClaimIn>,
) -> ApiResult<Answer<Claims>> {
    let lease_for = lease_time(asked.lease_seconds)?;
    let limit = asked.limit;
    if !(1..=CLAIM_MAX).contains(&limit) {
        return Err(wrong(
            "limit",
            format!("limit is {limit}: 1 to {CLAIM_MAX} jobs can be claimed at once"),
        )
        .into());
    }
    check_names("queues", &asked.queues)?;
    if asked.queues.is_empty() {
        return Err(wrong("queues", "queues is empty: name one, such as default").into());
    }
    check_names("kinds", asked.kinds.as_deref().unwrap_or_default())?;
    // Without kinds, any kind of these queues is meant.
    asked
        .queues
        .iter()
        .try_for_each(|queue| ctx.names.check_queue(queue))
        .map_err(|error| wrong("queues", error))?;
    let mut kinds = asked.kinds.iter().flatten();
    kinds.try_for_each(|kind| ctx.names.check_kind(kind)).map_err(|error| wrong("kinds", error))?;
    if let Some(host) = &asked.host {
        check_name("host", host).map_err(|error| wrong("host", error))?;
    }
    let name = asked.worker.unwrap_or_else(|| format!("http-{:016x}", fastrand::u64(..)));
    let worker = worker_of(&caller, &name)?;
    let wait = asked.wait_seconds.map(|seconds| seconds_of("wait_seconds", seconds)).transpose()?;
    let hello = Hello {
        worker: worker.clone(),
        host: asked.host,
        pid: asked.pid,
        queues: asked.queues,
        kinds: asked.kinds,
        limit,
    };
    let jobs = wait_for_jobs(&ctx, &hello, lease_for, wait).await?;
    ctx.remote_workers.holds(&worker, i64::try_from(jobs.len()).unwrap_or(i64::MAX));
    let jobs = jobs.into_iter().map(ClaimedOut::from).collect();
    Ok(Answer(Claims { worker: worker.as_str().to_owned(), jobs }))
}

async fn wait_for_jobs(
    ctx: &Ctx,
    hello: &Hello,
    lease_for: Duration,
    wait: Option<Duration>,
) -> Result<Vec<Claimed>, Problem> {
    let mut wait = Wait::new(ctx, wait);
    loop {
        ctx.remote_workers.claims(ctx, hello).await;
        if *ctx.draining.borrow() {
            return Ok(Vec::new());
        }
        let request = ClaimRequest {
            queues: hello.queues.clone(),
            kinds: hello.kinds.clone(),
            worker: hello.worker.clone(),
            limit: hello.limit,
            suspects_max: SUSPECTS_MAX,
            lease_for,
            now: ctx.queue().clock().now(),
        };
        let jobs = claim(ctx, request).await?;
        if !jobs.is_empty() || !wait.again().await {
            return Ok(jobs);
        }
    }
}

/// Claims in a task of its own. This future is dropped when the client hangs up, and what was claimed by then would have nobody
/// until its lease ends, and count as a crash: it is given back instead.
async fn claim(ctx: &Ctx, request: ClaimRequest) -> Result<Vec<Claimed>, Problem> {
    let (give, take) = oneshot::channel();
    let ctx = ctx.clone();
    tokio::spawn(async move {
        let claimed = ctx.engine().store().claim(request).await;
        if let Err(Ok(unwanted)) = give.send(claimed) {
            give_back(&ctx, unwanted).await;
        }
    });
    Ok(take.await.map_err(Problem::internal)??)
}

async fn give_back(ctx: &Ctx, claimed: Vec<Claimed>) {
    let (limits, now) = (ctx.queue().limits(), ctx.queue().clock().now());
    let items = claimed.into_iter().filter_map(|Claimed { job, lease, .. }| {
        let ended = Ended { lease, event: Event::Release, follow_ups: Vec::new(), usage: None };
        remote::settle(&job, ended, &limits, now, fastrand::f64()).ok()
    });
    let items: Vec<_> = items.collect();
    if !items.is_empty()
        && let Err(error) = ctx.engine().store().settle(items, now).await
    {
        tracing::warn!(%error, "jobs could not be given back; their leases will end");
    }
}

/// Renews leases. One that is lost is no longer the worker's: it must stop working on that job.
#[utoipa::path(post, path = "/api/v1/work/extend", tag = "work", request_body = ExtendIn, responses((status = 200, body = Renewals)))]
pub(super) async fn extend_work(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<ExtendIn>,
) -> ApiResult<Answer<Renewals>> {
    let lease_for = lease_time(asked.lease_seconds)?;
    check_count("leases", asked.leases.len())?;
    let leases: Vec<Lease> = asked.leases.into_iter().map(Lease::from).collect();
    let jobs = jobs_of(&ctx, leases.iter()).await?;
    let is_held = |lease: &Lease| jobs.get(&lease.job_id).is_some_and(|job| holds(&caller, job, lease));
    let held: Vec<Lease> = leases.iter().filter(|lease| is_held(lease)).cloned().collect();
    let mut replies =
        if held.is_empty() { Vec::new() } else { renew(&ctx, &jobs, held, lease_for).await? }.into_iter();
    let reply = |lease: &Lease| {
        let renewed = if is_held(lease) { replies.next() } else { None };
        RenewalOut::new(lease, renewed.unwrap_or(Renewal::Lost))
    };
    Ok(Answer(Renewals { leases: leases.iter().map(reply).collect() }))
}

/// Renews leases that are their sender's.
async fn renew(
    ctx: &Ctx,
    jobs: &HashMap<JobId, Job>,
    leases: Vec<Lease>,
    lease_for: Duration,
) -> Result<Vec<Renewal>, Problem> {
    end_overlong(ctx, jobs, &leases).await?;
    let now = ctx.queue().clock().now();
    let worker = leases.first().map(|lease| lease.worker.clone());
    let replies = ctx.engine().store().extend(ExtendRequest { leases, lease_for, now }).await?;
    let held = replies.iter().filter(|reply| matches!(reply, Renewal::Extended { .. })).count();
    if let Some(worker) = worker {
        ctx.remote_workers.renews(ctx, &worker, held).await;
    }
    Ok(replies)
}

/// The jobs that leases are about, none of which is the program's own.
async fn jobs_of(ctx: &Ctx, leases: impl Iterator<Item = &Lease>) -> Result<HashMap<JobId, Job>, Problem> {
    let details = ctx.queue().store().get(leases.map(|lease| lease.job_id).collect()).await?;
    refuse_own(ctx, details.iter().map(|detail| &detail.job))?;
    Ok(details.into_iter().map(|detail| (detail.job.id, detail.job)).collect())
}

/// Ends runs that are past their limit, as the executor does with its own: a worker that hangs must not keep a job for ever.
async fn end_overlong(ctx: &Ctx, jobs: &HashMap<JobId, Job>, leases: &[Lease]) -> Result<(), Problem> {
    let (limits, now) = (ctx.queue().limits(), ctx.queue().clock().now());
    let items = leases.iter().filter_map(|lease| {
        let job = jobs.get(&lease.job_id)?;
        let event = remote::over_its_time(job, now)?;
        let ended = Ended { lease: lease.clone(), event, follow_ups: Vec::new(), usage: None };
        remote::settle(job, ended, &limits, now, fastrand::f64()).ok()
    });
    let items: Vec<_> = items.collect();
    if !items.is_empty() {
        ctx.engine().store().settle(items, now).await?;
    }
    Ok(())
}

/// Stores a running job's checkpoint, progress and log lines. 410 when the lease is lost.
#[utoipa::path(post, path = "/api/v1/work/save", tag = "work", request_body = SaveIn, responses((status = 200, body = Saved), (status = 410, description = "The lease is lost: stop working on the job")))]
pub(super) async fn save_work(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiJson(asked): ApiJson<SaveIn>,
) -> ApiResult<Answer<Saved>> {
    let now = ctx.queue().clock().now();
    if let Some(data) = &asked.data {
        ctx.queue().limits().check_value("data", data).map_err(Problem::unfit)?;
    }
    if asked.log.len() > LOG_LINES_MAX {
        return Err(
            wrong("log", format!("{} lines, at most {LOG_LINES_MAX} are kept", asked.log.len())).into()
        );
    }
    let line = |text: String| LogLine { at: now, text: shorten(&text, LOG_LINE_BYTES_MAX) };
    let save = Save {
        data: asked.data,
        progress: asked.progress.map(|progress| Progress {
            done: progress.done,
            total: progress.total,
            message: progress.message.map(|text| shorten(&text, LOG_LINE_BYTES_MAX)),
            at: now,
        }),
        log: asked.log.into_iter().map(line).collect(),
    };
    let lease = Lease::from(asked.lease);
    let jobs = jobs_of(&ctx, std::iter::once(&lease)).await?;
    if !jobs.get(&lease.job_id).is_some_and(|job| holds(&caller, job, &lease)) {
        return Err(Error::LostLease(lease.job_id).into());
    }
    ctx.engine().store().save(lease, save, now).await?;
    Ok(Answer(Saved { saved: true }))
}

/// Jobs of the program's own kinds cannot be claimed here, so a lease on one is made up.
fn refuse_own<'a>(ctx: &Ctx, mut jobs: impl Iterator<Item = &'a Job>) -> Result<(), Problem> {
    match jobs.find(|job| ctx.names.is_own_kind(&job.kind)) {
        None => Ok(()),
        Some(job) => Err(wrong(
            "lease",
            format!("job {} is of kind {:?}, which only Longhaul's own workers run", job.id, job.kind),
        )),
    }
}

fn lease_time(seconds: f64) -> Result<Duration, Problem> {
    let time = seconds_of("lease_seconds", seconds)?;
    if (LEASE_MIN..=LEASE_MAX).contains(&time) {
        return Ok(time);
    }
    let text = format!("lease_seconds is {seconds}: {} to {} s", LEASE_MIN.as_secs(), LEASE_MAX.as_secs());
    Err(wrong("lease_seconds", text))
}

fn seconds_of(field: &str, seconds: f64) -> Result<Duration, Problem> {
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong(field, format!("{field} is {seconds}: no time")))
}

fn check_names(field: &str, names: &[String]) -> Result<(), Problem> {
    if names.len() > NAMES_MAX {
        return Err(wrong(field, format!("{field} has {}, at most {NAMES_MAX} are allowed", names.len())));
    }
    names.iter().try_for_each(|name| check_name(field, name)).map_err(|error| wrong(field, error))
}

fn check_count(field: &str, count: usize) -> Result<(), Problem> {
    match count <= CLAIM_MAX {
        true => Ok(()),
        false => Err(wrong(field, format!("{count} {field}, at most {CLAIM_MAX} in one call"))),
    }
}

fn wrong(field: &str, text: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(field)
}
