//! OpenAI's dialect of responses, as far as it needs no memory: a response is asked as a chat completion, and its answer is told in
//! the words of a response.

use serde_json::{Map, Value, json};

use crate::types::{Answer, Stop, ToolCall};

mod input;

pub use input::{chat_of, chat_of_line, fields_of};

/// What a response repeats of its request where it was given, and what stands there otherwise.
const REPEATED: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("top_p", "1.0"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// What all forms of a response have in common.
#[derive(Debug, Clone)]
pub struct Shape {
    id: String,
    base: Map<String, Value>,
}

impl Shape {
    /// Of a response to this request.
    pub fn new(id: &str, model: &str, created_s: i64, request: &Map<String, Value>) -> Self {
        let mut base = Map::new();
        for (name, default) in REPEATED {
            let default = || serde_json::from_str(default).unwrap_or_default();
            let given = request.get(name).filter(|value| !value.is_null());
            base.insert(name.to_owned(), given.cloned().unwrap_or_else(default));
        }
        let fixed = json!({
            "id": format!("resp_{id}"), "object": "response", "created_at": created_s, "model": model,
            "background": false, "error": null, "incomplete_details": null, "previous_response_id": null,
            "service_tier": "default", "store": false, "output": [], "usage": null,
        });
        base.extend(fixed.as_object().cloned().unwrap_or_default());
        Self { id: id.to_owned(), base }
    }

    /// A response that has a status and nothing else yet.
    pub fn with_status(&self, status: &str) -> Value {
        let mut object = self.base.clone();
        object.insert("status".to_owned(), json!(status));
        Value::Object(object)
    }

    /// A response with its answer.
    pub fn whole(&self, answer: &Answer) -> Value {
        let (status, reason) = match answer.stop {
            Stop::End | Stop::ToolCalls => ("completed", None),
            Stop::Refused if !answer.text.is_empty() => ("completed", None),
            Stop::Refused => ("incomplete", Some("content_filter")),
            Stop::Length => ("incomplete", Some("max_output_tokens")),
        };
        let mut object = self.with_status(status);
        object["incomplete_details"] = reason.map_or(Value::Null, |reason| json!({ "reason": reason }));
        object["output"] = self.output(answer);
        object["usage"] = usage_of(answer);
        object
    }

    fn output(&self, answer: &Answer) -> Value {
        let mut items = Vec::new();
        if !answer.text.is_empty() || answer.tool_calls.is_empty() {
            let part = match answer.stop {
                Stop::Refused => json!({ "type": "refusal", "refusal": answer.text }),
                Stop::End | Stop::ToolCalls | Stop::Length => text_part(&answer.text),
            };
            let status = if answer.stop == Stop::Length { "incomplete" } else { "completed" };
            items.push(self.message(status, &[part]));
        }
        let calls = answer.tool_calls.iter().enumerate();
        items.extend(calls.map(|(place, call)| self.call(place, call, "completed", &call.arguments)));
        Value::Array(items)
    }

    /// The message with the text of an answer.
    pub fn message(&self, status: &str, content: &[Value]) -> Value {
        json!({ "type": "message", "id": self.message_id(), "status": status, "role": "assistant", "content": content })
    }

    /// A call of a function.
    pub fn call(&self, place: usize, call: &ToolCall, status: &str, arguments: &str) -> Value {
        json!({
            "type": "function_call", "id": self.call_id(place), "call_id": call.id, "name": call.name,
            "arguments": arguments, "status": status,
        })
    }

    /// The name of the message.
    pub fn message_id(&self) -> String {
        format!("msg_{}", self.id)
    }

    /// The name of a call, by its place.
    pub fn call_id(&self, place: usize) -> String {
        format!("fc_{}_{place}", self.id)
    }
}

/// The part of a message that is text.
pub fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The response of a line of a batch.
pub fn response_of_line(answer: &Answer, id: &str, created_s: i64) -> Value {
    Shape::new(id, &answer.model, created_s, &Map::new()).whole(answer)
}

fn usage_of(answer: &Answer) -> Value {
    let usage = &answer.usage;
    json!({
        "input_tokens": usage.input(),
        "input_tokens_details": { "cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write },
        "output_tokens": usage.output(),
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.total(),
    })
}
