//! Batches of the compatible APIs. A batch is a job of kind [`KIND`]: it reads its input file, submits a run, and parks until the run
//! has ended, its window has passed or somebody cancels it. So a batch survives whatever a job survives, and there is no other
//! record of it.
//!
//! **Steps**, in [`life`]: check the file line by line (`validating`; a wrong one ends the batch as `failed`, with the lines), submit
//! (`in_progress`), wait, and tell what became of it. What a batch answers is read from the run's own results at any time
//! ([`output`]), also while it goes on; no output file is ever written.

use std::time::Duration;

use axum::http::StatusCode;
use longhaul_llm::Usage;
use longhaul_llm::provider::BatchState;
use longhaul_prompts::run::CRASHES_MAX;
use longhaul_prompts::{RunId, manage};
use longhaul_queue::job::Retention;
use longhaul_queue::store::{Filter, ListRequest, Page, Signal};
use longhaul_queue::{Job, JobDetail, JobId, Json, NewJob, Queue, State, Timestamp, TraceContext};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::compat::name_of;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;
use crate::tokens::Scope;

pub(crate) mod access;
pub mod input;
mod life;
pub mod output;

pub use input::LineFault;
pub(crate) use life::read_ahead;
pub use life::register;

/// The kind of a batch.
pub const KIND: &str = "api.batch";
/// The queue of batches.
pub const QUEUE: &str = "batches";

/// A store or a file that cannot be read now can be later.
const ATTEMPTS_MAX: u32 = 20;
/// How long a batch is kept after its end; its results stay until they are deleted.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often and how long a cancel waits for a batch that is being checked or submitted.
const TELL_TRIES_MAX: u32 = 100;
const TELL_WAIT: Duration = Duration::from_millis(100);
/// A creation that is repeated within this time, among so many batches, is recognised.
const REPEATED_WITHIN: Duration = Duration::from_secs(15 * 60);
const REPEATED_LOOKED_AT_MAX: usize = 200;

/// Whose form a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Form {
    /// The label by which batches of a form are listed.
    pub fn tag(self) -> &'static str {
        match self {
            Self::OpenAi => "batch.openai",
            Self::Anthropic => "batch.anthropic",
        }
    }

    /// How the names of its batches begin.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::OpenAi => "batch_",
            Self::Anthropic => "msgbatch_",
        }
    }

    /// The label by which those of one token are listed.
    fn tag_of(self, owner: &str) -> String {
        format!("{}/{owner}", self.tag())
    }
}

/// What a batch is given. Written once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchPayload {
    /// Whose form.
    pub form: Form,
    /// What is asked of the model, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// The uploaded file with a request a line.
    pub input_file: String,
    /// What the client sent, by which a repeated creation is known: the file it names, or a digest of its requests.
    pub fingerprint: String,
    /// The window as the client wrote it.
    pub window: String,
    /// When the window has passed.
    pub expires_at: Timestamp,
    /// The client's own pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The name of the token that created it; none where none was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What a batch remembers between its steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// How many requests it has, once they are stored.
    pub total: Option<u64>,
    /// The model that most of them name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// When they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_progress_at: Option<Timestamp>,
    /// When it was asked to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelling_at: Option<Timestamp>,
    /// When its window passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired_at: Option<Timestamp>,
}

/// What became of a batch: the result of its job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// As what it ended.
    pub state: BatchState,
    /// Lines that could not be read; then nothing was run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<LineFault>,
    /// How its requests ended.
    pub counts: Counts,
    /// What the answers used.
    pub usage: Usage,
    /// Bytes of the lines with an answer, and of those without.
    pub bytes: (u64, u64),
    /// What it remembered.
    pub kept: Kept,
}

/// How the requests of a batch stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// All.
    pub total: u64,
    /// Answered.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Ended without having been run.
    pub not_run: u64,
}

/// What a parked batch is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    /// Its run has ended.
    Ended,
    /// Somebody wants it to end.
    Cancel,
}

/// Names of the runs of batches begin so; the id of the batch follows, without dashes.
pub(crate) const BATCH_RUN_PREFIX: &str = "run-b";

/// The run of a batch.
pub fn run_of(id: JobId) -> RunId {
    RunId::named(name_of(id, BATCH_RUN_PREFIX))
}

/// What a parked batch waits for.
fn key_of(id: JobId) -> String {
    format!("{KIND}/{id}")
}

/// A batch to be created.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// What it is.
    pub payload: BatchPayload,
    /// The client's own name for this creation: repeating it creates nothing.
    pub idempotency_key: Option<String>,
    /// The client says that it has sent this before, and does not know what became of it.
    pub is_repeated: bool,
    /// The span that the client asks from.
    pub trace: Option<TraceContext>,
}

/// Creates a batch, or answers the one that the same call created before. No SDK makes its creation repeatable by itself, and all
/// of them repeat it when an answer is lost.
pub async fn create(ctx: &Ctx, new: NewBatch) -> Result<Batch, Problem> {
    let _one_at_a_time = ctx.creating.lock().await;
    let NewBatch { payload, idempotency_key, is_repeated, trace } = new;
    let now = ctx.queue().clock().now();
    let id = match &idempotency_key {
        Some(key) => id_of_key(&payload, key),
        None => JobId::generate(now, fastrand::u128(..)),
    };
    if idempotency_key.is_some()
        && let Some(detail) = ctx.queue().store().get(vec![id]).await?.pop()
    {
        let batch = of(ctx, detail).await?;
        return match is_same(&batch.payload, &payload) {
            true => Ok(batch),
            false => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_key_reused",
                "this Idempotency-Key was used for another batch: use a new one",
            )),
        };
    }
    if is_repeated && let Some(batch) = find_recent(ctx, &payload, now).await? {
        return Ok(batch);
    }
    let mut job = NewJob::new(KIND, Json::of(&payload)?)
        .id(id)
        .queue(QUEUE)
        .max_crashes(CRASHES_MAX)
        .max_attempts(ATTEMPTS_MAX)
        .tag(payload.form.tag())
        .retention(Retention::Keep { succeeded: KEPT, failed: KEPT });
    job.options.trace = trace.map(|trace| trace.to_string());
    if let Some(owner) = &payload.owner {
        job = job.tag(payload.form.tag_of(owner));
    }
    ctx.queue().enqueue(job).await?;
    let detail = ctx.queue().get(id).await?;
    of(ctx, detail).await
}

/// Another client may choose the same key without knowing.
fn id_of_key(payload: &BatchPayload, key: &str) -> JobId {
    let owner = payload.owner.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{}\n{owner}\n{key}", payload.form.tag()));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    JobId::from_bytes(bytes)
}

/// Whether two creations ask for the same; the end of the window differs between them.
fn is_same(one: &BatchPayload, other: &BatchPayload) -> bool {
    let same = |payload: &BatchPayload| BatchPayload {
        expires_at: Timestamp::default(),
        input_file: String::new(),
        ..payload.clone()
    };
    same(one) == same(other)
}

/// The newest batch that the same call may have created.
async fn find_recent(ctx: &Ctx, payload: &BatchPayload, now: Timestamp) -> Result<Option<Batch>, Problem> {
    let tag = payload
        .owner
        .as_ref()
        .map_or_else(|| payload.form.tag().to_owned(), |owner| payload.form.tag_of(owner));
    let page = tagged(ctx, tag, Newer::Older(None), REPEATED_LOOKED_AT_MAX).await?;
    let recent = |batch: &Batch| now.since(batch.created_at) <= REPEATED_WITHIN;
    Ok(page.items.into_iter().take_while(recent).find(|batch| is_same(&batch.payload, payload)))
}

/// A batch as clients see it.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its job.
    pub id: JobId,
    /// What it was given.
    pub payload: BatchPayload,
    /// When it was created.
    pub created_at: Timestamp,
    /// Where it stands.
    pub state: BatchState,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How its requests stand.
    pub counts: Counts,
    /// What the answers used, once it has ended.
    pub usage: Option<Usage>,
    /// Bytes of the lines with an answer, and of those without, once it has ended.
    pub bytes: (u64, u64),
    /// Lines that could not be read, or why it failed as a whole.
    pub faults: Vec<LineFault>,
    /// What it remembers.
    pub kept: Kept,
}

/// The batch of a job, which must be one of this form and the caller's own.
pub async fn get(ctx: &Ctx, caller: &Caller, id: JobId, form: Form) -> Result<Batch, Problem> {
    let missing = || Problem::not_found(format!("there is no batch {id}"));
    let detail = ctx.queue().store().get(vec![id]).await?.pop().ok_or_else(missing)?;
    if detail.job.kind != KIND {
        return Err(missing());
    }
    let batch = of(ctx, detail).await?;
    let is_theirs = batch.payload.form == form && caller.owns(batch.payload.owner.as_deref());
    if is_theirs { Ok(batch) } else { Err(missing()) }
}

/// Which page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// Those that are older than this one, or the newest.
    Older(Option<JobId>),
    /// Those that are newer than this one.
    Newer(JobId),
}

/// The caller's batches of a form, newest first; everybody's for one who may change everything.
pub async fn list(
    ctx: &Ctx,
    caller: &Caller,
    form: Form,
    from: Newer,
    limit: usize,
) -> Result<Page<Batch>, Problem> {
    let tag = match &caller.name {
        Some(owner) if !caller.may(Scope::Admin) => form.tag_of(owner),
        _ => form.tag().to_owned(),
    };
    tagged(ctx, tag, from, limit).await
}

async fn tagged(ctx: &Ctx, tag: String, from: Newer, limit: usize) -> Result<Page<Batch>, Problem> {
    let (newest_first, from) = match from {
        Newer::Older(from) => (true, from),
        Newer::Newer(from) => (false, Some(from)),
    };
    let cursor = match from {
        Some(id) => Some(ctx.queue().get(id).await?.job.seq),
        None => None,
    };
    let filter = Filter { tag: Some(tag), ..Filter::default() };
    let page = ctx.queue().list(ListRequest { filter, newest_first, cursor, limit }).await?;
    let mut ids: Vec<JobId> = page.items.iter().map(|job| job.id).collect();
    if !newest_first {
        ids.reverse();
    }
    let mut items = Vec::with_capacity(page.items.len());
    for detail in ctx.queue().store().get(ids).await? {
        items.push(of(ctx, detail).await?);
    }
    Ok(Page { items, next: page.next, partial: page.partial })
}

/// Whether the answers of a batch are still there.
pub async fn has_results(ctx: &Ctx, batch: &Batch) -> Result<bool, Problem> {
    Ok(ctx.queue().store().process(run_of(batch.id).process()).await?.is_some())
}

/// Deletes the answers of a batch that has ended.
pub async fn delete_results(ctx: &Ctx, batch: &Batch) -> Result<(), Problem> {
    if !batch.state.is_terminal() {
        return Err(Problem::invalid("the batch has not ended: cancel it first"));
    }
    if has_results(ctx, batch).await? {
        manage::remove(&ctx.prompts, &run_of(batch.id)).await?;
    }
    Ok(())
}

/// Deletes a batch that has ended, its answers and its input for good.
pub async fn delete(ctx: &Ctx, batch: &Batch) -> Result<(), Problem> {
    delete_results(ctx, batch).await?;
    ctx.queue().consume(vec![batch.id]).await?;
    ctx.shelf.delete(&batch.payload.input_file).await.map_err(Problem::unavailable)?;
    Ok(())
}

/// Asks a batch to end. What has been answered by then is kept.
pub async fn cancel(ctx: &Ctx, caller: &Caller, id: JobId, form: Form) -> Result<Batch, Problem> {
    for _ in 0..TELL_TRIES_MAX {
        let batch = get(ctx, caller, id, form).await?;
        if batch.state.is_terminal() || batch.state == BatchState::Cancelling {
            return Ok(batch);
        }
        if tell(ctx.queue(), id, Told::Cancel).await? {
            continue;
        }
        if is_waiting(ctx.queue(), id).await? {
            // Nobody has looked at it yet: there is nothing to end but the job.
            ctx.queue().cancel(id).await?;
            continue;
        }
        tokio::time::sleep(TELL_WAIT).await;
    }
    Err(Problem::unavailable("the batch is being checked: try again in a moment"))
}

async fn is_waiting(queue: &Queue, id: JobId) -> Result<bool, Problem> {
    let job = queue.get(id).await?.job;
    Ok(job.started_at.is_none() && matches!(job.state, State::Ready | State::Scheduled))
}

/// Tells a batch something if it is parked, and says whether it was.
async fn tell(queue: &Queue, id: JobId, told: Told) -> longhaul_queue::Result<bool> {
    let signal = Signal::Resume(Json::of(&told)?);
    Ok(!queue.unpark_waiting(&key_of(id), vec![id], signal).await?.jobs.is_empty())
}

async fn of(ctx: &Ctx, detail: JobDetail) -> Result<Batch, Problem> {
    let payload: BatchPayload = detail.payload.to()?;
    let JobDetail { job, data, result, .. } = detail;
    let base = Batch {
        id: job.id,
        payload,
        created_at: job.created_at,
        state: BatchState::Queued,
        ended_at: job.finished_at,
        counts: Counts::default(),
        usage: None,
        bytes: (0, 0),
        faults: Vec::new(),
        kept: Kept::default(),
    };
    if let Some(result) = result {
        let Ended { state, faults, counts, usage, bytes, kept } = result.to()?;
        return Ok(Batch { state, faults, counts, usage: Some(usage), bytes, kept, ..base });
    }
    match job.state {
        State::Cancelled => Ok(Batch { state: BatchState::Cancelled, ..base }),
        State::Failed => {
            let message = job.error.as_ref().map_or_else(String::new, |error| error.text.clone());
            let fault = LineFault { code: "server_error".to_owned(), line: None, message, param: None };
            Ok(Batch { state: BatchState::Failed, faults: vec![fault], ..base })
        }
        State::Blocked
        | State::Scheduled
        | State::Ready
        | State::Running
        | State::Parked
        | State::Succeeded => under_way(ctx, base, &job, data).await,
    }
}

/// The batch as it will be once this is its end.
async fn with_end(ctx: &Ctx, id: JobId, ended: &Ended) -> Result<Batch, Problem> {
    let detail = ctx.queue().get(id).await?;
    of(ctx, JobDetail { result: Some(Json::of(ended)?), ..detail }).await
}

async fn under_way(ctx: &Ctx, base: Batch, job: &Job, data: Option<Json>) -> Result<Batch, Problem> {
    let kept: Kept = data.map(|data| data.to()).transpose()?.unwrap_or_default();
    let Some(total) = kept.total else { return Ok(base) };
    let counts = counts(ctx.queue(), job.id, total).await?;
    let all_ended = counts.completed + counts.failed + counts.not_run >= total;
    let state = match () {
        () if kept.cancelling_at.is_some() => BatchState::Cancelling,
        () if all_ended => BatchState::Finalizing,
        () => BatchState::Running,
    };
    Ok(Batch { state, counts, kept, ..base })
}

/// How the requests of a batch stand, from the maintained counters.
async fn counts(queue: &Queue, id: JobId, total: u64) -> Result<Counts, longhaul_queue::Error> {
    let info = queue.store().process(run_of(id).process()).await?;
    let count = |state: State| info.as_ref().map_or(0, |info| info.counts[state as usize]);
    Ok(Counts {
        total,
        completed: count(State::Succeeded),
        failed: count(State::Failed),
        not_run: count(State::Cancelled),
    })
}
