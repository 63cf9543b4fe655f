//! A response in named and numbered events: the fewest that the SDKs need.

use axum::http::StatusCode;
use longhaul_llm::Answer;
use longhaul_llm::sse::SseEvent;
use longhaul_llm::wire::responses::{Shape, text_part};
use serde_json::{Value, json};

use crate::compat::sse::Teller;
use crate::problem::Problem;

/// A response that is being told.
pub(in crate::compat) struct Events {
    shape: Shape,
    /// All text so far: the last event repeats it.
    text: String,
    /// Whether the message was begun.
    has_message: bool,
    number: u64,
}

impl Events {
    pub(in crate::compat) fn new(shape: Shape) -> Self {
        Self { shape, text: String::new(), has_message: false, number: 0 }
    }

    fn event(&mut self, kind: &str, mut data: Value) -> SseEvent {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(self.number);
        self.number += 1;
        SseEvent::named(kind, data.to_string())
    }

    /// An event of the message's text.
    fn text_event(&mut self, kind: &str, field: &str, value: Value) -> SseEvent {
        let mut data = json!({ "item_id": self.shape.message_id(), "output_index": 0, "content_index": 0 });
        data[field] = value;
        if kind.starts_with("response.output_text") {
            data["logprobs"] = json!([]);
        }
        self.event(kind, data)
    }

    fn item_event(&mut self, kind: &str, index: usize, item: &Value) -> SseEvent {
        self.event(kind, json!({ "output_index": index, "item": item }))
    }

    fn begin_message(&mut self) -> Vec<SseEvent> {
        self.has_message = true;
        let item = self.shape.message("in_progress", &[]);
        vec![
            self.item_event("response.output_item.added", 0, &item),
            self.text_event("response.content_part.added", "part", text_part("")),
        ]
    }

    fn end_message(&mut self) -> Vec<SseEvent> {
        let part = text_part(&self.text);
        let item = self.shape.message("completed", std::slice::from_ref(&part));
        let text = json!(self.text);
        vec![
            self.text_event("response.output_text.done", "text", text),
            self.text_event("response.content_part.done", "part", part),
            self.item_event("response.output_item.done", 0, &item),
        ]
    }

    fn calls(&mut self, answer: &Answer) -> Vec<SseEvent> {
        let mut events = Vec::new();
        for (place, call) in answer.tool_calls.iter().enumerate() {
            let index = place + usize::from(self.has_message);
            let item_id = self.shape.call_id(place);
            let begun = self.shape.call(place, call, "in_progress", "");
            let done = self.shape.call(place, call, "completed", &call.arguments);
            events.push(self.item_event("response.output_item.added", index, &begun));
            let delta = json!({ "item_id": item_id, "output_index": index, "delta": call.arguments });
            events.push(self.event("response.function_call_arguments.delta", delta));
            let whole = json!({
                "item_id": item_id, "output_index": index, "name": call.name, "arguments": call.arguments,
            });
            events.push(self.event("response.function_call_arguments.done", whole));
            events.push(self.item_event("response.output_item.done", index, &done));
        }
        events
    }
}

impl Teller for Events {
    fn start(&mut self) -> Vec<SseEvent> {
        let response = self.shape.with_status("in_progress");
        vec![
            self.event("response.created", json!({ "response": response })),
            self.event("response.in_progress", json!({ "response": response })),
        ]
    }

    fn text(&mut self, piece: &str) -> Vec<SseEvent> {
        let mut events = if self.has_message { Vec::new() } else { self.begin_message() };
        self.text.push_str(piece);
        events.push(self.text_event("response.output_text.delta", "delta", json!(piece)));
        events
    }

    fn end(&mut self, mut answer: Answer) -> Vec<SseEvent> {
        let mut events = Vec::new();
        if !answer.text.is_empty() || (!self.has_message && answer.tool_calls.is_empty()) {
            events.extend(self.text(&answer.text));
        }
        if self.has_message {
            events.extend(self.end_message());
        }
        events.extend(self.calls(&answer));
        answer.text = std::mem::take(&mut self.text);
        let response = self.shape.whole(&answer);
        let kind =
            if response["status"] == "completed" { "response.completed" } else { "response.incomplete" };
        events.push(self.event(kind, json!({ "response": response })));
        events
    }

    fn fail(&mut self, problem: &Problem) -> Vec<SseEvent> {
        let code = match problem.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            _ => "server_error",
        };
        let mut response = self.shape.with_status("failed");
        response["error"] = json!({ "code": code, "message": problem.detail });
        vec![self.event("response.failed", json!({ "response": response }))]
    }
}
