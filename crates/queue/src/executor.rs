//! The life of one job: begin, run the handler under its limits, turn whatever happened into an event, settle. A
//! panic, a time-out, a cancel and a lost lease become outcomes here and nowhere else.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tracing::field::Empty;
use tracing::{Instrument, Level, Span, debug, enabled, info_span, span_enabled, warn};

use crate::backoff::Backoff;
use crate::context::JobContext;
use crate::handler::{BatchHandler, Call, OneHandler};
use crate::limits::{Limits, check_name};
use crate::live_run::{Group, LiveRun, Stop};
use crate::logs::SLICE;
use crate::notes;
use crate::state::{self, Event, JobError, Outcome, Reason};
use crate::store::SettleItem;
use crate::trace::RunTrace;

/// Attempts to write the last notes of a run before it is settled without them.
const LAST_NOTES_TRIES_MAX: u32 = 5;

/// A run that is over. Without an item there is nothing to settle: the job is somebody else's.
pub(crate) struct Ended {
    pub(crate) run: Arc<LiveRun>,
    pub(crate) item: Option<SettleItem>,
}

/// Where ended runs go. Unbounded, but never longer than the worker has slots: each run sends once.
pub(crate) type EndedSender = UnboundedSender<Ended>;

/// Runs one job from its claim to its settlement.
pub(crate) async fn run_one(run: Arc<LiveRun>, handler: OneHandler, ended: EndedSender) {
    let life = async {
        debug!(slice = SLICE, "ENTER run");
        let context = JobContext::new(Arc::clone(&run));
        let answer = call(run.group(), || handler(context)).await;
        finish(&run, answer, &ended).await;
    };
    if span_enabled!(Level::INFO) { life.instrument(span(&run)).await } else { life.await }
}

/// Runs the members of a batch in one call of their handler. What befalls the call befalls every member.
pub(crate) async fn run_batch(runs: Vec<Arc<LiveRun>>, handler: BatchHandler, ended: EndedSender) {
    // Some may have been lost, or all released, while the batch was gathered.
    let (stopped, runs): (Vec<_>, Vec<_>) = runs.into_iter().partition(|run| run.stop_reason().is_some());
    for run in &stopped {
        finish(run, Answer::Stopped, &ended).instrument(span(run)).await;
    }
    let Some(first) = runs.first() else { return };
    // Each member is under way for as long as the call is.
    let spans: Vec<Span> = runs.iter().map(|run| span(run)).collect();
    let (kind, members, started) = (&first.job.kind, runs.len(), Instant::now());
    debug!(slice = SLICE, kind, members, "ENTER batch");
    let contexts = runs.iter().map(|run| JobContext::new(Arc::clone(run))).collect();
    let answer = call(first.group(), || handler(contexts)).await;
    let answers: Vec<Answer<Outcome>> = match answer {
        Answer::Given(outcomes) => outcomes.into_iter().map(Answer::Given).collect(),
        Answer::Panicked(text) => runs.iter().map(|_| Answer::Panicked(text.clone())).collect(),
        Answer::Stopped => runs.iter().map(|_| Answer::Stopped).collect(),
    };
    debug!(slice = SLICE, kind, members, elapsed_ms = started.elapsed().as_millis(), "EXIT batch");
    for ((run, answer), span) in runs.iter().zip(answers).zip(spans) {
        finish(run, answer, &ended).instrument(span).await;
    }
}

/// What came of a handler call.
enum Answer<T> {
    Given(T),
    Panicked(String),
    Stopped,
}

/// Calls a handler until it answers, panics or is stopped. The answer goes first: one that is there counts.
async fn call<T>(group: &Group, handler: impl FnOnce() -> Call<T>) -> Answer<T> {
    let mut call = match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(call) => call,
        Err(panic) => return Answer::Panicked(panic_text(&*panic)),
    };
    let answer = tokio::select! {
        biased;
        answer = without_panic(call.as_mut()) => answer,
        () = group.stopped() => Answer::Stopped,
    };
    // A handler may panic once more while it is dropped; its job is decided all the same.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(call)));
    answer
}

/// Writes the last notes, settles by what happened and hands the result to the worker.
async fn finish(run: &Arc<LiveRun>, answer: Answer<Outcome>, ended: &EndedSender) {
    if ended.is_closed() {
        return; // The worker is gone as if by a crash; so is this run.
    }
    let event = decide(run, answer);
    if event.is_some() {
        write_last_notes(run).await;
    }
    let item = event.map(|event| settle(run, event));
    record_end(&Span::current(), item.as_ref());
    if enabled!(Level::DEBUG) {
        let elapsed_ms =
            run.services.engine.clock().now().since(run.job.started_at.unwrap_or_default()).as_millis();
        let outcome = item.as_ref().map(|item| item.settlement.outcome);
        debug!(slice = SLICE, job_id = %run.job.id, kind = run.job.kind, elapsed_ms, ?outcome, "EXIT run");
    }
    if run.end() {
        // A closed channel means that the worker has gone; then nobody is left to settle.
        let _ = ended.send(Ended { run: Arc::clone(run), item });
    }
}

/// The event that a call's end is for one job; `None` when the job is somebody else's.
fn decide(run: &LiveRun, answer: Answer<Outcome>) -> Option<Event> {
    let stop = run.stop_reason();
    if stop == Some(Stop::LostLease) {
        return None;
    }
    let failed = |reason, text: String| {
        let error = JobError::new(reason, text);
        Some(Event::Outcome(Outcome::Retry { error, after: None, data: None }))
    };
    match answer {
        Answer::Given(outcome) => Some(Event::Outcome(within_bounds(&run.services.engine.limits(), outcome))),
        Answer::Panicked(text) => failed(Reason::Panic, format!("the handler panicked: {text}")),
        Answer::Stopped => match stop {
            Some(Stop::RunLimit) => {
                failed(Reason::RunLimit, format!("ran longer than {:?}", run.policy.run_limit))
            }
            Some(Stop::IdleLimit) => {
                let limit = run.policy.idle_limit.unwrap_or_default();
                failed(Reason::IdleLimit, format!("no progress, save or log line for {limit:?}"))
            }
            Some(Stop::Cancelled) => Some(Event::Cancel),
            Some(Stop::Release) | None => Some(Event::Release),
            Some(Stop::LostLease) => None,
        },
    }
}

/// An outcome that the store would refuse fails the job with a text that says why; nothing is cut.
pub(crate) fn within_bounds(limits: &Limits, outcome: Outcome) -> Outcome {
    let checked = match &outcome {
        Outcome::Done(result) => limits.check_value("result", result),
        Outcome::Continue { data: Some(data), .. } | Outcome::Retry { data: Some(data), .. } => {
            limits.check_value("data", data)
        }
        Outcome::Park { park, data } => check_name("park key", &park.key)
            .and_then(|()| data.as_ref().map_or(Ok(()), |data| limits.check_value("data", data))),
        Outcome::Continue { data: None, .. } | Outcome::Retry { data: None, .. } | Outcome::Fail(_) => Ok(()),
    };
    match checked {
        Ok(()) => outcome,
        Err(error) => Outcome::Fail(JobError::new(Reason::Failure, error)),
    }
}

fn settle(run: &LiveRun, event: Event) -> SettleItem {
    let follow_ups = if is_repeated(&event) { Vec::new() } else { run.notes.take_follow_ups() };
    settle_with(run, event, follow_ups)
}

/// Whether a run that ended so is done once more from where it began, and enqueues its follow-ups then.
pub(crate) fn is_repeated(event: &Event) -> bool {
    match event {
        Event::Outcome(Outcome::Retry { .. }) | Event::Crash | Event::Release | Event::Cancel => true,
        Event::Outcome(
            Outcome::Done(_) | Outcome::Continue { .. } | Outcome::Park { .. } | Outcome::Fail(_),
        ) => false,
    }
}

/// The settlement for an event, by the one table that knows.
pub(crate) fn settle_with(run: &LiveRun, event: Event, follow_ups: Vec<crate::NewJob>) -> SettleItem {
    let now = run.services.engine.clock().now();
    let mut settlement = state::settle(event, run.spent(), &run.policy, now, fastrand::f64());
    settlement.usage = run.notes.take_usage();
    SettleItem { lease: run.lease.clone(), settlement, follow_ups }
}

async fn write_last_notes(run: &LiveRun) {
    let mut backoff = Backoff::new();
    let mut tries = 0;
    while run.notes.needs_flush() {
        let Err(error) = notes::write(run, None).await else { continue };
        tries += 1;
        if !error.is_transient() || tries == LAST_NOTES_TRIES_MAX {
            warn!(job_id = %run.job.id, %error, "last notes could not be written");
            return;
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

async fn without_panic<T>(mut future: Pin<&mut (dyn Future<Output = T> + Send)>) -> Answer<T> {
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Answer::Given),
        Err(panic) => Poll::Ready(Answer::Panicked(panic_text(&*panic))),
    })
    .await
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("with a value that is no text").to_owned()
}

/// The span of a run. Its ids are fields, so that any subscriber can show them; whoever exports spans goes by its name
/// and these fields.
fn span(run: &LiveRun) -> Span {
    if !span_enabled!(Level::INFO) {
        return Span::none();
    }
    let job = &run.job;
    let age = run.services.engine.clock().now().since(job.created_at);
    let trace = RunTrace::new(job.options.trace.as_deref(), age);
    info_span!(
        "run",
        slice = SLICE,
        trace_id = format_args!("{:032x}", trace.own.trace_id),
        span_id = format_args!("{:016x}", trace.own.span_id),
        parent = trace.parent.map(tracing::field::display),
        link = trace.link.map(tracing::field::display),
        job_id = %job.id,
        kind = job.kind,
        queue = job.queue,
        process_id = job.process_id.as_ref().map(crate::ProcessId::as_str),
        worker = run.lease.worker.as_str(),
        attempt = job.spent.attempt,
        fence = run.lease.fence,
        state = Empty,
        error.type = Empty,
        otel.status_code = Empty,
    )
}

/// Where a run leaves its job, and why by class: texts of errors may hold contents.
fn record_end(span: &Span, item: Option<&SettleItem>) {
    let Some(item) = item else { return };
    span.record("state", item.settlement.state.as_str());
    let Some(error) = &item.settlement.error else { return };
    span.record("error.type", error.reason.as_str());
    // A rate limit is waited out and a cancel is somebody's wish: neither is a fault.
    if !matches!(error.reason, Reason::Throttle | Reason::Cancelled) {
        span.record("otel.status_code", "ERROR");
    }
}
