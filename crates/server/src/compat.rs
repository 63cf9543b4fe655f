//! `/v1`: what unmodified SDKs of OpenAI and Anthropic speak, answered by any model. The two share the path, and `/v1/models` even
//! the route: who asks is told by the headers.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::ctx::Ctx;
use crate::problem::Problem;

mod batches;
mod call;
mod chat;
mod completions;
mod embeddings;
mod files;
mod message_batches;
mod messages;
pub(crate) mod models;
mod reading;
pub(crate) mod responses;
mod sse;
mod stored;
pub(crate) mod test_objects;

/// The routes.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new()
        .merge(files::routes())
        .merge(batches::routes())
        .merge(message_batches::routes())
        .merge(chat::routes())
        .merge(completions::routes())
        .merge(embeddings::routes())
        .merge(messages::routes())
        .merge(models::routes())
        .merge(responses::routes())
        .merge(stored::routes())
}

/// The longest body at a path whose bodies go to disk; `None` where they are held in memory.
pub(crate) fn upload_bytes_max(ctx: &Ctx, path: &str) -> Option<u64> {
    match path {
        "/v1/files" => Some(ctx.options.upload_bytes_max.saturating_add(files::FORM_BYTES_MAX)),
        "/v1/messages/batches" => Some(message_batches::BODY_BYTES_MAX),
        _ => None,
    }
}

/// A problem as OpenAI's clients read it.
pub(crate) struct OpenAiError(pub(crate) Problem);

/// A problem as Anthropic's clients read it.
pub(crate) struct AnthropicError(pub(crate) Problem);

impl<E: Into<Problem>> From<E> for OpenAiError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl<E: Into<Problem>> From<E> for AnthropicError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        Dialect::OpenAi.refusal(&self.0)
    }
}

impl IntoResponse for AnthropicError {
    fn into_response(self) -> Response {
        Dialect::Anthropic.refusal(&self.0)
    }
}

/// The problem behind a response, for code that reports it in another format.
#[derive(Clone)]
pub(crate) struct Refused(pub(crate) Problem);

/// Whose clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Dialect {
    /// By path and headers; `None` where neither API lives.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Option<Self> {
        if !path.starts_with("/v1/") {
            return None;
        }
        let anthropic = path == "/v1/messages"
            || path.starts_with("/v1/messages/")
            || headers.contains_key("anthropic-version");
        Some(if anthropic { Self::Anthropic } else { Self::OpenAi })
    }

    /// A problem in its form, as a body or within a stream.
    pub(crate) fn problem(self, problem: &Problem) -> Value {
        match self {
            Self::OpenAi => json!({"error": {
                "message": problem.detail,
                "type": openai_type(problem.status),
                "param": problem.field,
                "code": problem.code,
            }}),
            Self::Anthropic => json!({
                "type": "error",
                "error": {"type": anthropic_type(problem.status), "message": problem.detail},
            }),
        }
    }

    /// Answers a request with a problem.
    pub(crate) fn refusal(self, problem: &Problem) -> Response {
        let body = self.problem(problem);
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (problem.status, kind, body.to_string()).into_response();
        response.extensions_mut().insert(Refused(problem.clone()));
        let headers = response.headers_mut();
        match problem.retry_after_seconds() {
            Some(seconds) => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds))),
            // Clients repeat what fails with a 5xx or 429; where nothing will have changed by then, they are told not to.
            None if problem.status.is_server_error() || problem.code == "insufficient_quota" => {
                headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
            }
            None => {}
        }
        response
    }
}

fn openai_type(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "requests",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 | 410 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        504 => "timeout_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}
