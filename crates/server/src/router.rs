//! All routes, and what every request passes on its way.

use std::time::Instant;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use tracing::info;

use crate::ctx::Ctx;
use crate::patience::Patient;
use crate::{api, compat, events, guard, mcp, metrics, ops, webhooks};

/// Under both names: SDKs of OpenAI read the first, those of Anthropic the second.
const REQUEST_IDS: [&str; 2] = ["x-request-id", "request-id"];

/// Longest refusal of the framework that is passed on.
const REFUSAL_BYTES_MAX: usize = 10_000;

/// The name of a request in answers and logs.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// The whole server.
pub(crate) fn router(ctx: Ctx) -> Router {
    Router::new()
        .merge(api::routes())
        .merge(events::routes())
        .merge(webhooks::routes())
        .merge(compat::routes())
        .merge(mcp::routes())
        .merge(ops::routes())
        .merge(metrics::routes())
        .fallback(not_found)
        .layer(from_fn(in_form))
        .layer(from_fn_with_state(ctx.clone(), patience))
        .layer(from_fn_with_state(ctx.clone(), guard::check))
        .layer(from_fn(log))
        .with_state(ctx)
}

async fn not_found(request: Request) -> Response {
    let text = format!("there is no {} {}", request.method(), request.uri().path());
    guard::refusal(request.uri().path(), request.headers(), &crate::Problem::not_found(text))
}

/// What the framework refuses by itself (a method, a segment of a path, a query) it tells as plain text or without a word. Clients
/// read one form of errors only, so it is told again in that of their family.
async fn in_form(request: Request, next: Next) -> Response {
    let (method, uri, headers) = (request.method().clone(), request.uri().clone(), request.headers().clone());
    let response = next.run(request).await;
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_told = kind.is_some_and(|kind| kind.starts_with("application/"));
    if is_told || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let text = to_bytes(body, REFUSAL_BYTES_MAX).await.unwrap_or_default();
    let problem = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            crate::Problem::new(status, "wrong_method", format!("{method} is not possible at {}", uri.path()))
        }
        _ if text.is_empty() => crate::Problem::new(status, "invalid", status),
        _ => crate::Problem::new(status, "invalid", String::from_utf8_lossy(&text)),
    };
    let mut response = guard::refusal(uri.path(), &headers, &problem);
    if let Some(allowed) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    response
}

/// Names a request and logs it when it is answered. Probes are left out: they say nothing and never stop.
async fn log(mut request: Request, next: Next) -> Response {
    let id = format!("req_{:016x}", fastrand::u64(..));
    request.extensions_mut().insert(RequestId(id.clone()));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let started = Instant::now();
    let mut response = next.run(request).await;
    for name in REQUEST_IDS {
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    if !ops::is_probe(&path) {
        let caller = response.extensions().get::<guard::Caller>().and_then(|caller| caller.0.clone());
        info!(
            target: "longhaul::access",
            request_id = id,
            %method,
            path,
            status = response.status().as_u16(),
            elapsed_ms = started.elapsed().as_millis() as u64,
            caller,
            "request"
        );
    }
    response
}

async fn patience(State(ctx): State<Ctx>, request: Request, next: Next) -> Response {
    let patient = |body| Body::new(Patient::new(body, ctx.options.body_wait));
    next.run(request.map(patient)).await
}
