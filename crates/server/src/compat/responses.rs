//! `POST /v1/responses`, as far as it needs no memory: the whole conversation comes with each request. Nothing is stored here, so
//! what refers to an earlier response is refused.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::wire::openai;
use longhaul_llm::{Answer, Stop};
use serde_json::{Map, Value, json};

use super::call::{self, now_s};
use super::chat::{Wants, check_choices};
use super::{OpenAiError, sse};
use crate::ctx::Ctx;
use crate::problem::Problem;

pub(super) mod events;
mod input;

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

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/responses", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Response, OpenAiError> {
    let (sender, body) = call::read(&ctx, request).await?;
    let body = input::fields_of(body, ctx.options.test_objects)?;
    let request = openai::request_from_json(input::chat_of(&body)?)?;
    check_choices(&request.extra)?;
    let wants = Wants::of(&request);
    let ask = call::prepare(&ctx, &sender, request).await?;
    let shape = Shape::new(&sender.name(""), ask.request.model(), now_s(&ctx), &body);
    if !wants.stream {
        let answer = call::whole(&ctx, ask).await?;
        return Ok(Json(shape.whole(&answer)).into_response());
    }
    Ok(sse::respond(call::pieces(&ctx, ask).await?, events::Events::new(shape)))
}

/// The chat that a line of a batch asks for.
pub(crate) fn chat_of_line(body: Value) -> Result<Value, Problem> {
    let fields = input::fields_of(body, false)?;
    check_choices(&fields)?;
    input::chat_of(&fields)
}

/// The response of a line of a batch.
pub(crate) fn line_of(answer: &Answer, id: &str, created_s: i64) -> Value {
    Shape::new(id, &answer.model, created_s, &Map::new()).whole(answer)
}

/// What all forms of a response have in common.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    id: String,
    base: Map<String, Value>,
}

impl Shape {
    pub(super) fn new(id: &str, model: &str, created_s: i64, request: &Map<String, Value>) -> Self {
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
    fn with_status(&self, status: &str) -> Value {
        let mut object = self.base.clone();
        object.insert("status".to_owned(), json!(status));
        Value::Object(object)
    }

    /// A response with its answer.
    pub(super) fn whole(&self, answer: &Answer) -> Value {
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

    fn message(&self, status: &str, content: &[Value]) -> Value {
        json!({ "type": "message", "id": self.message_id(), "status": status, "role": "assistant", "content": content })
    }

    fn call(
        &self,
        place: usize,
        call: &longhaul_llm::types::ToolCall,
        status: &str,
        arguments: &str,
    ) -> Value {
        json!({
            "type": "function_call", "id": self.call_id(place), "call_id": call.id, "name": call.name,
            "arguments": arguments, "status": status,
        })
    }

    fn message_id(&self) -> String {
        format!("msg_{}", self.id)
    }

    fn call_id(&self, place: usize) -> String {
        format!("fc_{}_{place}", self.id)
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
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
