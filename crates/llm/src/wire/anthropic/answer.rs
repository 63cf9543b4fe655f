//! A message as the model answered it.

use serde_json::{Value, json};

use crate::error::Result;
use crate::types::{Answer, Own, Stop, ToolCall, Usage};
use crate::wire::shapes::{beyond, count, is_zero, merge, no_answer, text};

use super::error::error_of_answer;
use super::request::call_to_json;

/// Writes an answer. This dialect does not date it.
pub fn answer_to_json(answer: &Answer) -> Value {
    let mut body = plain_to_json(answer);
    if let (Some(Own::Anthropic(own)), Value::Object(body)) = (answer.own.as_deref(), &mut body) {
        merge(body, own);
    }
    body
}

/// What every provider can say.
fn plain_to_json(answer: &Answer) -> Value {
    let mut content = Vec::new();
    if !answer.text.is_empty() || answer.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.text }));
    }
    content.extend(answer.tool_calls.iter().map(call_to_json));
    json!({
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop_to_text(answer.stop),
        "stop_sequence": null,
        "usage": usage_to_json(&answer.usage),
    })
}

/// Reads an answer. Thinking is no part of it, and is kept beside it.
pub fn answer_from_json(value: &Value) -> Result<Answer> {
    if let Some(error) = error_of_answer(value) {
        return Err(error);
    }
    let blocks = value["content"].as_array().ok_or_else(|| no_answer("the answer has no content"))?;
    let is = |block: &&Value, kind: &str| block["type"] == kind;
    let texts = blocks.iter().filter(|block| is(block, "text")).filter_map(|block| block["text"].as_str());
    let calls = blocks.iter().filter(|block| is(block, "tool_use"));
    let mut answer = Answer {
        id: text(&value["id"]).unwrap_or_default(),
        model: text(&value["model"]).unwrap_or_default(),
        text: texts.collect(),
        tool_calls: calls.map(call_from_json).collect(),
        vectors: Vec::new(),
        stop: stop_from_text(value["stop_reason"].as_str()),
        usage: usage_from_json(&value["usage"]),
        own: None,
    };
    answer.own = own_of(value, &answer);
    Ok(answer)
}

fn own_of(told: &Value, answer: &Answer) -> Option<Box<Own>> {
    let Some(Value::Object(mut own)) = beyond(told, &plain_to_json(answer)) else { return None };
    if own.get("usage").is_some_and(is_zero) {
        own.shift_remove("usage");
    }
    (!own.is_empty()).then(|| Box::new(Own::Anthropic(own)))
}

pub(super) fn stop_to_text(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "end_turn",
        Stop::Length => "max_tokens",
        Stop::ToolCalls => "tool_use",
        Stop::Refused => "refusal",
    }
}

pub(super) fn stop_from_text(reason: Option<&str>) -> Stop {
    match reason {
        Some("max_tokens" | "model_context_window_exceeded") => Stop::Length,
        Some("tool_use") => Stop::ToolCalls,
        Some("refusal") => Stop::Refused,
        _ => Stop::End,
    }
}

pub(super) fn usage_to_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.fresh_in,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output(),
        "service_tier": "standard",
    })
}

/// Anthropic counts the caches beside the input. It does not tell how much of the output was thinking.
pub(super) fn usage_from_json(usage: &Value) -> Usage {
    Usage {
        fresh_in: count(&usage["input_tokens"]),
        cache_write: count(&usage["cache_creation_input_tokens"]),
        cache_read: count(&usage["cache_read_input_tokens"]),
        out: count(&usage["output_tokens"]),
        reasoning: 0,
    }
}

fn call_from_json(block: &Value) -> ToolCall {
    ToolCall {
        id: text(&block["id"]).unwrap_or_default(),
        name: text(&block["name"]).unwrap_or_default(),
        arguments: block["input"].to_string(),
    }
}
