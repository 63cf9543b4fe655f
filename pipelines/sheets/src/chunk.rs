//! One chunk, from its claim to its last cell: the job that runs a pipeline.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_pipeline::RunId;
use longhaul_pipeline::run::hold::{self, HeldRun, Hold};
use longhaul_queue::retry::{Backoff, RetryPolicy};
use longhaul_queue::state::{JobError, OnTimeout, Park, Reason};
use longhaul_queue::{JobContext, Json, KindOptions, NewJob, Outcome, Timestamp};
use serde::{Deserialize, Serialize};

use super::live::LiveSheet;
use super::pipeline::{self, Stop};
use super::producer::Wanted;
use super::sheet::CRASHES_MAX;
use super::tables::Chunk;
use super::writer::Ended;
use super::{Error, Result, Sheets};

/// The kind.
pub const KIND: &str = "score.chunk";

/// Hard time for one run.
const RUN_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// How long units may be sent and not be answered before they are taken for the cause.
const UNANSWERED_FOR_MAX: Duration = Duration::from_secs(24 * 3600);
/// Waits before a chunk runs again: 2 s, 4 s, 8 s, up to a minute.
const RETRY_BASE: Duration = Duration::from_secs(2);
const RETRY_CAP: Duration = Duration::from_secs(60);

/// What a chunk's job is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkPayload {
    /// The sheet.
    pub sheet: String,
    /// Which of its chunks, from 0.
    pub chunk: u64,
    /// First row, as people count.
    pub row_start: u64,
    /// Last row.
    pub row_end: u64,
}

/// Limits of the kind.
pub(super) fn options() -> KindOptions {
    KindOptions {
        retry: RetryPolicy {
            backoff: Backoff::Exponential { base: RETRY_BASE },
            cap: RETRY_CAP,
            jitter: false,
        },
        run_limit: RUN_LIMIT,
        ..KindOptions::default()
    }
}

/// The job of a chunk. `retries` is how often it is run again: 3 means four runs.
pub(super) fn new_job(id: &RunId, chunk: &Chunk, retries: u32) -> Result<NewJob> {
    let payload = ChunkPayload {
        sheet: id.as_str().to_owned(),
        chunk: chunk.chunk,
        row_start: chunk.first_row + 1,
        row_end: chunk.last_row + 1,
    };
    let mut job = NewJob::new(KIND, Json::of(&payload)?)
        .id(id.job(chunk.chunk))
        .queue(id.as_str())
        .process(id.process())
        .max_attempts(retries + 1)
        .max_crashes(CRASHES_MAX);
    job.options.title = Some(format!("chunk-{:04}", chunk.chunk + 1));
    Ok(job)
}

/// Runs a chunk.
pub(super) async fn run(sheets: Sheets, context: JobContext, payload: ChunkPayload) -> Result<Outcome> {
    let sheet = sheets.live(&payload.sheet).await?;
    let chunk = sheets.chunk(&sheet.stored, payload.chunk).await?;
    let share_max = sheet.stored.settings.work.failed_share_max;
    let too_many = |chunk: &Chunk| chunk.failed_more_than(share_max);
    // One that failed for its units was put back for them.
    let failed = context.attempt() > 0 || too_many(&chunk);
    let (ended, stop) =
        pipeline::run(&sheets, &context, Arc::clone(&sheet), Wanted::Chunk { chunk, failed }).await?;
    if let Some(stop) = stop {
        return stopped((&sheets, &context), &sheet, unanswered_since(&context, ended), stop);
    }
    let chunk = sheets.chunk(&sheet.stored, payload.chunk).await?;
    if too_many(&chunk) {
        return Ok(retry(&format!("{} of {} units failed{}", chunk.failed, chunk.units, of_them(ended))));
    }
    Ok(Outcome::Done(Json::of(&chunk)?))
}

fn of_them(ended: Ended) -> String {
    match ended.failed {
        0 => String::new(),
        failed => format!(", {failed} in this run"),
    }
}

/// The answer of a job whose work was stopped.
pub(super) fn stopped(
    held: (&Sheets, &JobContext),
    sheet: &LiveSheet,
    unanswered_since: Option<Timestamp>,
    stop: Stop,
) -> Result<Outcome> {
    let (sheets, id) = (held.0, &RunId::named(&sheet.stored.id));
    match stop {
        Stop::Told => Ok(Outcome::Continue { after: None, data: None }),
        Stop::Budget(why) => hold(held, id, Hold::Budget, &why),
        Stop::Auth(why) => hold(held, id, Hold::Auth, &why),
        Stop::Quota(why) => hold(held, id, Hold::Quota, &why),
        Stop::Outage { why, probe_in } => {
            sheet.in_outage.store(true, Ordering::Release);
            let now = sheets.queue().clock().now();
            let key = Hold::Outage.key(id);
            let park = Park { key, until: Some(now + probe_in), on_timeout: OnTimeout::Resume };
            let waits = Waits { unanswered_since: Some(unanswered_since.unwrap_or(now)) };
            Ok(hold::outcome_at(park, &why, &waits)?)
        }
        Stop::Refused(why) => hold(held, id, Hold::Sink, &why),
        Stop::Sink(why) => Ok(retry(&format!("the sheet could not be written: {why}"))),
        Stop::Store(why) => Err(Error::Table(why)),
        Stop::Broken(why) => Ok(retry(&why)),
    }
}

fn retry(why: &str) -> Outcome {
    Outcome::Retry { error: JobError::new(Reason::Failure, why), after: None, data: None }
}

/// What stops all of a sheet holds its jobs instead of failing them one by one; `resume` lets them go on.
fn hold((sheets, context): (&Sheets, &JobContext), id: &RunId, hold: Hold, why: &str) -> Result<Outcome> {
    let held = HeldRun { run: id, hold, opening: hold::opening(context) };
    sheets.inner.listener.held(context, &held, sheets.queue().clock().now());
    Ok(hold.outcome(id, why, &Waits::default())?)
}

/// Since when a job waits for the end of an outage; anew, if units were answered in this run.
pub(super) fn unanswered_since(context: &JobContext, ended: Ended) -> Option<Timestamp> {
    let waits = context.data::<Waits>().ok().flatten().filter(|_| ended.scored == 0);
    waits.and_then(|waits| waits.unanswered_since)
}

/// Whether a job waited for the end of an outage for so long that its units are taken for the cause.
pub(super) fn is_unanswered_for_long(context: &JobContext) -> bool {
    let (since, now) = (unanswered_since(context, Ended::default()), context.job().started_at);
    since.zip(now).is_some_and(|(since, now)| now.since(since) >= UNANSWERED_FOR_MAX)
}

/// What a held job remembers beside the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Waits {
    /// In an outage: since when nothing was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unanswered_since: Option<Timestamp>,
}
