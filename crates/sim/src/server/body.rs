//! Bodies that come in pieces: streams of events at the pace of a model, long files, and bodies that break off.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use crate::sim_core::{Run, SimCore};
use longhaul_llm::sse::SseEvent;

/// Bytes of a long file that are sent at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A body that ends in the middle although its length was announced.
pub(super) fn half(whole: String) -> Response {
    let length = whole.len();
    let mut whole = Bytes::from(whole);
    let first = whole.split_to(length / 2);
    let pieces = stream::unfold(Some(first), async |first| broken(first).await);
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    response
}

/// The first piece, then an error. In between others get a turn: what was written has to leave before the connection ends.
async fn broken(first: Option<Bytes>) -> Option<(io::Result<Bytes>, Option<Bytes>)> {
    match first {
        Some(first) => Some((Ok(first), None)),
        None => {
            tokio::task::yield_now().await;
            Some((Err(io::ErrorKind::ConnectionAborted.into()), None))
        }
    }
}

/// An answer that is told in events, all of it or only the first half.
pub(super) fn events(core: Arc<SimCore>, run: Run, events: &[SseEvent], cut_off: bool) -> Response {
    let pause = run.rest() / u32::try_from(events.len().max(1)).unwrap_or(u32::MAX);
    let mut texts: Vec<String> = events.iter().map(SseEvent::to_text).collect();
    if cut_off {
        texts.truncate(texts.len().div_ceil(2));
    }
    // A model that takes no time sends everything at once.
    if pause == Duration::ZERO {
        texts = vec![texts.concat()];
    }
    let telling = Telling { core, _run: run, texts: texts.into_iter(), pause, cut_off, ended: false };
    let body = Body::from_stream(stream::unfold(telling, Telling::next));
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], body).into_response()
}

struct Telling {
    core: Arc<SimCore>,
    /// Holds the slot of the call until its last event.
    _run: Run,
    texts: std::vec::IntoIter<String>,
    pause: Duration,
    cut_off: bool,
    ended: bool,
}

impl Telling {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        if let Some(text) = self.texts.next() {
            self.core.wait(self.pause).await;
            return Some((Ok(Bytes::from(text)), self));
        }
        if self.ended {
            return None;
        }
        self.ended = true;
        if self.cut_off {
            tokio::task::yield_now().await;
            return Some((Err(io::ErrorKind::ConnectionAborted.into()), self));
        }
        self.core.delivered();
        None
    }
}

/// A file of lines that are made as they are sent.
pub(super) fn lines(lines: impl Iterator<Item = String> + Send + 'static) -> Response {
    let chunks = Chunks { lines };
    let body = Body::from_stream(stream::iter(chunks.map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, "application/jsonl")], body).into_response()
}

struct Chunks<I> {
    lines: I,
}

impl<I: Iterator<Item = String>> Iterator for Chunks<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = String::new();
        for line in self.lines.by_ref() {
            chunk.push_str(&line);
            chunk.push('\n');
            if chunk.len() >= CHUNK_BYTES {
                break;
            }
        }
        (!chunk.is_empty()).then(|| Bytes::from(chunk))
    }
}
