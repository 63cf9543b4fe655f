//! Batches of the compatible APIs. A batch is a job of kind [`KIND`]: it reads its input file, submits a run, and parks until the run
//! has ended, its window has passed or somebody cancels it. So a batch survives whatever a job survives, and there is no other
//! record of it.
//!
//! **Steps**, in [`life`]: check the file line by line (`validating`; a wrong one ends the batch as `failed`, with the lines), submit
//! (`in_progress`), wait, and tell what became of it. What a batch answers is read from the run's own results at any time
//! ([`output`]), also while it goes on; no output file is ever written.

use std::time::Duration;

use longhaul_llm::Usage;
use longhaul_llm::provider::BatchState;
use longhaul_pipelines::bulk::RunId;
use longhaul_queue::job::Retention;
use longhaul_queue::store::{Filter, ListRequest, Page, Signal};
use longhaul_queue::{Job, JobDetail, JobId, Json, NewJob, Queue, State, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ctx::Ctx;
use crate::problem::Problem;

pub mod input;
mod life;
pub mod output;

pub use input::LineFault;
pub use life::register;

/// The kind of a batch.
pub const KIND: &str = "api.batch";
/// The queue of batches.
pub const QUEUE: &str = "batches";

/// How long a batch is kept after its end; its results stay until they are deleted.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How often and how long a cancel waits for a batch that is being checked or submitted.
const TELL_TRIES_MAX: u32 = 100;
const TELL_WAIT: Duration = Duration::from_millis(100);

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
    /// The window as the client wrote it.
    pub window: String,
    /// When the window has passed.
    pub expires_at: Timestamp,
    /// The client's own pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
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

/// The run of a batch.
pub fn run_of(id: JobId) -> RunId {
    RunId::named(format!("run-b{}", id.to_string().replace('-', "")))
}

/// What a parked batch waits for.
fn key_of(id: JobId) -> String {
    format!("{KIND}/{id}")
}

/// The job of a new batch.
pub fn new_job(id: JobId, payload: &BatchPayload) -> Result<NewJob, Problem> {
    let job = NewJob::new(KIND, Json::of(payload)?)
        .id(id)
        .queue(QUEUE)
        .tag(payload.form.tag())
        .retention(Retention::Keep { succeeded: KEPT, failed: KEPT });
    Ok(job)
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
    /// Lines that could not be read, or why it failed as a whole.
    pub faults: Vec<LineFault>,
    /// What it remembers.
    pub kept: Kept,
}

/// The batch of a job, which must be one of this form.
pub async fn get(ctx: &Ctx, id: JobId, form: Form) -> Result<Batch, Problem> {
    let missing = || Problem::not_found(format!("there is no batch {id}"));
    let detail = ctx.queue().store().get(vec![id]).await?.pop().ok_or_else(missing)?;
    if detail.job.kind != KIND {
        return Err(missing());
    }
    let batch = of(ctx, detail).await?;
    if batch.payload.form == form { Ok(batch) } else { Err(missing()) }
}

/// Batches of a form, newest first; `after` is the place of the last one of the page before.
pub async fn list(ctx: &Ctx, form: Form, after: Option<i64>, limit: usize) -> Result<Page<Batch>, Problem> {
    let filter = Filter { tag: Some(form.tag().to_owned()), ..Filter::default() };
    let page = ctx.queue().list(ListRequest { filter, newest_first: true, cursor: after, limit }).await?;
    let ids = page.items.iter().map(|job| job.id).collect();
    let mut items = Vec::with_capacity(page.items.len());
    for detail in ctx.queue().store().get(ids).await? {
        items.push(of(ctx, detail).await?);
    }
    Ok(Page { items, next: page.next, partial: page.partial })
}

/// Asks a batch to end. What has been answered by then is kept.
pub async fn cancel(ctx: &Ctx, id: JobId, form: Form) -> Result<Batch, Problem> {
    for _ in 0..TELL_TRIES_MAX {
        let batch = get(ctx, id, form).await?;
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
        faults: Vec::new(),
        kept: Kept::default(),
    };
    if let Some(result) = result {
        let Ended { state, faults, counts, usage, kept } = result.to()?;
        return Ok(Batch { state, faults, counts, usage: Some(usage), kept, ..base });
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
