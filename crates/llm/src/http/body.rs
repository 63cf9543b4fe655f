//! Bodies, read piece by piece: each piece must come before the silence is too long, and all of them before the deadline.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use reqwest::Response;
use tokio::time::{Instant, timeout_at};

use super::Http;
use crate::error::{Class, Error, Result};
use crate::lines::LineSplitter;
use crate::provider::ResultStream;
use crate::sse::{SseEvent, SseParser};
use crate::types::Delta;
use crate::wire::StreamReader;

/// The body of an answer that has begun.
pub(super) struct Body {
    pub(super) response: Response,
    pub(super) http: Http,
    pub(super) deadline: Instant,
    pub(super) silence: Duration,
}

impl Body {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let limit = self.deadline.min(Instant::now() + self.silence);
        match timeout_at(limit, self.response.chunk()).await {
            Ok(Ok(piece)) => Ok(piece),
            Ok(Err(error)) => Err(self.http.broken(error).maybe_billed()),
            Err(_) => {
                let message = format!("{} fell silent in the middle of its answer", self.http.host);
                Err(Error::new(Class::Network, message).maybe_billed())
            }
        }
    }

    /// All of it, up to a bound.
    pub(super) async fn whole(&mut self, bytes_max: usize) -> Result<Bytes> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.next().await? {
            if whole.len() + piece.len() > bytes_max {
                return Err(too_long(bytes_max));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// Its begin, as far as it can be had.
    pub(super) async fn first(&mut self, bytes_max: usize) -> Vec<u8> {
        let mut first = Vec::new();
        while first.len() < bytes_max
            && let Ok(Some(piece)) = self.next().await
        {
            first.extend_from_slice(&piece[..piece.len().min(bytes_max - first.len())]);
        }
        first
    }
}

fn too_long(bytes_max: usize) -> Error {
    Error::new(Class::Network, format!("the answer is longer than {bytes_max} bytes")).maybe_billed()
}

/// An answer that comes in events.
pub(super) struct Deltas {
    body: Body,
    parser: SseParser,
    reader: Box<dyn StreamReader>,
    ready: VecDeque<Delta>,
    bytes: usize,
    ended: bool,
}

impl Deltas {
    pub(super) fn new(body: Body, reader: Box<dyn StreamReader>) -> Self {
        let parser = SseParser::default();
        Self { body, parser, reader, ready: VecDeque::new(), bytes: 0, ended: false }
    }

    /// Ends after the first error, or after the whole answer.
    pub(super) fn into_stream(self) -> ResultStream<Delta> {
        stream::unfold(self, |mut deltas| async {
            let next = deltas.next().await.map_err(|error| deltas.body.http.redact(error)).transpose()?;
            deltas.ended |= matches!(next, Ok(Delta::End(_)) | Err(_));
            Some((next, deltas))
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Delta>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Ok(Some(delta));
            }
            if self.ended {
                return Ok(None);
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<()> {
        let Some(piece) = self.body.next().await? else {
            self.ended = true;
            if let Some(event) = self.parser.finish()? {
                self.take(event)?;
            }
            self.ready.extend(self.reader.finish()?);
            return Ok(());
        };
        self.bytes += piece.len();
        if self.bytes > self.body.http.body_bytes_max {
            return Err(too_long(self.body.http.body_bytes_max));
        }
        for event in self.parser.push(&piece)? {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: SseEvent) -> Result<()> {
        let delta = self.reader.push(&event)?;
        // The last event is the end itself, which whoever tells the answer writes once it is booked.
        if let (Some(dialect), false) = (self.reader.dialect(), matches!(delta, Some(Delta::End(_)))) {
            self.ready.push_back(Delta::Own { dialect, event });
        }
        self.ready.extend(delta);
        Ok(())
    }
}

/// A body of lines. Empty ones are left out; the stream ends after the first error.
pub(super) fn lines<T: Send + 'static>(
    body: Body,
    line_bytes_max: usize,
    read: fn(&str) -> T,
) -> ResultStream<T> {
    let state =
        Lines { body, splitter: LineSplitter::new(line_bytes_max), ready: VecDeque::new(), ended: false };
    stream::unfold(state, move |mut lines| async move {
        let next = lines.next().await.map_err(|error| lines.body.http.redact(error)).transpose()?;
        lines.ended |= next.is_err();
        Some((next.map(|line| read(&line)), lines))
    })
    .boxed()
}

struct Lines {
    body: Body,
    splitter: LineSplitter,
    ready: VecDeque<String>,
    ended: bool,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<String>> {
        loop {
            match self.ready.pop_front() {
                Some(line) if line.trim().is_empty() => {}
                Some(line) => return Ok(Some(line)),
                None if self.ended => return Ok(None),
                None => {
                    let piece = self.body.next().await?;
                    let mut lines = Vec::new();
                    match piece {
                        Some(piece) => self.splitter.push(&piece, &mut lines)?,
                        None => {
                            self.ended = true;
                            lines.extend(self.splitter.finish()?);
                        }
                    }
                    self.ready.extend(lines);
                }
            }
        }
    }
}
