//! Kinds that every worker knows, so that one can try the queue without writing a handler.

use std::time::{Duration, Instant};

use longhaul_queue::state::{JobError, Reason};
use longhaul_queue::{Failure, JobContext, Json, Outcome, Worker};
use serde::{Deserialize, Serialize};

use crate::args::Instrument;
use crate::commands::demo;
use crate::parse;

/// Their names, for people.
pub(crate) const KINDS: &str = "echo, sleep, fail";

/// Registers the built-in kinds.
pub(crate) fn register(worker: &mut Worker) {
    worker.handle("echo", |_context: JobContext, payload: Json| async move { Outcome::Done(payload) });
    worker.handle("sleep", |context: JobContext, payload: Sleep| sleep(context, payload));
    worker.handle("fail", |context: JobContext, payload: Option<Fail>| async move {
        fail(&context, &payload.unwrap_or_default())
    });
}

/// Registers the kinds of an instrument. Their payloads name files and waits, so they are for the processes that the
/// instrument itself starts, on a store of its own, and never for a worker that serves others.
pub(crate) fn register_instrument(worker: &mut Worker, instrument: Instrument) {
    match instrument {
        Instrument::Demo => demo::register(worker),
        Instrument::Verify => longhaul_lab::verify::register(worker),
    }
}

/// Payload of `sleep`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sleep {
    #[serde(rename = "for")]
    length: String,
}

/// Result of `sleep`, and its checkpoint.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Slept {
    slept_ms: u64,
}

async fn sleep(context: JobContext, payload: Sleep) -> Result<Outcome, Failure> {
    let length = parse::duration(&payload.length).map_err(Failure::fatal)?;
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    context.progress(0, 1);
    let slept = Duration::from_millis(context.data::<Slept>()?.unwrap_or_default().slept_ms);
    let started = Instant::now();
    tokio::select! {
        () = tokio::time::sleep(length.saturating_sub(slept)) => {
            Ok(Outcome::Done(Json::of(&Slept { slept_ms: millis(length) })?))
        }
        // During a drain the next worker sleeps the rest. Under a cancel this becomes `cancelled`.
        () = context.cancelled() => {
            let data = Json::of(&Slept { slept_ms: millis(slept + started.elapsed()) })?;
            Ok(Outcome::Continue { after: None, data: Some(data) })
        }
    }
}

/// Payload of `fail`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Fail {
    error: String,
    /// Succeed after so many failures; `None` never succeeds.
    times: Option<u32>,
}

impl Default for Fail {
    fn default() -> Self {
        Self { error: "failed as asked".to_owned(), times: None }
    }
}

fn fail(context: &JobContext, payload: &Fail) -> Outcome {
    if payload.times.is_some_and(|times| context.attempt() >= times) {
        return Outcome::Done(Json::null());
    }
    Outcome::Retry { error: JobError::new(Reason::Failure, &payload.error), after: None, data: None }
}
