//! Ends the wait for a body that does not come: a half-open upload must not hold its connection for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// A body that fails when it is silent for too long.
pub(crate) struct BodyTimeout {
    body: Body,
    silence_max: Duration,
    /// Made at the first wait: most bodies are there whole, and need no timer.
    silence: Option<Pin<Box<Sleep>>>,
    /// The timer runs for the piece that is awaited now.
    waiting: bool,
}

impl BodyTimeout {
    pub(crate) fn new(body: Body, silence_max: Duration) -> Self {
        Self { body, silence_max, silence: None, waiting: false }
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        let until = Instant::now() + self.silence_max;
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if !self.waiting {
            self.waiting = true;
            silence.as_mut().reset(until);
        }
        silence.as_mut().poll(context).is_ready()
    }
}

impl HttpBody for BodyTimeout {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(frame) => {
                this.waiting = false;
                Poll::Ready(frame)
            }
            Poll::Pending if this.is_over(context) => {
                Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
