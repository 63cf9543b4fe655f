//! `/api/v1`: everything that the command line can do, over HTTP. Errors are problem+json (RFC 9457).

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::ctx::Ctx;
use crate::problem::Problem;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new()
}

/// A problem in this family's form.
pub(crate) struct ApiError(pub(crate) Problem);

impl<E: Into<Problem>> From<E> for ApiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        refusal(&self.0)
    }
}

/// Writes a problem.
pub(crate) fn refusal(problem: &Problem) -> Response {
    let mut body = json!({
        "type": format!("urn:longhaul:problem:{}", problem.code),
        "title": problem.status.canonical_reason().unwrap_or("Error"),
        "status": problem.status.as_u16(),
        "code": problem.code,
        "detail": problem.detail,
    });
    if let Some(field) = &problem.field {
        body["field"] = json!(field);
    }
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"))];
    let mut response = (problem.status, kind, body.to_string()).into_response();
    if let Some(seconds) = problem.retry_after_seconds() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
