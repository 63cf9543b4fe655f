//! `POST /v1/responses`, as far as it needs no memory: the whole conversation comes with each request. Nothing is stored here, so
//! what refers to an earlier response is refused.

use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::wire::openai::{self, check_choices};
use longhaul_llm::wire::responses::{Shape, chat_of, fields_of};
use serde_json::{Map, Value, json};

use super::call::{self, now_s};
use super::chat::Wants;
use super::{OpenAiError, sse};
use crate::ctx::Ctx;
use crate::problem::Problem;

pub(super) mod events;

/// What suites of SDKs mean when they name no model.
const TEST_MODEL: &str = "sim-small";

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/responses", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Response, OpenAiError> {
    let (sender, body) = call::read(&ctx, request).await?;
    let body = match ctx.options.test_objects {
        true => test_fields(body)?,
        false => fields_of(body)?,
    };
    let request = openai::request_from_json(chat_of(&body)?)?;
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

/// The fields of a request of a suite of SDKs: these name objects that never were, and leave out what every real request has.
fn test_fields(body: Value) -> Result<Map<String, Value>, Problem> {
    let Value::Object(mut fields) = body else {
        return Err(Problem::invalid("the body: expected an object"));
    };
    fields.entry("model").or_insert(json!(TEST_MODEL));
    fields.entry("input").or_insert(json!(""));
    Ok(fields)
}
