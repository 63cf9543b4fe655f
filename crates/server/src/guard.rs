//! Who may come in. Asked before a body is read, in this order: is the request meant for us (Host), does it come from a page of
//! ours (Origin), could a form of a foreign page have sent it (content type), who sends it (token), may they (scope).
//!
//! Without a token, on loopback, the first three are what stands between any web page in the user's browser and their jobs: a page
//! can make the browser send requests here, but it cannot choose Host or Origin, and cannot send JSON or a header of its own
//! without asking first, which we never allow.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use longhaul_queue::TraceContext;

use crate::compat::Dialect;
use crate::ctx::ServerOptions;
use crate::problem::Problem;
use crate::tokens::{Scope, Tokens};

/// A header that only a program, or a page of our own, can send. Its value does not matter.
pub const OWN_HEADER: &str = "x-longhaul";

/// W3C trace context of the caller.
const TRACEPARENT: &str = "traceparent";

/// Who sent a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// The name of its token; none where none is needed.
    pub name: Option<String>,
    /// The span that it asks from (`traceparent`).
    pub trace: Option<TraceContext>,
    scopes: Vec<Scope>,
}

impl Caller {
    /// One who needs no token.
    pub const LOCAL: Self = Self { name: None, trace: None, scopes: Vec::new() };

    /// Whether it may do this. Where no token is needed, everybody may.
    pub fn may(&self, scope: Scope) -> bool {
        self.name.is_none() || scope == Scope::Read || self.scopes.contains(&scope)
    }

    /// Whether the caller may see and remove something that a token of this name made, or that has no owner.
    pub fn owns(&self, owner: Option<&str>) -> bool {
        self.name.as_deref() == owner || self.may(Scope::Admin)
    }
}

/// A whole address as the target goes before the header (RFC 9112, 3.2.2), and HTTP/2 knows no other way to name the host.
pub(crate) fn name_host(request: &mut Request) {
    if let Some(meant) =
        request.uri().authority().and_then(|meant| HeaderValue::from_str(meant.as_str()).ok())
    {
        request.headers_mut().insert(header::HOST, meant);
    }
}

/// Writes a problem in the form that the clients of a family read.
pub(crate) fn refusal(dialect: Option<Dialect>, problem: &Problem) -> Response<Body> {
    match dialect {
        Some(dialect) => dialect.refusal(problem),
        None => crate::api::refusal(problem),
    }
}

/// Whether a request may come in, and whose it is. Pure.
pub fn admit(
    options: &ServerOptions,
    tokens: &Tokens,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<Caller, Problem> {
    check_host(options, headers)?;
    check_origin(options, headers)?;
    let writes = !matches!(*method, Method::GET | Method::HEAD);
    if writes {
        check_form(headers)?;
    }
    let trace = headers.get(TRACEPARENT).and_then(|trace| TraceContext::parse(trace.to_str().ok()?));
    if is_open(path) || !options.token_required {
        return Ok(Caller { trace, ..Caller::default() });
    }
    let presented = presented(headers).ok_or_else(|| {
        unauthorized("a token is needed here: send it as Authorization: Bearer TOKEN; make one with longhaul tokens add NAME")
    })?;
    let token = tokens.find(presented).map_err(|error| {
        tracing::error!(%error, "tokens cannot be read, so every request is refused");
        Problem::unavailable("the tokens of this server cannot be read; its log says why")
    })?;
    let token = token.ok_or_else(|| unauthorized("this token is not known here"))?;
    let scope = scope_of(method, path);
    if !token.allows(scope) {
        let text = format!("token {} may not {}: it lacks the scope", token.name, scope.as_str());
        return Err(Problem::new(StatusCode::FORBIDDEN, "scope_missing", text));
    }
    Ok(Caller { name: Some(token.name), trace, scopes: token.scopes })
}

/// What may be asked without a token: that we live, and how to ask for more.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz" | "/startupz")
}

/// What a request must be allowed to.
pub fn scope_of(method: &Method, path: &str) -> Scope {
    if path.starts_with("/api/v1/work/") {
        return Scope::Work;
    }
    // Single calls of everybody, and who decided what about them.
    if matches!(path, "/api/v1/costs/unknown" | "/api/v1/costs/decisions") {
        return Scope::Admin;
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Scope::Read;
    }
    // Tools of /mcp ask for what they need themselves.
    if path == "/mcp" {
        return Scope::Read;
    }
    if path.starts_with("/v1/") {
        return Scope::Enqueue;
    }
    match path {
        "/api/v1/jobs" => Scope::Enqueue,
        _ if crate::api::starts_work(path) => Scope::Enqueue,
        _ => Scope::Admin,
    }
}

fn unauthorized(text: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", text)
}

/// As OpenAI's clients send it, or as older ones of Anthropic do.
fn presented(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| headers.get("x-api-key").and_then(|value| value.to_str().ok()))
}

/// A page that was served under a name of its own which now leads here (DNS rebinding) still sends that name.
fn check_host(options: &ServerOptions, headers: &HeaderMap) -> Result<(), Problem> {
    let host = only(headers, &header::HOST);
    // Who has to show a token cannot be tricked by a name.
    if options.token_required && options.hosts.is_empty() {
        return Ok(());
    }
    let name = without_port(host);
    if is_loopback(name) || options.hosts.contains(name) {
        return Ok(());
    }
    let text = format!(
        "this server is not called {host:?}: reach it by its address, or allow the name with server.hosts"
    );
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", text))
}

fn check_origin(options: &ServerOptions, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let host = only(headers, &header::HOST);
    let own = origin.split_once("://").is_some_and(|(scheme, rest)| {
        matches!(scheme, "http" | "https") && !host.is_empty() && rest.eq_ignore_ascii_case(host)
    });
    if own || options.origins.contains(origin) {
        return Ok(());
    }
    let text = format!("pages of {origin:?} may not call this server; allow it with server.origins");
    Err(Problem::new(StatusCode::FORBIDDEN, "foreign_origin", text))
}

/// A page may send a form, or a body of no type, to any address without asking. Such requests write nothing here unless they
/// carry a header that a page cannot add.
fn check_form(headers: &HeaderMap) -> Result<(), Problem> {
    let asked_first = [header::AUTHORIZATION.as_str(), "x-api-key", OWN_HEADER]
        .iter()
        .any(|name| headers.contains_key(*name));
    let kind = only(headers, &header::CONTENT_TYPE);
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_simple = kind.is_empty()
        || matches!(
            kind.as_str(),
            "application/x-www-form-urlencoded" | "multipart/form-data" | "text/plain"
        );
    if asked_first || !is_simple {
        return Ok(());
    }
    let text = format!(
        "a form could have sent this: send application/json, or add the header {OWN_HEADER}: 1 (or an Authorization header)"
    );
    Err(Problem::new(StatusCode::FORBIDDEN, "form_refused", text))
}

/// The value of a header that may be sent once. Of two, somebody before or behind us might read the other: so neither counts.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().unwrap_or_default(),
        _ => "",
    }
}

/// The name in a host, or nothing where more than a port follows it.
fn without_port(host: &str) -> &str {
    let (name, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |rest: &str| {
        rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if rest.is_empty() || is_port(rest) { name } else { "" }
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().expect("a header's name");
            headers.insert(name, value.parse().expect("a header's value"));
        }
        headers
    }

    /// A name, the headers, and why they are refused.
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);

    #[test]
    fn a_foreign_page_cannot_write_to_a_server_on_loopback() {
        const JSON: (&str, &str) = ("content-type", "application/json");
        let local = ("host", "127.0.0.1:7788");
        let rows: [Row<'_>; 18] = [
            ("curl with JSON", &[local, JSON], None),
            ("localhost", &[("host", "localhost:7788"), JSON], None),
            ("IPv6", &[("host", "[::1]:7788"), JSON], None),
            ("no host at all", &[JSON], Some("wrong_host")),
            ("a name that was made to lead here", &[("host", "evil.example"), JSON], Some("wrong_host")),
            ("an address of the network", &[("host", "10.0.0.7:7788"), JSON], Some("wrong_host")),
            ("loopback as a part of a name", &[("host", "127.0.0.1.evil.example"), JSON], Some("wrong_host")),
            ("our own page", &[local, JSON, ("origin", "http://127.0.0.1:7788")], None),
            ("a foreign page", &[local, JSON, ("origin", "https://evil.example")], Some("foreign_origin")),
            (
                "a page of another port",
                &[local, JSON, ("origin", "http://127.0.0.1:9")],
                Some("foreign_origin"),
            ),
            ("a page without origin", &[local, JSON, ("origin", "null")], Some("foreign_origin")),
            (
                "a plain form",
                &[local, ("content-type", "application/x-www-form-urlencoded")],
                Some("form_refused"),
            ),
            ("text", &[local, ("content-type", "text/plain;charset=UTF-8")], Some("form_refused")),
            (
                "an upload by a form",
                &[local, ("content-type", "multipart/form-data; boundary=x")],
                Some("form_refused"),
            ),
            ("no type", &[local], Some("form_refused")),
            (
                "an upload by an SDK",
                &[local, ("content-type", "multipart/form-data; boundary=x"), ("authorization", "Bearer x")],
                None,
            ),
            (
                "an upload by curl",
                &[local, ("content-type", "multipart/form-data; boundary=x"), (OWN_HEADER, "1")],
                None,
            ),
            ("an empty body by an SDK", &[local, ("x-api-key", "x")], None),
        ];
        let (options, tokens) = (ServerOptions::default(), Tokens::in_memory());
        for (name, sent, expected) in rows {
            let admitted = admit(&options, &tokens, &Method::POST, "/api/v1/jobs", &headers(sent));
            assert_eq!(admitted.err().map(|problem| problem.code), expected, "{name}");
        }
    }

    #[test]
    fn a_token_opens_what_its_scopes_allow() {
        let tokens = Tokens::in_memory();
        let reader = tokens.add("reader", &[Scope::Read]).expect("added");
        let worker = tokens.add("worker", &[Scope::Work]).expect("added");
        let writer = tokens.add("writer", &[Scope::Enqueue]).expect("added");
        let options = ServerOptions { token_required: true, ..ServerOptions::default() };
        let (get, post, delete, patch) = (Method::GET, Method::POST, Method::DELETE, Method::PATCH);
        let rows = [
            (&get, "/api/v1/jobs", None, Some("unauthorized")),
            (&get, "/healthz", None, None),
            (&get, "/metrics", None, Some("unauthorized")),
            (&get, "/api/v1/jobs", Some("lh_wrong"), Some("unauthorized")),
            (&get, "/api/v1/jobs", Some(reader.as_str()), None),
            (&post, "/api/v1/jobs", Some(reader.as_str()), Some("scope_missing")),
            (&post, "/v1/batches", Some(reader.as_str()), Some("scope_missing")),
            (&post, "/api/v1/work/claim", Some(reader.as_str()), Some("scope_missing")),
            (&post, "/api/v1/work/claim", Some(worker.as_str()), None),
            (&get, "/api/v1/jobs", Some(worker.as_str()), None),
            (&patch, "/api/v1/jobs/1", Some(worker.as_str()), Some("scope_missing")),
            (&patch, "/api/v1/jobs/1", Some(writer.as_str()), Some("scope_missing")),
            (&delete, "/api/v1/jobs/1", Some(worker.as_str()), Some("scope_missing")),
            (&get, "/api/v1/sheets/sheet-1/blanks", Some(reader.as_str()), None),
            (&post, "/api/v1/sheets", Some(reader.as_str()), Some("scope_missing")),
            (&post, "/api/v1/sheets", Some(writer.as_str()), None),
            (&post, "/api/v1/sheets/estimate", Some(writer.as_str()), None),
            (&post, "/api/v1/runs/sheet-1/cancel", Some(writer.as_str()), Some("scope_missing")),
            (&delete, "/api/v1/runs/sheet-1", Some(writer.as_str()), Some("scope_missing")),
        ];
        for (method, path, token, expected) in rows {
            let bearer = token.map(|token| format!("Bearer {token}")).unwrap_or_default();
            let mut sent = vec![("host", "jobs.example.org"), ("content-type", "application/json")];
            if token.is_some() {
                sent.push(("authorization", &bearer));
            }
            let admitted = admit(&options, &tokens, method, path, &headers(&sent));
            assert_eq!(admitted.err().map(|problem| problem.code), expected, "{method} {path}");
        }
    }
}
