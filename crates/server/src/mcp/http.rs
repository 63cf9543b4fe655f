//! `/mcp`: one message a POST, answered as JSON. There are no sessions and no streams, so nothing can be GET or DELETEd. Who may
//! come in at all is the guard's to say, as for every path.

use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Access;
use super::rpc::{self, Message, Request, RpcError};
use crate::ctx::Ctx;
use crate::guard::Caller;

const VERSION_HEADER: &str = "mcp-protocol-version";
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";

/// The route.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new().route("/mcp", post(receive))
}

async fn receive(
    State(ctx): State<Ctx>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Response {
    let (head, body) = request.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
        let text = "messages are sent as application/json";
        return refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &RpcError::new(RpcError::INVALID_REQUEST, text),
            &Value::Null,
        );
    }
    let max = ctx.options.json_bytes_max;
    let body = match ctx.bodies.read(body, max).await {
        Ok(body) => body,
        Err(unread) => {
            let problem = unread.problem(max);
            let error = RpcError::new(RpcError::INVALID_REQUEST, problem.detail);
            return refused(problem.status, &error, &Value::Null);
        }
    };
    match rpc::parse(&body) {
        Ok(Message::Request(request)) => answer(&ctx, &caller, &head.headers, &request).await,
        Ok(Message::Notification { .. } | Message::Response) => StatusCode::ACCEPTED.into_response(),
        Err(error) => refused(StatusCode::BAD_REQUEST, &error, &Value::Null),
    }
}

async fn answer(ctx: &Ctx, caller: &Caller, headers: &HeaderMap, request: &Request) -> Response {
    let answered = match check_headers(headers, request) {
        Ok(()) => rpc::answer(ctx, &Access::of(ctx, caller), request).await,
        Err(error) => Err(error),
    };
    match answered {
        Ok(result) => {
            Json(serde_json::json!({ "jsonrpc": "2.0", "id": request.id, "result": result })).into_response()
        }
        Err(error) => refused(status(request, &error), &error, &request.id),
    }
}

/// Clients of the newest revision read the status first; older ones take anything but 200 for a broken server.
fn status(request: &Request, error: &RpcError) -> StatusCode {
    match error.code {
        _ if error.malformed => StatusCode::BAD_REQUEST,
        RpcError::METHOD_NOT_FOUND if request.is_modern() => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

fn refused(status: StatusCode, error: &RpcError, id: &Value) -> Response<Body> {
    (status, Json(error.answer(id))).into_response()
}

/// What stands in headers is what proxies go by, so it must be what stands in the body.
fn check_headers(headers: &HeaderMap, request: &Request) -> Result<(), RpcError> {
    let told = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let version = told(VERSION_HEADER);
    if let Some(version) = version
        && !rpc::is_known(version)
        && request.method != "initialize"
    {
        return Err(RpcError::unsupported(version));
    }
    if !request.is_modern() {
        return match version {
            Some(version) if rpc::is_modern(version) && request.method != "initialize" => {
                let text = "the header tells a version whose requests tell it in params._meta too";
                Err(RpcError::malformed(RpcError::INVALID_PARAMS, text))
            }
            _ => Ok(()),
        };
    }
    let mut rows = vec![
        (VERSION_HEADER, version.map(str::to_owned), request.version()),
        (METHOD_HEADER, told(METHOD_HEADER).map(str::to_owned), Some(request.method.as_str())),
    ];
    if let Some(tool) = request.tool() {
        rows.push((NAME_HEADER, told(NAME_HEADER).map(decoded), Some(tool)));
    }
    match rows.into_iter().find(|(_, header, body)| header.as_deref() != *body) {
        None => Ok(()),
        Some((name, header, body)) => {
            let says =
                |text: Option<&str>| text.map_or_else(|| "nothing".to_owned(), |text| format!("{text:?}"));
            let text = format!("the header {name} says {}, the body {}", says(header.as_deref()), says(body));
            Err(RpcError::malformed(RpcError::HEADER_MISMATCH, text))
        }
    }
}

/// A name that is no plain ASCII comes as `=?base64?…?=`.
fn decoded(text: &str) -> String {
    let inner = text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?="));
    let bytes = inner.and_then(|inner| STANDARD.decode(inner).ok());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| text.to_owned())
}
