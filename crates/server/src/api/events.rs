//! `/api/v1/events`: what changes, as it changes (server-sent events). A reader that comes back says how far it has read
//! (`Last-Event-ID`) and is given what it missed, or told to look afresh (`resync`) when that is gone. One stream tells of
//! everything; a page needs no second one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::Json as Answer;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use longhaul_api::events::{EventOut, EventsOut, EventsQuery};
use longhaul_llm::sse::SseEvent;
use longhaul_queue::store::NameForm;
use longhaul_queue::{ProcessId, Queue};
use tokio::sync::watch;

use super::ApiResult;
use super::extract::ApiQuery;
use super::page::limit;
use crate::batches::access;
use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// Streams at once; each holds a connection.
const STREAMS_MAX: usize = 1_000;
/// Events read at once.
const PAGE: usize = 500;
/// A sign of life for proxies that close what is silent.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Least time between two looks: many small changes make one look.
const LOOK_GAP: Duration = Duration::from_millis(100);

/// How many streams are open.
#[derive(Debug, Default)]
pub(crate) struct Streams(AtomicUsize);

impl Streams {
    /// How many are open.
    pub(crate) fn open(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Streams changes as they happen; returns a page of them to a client that accepts only JSON.
///
/// Server-sent events: `hello` with the number to come back with, `change` with jobs that changed, `resync` when what was missed
/// is gone and one must look afresh, and a comment every 15 seconds.
#[utoipa::path(get, path = "/api/v1/events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "The last event that was read.")),
    responses((status = 200, description = "`data` of the event `change`; or a page",
        content((EventOut = "text/event-stream"), (EventsOut = "application/json")))))]
pub(super) async fn stream_events(
    Shared(ctx): Shared<Ctx>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    ApiQuery(wanted): ApiQuery<EventsQuery>,
) -> ApiResult<Response> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let after = last.and_then(|last| last.parse().ok()).or(wanted.after);
    let hidden = access::hidden_queues(&ctx, &caller, wanted.process.as_deref()).await?;
    if wants_page(&headers) {
        let page = ctx.queue().events(after, limit(wanted.limit)?).await?;
        let events = page.events.into_iter().filter_map(|event| part_of(&wanted, event.into(), &hidden));
        return Ok(Answer(EventsOut { events: events.collect(), resync: page.resync }).into_response());
    }
    let place = Place::take(&ctx)?;
    let reader = Reader {
        queue: ctx.queue().clone(),
        changes: ctx.queue().changes(),
        draining: ctx.draining.subscribe(),
        wanted,
        hidden,
        after,
        ready: VecDeque::new(),
        _place: place,
    };
    let reader = reader.checked().await?;
    let pieces = stream::unfold(reader, Reader::next);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // A proxy that gathers a response before it passes it on would pass on nothing.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, axum::body::Body::from_stream(pieces)).into_response())
}

fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.trim() == "application/json")
}

/// The part of an event that is wanted. Changes that are only counted cannot be told apart: whoever wants some of them is
/// told that there were more.
fn part_of(wanted: &EventsQuery, mut event: EventOut, hidden: &[NameForm]) -> Option<EventOut> {
    let is_everything = wanted.process.is_none() && wanted.queue.is_none() && wanted.kind.is_none();
    if is_everything && hidden.is_empty() {
        return Some(event);
    }
    let fits = |wanted: &Option<String>, name: Option<&str>| wanted.is_none() || wanted.as_deref() == name;
    event.changes.retain(|change| {
        !hidden.iter().any(|queues| queues.fits(&change.queue))
            && fits(&wanted.process, change.process_id.as_ref().map(ProcessId::as_str))
            && fits(&wanted.queue, Some(&change.queue))
            && fits(&wanted.kind, Some(&change.kind))
    });
    (!event.changes.is_empty() || event.more > 0).then_some(event)
}

/// One of the streams that may be open.
struct Place(Arc<Streams>);

impl Place {
    fn take(ctx: &Ctx) -> Result<Self, Problem> {
        let place = Self(Arc::clone(&ctx.streams));
        if place.0.0.fetch_add(1, Ordering::Relaxed) < STREAMS_MAX {
            return Ok(place);
        }
        let text =
            format!("{STREAMS_MAX} streams of events are open: close one, or ask now and then instead");
        Err(Problem {
            retry_after: Some(HEARTBEAT),
            ..Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", text)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Reader {
    queue: Queue,
    changes: watch::Receiver<u64>,
    draining: watch::Receiver<bool>,
    wanted: EventsQuery,
    /// Queues that it is told nothing of.
    hidden: Vec<NameForm>,
    /// The newest event that was read; `None` before the first look of one who has read nothing.
    after: Option<u64>,
    ready: VecDeque<String>,
    _place: Place,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Some((Ok(Bytes::from(text)), self));
            }
            self.changes.mark_unchanged();
            self.look().await;
            if !self.ready.is_empty() {
                continue;
            }
            tokio::select! {
                () = drained(&mut self.draining) => return None,
                _ = self.changes.changed() => tokio::time::sleep(LOOK_GAP).await,
                () = tokio::time::sleep(HEARTBEAT) => self.ready.push_back(":\n\n".to_owned()),
            }
        }
    }

    /// A number that is yet to come is of another store, or of this one before it was put back: look afresh.
    async fn checked(mut self) -> Result<Self, Problem> {
        let newest = self.queue.events(None, 1).await?.events.last().map_or(0, |event| event.id);
        if self.after.is_some_and(|after| after > newest) {
            self.after = Some(newest);
            self.ready.push_back(SseEvent::named("resync", "{}").to_text());
        }
        Ok(self)
    }

    /// Reads what is new. A store that cannot be read now is read at the next look.
    async fn look(&mut self) {
        let newcomer = self.after.is_none();
        let limit = if newcomer { 1 } else { PAGE };
        let Ok(page) = self.queue.events(self.after, limit).await else { return };
        if page.resync {
            self.ready.push_back(SseEvent::named("resync", "{}").to_text());
        }
        let newest = page.events.last().map(|event| event.id);
        self.after = newest.or(self.after).or(Some(0));
        if newcomer {
            // One who has read nothing wants what comes, and a number to come back with.
            let hello = SseEvent::named("hello", "{}").to_text();
            self.ready.push_back(format!("id: {}\n{hello}", self.after.unwrap_or_default()));
            return;
        }
        for event in page.events {
            let id = event.id;
            let Some(event) = part_of(&self.wanted, event.into(), &self.hidden) else { continue };
            let Ok(data) = serde_json::to_string(&event) else { continue };
            self.ready.push_back(format!("id: {id}\n{}", SseEvent::named("change", data).to_text()));
        }
    }
}

async fn drained(draining: &mut watch::Receiver<bool>) {
    // A server that is gone has ended too.
    let _ = draining.wait_for(|draining| *draining).await;
}
