//! All routes, and what every request passes on its way.

use std::fmt;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use longhaul_queue::TraceContext;
use tracing::{Instrument as _, Span, info, info_span};

use crate::body_timeout::BodyTimeout;
use crate::compat::{Dialect, Refused};
use crate::ctx::Ctx;
use crate::problem::Problem;
use crate::{api, compat, front, guard, mcp, metrics, ops};

/// Under both names: SDKs of OpenAI read the first, those of Anthropic the second.
const REQUEST_IDS: [&str; 2] = ["x-request-id", "request-id"];

/// Longest refusal of the framework that is passed on.
const REFUSAL_BYTES_MAX: usize = 10_000;

/// The name of a request in answers and logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestId(u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "req_{:016x}", self.0)
    }
}

/// The whole server.
pub(crate) fn router(ctx: Ctx) -> Router {
    families().fallback(not_found).layer(from_fn_with_state(ctx.clone(), pass)).with_state(ctx)
}

/// The routes of all families.
fn families() -> Router<Ctx> {
    Router::new()
        .merge(api::routes())
        .merge(compat::routes())
        .merge(mcp::routes())
        .merge(ops::routes())
        .merge(front::routes())
        .merge(metrics::routes())
}

/// What every request passes on its way: it is named, asked whether it may come in, and its body must not be silent for long.
/// What is answered is brought into form and logged. One layer, because each costs a request some allocations.
async fn pass(State(ctx): State<Ctx>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = RequestId(fastrand::u64(..));
    guard::name_host(&mut request);
    let asked = Asked::of(&request);
    let admitted =
        guard::admit(&ctx.options, &ctx.tokens, &asked.method, asked.uri.path(), request.headers());
    let admitted = admitted.and_then(|caller| announced(&ctx, &asked, request.headers()).map(|()| caller));
    let (caller, mut response) = match admitted {
        Ok(caller) => {
            let name = caller.name.clone();
            let span = span_of(caller.trace, &asked);
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(id);
            let request = request.map(|body| Body::new(BodyTimeout::new(body, ctx.options.body_wait)));
            (name, in_form(&asked, next.run(request).instrument(span).await).await)
        }
        Err(problem) => (None, guard::refusal(asked.dialect, &problem)),
    };
    // What a client sent comes back as it was sent; no browser shall guess that it is a page.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::try_from(id.to_string()) {
        for name in REQUEST_IDS {
            response.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
    }
    // Probes are left out: they say nothing and never stop.
    if !ops::is_probe(asked.uri.path()) {
        info!(
            target: "longhaul::access",
            request_id = %id,
            method = %asked.method,
            path = asked.uri.path(),
            status = response.status().as_u16(),
            elapsed_ms = started.elapsed().as_millis() as u64,
            caller,
            "request"
        );
    }
    response
}

/// The span of a request whose caller has one, in the same trace: calls to providers are made below it.
fn span_of(caller: Option<TraceContext>, asked: &Asked) -> Span {
    let Some(caller) = caller else { return Span::none() };
    let own = caller.child();
    info_span!(
        "request",
        trace_id = format_args!("{:032x}", own.trace_id),
        span_id = format_args!("{:016x}", own.span_id),
        parent = %caller,
        method = %asked.method,
        path = asked.uri.path(),
    )
}

/// Refuses a body that says itself that it is too long, before any of it is waited for.
fn announced(ctx: &Ctx, asked: &Asked, headers: &HeaderMap) -> Result<(), Problem> {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let most = compat::upload_bytes_max(ctx, asked.uri.path()).unwrap_or(ctx.options.json_bytes_max as u64);
    if length.is_none_or(|length| length <= most) {
        return Ok(());
    }
    let text = format!("the body has more than {most} bytes: send several requests, or upload a file");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text))
}

/// What is remembered of a request while it is answered.
struct Asked {
    method: Method,
    uri: Uri,
    dialect: Option<Dialect>,
}

impl Asked {
    fn of(request: &Request) -> Self {
        let dialect = Dialect::of(request.uri().path(), request.headers());
        Self { method: request.method().clone(), uri: request.uri().clone(), dialect }
    }
}

async fn not_found(request: Request) -> Response {
    let text = format!("there is no {} {}", request.method(), request.uri().path());
    guard::refusal(Asked::of(&request).dialect, &Problem::not_found(text))
}

/// What the framework refuses by itself (a method, a segment of a path, a query) it tells as plain text or without a word. Clients
/// read one form of errors only, so it is told again in that of their family.
async fn in_form(asked: &Asked, response: Response) -> Response {
    let status = response.status();
    // Both APIs have files and models, whose routes tell problems in the form of one of them.
    if let (Some(dialect), Some(Refused(problem))) = (asked.dialect, response.extensions().get()) {
        return dialect.refusal(problem);
    }
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_told = kind.is_some_and(|kind| kind.starts_with("application/"));
    if is_told || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (head, body) = response.into_parts();
    let text = to_bytes(body, REFUSAL_BYTES_MAX).await.unwrap_or_default();
    let problem = match status {
        StatusCode::METHOD_NOT_ALLOWED => {
            let text = format!("{} is not possible at {}", asked.method, asked.uri.path());
            Problem::new(status, "wrong_method", text)
        }
        _ if text.is_empty() => Problem::new(status, "invalid", status),
        _ => Problem::new(status, "invalid", String::from_utf8_lossy(&text)),
    };
    let mut response = guard::refusal(asked.dialect, &problem);
    if let Some(allowed) = head.headers.get(header::ALLOW) {
        response.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;

    /// What is described elsewhere: by the protocol, by Prometheus; and the page for browsers and the description itself.
    fn is_described_elsewhere(path: &str) -> bool {
        ["/", "/mcp", "/metrics", "/healthz", "/readyz", "/openapi.json"].contains(&path)
    }

    /// What a router prints after each route's number, up to the next.
    fn by_number(text: &str) -> BTreeMap<&str, &str> {
        text.split("RouteId(").skip(1).filter_map(|text| text.split_once(')')).collect()
    }

    fn quoted(text: &str) -> &str {
        text.split('"').nth(1).expect("something quoted")
    }

    /// Paths and methods of a router. It tells them to nobody, so they are read from what it prints of itself.
    fn routes_of(router: &Router<Ctx>) -> BTreeMap<String, BTreeSet<String>> {
        let text = format!("{router:?}");
        let text = text.split("fallback_router").next().expect("routes");
        let (methods, paths) = text.split_once("node: Node").expect("methods, then paths");
        let methods = by_number(methods);
        let route = |(number, path): (&str, &str)| {
            let (_, allowed) = methods[number].split_once("allow_header: ").expect("methods");
            let allowed = quoted(allowed).split(',').filter(|method| *method != "HEAD");
            (quoted(path).to_owned(), allowed.map(str::to_lowercase).collect())
        };
        by_number(paths).into_iter().map(route).collect()
    }

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let mut routes = routes_of(&families());
        assert!(routes.contains_key("/v1/batches/{id}") && routes.contains_key("/mcp"), "{routes:?}");
        routes.retain(|path, _| !is_described_elsewhere(path));
        // Names of models have slashes in them, which a description cannot say.
        let routes: BTreeMap<_, _> =
            routes.into_iter().map(|(path, methods)| (path.replace("{*", "{"), methods)).collect();
        let api: Value =
            serde_json::from_str(&api::openapi::text(&api::openapi::tests::names())).expect("JSON");
        let described = api["paths"].as_object().expect("paths").iter().map(|(path, item)| {
            (path.clone(), item.as_object().expect("operations").keys().cloned().collect())
        });
        assert_eq!(routes, described.collect());
    }
}
