//! The page at `/`: what `longhaul up` prints at its start, without scripts. If the server demands tokens, the page shows only what
//! a visitor knows already: the address that they used, and how to send a token.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::ctx::Ctx;

/// Where everything is explained.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/tree/main/docs");
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:3rem auto;padding:0 1rem;\
color:#222;background:#fff}pre{background:#f3f3f3;padding:.8rem;overflow-x:auto}dt{font-weight:600}\
dd{margin:0 0 .6rem}";

/// The route.
pub(crate) fn routes() -> Router<Ctx> {
    Router::new().route("/", get(page))
}

async fn page(State(ctx): State<Ctx>, headers: HeaderMap) -> Response {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let forwarded = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let scheme = if ctx.options.encrypted || forwarded { "https" } else { "http" };
    let base = escaped(&format!("{scheme}://{host}"));
    let (key, note) = match ctx.options.token_required {
        true => ("lh_…", "Every request needs a token: <code>longhaul tokens add NAME</code> makes one."),
        false => ("any", "This machine only: no token is needed."),
    };
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Longhaul</title><style>{STYLE}</style>\
         <h1>Longhaul</h1><p>{note}</p>\
         <h2>Python</h2><pre>from openai import OpenAI\nclient = OpenAI(base_url=\"{base}/v1\", api_key=\"{key}\")\n\n\
         from anthropic import Anthropic\nclient = Anthropic(base_url=\"{base}\", api_key=\"{key}\")</pre>\
         <h2>Addresses</h2><dl>\
         <dt>OpenAI SDK</dt><dd><code>{base}/v1</code></dd>\
         <dt>Anthropic SDK</dt><dd><code>{base}</code></dd>\
         <dt>HTTP API</dt><dd><code>{base}/api/v1</code>, <a href=\"/openapi.json\">its description</a></dd>\
         <dt>MCP</dt><dd><code>{base}/mcp</code></dd>\
         <dt>Metrics</dt><dd><a href=\"/metrics\">/metrics</a></dd>"
    );
    if !ctx.options.token_required {
        about_this_server(&ctx, &mut html);
    }
    let _ = writeln!(html, "</dl><p><a href=\"{DOCS}\">Documentation</a></p></html>");
    let hash = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, &policy),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, html).into_response()
}

/// Shown only if no token is needed.
fn about_this_server(ctx: &Ctx, html: &mut String) {
    let caps = ctx.queue().store().caps();
    let usable = ctx.catalog.profiles.iter().filter(|profile| profile.usable);
    let usable: Vec<&str> = usable.map(|profile| profile.name.as_str()).collect();
    let rows = [
        ("Store", caps.name.to_string()),
        ("Durability", caps.durability.to_string()),
        ("Providers", usable.join(", ")),
    ];
    for (name, value) in rows {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}
