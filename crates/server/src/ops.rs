//! For whoever runs the server.

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::ctx::Ctx;
use crate::problem::Problem;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

/// Whether a path is asked by a prober, again and again.
pub(crate) fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/startupz" | "/metrics")
}

/// The process lives.
async fn healthz() -> &'static str {
    "ok\n"
}

/// It can serve: the store answers, and nobody asked it to end.
async fn readyz(State(ctx): State<Ctx>) -> Response {
    if *ctx.draining.borrow() {
        return crate::api::refusal(&Problem::unavailable("the server is ending"));
    }
    match ctx.queue().store().counts().await {
        Ok(_) => Json(json!({"status": "ready", "store": ctx.queue().store().caps().name})).into_response(),
        Err(error) => crate::api::refusal(&error.into()),
    }
}
