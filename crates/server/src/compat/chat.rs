//! `POST /v1/chat/completions`, whole or in chunks.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::sse::SseEvent;
use longhaul_llm::wire::openai::{self, EventOptions};
use longhaul_llm::{Answer, ChatRequest, Stop, Usage};
use serde_json::{Value, json};

use super::call::{self, now_s};
use super::sse::{self, Teller};
use super::{Dialect, OpenAiError};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/chat/completions", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Response, OpenAiError> {
    let (sender, body) = call::read(&ctx, request).await?;
    let request = openai::request_from_json(body)?;
    let wants = Wants::of(&request);
    let ask = call::prepare(&ctx, &sender, request).await?;
    let (id, created_s) = (sender.name("chatcmpl-"), now_s(&ctx));
    if !wants.stream {
        let mut answer = call::whole(&ctx, ask).await?;
        if answer.id.is_empty() {
            answer.id = id;
        }
        return Ok(Json(openai::answer_to_json(&answer, created_s)).into_response());
    }
    let model = ask.request.model().to_owned();
    let pieces = call::pieces(&ctx, ask).await?;
    let options = EventOptions { created_s, include_usage: wants.usage };
    Ok(sse::respond(pieces, Chunks { id, model, options }))
}

/// How a request wants its answer.
pub(super) struct Wants {
    pub(super) stream: bool,
    /// A last chunk with the usage.
    pub(super) usage: bool,
}

impl Wants {
    pub(super) fn of(request: &ChatRequest) -> Self {
        let options = request.extra.get("stream_options");
        Self {
            stream: request.extra.get("stream") == Some(&Value::Bool(true)),
            usage: options.is_some_and(|options| options["include_usage"] == true),
        }
    }
}

/// A chat completion in chunks.
struct Chunks {
    id: String,
    model: String,
    options: EventOptions,
}

impl Chunks {
    /// All events of an answer under our name: a stream is named before the provider has told its own.
    fn events(&self, answer: Answer) -> Vec<SseEvent> {
        let answer = Answer { id: self.id.clone(), model: self.model.clone(), ..answer };
        openai::answer_to_events(&answer, self.options)
    }
}

impl Teller for Chunks {
    fn own(&mut self, dialect: &str, event: &SseEvent) -> Option<Vec<SseEvent>> {
        if dialect != "openai" {
            return None;
        }
        // We always ask for the usage. A client that did not is not told of it.
        if self.options.include_usage || !event.data.contains("\"usage\"") {
            return Some(vec![event.clone()]);
        }
        let mut chunk: Value = serde_json::from_str(&event.data).ok()?;
        let usage = chunk.as_object_mut()?.shift_remove("usage");
        let is_last = usage.is_some_and(|usage| !usage.is_null()) && chunk["choices"] == json!([]);
        Some(if is_last { Vec::new() } else { vec![SseEvent::unnamed(chunk.to_string())] })
    }

    fn own_end(&mut self) -> Vec<SseEvent> {
        vec![SseEvent::unnamed("[DONE]")]
    }

    fn start(&mut self) -> Vec<SseEvent> {
        self.events(nothing()).into_iter().take(1).collect()
    }

    fn text(&mut self, piece: &str) -> Vec<SseEvent> {
        let choice =
            json!({ "index": 0, "delta": { "content": piece }, "logprobs": null, "finish_reason": null });
        let chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.options.created_s,
            "model": self.model,
            "choices": [choice],
        });
        vec![SseEvent::unnamed(chunk.to_string())]
    }

    fn end(&mut self, answer: Answer) -> Vec<SseEvent> {
        self.events(answer).into_iter().skip(1).collect()
    }

    fn fail(&mut self, problem: &Problem) -> Vec<SseEvent> {
        vec![SseEvent::unnamed(Dialect::OpenAi.problem(problem).to_string())]
    }
}

/// An answer before anything was said.
pub(super) fn nothing() -> Answer {
    Answer {
        id: String::new(),
        model: String::new(),
        text: String::new(),
        tool_calls: Vec::new(),
        vectors: Vec::new(),
        own: None,
        stop: Stop::End,
        usage: Usage::default(),
    }
}
