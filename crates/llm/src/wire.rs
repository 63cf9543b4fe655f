//! Wire forms of the dialects: pure functions between JSON and this crate's types, in both directions. The clients use one
//! side of each pair, the simulator and a server the other. Nothing here knows HTTP beyond status and headers.
//!
//! Each dialect has the same verbs: `request_to_json`, `request_from_json`, `answer_to_json`, `answer_from_json`,
//! `error_to_json`, `error_from`, `answer_to_events` and a [`StreamReader`], and codecs for its batches.

pub mod anthropic;
pub mod batch;
mod failure;
mod fields;
pub mod gemini;
pub mod openai;
mod rate;
pub mod responses;
mod shapes;
mod translate;

pub use batch::{BatchCounts, BatchObject, LineContext};
pub use rate::{rate_signals, retry_after};
pub use translate::{plain, translated};

use crate::error::Result;
use crate::sse::SseEvent;
use crate::types::Delta;

/// What a request asks for that cannot be had here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FieldError {
    /// The field; `None` where it is the whole request.
    pub field: Option<String>,
    /// What is wrong, and what to do about it.
    pub text: String,
}

impl FieldError {
    /// An error of a field.
    pub fn at(field: impl Into<String>, text: impl Into<String>) -> Self {
        Self { field: Some(field.into()), text: text.into() }
    }
}

/// Puts an answer together from the events of a stream.
pub trait StreamReader: Send {
    /// The dialect whose clients can be told the events as they came; `None` where nobody else reads them.
    fn dialect(&self) -> Option<&'static str> {
        None
    }

    /// Takes one event; what it adds to the answer, if anything.
    fn push(&mut self, event: &SseEvent) -> Result<Option<Delta>>;

    /// The body has ended: the answer, unless it was given before. An error if the stream broke off.
    fn finish(&mut self) -> Result<Option<Delta>>;
}

#[cfg(test)]
mod tests;
