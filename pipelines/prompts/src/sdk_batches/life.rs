//! The life of one batch, from its claim to its last word. Every step can be repeated: the run's ids are derived from the batch's.

use std::time::Duration;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::provider::BatchState;
use longhaul_llm::types::Endpoint;
use longhaul_llm::{Class, Usage};
use longhaul_pipeline::job_name::name_of;
use longhaul_pipeline::webhooks;
use longhaul_queue::job::{OnFailure, Retention, Wake};
use longhaul_queue::state::Park;
use longhaul_queue::{Failure, JobContext, JobDetail, JobId, Json, KindOptions, NewJob, Outcome, Worker};
use serde_json::json;

use super::input::{LineFault, Reading, Summary, read_ahead};
use super::{
    ATTEMPTS_MAX, BatchPayload, Counts, Ended, Form, KIND, Kept, QUEUE, SdkBatches, Told, key_of, run_of,
};
use crate::run::{CALLBACK, CRASHES_MAX, Source};
use crate::{Draft, Error, NewRequest, RunSettings, Submission, manage};

/// The kind of the job that wakes a batch when its run has ended.
pub const WAKE_KIND: &str = "api.batch.ended";
/// How long to wait for a batch that is not parked right now.
const WAKE_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl SdkBatches {
    /// Registers what batches need of a worker.
    pub fn register(&self, worker: &mut Worker) {
        let this = self.clone();
        worker.handle_with(
            KIND,
            KindOptions::default(),
            move |context: JobContext, payload: BatchPayload| {
                let batches = this.clone();
                async move { run(&batches, &context, &payload).await }
            },
        );
        let this = self.clone();
        worker.handle_with(WAKE_KIND, KindOptions::default(), move |_: JobContext, batch: JobId| {
            let batches = this.clone();
            async move { wake(&batches, batch).await }
        });
    }
}

async fn run(batches: &SdkBatches, context: &JobContext, payload: &BatchPayload) -> Result<Outcome, Failure> {
    let mut kept: Kept = context.data()?.unwrap_or_default();
    if kept.total.is_none() {
        return begin(batches, context, payload).await;
    }
    let now = batches.now();
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
        manage::cancel(&batches.parts().prompts, &run_of(context.id())).await?;
    }
    go_on(batches, context, payload, kept).await
}

/// Checks the file and submits it, or says what is wrong with it.
async fn begin(
    batches: &SdkBatches,
    context: &JobContext,
    payload: &BatchPayload,
) -> Result<Outcome, Failure> {
    let now = batches.now();
    let Some(file) = batches.parts().uploads.get(&payload.input_file, now) else {
        let message = format!("the input file {} is gone", payload.input_file);
        let fault = LineFault {
            code: "invalid_file".to_owned(),
            line: None,
            message,
            param: Some("input_file_id".to_owned()),
        };
        return Ok(failed(batches, context, payload.form, vec![fault])?);
    };
    let path = batches.parts().uploads.content(&file);
    let (this, wanted, checked) = (batches.clone(), payload.clone(), path.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let BatchPayload { form, endpoint, .. } = &wanted;
        Reading { form: *form, endpoint, catalog: &this.parts().catalog }.check(&checked)
    });
    let summary = match checked.await?? {
        Ok(summary) => summary,
        Err(faults) => return Ok(failed(batches, context, payload.form, faults)?),
    };
    let settings = settings(batches, context.id(), payload, &summary, &file.filename).await?;
    let prompts = match &context.job().options.trace {
        Some(trace) => batches.parts().prompts.clone().with_trace(trace.as_str()),
        None => batches.parts().prompts.clone(),
    };
    let mut submission = Submission::begin_as(&prompts, run_of(context.id()), settings).await?;
    if !submission.is_complete().await? {
        let mut requests = read_ahead(&batches.parts().catalog, payload.form, &payload.endpoint, path);
        let mut stored = 0;
        while let Some(request) = requests.recv().await {
            push(&mut submission, request?).await?;
            stored += 1;
            context.progress(stored, summary.requests);
        }
        submission.finish().await?;
    }
    context.log(format!("{} requests for {}", summary.requests, summary.chosen.profile));
    let kept = Kept {
        total: Some(summary.requests),
        model: Some(summary.chosen.model),
        in_progress_at: Some(batches.now()),
        ..Kept::default()
    };
    let run = run_of(context.id());
    let waker = NewJob::new(WAKE_KIND, Json::of(&context.id())?)
        .id(run.job(CALLBACK))
        .queue(QUEUE)
        .max_crashes(CRASHES_MAX)
        .max_attempts(ATTEMPTS_MAX)
        .after_with(run.manifest(), OnFailure::Run)
        .retention(Retention::DeleteOnSuccess);
    batches.queue().enqueue(waker).await?;
    go_on(batches, context, payload, kept).await
}

/// Adds a request; one that the provider cannot take fails alone.
async fn push(submission: &mut Submission, request: NewRequest) -> Result<(), Error> {
    let (custom_id, dialect) = (request.custom_id.clone(), request.dialect);
    match submission.push(request).await {
        Err(Error::Llm(error)) if error.class == Class::BadRequest => {
            let refused = Some(error.message);
            submission.push(NewRequest { custom_id, dialect, refused, ..NewRequest::default() }).await
        }
        pushed => pushed,
    }
}

async fn settings(
    batches: &SdkBatches,
    id: JobId,
    payload: &BatchPayload,
    summary: &Summary,
    filename: &str,
) -> Result<RunSettings, Failure> {
    let route = batches.llm().route(&summary.chosen.profile, &summary.chosen.model).await?;
    let draft = Draft {
        profile: summary.chosen.profile.clone(),
        model: summary.chosen.model.clone(),
        // Messages and responses are asked as chats.
        endpoint: Endpoint::of_url(&payload.endpoint).unwrap_or_default(),
        strategy: batches.strategy(),
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
    draft.settings(&route, batches.now()).map_err(|unfit| unfit.error.into())
}

/// Waits for the run, or tells what became of it.
async fn go_on(
    batches: &SdkBatches,
    context: &JobContext,
    payload: &BatchPayload,
    kept: Kept,
) -> Result<Outcome, Failure> {
    let total = kept.total.unwrap_or_default();
    let counts = batches.counts(context.id(), total).await?;
    if counts.completed + counts.failed + counts.not_run >= total {
        return ended(batches, context, counts, kept).await;
    }
    let until = if kept.expired_at.is_some() { None } else { Some(payload.expires_at) };
    let park = Park { key: key_of(context.id()), until, on_timeout: Default::default() };
    Ok(Outcome::Park { park, data: Some(Json::of(&kept)?) })
}

async fn ended(
    batches: &SdkBatches,
    context: &JobContext,
    counts: Counts,
    kept: Kept,
) -> Result<Outcome, Failure> {
    let id = context.id();
    let state = match () {
        () if kept.expired_at.is_some() && counts.not_run > 0 => BatchState::Expired,
        () if kept.cancelling_at.is_some() => BatchState::Cancelled,
        () => BatchState::Completed,
    };
    let mut ended = Ended { state, faults: Vec::new(), counts, usage: Usage::default(), bytes: (0, 0), kept };
    // The batch as it will be once this is its end.
    let detail = batches.queue().get(id).await?;
    let batch = batches.read(JobDetail { result: Some(Json::of(&ended)?), ..detail }).await?;
    let sums = batches.sums(&batch).await?;
    (ended.usage, ended.bytes) = (sums.usage, sums.bytes);
    tell(batches, context, batch.payload.form, &ended);
    Ok(Outcome::Done(Json::of(&ended)?))
}

/// Tells whoever wants to know, in one transaction with the end.
fn tell(batches: &SdkBatches, context: &JobContext, form: Form, ended: &Ended) {
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
    let now = batches.now();
    webhooks::tell(
        context,
        webhooks::deliveries(&batches.parts().endpoints, &format!("batch.{word}"), now, &data),
    );
}

fn failed(
    batches: &SdkBatches,
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
    tell(batches, context, form, &ended);
    Ok(Outcome::Done(Json::of(&ended)?))
}

/// Wakes a batch whose run has ended; one that is busy is looked at again.
async fn wake(batches: &SdkBatches, batch: JobId) -> Result<Outcome, Failure> {
    let Some(detail) = batches.queue().store().get(vec![batch]).await?.pop() else {
        return Ok(Outcome::Done(Json::null()));
    };
    if detail.job.state.is_terminal() || batches.tell(batch, Told::Ended).await? {
        return Ok(Outcome::Done(Json::null()));
    }
    Ok(Outcome::Continue { after: Some(WAKE_AGAIN_AFTER), data: None })
}
