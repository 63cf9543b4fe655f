//! The life of one batch, from its claim to its last word. Every step can be repeated: the run's ids are derived from the batch's.

use std::time::Duration;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::provider::BatchState;
use longhaul_llm::types::Endpoint;
use longhaul_llm::{Class, Usage};
use longhaul_prompts::run::{CALLBACK, CRASHES_MAX, Source};
use longhaul_prompts::{Draft, NewRequest, RunSettings, Submission, manage};
use longhaul_queue::job::{OnFailure, Retention, Wake};
use longhaul_queue::state::Park;
use longhaul_queue::{JobContext, JobId, Json, KindOptions, NewJob, Outcome, Worker};
use serde_json::json;
use tokio::sync::mpsc;

use super::input::{LineFault, Reading, Summary};
use super::output;
use super::{ATTEMPTS_MAX, BatchPayload, Counts, Ended, Form, KIND, Kept, Told, counts, key_of, run_of};
use crate::compat::name_of;
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::webhooks;

/// The kind of the job that wakes a batch when its run has ended.
pub(super) const WAKE_KIND: &str = "api.batch.ended";
/// How long to wait for a batch that is not parked right now.
const WAKE_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Requests read ahead while others are stored.
const READ_AHEAD: usize = 1_000;

/// Registers what batches need of a worker.
pub fn register(ctx: &Ctx, worker: &mut Worker) {
    let this = ctx.clone();
    worker.handle_with(KIND, KindOptions::default(), move |context: JobContext, payload: BatchPayload| {
        let ctx = this.clone();
        async move { run(&ctx, &context, &payload).await }
    });
    let this = ctx.clone();
    worker.handle_with(WAKE_KIND, KindOptions::default(), move |_: JobContext, batch: JobId| {
        let ctx = this.clone();
        async move { wake(&ctx, batch).await }
    });
}

async fn run(ctx: &Ctx, context: &JobContext, payload: &BatchPayload) -> Result<Outcome, Problem> {
    let mut kept: Kept = context.data()?.unwrap_or_default();
    if kept.total.is_none() {
        return begin(ctx, context, payload).await;
    }
    let now = ctx.queue().clock().now();
    match context.wake() {
        Some(Wake::Signal(told)) if told.to::<Told>()? == Told::Cancel => {
            kept.cancelling_at.get_or_insert(now);
        }
        Some(Wake::TimedOut) if now >= payload.expires_at => {
            kept.expired_at.get_or_insert(now);
        }
        Some(Wake::Signal(_) | Wake::TimedOut) | None => {}
    }
    if kept.cancelling_at.is_some() || kept.expired_at.is_some() {
        // Before anything is cancelled: a crash in between must not forget why.
        context.save(&kept).await?;
        manage::cancel(&ctx.prompts, &run_of(context.id())).await?;
    }
    go_on(ctx, context, payload, kept).await
}

/// Checks the file and submits it, or says what is wrong with it.
async fn begin(ctx: &Ctx, context: &JobContext, payload: &BatchPayload) -> Result<Outcome, Problem> {
    let now = ctx.queue().clock().now();
    let Some(file) = ctx.shelf.get(&payload.input_file, now) else {
        let message = format!("the input file {} is gone", payload.input_file);
        let fault = LineFault {
            code: "invalid_file".to_owned(),
            line: None,
            message,
            param: Some("input_file_id".to_owned()),
        };
        return Ok(failed(ctx, context, payload.form, vec![fault])?);
    };
    let path = ctx.shelf.content(&file);
    let (this, wanted, checked) = (ctx.clone(), payload.clone(), path.clone());
    let checked = tokio::task::spawn_blocking(move || reading(&this, &wanted).check(&checked));
    let summary = match checked.await.map_err(Problem::internal)? {
        Ok(Ok(summary)) => summary,
        Ok(Err(faults)) => return Ok(failed(ctx, context, payload.form, faults)?),
        Err(error) => return Err(Problem::unavailable(error)),
    };
    let settings = settings(ctx, context.id(), payload, &summary, &file.filename).await?;
    let prompts = match &context.job().options.trace {
        Some(trace) => ctx.prompts.clone().with_trace(trace.as_str()),
        None => ctx.prompts.clone(),
    };
    let mut submission = Submission::begin_as(&prompts, run_of(context.id()), settings).await?;
    if !submission.is_complete().await? {
        let mut requests = read_ahead(ctx, payload.form, &payload.endpoint, path);
        let mut stored = 0;
        while let Some(request) = requests.recv().await {
            push(&mut submission, request.map_err(Problem::unavailable)?).await?;
            stored += 1;
            context.progress(stored, summary.requests);
        }
        submission.finish().await?;
    }
    context.log(format!("{} requests for {}", summary.requests, summary.chosen.profile));
    let kept = Kept {
        total: Some(summary.requests),
        model: Some(summary.chosen.model),
        in_progress_at: Some(ctx.queue().clock().now()),
        ..Kept::default()
    };
    let run = run_of(context.id());
    let waker = NewJob::new(WAKE_KIND, Json::of(&context.id())?)
        .id(run.job(CALLBACK))
        .queue(super::QUEUE)
        .max_crashes(CRASHES_MAX)
        .max_attempts(ATTEMPTS_MAX)
        .after_with(run.manifest(), OnFailure::Run)
        .retention(Retention::DeleteOnSuccess);
    ctx.queue().enqueue(waker).await?;
    go_on(ctx, context, payload, kept).await
}

/// Adds a request; one that the provider cannot take fails alone.
async fn push(submission: &mut Submission, request: NewRequest) -> Result<(), longhaul_prompts::Error> {
    let (custom_id, dialect) = (request.custom_id.clone(), request.dialect);
    match submission.push(request).await {
        Err(longhaul_prompts::Error::Llm(error)) if error.class == Class::BadRequest => {
            let refused = Some(error.message);
            submission.push(NewRequest { custom_id, dialect, refused, ..NewRequest::default() }).await
        }
        pushed => pushed,
    }
}

/// Requests of a file, read on a thread of its own.
pub(crate) fn read_ahead(
    ctx: &Ctx,
    form: Form,
    endpoint: &str,
    path: std::path::PathBuf,
) -> mpsc::Receiver<std::io::Result<NewRequest>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let (ctx, endpoint) = (ctx.clone(), endpoint.to_owned());
    tokio::task::spawn_blocking(move || {
        let reading = Reading { form, endpoint: &endpoint, catalog: &ctx.catalog };
        let requests = match reading.requests(&path) {
            Ok(requests) => requests,
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        for request in requests {
            // Nobody listens any more: the worker gave the job back.
            if sender.blocking_send(request).is_err() {
                return;
            }
        }
    });
    receiver
}

fn reading<'a>(ctx: &'a Ctx, payload: &'a BatchPayload) -> Reading<'a> {
    Reading { form: payload.form, endpoint: &payload.endpoint, catalog: &ctx.catalog }
}

async fn settings(
    ctx: &Ctx,
    id: JobId,
    payload: &BatchPayload,
    summary: &Summary,
    filename: &str,
) -> Result<RunSettings, Problem> {
    let route = ctx.llm().route(&summary.chosen.profile, &summary.chosen.model).await?;
    let draft = Draft {
        profile: summary.chosen.profile.clone(),
        model: summary.chosen.model.clone(),
        // Messages and responses are asked as chats.
        endpoint: Endpoint::of_url(&payload.endpoint).unwrap_or_default(),
        strategy: ctx.options.batch_strategy,
        by: Some(payload.expires_at),
        // Whoever sends the same file again wants other answers.
        cache: CacheMode::Off,
        source: Source {
            name: filename.to_owned(),
            sha256: id.to_string(),
            requests: summary.requests,
            content: String::new(),
            form: payload.form.tag().to_owned(),
        },
        ..Draft::default()
    };
    Ok(draft.settings(&route, ctx.queue().clock().now())?)
}

/// Waits for the run, or tells what became of it.
async fn go_on(
    ctx: &Ctx,
    context: &JobContext,
    payload: &BatchPayload,
    kept: Kept,
) -> Result<Outcome, Problem> {
    let total = kept.total.unwrap_or_default();
    let counts = counts(ctx.queue(), context.id(), total).await?;
    if counts.completed + counts.failed + counts.not_run >= total {
        return ended(ctx, context, counts, kept).await;
    }
    let until = if kept.expired_at.is_some() { None } else { Some(payload.expires_at) };
    let park = Park { key: key_of(context.id()), until, on_timeout: Default::default() };
    Ok(Outcome::Park { park, data: Some(Json::of(&kept)?) })
}

async fn ended(ctx: &Ctx, context: &JobContext, counts: Counts, kept: Kept) -> Result<Outcome, Problem> {
    let id = context.id();
    let state = match () {
        () if kept.expired_at.is_some() && counts.not_run > 0 => BatchState::Expired,
        () if kept.cancelling_at.is_some() => BatchState::Cancelled,
        () => BatchState::Completed,
    };
    let mut ended = Ended { state, faults: Vec::new(), counts, usage: Usage::default(), bytes: (0, 0), kept };
    let batch = super::with_end(ctx, id, &ended).await?;
    let sums = output::sums(ctx, &batch).await?;
    (ended.usage, ended.bytes) = (sums.usage, sums.bytes);
    tell(ctx, context, batch.payload.form, &ended);
    Ok(Outcome::Done(Json::of(&ended)?))
}

/// Tells whoever wants to know, in one transaction with the end.
fn tell(ctx: &Ctx, context: &JobContext, form: Form, ended: &Ended) {
    let word = match ended.state {
        BatchState::Expired => "expired",
        BatchState::Cancelled => "cancelled",
        BatchState::Failed => "failed",
        _ => "completed",
    };
    let data = json!({
        "id": name_of(context.id(), form.prefix()),
        "job_id": context.id(),
        "run": run_of(context.id()).as_str(),
        "counts": ended.counts,
    });
    let now = ctx.queue().clock().now();
    webhooks::tell(context, webhooks::deliveries(&ctx.endpoints, &format!("batch.{word}"), now, &data));
}

fn failed(
    ctx: &Ctx,
    context: &JobContext,
    form: Form,
    faults: Vec<LineFault>,
) -> Result<Outcome, longhaul_queue::Error> {
    let ended = Ended {
        state: BatchState::Failed,
        faults,
        counts: Counts::default(),
        usage: Usage::default(),
        bytes: (0, 0),
        kept: Kept::default(),
    };
    tell(ctx, context, form, &ended);
    Ok(Outcome::Done(Json::of(&ended)?))
}

/// Wakes a batch whose run has ended; one that is busy is looked at again.
async fn wake(ctx: &Ctx, batch: JobId) -> Result<Outcome, Problem> {
    let Some(detail) = ctx.queue().store().get(vec![batch]).await?.pop() else {
        return Ok(Outcome::Done(Json::null()));
    };
    if detail.job.state.is_terminal() || super::tell(ctx.queue(), batch, Told::Ended).await? {
        return Ok(Outcome::Done(Json::null()));
    }
    Ok(Outcome::Continue { after: Some(WAKE_AGAIN_AFTER), data: None })
}
