//! Answers that are told while the model writes them. Each API has a [`Teller`] for its events; this keeps the order, the pings and
//! the end.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::stream;
use longhaul_llm::sse::SseEvent;
use longhaul_llm::types::Delta;
use longhaul_llm::{Answer, Class, Error};

use super::call::{Pieces, problem_of};
use crate::problem::Problem;

/// The longest silence on a stream: proxies close what says nothing for a minute.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Writes an answer in the events of an API.
pub(super) trait Teller: Send + 'static {
    /// An event of a provider that speaks this very API: it is passed on as it came, and its text is not told again. `None` for
    /// others.
    fn own(&mut self, _dialect: &str, _event: &SseEvent) -> Option<Vec<SseEvent>> {
        None
    }

    /// The end of an answer that was told in the provider's own events.
    fn own_end(&mut self) -> Vec<SseEvent> {
        Vec::new()
    }

    /// What comes before the first piece.
    fn start(&mut self) -> Vec<SseEvent>;

    /// More text.
    fn text(&mut self, piece: &str) -> Vec<SseEvent>;

    /// The end of the answer. Its text holds only what was not told yet.
    fn end(&mut self, answer: Answer) -> Vec<SseEvent>;

    /// The answer broke off.
    fn fail(&mut self, problem: &Problem) -> Vec<SseEvent>;

    /// What a client of this API passes over.
    fn ping(&self) -> String {
        ": ping\n\n".to_owned()
    }
}

/// A response that tells an answer.
pub(super) fn respond(pieces: Pieces, teller: impl Teller) -> Response {
    let telling = Telling { pieces, teller, told_bytes: 0, way: Way::Unknown, is_over: false };
    let body = Body::from_stream(stream::unfold(telling, Telling::next));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies of the nginx family gather what they pass on unless told so.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// How an answer is told; its first piece decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// In events of ours.
    Ours,
    /// In the provider's own.
    Own,
}

struct Telling<T> {
    pieces: Pieces,
    teller: T,
    told_bytes: usize,
    way: Way,
    is_over: bool,
}

impl<T: Teller> Telling<T> {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while !self.is_over {
            let text = match tokio::time::timeout(PING_EVERY, self.pieces.recv()).await {
                Err(_) => self.teller.ping(),
                Ok(piece) => text_of(&self.told(piece)),
            };
            if !text.is_empty() {
                return Some((Ok(Bytes::from(text)), self));
            }
        }
        None
    }

    fn told(&mut self, piece: Option<longhaul_llm::Result<Delta>>) -> Vec<SseEvent> {
        let error = match piece {
            Some(Ok(Delta::Own { dialect, event })) => {
                let Some(events) = self.teller.own(dialect, &event) else { return Vec::new() };
                self.way = Way::Own;
                return events;
            }
            Some(Ok(Delta::Text(_))) if self.way == Way::Own => return Vec::new(),
            Some(Ok(Delta::Text(text))) => {
                self.told_bytes += text.len();
                let mut events = self.begun();
                events.extend(self.teller.text(&text));
                return events;
            }
            Some(Ok(Delta::End(_))) if self.way == Way::Own => {
                self.is_over = true;
                return self.teller.own_end();
            }
            Some(Ok(Delta::End(mut answer))) => {
                self.is_over = true;
                // A refusal, for one, comes with the end alone.
                answer.text = answer.text.get(self.told_bytes..).unwrap_or_default().to_owned();
                let mut events = self.begun();
                events.extend(self.teller.end(answer));
                return events;
            }
            Some(Err(error)) => error,
            None => Error::new(Class::Network, "the answer broke off"),
        };
        self.is_over = true;
        let mut events = self.begun();
        events.extend(self.teller.fail(&problem_of(error)));
        events
    }

    /// What comes before the first event of ours.
    fn begun(&mut self) -> Vec<SseEvent> {
        match self.way {
            Way::Unknown => {
                self.way = Way::Ours;
                self.teller.start()
            }
            Way::Ours | Way::Own => Vec::new(),
        }
    }
}

fn text_of(events: &[SseEvent]) -> String {
    events.iter().map(SseEvent::to_text).collect()
}
