//! `POST /v1/completions`, the older form: a prompt is asked as a message of the user's.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::sse::SseEvent;
use longhaul_llm::wire::openai::{self, check_choices};
use longhaul_llm::{Answer, Stop};
use serde_json::{Value, json};

use super::call::{self, now_s};
use super::chat::Wants;
use super::sse::{self, Teller};
use super::{Dialect, OpenAiError};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// Fields that chat completions read otherwise, or do not know.
const OLD_FIELDS: [&str; 4] = ["best_of", "echo", "logprobs", "suffix"];

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/completions", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Response, OpenAiError> {
    let (sender, mut body) = call::read(&ctx, request).await?;
    let prompt = prompt_of(&body)?;
    if let Some(fields) = body.as_object_mut() {
        check_choices(fields)?;
        fields.shift_remove("prompt");
        fields.retain(|name, _| !OLD_FIELDS.contains(&name.as_str()));
        fields.insert("messages".to_owned(), json!([{ "role": "user", "content": prompt }]));
    }
    let request = openai::request_from_json(body)?;
    let wants = Wants::of(&request);
    let ask = call::prepare(&ctx, &sender, request).await?;
    let texts = Texts {
        id: sender.name("cmpl-"),
        model: ask.request.model().to_owned(),
        created_s: now_s(&ctx),
        wants_usage: wants.usage,
    };
    if !wants.stream {
        let answer = call::whole(&ctx, ask).await?;
        return Ok(Json(texts.whole(&answer)).into_response());
    }
    Ok(sse::respond(call::pieces(&ctx, ask).await?, texts))
}

/// One text. Several, or numbers of tokens, would need an answer each, or a tokenizer.
fn prompt_of(body: &Value) -> Result<String, Problem> {
    match &body["prompt"] {
        Value::String(text) => Ok(text.clone()),
        Value::Array(items) => match items.as_slice() {
            [Value::String(text)] => Ok(text.clone()),
            _ => Err(Problem::invalid("prompt: one text a request, not several or tokens").at("prompt")),
        },
        _ => Err(Problem::invalid("prompt: expected a string").at("prompt")),
    }
}

/// A completion, whole or in pieces.
struct Texts {
    id: String,
    model: String,
    created_s: i64,
    wants_usage: bool,
}

impl Texts {
    fn object(&self, text: &str, reason: Option<&str>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.model,
            "choices": [{ "index": 0, "text": text, "logprobs": null, "finish_reason": reason }],
        })
    }

    fn whole(&self, answer: &Answer) -> Value {
        let mut object = self.object(&answer.text, Some(reason_of(answer.stop)));
        object["usage"] = usage_of(answer);
        object
    }
}

impl Teller for Texts {
    fn start(&mut self) -> Vec<SseEvent> {
        Vec::new()
    }

    fn text(&mut self, piece: &str) -> Vec<SseEvent> {
        vec![SseEvent::unnamed(self.object(piece, None).to_string())]
    }

    fn end(&mut self, answer: Answer) -> Vec<SseEvent> {
        let mut chunks = vec![self.object(&answer.text, Some(reason_of(answer.stop)))];
        if self.wants_usage {
            let mut last = self.object("", None);
            last["choices"] = json!([]);
            last["usage"] = usage_of(&answer);
            chunks.push(last);
        }
        let events = chunks.iter().map(|chunk| SseEvent::unnamed(chunk.to_string()));
        events.chain([SseEvent::unnamed("[DONE]")]).collect()
    }

    fn fail(&mut self, problem: &Problem) -> Vec<SseEvent> {
        vec![SseEvent::unnamed(Dialect::OpenAi.problem(problem).to_string())]
    }
}

fn usage_of(answer: &Answer) -> Value {
    openai::answer_to_json(answer, 0)["usage"].take()
}

fn reason_of(stop: Stop) -> &'static str {
    match stop {
        Stop::End | Stop::ToolCalls => "stop",
        Stop::Length => "length",
        Stop::Refused => "content_filter",
    }
}
