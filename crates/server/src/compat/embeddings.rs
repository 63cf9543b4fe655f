//! `POST /v1/embeddings`. Both official SDKs ask for base64 of little-endian floats unless told otherwise.

use axum::extract::{Request, State};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::wire::openai;
use serde_json::Value;

use super::OpenAiError;
use super::call;
use crate::ctx::Ctx;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/embeddings", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let (sender, body) = call::read(&ctx, request).await?;
    let (request, form) = openai::embed_request_from_json(body)?;
    let ask = call::prepare(&ctx, &sender, request).await?;
    let answer = call::whole(&ctx, ask).await?;
    Ok(Json(openai::vectors_to_json(&answer.model, &answer.vectors, &answer.usage, form)))
}
