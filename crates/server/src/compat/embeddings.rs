//! `POST /v1/embeddings`. Both official SDKs ask for base64 of little-endian floats unless told otherwise.

use axum::extract::{Request, State};
use axum::routing::post;
use axum::{Json, Router};
use longhaul_llm::ChatRequest;
use longhaul_llm::wire::openai;
use serde_json::Value;

use super::asking;
use super::{Dialect, OpenAiError};
use crate::ctx::Ctx;

/// The routes.
pub(super) fn routes() -> Router<Ctx> {
    Router::new().route("/v1/embeddings", post(create))
}

async fn create(State(ctx): State<Ctx>, request: Request) -> Result<Json<Value>, OpenAiError> {
    let (sender, body) = asking::read(&ctx, request).await?;
    let (mut request, form) = openai::embed_request_from_json(body)?;
    let named = ChatRequest { model: request.model, ..ChatRequest::default() };
    let ask = asking::prepare(&ctx, &sender, Dialect::OpenAi, named).await?;
    request.model = ask.request.model.clone();
    let embeddings = asking::embedded(&ctx, ask, request).await?;
    Ok(Json(openai::embeddings_to_json(&embeddings, form)))
}
