//! `POST /v1/messages`, whole or in events, and `/v1/messages/count_tokens`.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::sse::SseEvent;
use longhaul_llm::wire::anthropic;
use longhaul_llm::{Answer, tokens};
use serde_json::{Value, json};

use super::call;
use super::chat::Wants;
use super::sse::{self, Teller};
use super::{AnthropicError, Dialect};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/messages", post(create)).route("/v1/messages/count_tokens", post(count_tokens))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Response, AnthropicError> {
    let (sender, body) = call::read(&ctx, request).await?;
    let request = anthropic::request_from_json(body)?;
    let wants = Wants::of(&request);
    let ask = call::prepare(&ctx, &sender, request).await?;
    let id = sender.name("msg_");
    if !wants.stream {
        let mut answer = call::whole(&ctx, ask).await?;
        if answer.id.is_empty() {
            answer.id = id;
        }
        return Ok(Json(anthropic::answer_to_json(&answer)).into_response());
    }
    let (model, input_tokens) = (ask.request.model().to_owned(), tokens::estimate(&ask.request, 1.0));
    let pieces = call::pieces(&ctx, ask).await?;
    Ok(sse::respond(pieces, Events { id, model, input_tokens, blocks: 0, is_open: false }))
}

/// An estimate: not every provider can be asked, and asking would count against its limits.
async fn count_tokens(State(ctx): State<Ctx>, request: Request) -> Result<Json<Value>, AnthropicError> {
    let (_, mut body) = call::read(&ctx, request).await?;
    if let Some(fields) = body.as_object_mut() {
        // This call alone has no limit of output, and the codec insists on one.
        fields.entry("max_tokens").or_insert(json!(1));
    }
    let request = anthropic::request_from_json(body)?;
    ctx.catalog.resolve(&request.model)?;
    Ok(Json(json!({ "input_tokens": tokens::estimate(&request.into(), 1.0) })))
}

/// A message in named events.
struct Events {
    id: String,
    model: String,
    /// By our estimate: the true count comes with the end.
    input_tokens: u64,
    /// Blocks that were begun.
    blocks: usize,
    /// The last of them is text and may go on.
    is_open: bool,
}

impl Events {
    fn open(&mut self, block: &Value) -> SseEvent {
        let index = self.blocks;
        self.blocks += 1;
        event(&json!({ "type": "content_block_start", "index": index, "content_block": block }))
    }

    fn delta(&self, delta: &Value) -> SseEvent {
        let index = self.blocks.saturating_sub(1);
        event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }))
    }

    fn close(&mut self) -> SseEvent {
        self.is_open = false;
        event(&json!({ "type": "content_block_stop", "index": self.blocks.saturating_sub(1) }))
    }
}

impl Teller for Events {
    fn own(&mut self, dialect: &str, event: &SseEvent) -> Option<Vec<SseEvent>> {
        (dialect == "anthropic").then(|| vec![event.clone()])
    }

    fn own_end(&mut self) -> Vec<SseEvent> {
        vec![event(&json!({ "type": "message_stop" }))]
    }

    fn start(&mut self) -> Vec<SseEvent> {
        let message = json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
            "usage": { "input_tokens": self.input_tokens, "output_tokens": 1 },
        });
        vec![
            event(&json!({ "type": "message_start", "message": message })),
            event(&json!({ "type": "ping" })),
        ]
    }

    fn text(&mut self, piece: &str) -> Vec<SseEvent> {
        let mut events = Vec::new();
        if !self.is_open {
            events.push(self.open(&json!({ "type": "text", "text": "" })));
            self.is_open = true;
        }
        events.push(self.delta(&json!({ "type": "text_delta", "text": piece })));
        events
    }

    fn end(&mut self, answer: Answer) -> Vec<SseEvent> {
        let mut events = Vec::new();
        if !answer.text.is_empty() {
            events.extend(self.text(&answer.text));
        }
        if self.is_open {
            events.push(self.close());
        }
        let whole = anthropic::answer_to_json(&answer);
        for call in &answer.tool_calls {
            events.push(
                self.open(&json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} })),
            );
            events.push(self.delta(&json!({ "type": "input_json_delta", "partial_json": call.arguments })));
            events.push(self.close());
        }
        let stop = json!({ "stop_reason": whole["stop_reason"], "stop_sequence": null });
        let mut usage = whole["usage"].clone();
        if let Some(usage) = usage.as_object_mut() {
            usage.shift_remove("service_tier");
        }
        events.push(event(&json!({ "type": "message_delta", "delta": stop, "usage": usage })));
        events.push(event(&json!({ "type": "message_stop" })));
        events
    }

    fn fail(&mut self, problem: &Problem) -> Vec<SseEvent> {
        vec![event(&Dialect::Anthropic.problem(problem))]
    }

    fn ping(&self) -> String {
        event(&json!({ "type": "ping" })).to_text()
    }
}

/// Events without a name are passed over by the SDKs.
fn event(data: &Value) -> SseEvent {
    SseEvent::named(data["type"].as_str().unwrap_or_default(), data.to_string())
}
