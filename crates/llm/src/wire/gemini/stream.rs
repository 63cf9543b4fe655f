//! An answer in chunks, as `streamGenerateContent?alt=sse` sends them. Nothing marks the end but the end of the body.

use serde_json::{Value, json};

use crate::error::Result;
use crate::sse::SseEvent;
use crate::types::{Answer, Delta};
use crate::wire::StreamReader;
use crate::wire::shapes::{no_answer, pieces};

use super::answer::{Pieces, chunk_to_json, stop_to_text};
use super::request::call_to_json;

/// Puts an answer together from chunks.
#[derive(Debug, Default)]
pub struct GeminiStream {
    pieces: Pieces,
}

impl StreamReader for GeminiStream {
    fn push(&mut self, event: &SseEvent) -> Result<Option<Delta>> {
        let chunk: Value =
            serde_json::from_str(&event.data).map_err(|_| no_answer("a chunk of the stream is no JSON"))?;
        // An error in the midst of a stream comes in a list of one.
        let chunk = if chunk.is_array() { &chunk[0] } else { &chunk };
        let text = self.pieces.add(chunk).map_err(crate::error::Error::maybe_billed)?;
        Ok((!text.is_empty()).then_some(Delta::Text(text)))
    }

    fn finish(&mut self) -> Result<Option<Delta>> {
        self.pieces.answer().map(|answer| Some(Delta::End(answer)))
    }
}

/// Writes an answer as the events of a stream.
pub fn answer_to_events(answer: &Answer) -> Vec<SseEvent> {
    let mut parts: Vec<Value> =
        pieces(&answer.text).into_iter().map(|text| json!({ "text": text })).collect();
    parts.extend(answer.tool_calls.iter().map(call_to_json));
    let last = parts.pop().unwrap_or_else(|| json!({ "text": "" }));
    let mut chunks: Vec<Value> = parts.into_iter().map(|part| chunk_to_json(answer, &[part], None)).collect();
    chunks.push(chunk_to_json(answer, &[last], Some(stop_to_text(answer.stop))));
    chunks.iter().map(|chunk| SseEvent::unnamed(chunk.to_string())).collect()
}
