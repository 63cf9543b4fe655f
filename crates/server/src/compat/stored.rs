//! Chat completions and responses that OpenAI would have stored. Here nothing is: lists are empty, and each name leads to a 404 that
//! says so. With `--seed-test-objects` one fixed object stands for all, since the suites of SDKs ask for objects that never were.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use longhaul_llm::wire::openai;
use longhaul_llm::wire::responses::Shape;
use longhaul_llm::{Answer, Stop, Usage};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::reading::list_page;
use super::responses;
use super::{OpenAiError, sse};
use crate::ctx::Ctx;
use crate::problem::Problem;

/// The model of the fixed objects.
const TEST_MODEL: &str = "sim-small";

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new()
        .route("/v1/chat/completions", get(list_chats))
        .route("/v1/chat/completions/{id}", get(chat).post(chat).delete(delete_chat))
        .route("/v1/chat/completions/{id}/messages", get(list_messages))
        .route("/v1/responses/compact", post(compact))
        .route("/v1/responses/{id}", get(response).delete(delete_response))
        .route("/v1/responses/{id}/cancel", post(cancel_response))
}

type Answered = Result<Json<Value>, OpenAiError>;

async fn list_chats(State(ctx): State<Ctx>) -> Json<Value> {
    let data = if ctx.options.test_objects { vec![chat_object("completion_id")] } else { Vec::new() };
    Json(list_page(&data, false))
}

async fn chat(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    is_there(&ctx, &id)?;
    Ok(Json(chat_object(&id)))
}

async fn delete_chat(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    is_there(&ctx, &id)?;
    Ok(Json(json!({ "id": id, "object": "chat.completion.deleted", "deleted": true })))
}

async fn list_messages(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    is_there(&ctx, &id)?;
    let message =
        json!({ "id": format!("{id}-0"), "role": "assistant", "content": "Hello", "refusal": null });
    Ok(Json(list_page(&[message], false)))
}

#[derive(Debug, Default, Deserialize)]
struct ResponseQuery {
    stream: Option<String>,
}

async fn response(
    State(ctx): State<Ctx>,
    Path(id): Path<String>,
    Query(query): Query<ResponseQuery>,
) -> Result<Response, OpenAiError> {
    is_there(&ctx, &id)?;
    if query.stream.as_deref() != Some("true") {
        return Ok(Json(response_object(&id)).into_response());
    }
    let (sender, pieces) = mpsc::channel(1);
    // There is room for the one piece.
    let _ = sender.try_send(Ok(longhaul_llm::types::Delta::End(answer())));
    Ok(sse::respond(pieces, responses::events::Events::new(shape(&id))))
}

async fn delete_response(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    is_there(&ctx, &id)?;
    Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
}

async fn cancel_response(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    is_there(&ctx, &id)?;
    Ok(Json(response_object(&id)))
}

async fn compact(State(ctx): State<Ctx>) -> Answered {
    is_there(&ctx, "compact")?;
    let mut object = response_object("compact");
    object["object"] = json!("response.compaction");
    Ok(Json(object))
}

/// `DELETE /v1/models/{id}`: OpenAI's for models that one has tuned there.
pub(super) async fn delete_model(State(ctx): State<Ctx>, Path(id): Path<String>) -> Answered {
    if !ctx.options.test_objects {
        let text = format!("model {id:?} is its provider's: it cannot be deleted here");
        return Err(Problem::new(StatusCode::FORBIDDEN, "not_ours", text).into());
    }
    Ok(Json(json!({ "id": id, "object": "model", "deleted": true })))
}

fn is_there(ctx: &Ctx, id: &str) -> Result<(), Problem> {
    if ctx.options.test_objects {
        return Ok(());
    }
    Err(Problem::not_found(format!(
        "{id:?} is not here: chat completions and responses are answered, not stored"
    )))
}

fn answer() -> Answer {
    Answer {
        id: String::new(),
        model: TEST_MODEL.to_owned(),
        text: "Hello".to_owned(),
        tool_calls: Vec::new(),
        vectors: Vec::new(),
        own: None,
        stop: Stop::End,
        usage: Usage { fresh_in: 1, out: 2, ..Usage::default() },
    }
}

fn chat_object(id: &str) -> Value {
    openai::answer_to_json(&Answer { id: id.to_owned(), ..answer() }, 0)
}

fn shape(id: &str) -> Shape {
    Shape::new(id.trim_start_matches("resp_"), TEST_MODEL, 0, &Map::new())
}

fn response_object(id: &str) -> Value {
    shape(id).whole(&answer())
}
