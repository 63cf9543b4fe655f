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

use super::asking::{Pieces, problem_of};
use crate::problem::Problem;

/// The longest silence on a stream: proxies close what says nothing for a minute.
const PING_EVERY: Duration = Duration::from_secs(15);

/// Writes an answer in the events of an API.
pub(super) trait Teller: Send + 'static {
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
    let telling = Telling { pieces, teller, told_bytes: 0, stage: Stage::Start };
    let body = Body::from_stream(stream::unfold(telling, Telling::next));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies of the nginx family gather what they pass on unless told so.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

enum Stage {
    Start,
    Middle,
    End,
}

struct Telling<T> {
    pieces: Pieces,
    teller: T,
    told_bytes: usize,
    stage: Stage,
}

impl<T: Teller> Telling<T> {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let text = match self.stage {
            Stage::Start => {
                self.stage = Stage::Middle;
                text_of(&self.teller.start())
            }
            Stage::Middle => match tokio::time::timeout(PING_EVERY, self.pieces.recv()).await {
                Err(_) => self.teller.ping(),
                Ok(piece) => text_of(&self.told(piece)),
            },
            Stage::End => return None,
        };
        Some((Ok(Bytes::from(text)), self))
    }

    fn told(&mut self, piece: Option<longhaul_llm::Result<Delta>>) -> Vec<SseEvent> {
        let error = match piece {
            Some(Ok(Delta::Text(text))) => {
                self.told_bytes += text.len();
                return self.teller.text(&text);
            }
            Some(Ok(Delta::End(mut answer))) => {
                self.stage = Stage::End;
                // A refusal, for one, comes with the end alone.
                answer.text = answer.text.get(self.told_bytes..).unwrap_or_default().to_owned();
                return self.teller.end(answer);
            }
            Some(Err(error)) => error,
            None => Error::new(Class::Network, "the answer broke off"),
        };
        self.stage = Stage::End;
        self.teller.fail(&problem_of(error))
    }
}

fn text_of(events: &[SseEvent]) -> String {
    events.iter().map(SseEvent::to_text).collect()
}
