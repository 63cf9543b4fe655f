//! A chat completion in chunks.

use serde_json::{Value, json};

use crate::error::Result;
use crate::sse::SseEvent;
use crate::types::{Answer, Delta, Stop, ToolCall, Usage};
use crate::wire::StreamReader;
use crate::wire::shapes::{no_answer, pieces, text};

use super::answer::{Finish, content_text, stop_of, stop_to_text, usage_from_json, usage_to_json};
use super::error::error_of_answer;

/// Puts an answer together from chunks.
#[derive(Debug, Default)]
pub struct OpenAiStream {
    id: String,
    model: String,
    text: String,
    refusal: String,
    calls: Vec<(u64, ToolCall)>,
    finish_reason: Option<String>,
    usage: Usage,
    ended: bool,
}

impl StreamReader for OpenAiStream {
    fn dialect(&self) -> Option<&'static str> {
        Some("openai")
    }

    fn push(&mut self, event: &SseEvent) -> Result<Option<Delta>> {
        if self.ended {
            return Ok(None);
        }
        if event.data.starts_with("[DONE]") {
            return self.end();
        }
        let chunk: Value =
            serde_json::from_str(&event.data).map_err(|_| no_answer("a chunk of the stream is no JSON"))?;
        if let Some(error) = error_of_answer(&chunk) {
            return Err(error.maybe_billed());
        }
        Ok(self.chunk(&chunk))
    }

    fn finish(&mut self) -> Result<Option<Delta>> {
        match (self.ended, &self.finish_reason) {
            (true, _) => Ok(None),
            // Some engines leave out the last line.
            (false, Some(_)) => self.end(),
            (false, None) => Err(no_answer("the stream broke off before the answer was whole")),
        }
    }
}

impl OpenAiStream {
    fn chunk(&mut self, chunk: &Value) -> Option<Delta> {
        for (own, key) in [(&mut self.id, "id"), (&mut self.model, "model")] {
            if own.is_empty() {
                *own = text(&chunk[key]).unwrap_or_default();
            }
        }
        if chunk["usage"].is_object() {
            self.usage = usage_from_json(&chunk["usage"]);
        }
        // Of several answers the first is ours; the others are told in the provider's own events alone.
        let mut choices = chunk["choices"].as_array().into_iter().flatten();
        let choice = choices.find(|choice| choice["index"].as_u64().unwrap_or_default() == 0)?;
        if let Some(reason) = text(&choice["finish_reason"]) {
            self.finish_reason = Some(reason);
        }
        let delta = &choice["delta"];
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call);
        }
        self.refusal.push_str(delta["refusal"].as_str().unwrap_or_default());
        let piece = content_text(&delta["content"]);
        self.text.push_str(&piece);
        (!piece.is_empty()).then_some(Delta::Text(piece))
    }

    fn call(&mut self, piece: &Value) {
        // Without an index, a piece with an id begins a call and one without goes on with the last.
        let next = self.calls.len() as u64;
        let implied = if piece["id"].is_string() { next } else { next.saturating_sub(1) };
        let index = piece["index"].as_u64().unwrap_or(implied);
        let at = self.calls.iter().position(|(own, _)| *own == index).unwrap_or_else(|| {
            let call = ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
            self.calls.push((index, call));
            self.calls.len() - 1
        });
        let call = &mut self.calls[at].1;
        if let Some(id) = text(&piece["id"]) {
            call.id = id;
        }
        call.name.push_str(piece["function"]["name"].as_str().unwrap_or_default());
        call.arguments.push_str(piece["function"]["arguments"].as_str().unwrap_or_default());
    }

    fn end(&mut self) -> Result<Option<Delta>> {
        self.ended = true;
        let mut finish = Finish {
            text: std::mem::take(&mut self.text),
            refusal: Some(std::mem::take(&mut self.refusal)).filter(|refusal| !refusal.is_empty()),
            tool_calls: std::mem::take(&mut self.calls).into_iter().map(|(_, call)| call).collect(),
        };
        let stop = stop_of(self.finish_reason.as_deref(), &mut finish)?;
        Ok(Some(Delta::End(Answer {
            id: std::mem::take(&mut self.id),
            model: std::mem::take(&mut self.model),
            text: finish.text,
            tool_calls: finish.tool_calls,
            vectors: Vec::new(),
            stop,
            usage: self.usage,
            own: None,
        })))
    }
}

/// How a stream is to be written.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventOptions {
    /// When the answer was made, in seconds since the epoch.
    pub created_s: i64,
    /// Whether the request had `stream_options.include_usage`: the usage comes in a last chunk.
    pub include_usage: bool,
}

/// Writes an answer as the events of a stream.
pub fn answer_to_events(answer: &Answer, options: EventOptions) -> Vec<SseEvent> {
    let chunk = |delta: Value, reason: Value| {
        json!({
            "id": answer.id,
            "object": "chat.completion.chunk",
            "created": options.created_s,
            "model": answer.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }],
        })
    };
    let mut chunks = vec![chunk(json!({ "role": "assistant", "content": "", "refusal": null }), Value::Null)];
    let field = if answer.stop == Stop::Refused { "refusal" } else { "content" };
    chunks.extend(pieces(&answer.text).into_iter().map(|piece| chunk(json!({ field: piece }), Value::Null)));
    for (index, call) in answer.tool_calls.iter().enumerate() {
        let function = json!({ "name": call.name, "arguments": "" });
        let start = json!({ "index": index, "id": call.id, "type": "function", "function": function });
        chunks.push(chunk(json!({ "tool_calls": [start] }), Value::Null));
        for piece in pieces(&call.arguments) {
            let more = json!({ "index": index, "function": { "arguments": piece } });
            chunks.push(chunk(json!({ "tool_calls": [more] }), Value::Null));
        }
    }
    chunks.push(chunk(json!({}), json!(stop_to_text(answer.stop))));
    if options.include_usage {
        let mut last = chunk(Value::Null, Value::Null);
        last["choices"] = json!([]);
        last["usage"] = usage_to_json(&answer.usage);
        chunks.push(last);
    }
    let mut events: Vec<SseEvent> = chunks.iter().map(|chunk| SseEvent::unnamed(chunk.to_string())).collect();
    events.push(SseEvent::unnamed("[DONE]"));
    events
}
