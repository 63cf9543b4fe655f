//! Jobs, one by one and in lists.

use std::collections::BTreeMap;

use axum::Extension;
use axum::Json as Answer;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use longhaul_api::job_in::{JobIn, Misfit};
use longhaul_api::job_out::{EnqueuedOut, ExplanationOut, JobDetailOut, JobOut};
use longhaul_api::jobs::{JobsQuery, ManyJobs, Order, Submission, WaitQuery};
use longhaul_pipeline::webhooks;
use longhaul_queue::store::{Enqueued, Filter, InsertOutcome, ListRequest};
use longhaul_queue::{Job, JobId, NewJob, ProcessId, State, Timestamp};

use super::ApiResult;
use super::extract::{ApiQuery, Body, job_id};
use super::idempotency::{Key, Keyed};
use super::job_in::{new_jobs, wrong};
use super::page::{Listed, cursor_of, limit, seq_of};
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::redact;
use crate::tokens::Scope;
use crate::wait::{Wait, duration};

/// The states of a list with commas.
pub(super) fn states(text: Option<&str>) -> Result<Vec<State>, Problem> {
    let words = text.unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|error| Problem::invalid(error).at("state"))).collect()
}

/// A filter with what a search text asks beside it.
pub(super) fn searched(given: Filter, text: Option<&str>) -> Result<Filter, Problem> {
    let Some(text) = text else { return Ok(given) };
    let searched = Filter::parse(text).and_then(|searched| given.and(searched));
    searched.map_err(|error| Problem::from(error).at("search"))
}

/// Lists jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobsQuery), responses((status = 200, body = Listed<JobOut>)))]
pub(super) async fn list_jobs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    ApiQuery(query): ApiQuery<JobsQuery>,
) -> ApiResult<Answer<Listed<JobOut>>> {
    let given = Filter {
        states: states(query.state.as_deref())?,
        queue: query.queue,
        kind: query.kind,
        process_id: query.process.map(Into::into),
        tag: query.tag,
        hide_secrets: redact::hides_from(&caller),
        ..Filter::default()
    };
    let hide = given.hide_secrets;
    let mut filter = searched(given, query.search.as_deref())?;
    let process = filter.process_id.as_ref().map(ProcessId::as_str);
    filter.hidden_queues = access::hidden_queues(&ctx, &caller, process).await?;
    let request = ListRequest {
        filter,
        newest_first: query.order.unwrap_or_default() == Order::Newest,
        cursor: seq_of(query.cursor.as_deref())?,
        limit: limit(query.limit)?,
    };
    // One look within its bound: who asks for more comes back, and nobody holds the store for long.
    let page = ctx.queue().store().list(request).await?;
    let shown = |job: Job| if hide { redact::job(job) } else { job };
    let items = page.items.into_iter().map(|job| shown(job).into()).collect();
    Ok(Answer(Listed { items, next: page.next.map(cursor_of), partial: page.partial }))
}

/// Stores one job, or many with their dependencies, all or none. With the header `Idempotency-Key` the same call may be sent again:
/// it answers the same jobs with `how: duplicate`.
#[utoipa::path(
    post, path = "/api/v1/jobs", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call repeatable")),
    request_body = Submission,
    responses((status = 201, body = Vec<EnqueuedOut>), (status = 200, description = "All of them were there", body = Vec<EnqueuedOut>))
)]
pub(super) async fn enqueue_jobs(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Keyed(key): Keyed,
    body: Body,
) -> ApiResult<(StatusCode, Answer<Vec<EnqueuedOut>>)> {
    let jobs = submitted(&body)?;
    drop(body);
    let enqueued = enqueue(&ctx, &caller, key, jobs).await?;
    let new = enqueued.iter().any(|job| job.how != InsertOutcome::Duplicate);
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Answer(enqueued.into_iter().map(Into::into).collect())))
}

/// Stores the jobs of one call for a caller, all or none.
pub(crate) async fn enqueue(
    ctx: &Ctx,
    caller: &Caller,
    key: Option<Key>,
    mut jobs: Vec<JobIn>,
) -> Result<Vec<Enqueued>, Problem> {
    if let Some(trace) = caller.trace {
        for job in &mut jobs {
            job.options.trace.get_or_insert_with(|| trace.to_string());
        }
    }
    let now = ctx.queue().clock().now();
    // A job that needs no look at the store before: most of them, so the rest is kept apart.
    let waits = |job: &JobIn| !job.depends_on.is_empty() || job.after_process.is_some();
    let sees_all = caller.may(Scope::Admin);
    let is_plain = |job: &JobIn| job.webhook.is_none() && (sees_all || !waits(job));
    if key.is_none() && jobs.iter().all(is_plain) {
        let jobs = new_jobs(&ctx.names, jobs, now, |_| None)?;
        return ctx.queue().enqueue_many(jobs).await.map_err(Problem::unfit);
    }
    Box::pin(enqueue_after_a_look(ctx, caller, key, jobs)).await
}

/// One job, or many.
fn submitted(body: &Body) -> Result<Vec<JobIn>, Problem> {
    // Most calls are one job without a fault; what is not is read again for its faults.
    if let Some(job) = body.read_well() {
        return Ok(vec![job]);
    }
    Ok(if body.has("jobs") { body.read::<ManyJobs>()?.jobs } else { vec![body.read()?] })
}

/// Jobs whose ids follow from a key, whose ends are told, or that wait for what the caller may not see.
async fn enqueue_after_a_look(
    ctx: &Ctx,
    caller: &Caller,
    key: Option<Key>,
    jobs: Vec<JobIn>,
) -> Result<Vec<Enqueued>, Problem> {
    let now = ctx.queue().clock().now();
    if let (Some(_), Some(index)) = (&key, jobs.iter().position(|job| job.delay_ms.is_some())) {
        // Sent again later it would mean another time, and so another job.
        let text = "delay_ms counts from now, which a repeated call changes: send run_at";
        return Err(wrong(index, Misfit::new("delay_ms", text)));
    }
    let webhooks = webhooks(ctx, &jobs)?;
    let fresh =
        |index: &usize| webhooks.contains_key(index).then(|| JobId::generate(now, fastrand::u128(..)));
    let mut jobs = new_jobs(&ctx.names, jobs, now, |index| match &key {
        Some(key) => Some(key.job(index)),
        None => fresh(&index),
    })?;
    let own = jobs.len();
    access::check_awaited(ctx, caller, &jobs).await?;
    if let Some(key) = &key {
        key.check(ctx.queue(), &jobs).await?;
    }
    jobs.extend(deliveries(ctx, &jobs, &webhooks, now).await?);
    let mut enqueued = match (ctx.queue().enqueue_many(jobs).await, &key) {
        (Ok(enqueued), _) => enqueued,
        (Err(error), None) => return Err(Problem::unfit(error)),
        (Err(error), Some(key)) => return Err(key.explain(ctx.queue(), error).await),
    };
    enqueued.truncate(own);
    Ok(enqueued)
}

/// The webhooks that want to hear of these jobs, by the job's place.
fn webhooks(ctx: &Ctx, jobs: &[JobIn]) -> Result<BTreeMap<usize, String>, Problem> {
    let mut webhooks = BTreeMap::new();
    for (index, job) in jobs.iter().enumerate() {
        let Some(name) = &job.webhook else { continue };
        if ctx.endpoints.get(name).is_none() {
            let text = format_args!("there is no webhook {name}");
            return Err(wrong(index, Misfit::new("webhook", text)));
        }
        // Where the key is taken there is no job of this call whose end could be told.
        if job.options.unique.is_some() {
            return Err(wrong(index, Misfit::new("webhook", "webhook and unique exclude each other")));
        }
        webhooks.insert(index, name.clone());
    }
    Ok(webhooks)
}

/// The deliveries that wait for the ends of these jobs. A job that is stored already has its own.
async fn deliveries(
    ctx: &Ctx,
    jobs: &[NewJob],
    webhooks: &BTreeMap<usize, String>,
    now: Timestamp,
) -> Result<Vec<NewJob>, Problem> {
    let told = webhooks.iter().filter_map(|(index, name)| Some((jobs.get(*index)?.id?, name)));
    let told: Vec<(JobId, &String)> = told.collect();
    // Most calls name no webhook, and even a look for nothing takes a turn at the readers of the store.
    if told.is_empty() {
        return Ok(Vec::new());
    }
    let stored = ctx.queue().store().get(told.iter().map(|(id, _)| *id).collect()).await?;
    let is_new = |id: JobId| !stored.iter().any(|detail| detail.job.id == id);
    let told = told.into_iter().filter(|(id, _)| is_new(*id));
    Ok(told.filter_map(|(id, name)| webhooks::after_job(id, name, now)).collect())
}

/// Shows a job with its runs, log and progress; with `wait`, once it has ended.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path), WaitQuery), responses((status = 200, body = JobDetailOut)))]
pub(super) async fn show_job(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    ApiQuery(query): ApiQuery<WaitQuery>,
) -> ApiResult<Answer<JobDetailOut>> {
    let id = job_id(&id)?;
    let mut wait = Wait::new(&ctx, duration("wait", query.wait.as_deref())?);
    loop {
        let detail = ctx.queue().get(id).await?;
        access::check_job(&ctx, &caller, &detail).await?;
        if detail.job.state.is_terminal() || !wait.again().await {
            let hide = redact::hides_from(&caller);
            return Ok(Answer(if hide { redact::detail(detail) } else { detail }.into()));
        }
    }
}

/// Says why a job waits, and until when.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/explain", tag = "jobs", params(("id" = String, Path)), responses((status = 200, body = ExplanationOut)))]
pub(super) async fn explain_job(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> ApiResult<Answer<ExplanationOut>> {
    let id = job_id(&id)?;
    access::check_id(&ctx, &caller, id).await?;
    let explained = ctx.queue().explain(id).await?;
    let hide = redact::hides_from(&caller);
    Ok(Answer(if hide { redact::explanation(explained) } else { explained }.into()))
}
