//! A chat completion.

use serde_json::{Value, json};

use crate::error::{Class, Error, Result};
use crate::types::{Answer, Own, Stop, ToolCall, Usage};
use crate::wire::shapes::{beyond, count, is_zero, merge, no_answer, text};

use super::error::error_of_answer;
use super::request::call_to_json;

/// Writes an answer.
pub fn answer_to_json(answer: &Answer, created_s: i64) -> Value {
    let mut body = plain_to_json(answer, created_s);
    if let (Some(Own::OpenAi(own)), Value::Object(body)) = (answer.own.as_deref(), &mut body) {
        merge(body, own);
    }
    body
}

/// What every provider can say.
fn plain_to_json(answer: &Answer, created_s: i64) -> Value {
    let Answer { id, model, text, tool_calls, vectors: _, stop, usage, own: _ } = answer;
    let refused = *stop == Stop::Refused && !text.is_empty();
    let content =
        if refused || (text.is_empty() && !tool_calls.is_empty()) { Value::Null } else { json!(text) };
    let refusal = if refused { json!(text) } else { Value::Null };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": refusal });
    if !tool_calls.is_empty() {
        message["tool_calls"] = tool_calls.iter().map(call_to_json).collect();
    }
    json!({
        "id": id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": stop_to_text(*stop) }],
        "usage": usage_to_json(usage),
    })
}

/// Reads an answer. A body with `error` in it is one, whatever its status was.
pub fn answer_from_json(value: &Value) -> Result<Answer> {
    if let Some(error) = error_of_answer(value) {
        return Err(error);
    }
    let choice = &value["choices"][0];
    if !choice.is_object() {
        return Err(no_answer("the answer has no choices"));
    }
    let message = &choice["message"];
    let tool_calls: Vec<ToolCall> =
        message["tool_calls"].as_array().into_iter().flatten().map(call_from_json).collect();
    let mut parts =
        Finish { text: content_text(&message["content"]), refusal: text(&message["refusal"]), tool_calls };
    let stop = stop_of(choice["finish_reason"].as_str(), &mut parts)?;
    let mut answer = Answer {
        id: text(&value["id"]).unwrap_or_default(),
        model: text(&value["model"]).unwrap_or_default(),
        text: parts.text,
        tool_calls: parts.tool_calls,
        vectors: Vec::new(),
        stop,
        usage: usage_from_json(&value["usage"]),
        own: None,
    };
    answer.own = own_of(value, &answer);
    Ok(answer)
}

fn own_of(told: &Value, answer: &Answer) -> Option<Box<Own>> {
    let written = plain_to_json(answer, told["created"].as_i64().unwrap_or_default());
    let Some(Value::Object(mut own)) = beyond(told, &written) else { return None };
    if own.get("usage").is_some_and(is_zero) {
        own.shift_remove("usage");
    }
    if answer.stop == Stop::ToolCalls
        && let Some(choices) = own.get_mut("choices")
    {
        // Some engines say another word after calls of tools; clients wait for this one.
        choices[0]["finish_reason"] = json!(stop_to_text(answer.stop));
        if beyond(choices, &written["choices"]).is_none() {
            own.shift_remove("choices");
        }
    }
    (!own.is_empty()).then(|| Box::new(Own::OpenAi(own)))
}

/// What stands in a finished answer.
pub(super) struct Finish {
    pub(super) text: String,
    pub(super) refusal: Option<String>,
    pub(super) tool_calls: Vec<ToolCall>,
}

/// Why an answer ended. A refusal becomes its text if there is no other.
pub(super) fn stop_of(reason: Option<&str>, finish: &mut Finish) -> Result<Stop> {
    if let Some(refusal) = finish.refusal.take() {
        if finish.text.is_empty() {
            finish.text = refusal;
        }
        return Ok(Stop::Refused);
    }
    Ok(match reason {
        Some("length") => Stop::Length,
        Some("content_filter") => Stop::Refused,
        // OpenRouter, DeepSeek: the model behind failed in the middle of its answer.
        Some("error" | "insufficient_system_resource") => {
            return Err(Error::new(Class::Overloaded, "the model failed while it answered").maybe_billed());
        }
        // Engines say `stop`, or nothing at all, after calls too.
        _ if !finish.tool_calls.is_empty() => Stop::ToolCalls,
        _ => Stop::End,
    })
}

pub(super) fn stop_to_text(stop: Stop) -> &'static str {
    match stop {
        Stop::End => "stop",
        Stop::Length => "length",
        Stop::ToolCalls => "tool_calls",
        Stop::Refused => "content_filter",
    }
}

/// Text of a message: a string, or parts as Mistral writes them.
pub(super) fn content_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

pub(super) fn usage_to_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input(),
        "completion_tokens": usage.output(),
        "total_tokens": usage.total(),
        "prompt_tokens_details": { "cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

/// OpenAI counts what was cached within the prompt, and reasoning within the completion.
pub(super) fn usage_from_json(usage: &Value) -> Usage {
    let prompt = count(&usage["prompt_tokens"]);
    let completion = count(&usage["completion_tokens"]);
    let cache_read = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    let cache_write = count(&usage["prompt_tokens_details"]["cache_write_tokens"]);
    let reasoning = count(&usage["completion_tokens_details"]["reasoning_tokens"]);
    // Some services count reasoning beside the completion; their total gives it away.
    let beside = reasoning > 0 && count(&usage["total_tokens"]) == prompt + completion + reasoning;
    Usage {
        fresh_in: prompt.saturating_sub(cache_read + cache_write),
        cache_write,
        cache_read,
        out: if beside { completion } else { completion.saturating_sub(reasoning) },
        reasoning,
    }
}

fn call_from_json(call: &Value) -> ToolCall {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // Some engines send the object itself.
        other => other.to_string(),
    };
    ToolCall {
        id: text(&call["id"]).unwrap_or_default(),
        name: text(&function["name"]).unwrap_or_default(),
        arguments,
    }
}
