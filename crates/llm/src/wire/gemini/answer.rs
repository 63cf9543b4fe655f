//! A generateContent answer.

use serde_json::{Value, json};

use crate::error::{Class, Error, Result};
use crate::types::{Answer, Stop, ToolCall, Usage};
use crate::wire::shapes::{count, no_answer, text};

use super::error::error_of_answer;
use super::request::call_to_json;

/// Writes an answer. This dialect does not date it.
pub fn answer_to_json(answer: &Answer) -> Value {
    let mut parts = Vec::new();
    if !answer.text.is_empty() || answer.tool_calls.is_empty() {
        parts.push(json!({ "text": answer.text }));
    }
    parts.extend(answer.tool_calls.iter().map(call_to_json));
    chunk_to_json(answer, &parts, Some(stop_to_text(answer.stop)))
}

/// One chunk of an answer; the only one of an answer that is not streamed. The last one has the reason and the usage.
pub(super) fn chunk_to_json(answer: &Answer, parts: &[Value], reason: Option<&str>) -> Value {
    let mut candidate = json!({ "content": { "parts": parts, "role": "model" }, "index": 0 });
    let mut chunk = json!({ "modelVersion": answer.model, "responseId": answer.id });
    if let Some(reason) = reason {
        candidate["finishReason"] = json!(reason);
        chunk["usageMetadata"] = usage_to_json(&answer.usage);
    }
    chunk["candidates"] = json!([candidate]);
    chunk
}

/// Reads an answer. A list is the chunks of a stream that was not asked for as events.
pub fn answer_from_json(value: &Value) -> Result<Answer> {
    let mut pieces = Pieces::default();
    match value {
        Value::Array(chunks) => {
            for chunk in chunks {
                pieces.add(chunk)?;
            }
        }
        chunk => {
            pieces.add(chunk)?;
        }
    }
    pieces.answer()
}

/// What the chunks of an answer have brought so far.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    id: String,
    model: String,
    text: String,
    calls: Vec<ToolCall>,
    reason: Option<String>,
    blocked: bool,
    usage: Usage,
}

impl Pieces {
    /// Adds a chunk and answers its visible text.
    pub(super) fn add(&mut self, chunk: &Value) -> Result<String> {
        if let Some(error) = error_of_answer(chunk) {
            return Err(error);
        }
        for (own, key) in [(&mut self.id, "responseId"), (&mut self.model, "modelVersion")] {
            if let Some(text) = text(&chunk[key]) {
                *own = text;
            }
        }
        if chunk["usageMetadata"].is_object() {
            self.usage = usage_from_json(&chunk["usageMetadata"]);
        }
        self.blocked |= text(&chunk["promptFeedback"]["blockReason"]).is_some();
        let candidate = &chunk["candidates"][0];
        self.reason = text(&candidate["finishReason"]).or(self.reason.take());
        let mut visible = String::new();
        for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
            if let Some(call) = part.get("functionCall") {
                let call = self.call(call);
                self.calls.push(call);
            } else if part["thought"] != true {
                visible.push_str(part["text"].as_str().unwrap_or_default());
            }
        }
        self.text.push_str(&visible);
        Ok(visible)
    }

    /// The answer, once its end has come.
    pub(super) fn answer(&mut self) -> Result<Answer> {
        let reason = self.reason.take();
        if reason.is_none() && !self.blocked {
            return Err(no_answer("the answer broke off before it was whole"));
        }
        let stop = match reason.as_deref() {
            Some("MAX_TOKENS") => Stop::Length,
            Some("STOP" | "FINISH_REASON_UNSPECIFIED") if self.calls.is_empty() => Stop::End,
            Some("STOP" | "FINISH_REASON_UNSPECIFIED") => Stop::ToolCalls,
            // Every other reason is a way to decline, but for calls that came out wrong.
            _ => Stop::Refused,
        };
        let answer = Answer {
            id: std::mem::take(&mut self.id),
            model: std::mem::take(&mut self.model),
            text: std::mem::take(&mut self.text),
            tool_calls: std::mem::take(&mut self.calls),
            vectors: Vec::new(),
            own: None,
            stop,
            usage: self.usage,
        };
        match reason.as_deref() {
            Some(reason @ ("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "MALFORMED_RESPONSE")) => {
                let mut error = Error::new(Class::BadShape, "the model wrote a call that cannot be read");
                error.code = Some(reason.to_owned());
                Err(error.with_answer(answer))
            }
            _ => Ok(answer),
        }
    }

    /// Ids are optional here; ours must differ within a conversation, so they build on the answer's own.
    fn call(&self, call: &Value) -> ToolCall {
        let id = text(&call["id"]).unwrap_or_else(|| format!("call_{}_{}", self.id, self.calls.len()));
        let name = text(&call["name"]).unwrap_or_default();
        ToolCall { id, name, arguments: call.get("args").map_or_else(|| "{}".to_owned(), Value::to_string) }
    }
}

pub(super) fn stop_to_text(stop: Stop) -> &'static str {
    match stop {
        Stop::End | Stop::ToolCalls => "STOP",
        Stop::Length => "MAX_TOKENS",
        Stop::Refused => "SAFETY",
    }
}

fn usage_to_json(usage: &Usage) -> Value {
    json!({
        "promptTokenCount": usage.input(),
        "cachedContentTokenCount": usage.cache_read,
        "candidatesTokenCount": usage.out,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.total(),
    })
}

/// Gemini counts what was cached within the prompt, but thoughts and the input of its own tools beside the rest.
fn usage_from_json(usage: &Value) -> Usage {
    let cache_read = count(&usage["cachedContentTokenCount"]);
    Usage {
        fresh_in: count(&usage["promptTokenCount"]).saturating_sub(cache_read)
            + count(&usage["toolUsePromptTokenCount"]),
        cache_write: 0,
        cache_read,
        out: count(&usage["candidatesTokenCount"]),
        reasoning: count(&usage["thoughtsTokenCount"]),
    }
}
