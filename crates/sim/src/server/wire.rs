//! What the three dialects have in common over HTTP: keys, errors, rate headers, and how trouble looks from outside.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body;
use super::connection::Connection;
use crate::sim_core::{SimCore, Trouble, bad_request, not_found as missing};
use longhaul_llm::error::Error;
use longhaul_llm::provider::{RateSignals, RateWindow};
use longhaul_llm::types::Answer;
use longhaul_llm::wire as codec;

/// A page such as a proxy shows.
const HTML: &str = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1>\
                    </center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n";

/// A dialect over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    OpenAi,
    Anthropic,
    Gemini,
}

impl Wire {
    /// Which dialect a request is in. `/v1/models` is both OpenAI's and Anthropic's; headers tell them apart.
    pub(super) fn of(path: &str, headers: &HeaderMap) -> Self {
        if path.contains("/v1beta/") {
            Self::Gemini
        } else if path.starts_with("/v1/messages") || headers.contains_key("anthropic-version") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    /// The key that a request carries.
    pub(super) fn key<'a>(self, uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
        let own = match self {
            Self::OpenAi => None,
            Self::Anthropic => headers.get("x-api-key"),
            Self::Gemini => headers.get("x-goog-api-key"),
        };
        let bearer = || headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ");
        let in_query = || uri.query()?.split('&').find_map(|pair| pair.strip_prefix("key="));
        own.and_then(|key| key.to_str().ok()).or_else(bearer).or_else(in_query)
    }

    /// An answer with its headers.
    pub(super) fn answer(self, core: &SimCore, rate: &RateSignals, body: &Value) -> Response {
        let mut response = json_response(StatusCode::OK, body);
        self.tell_limits(core, rate, response.headers_mut());
        response
    }

    /// An error with its headers.
    pub(super) fn refusal(self, core: &SimCore, error: &Error) -> Response {
        let (status, body) = match self {
            Self::OpenAi => codec::openai::error_to_json(error),
            Self::Anthropic => codec::anthropic::error_to_json(error),
            Self::Gemini => codec::gemini::error_to_json(error),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json_response(status, &body);
        self.tell_limits(core, &error.rate, response.headers_mut());
        // Gemini tells the wait in the body alone.
        if let Some(wait) = error.retry_after
            && self != Self::Gemini
        {
            let millis = wait.as_micros().div_ceil(1000);
            set(response.headers_mut(), "retry-after", &millis.div_ceil(1000).to_string());
            set(response.headers_mut(), "retry-after-ms", &millis.to_string());
        }
        response
    }

    /// How trouble looks from outside. `whole` writes the answer that is cut off.
    pub(super) fn trouble(
        self,
        core: &SimCore,
        connection: &Connection,
        trouble: Trouble,
        whole: impl FnOnce(&Answer) -> Value,
    ) -> Response {
        match trouble {
            Trouble::Told(error) => self.refusal(core, &error),
            Trouble::Html => {
                (StatusCode::BAD_GATEWAY, [(header::CONTENT_TYPE, "text/html")], HTML).into_response()
            }
            Trouble::TimedOut | Trouble::Dropped => {
                connection.drop_it();
                StatusCode::OK.into_response()
            }
            Trouble::CutOff(run) => body::half(whole(&run.answer).to_string()),
        }
    }

    /// Headers that tell the limits as they were when the call was let in.
    pub(super) fn tell_limits(self, core: &SimCore, rate: &RateSignals, headers: &mut HeaderMap) {
        let windows = [("requests", &rate.requests), ("tokens", &rate.tokens)];
        for (what, window) in windows.into_iter().filter_map(|(what, window)| Some((what, window.as_ref()?)))
        {
            let RateWindow { limit, remaining, reset_after } = window;
            let reset = reset_after.unwrap_or_default();
            let numbers =
                [("limit", limit.unwrap_or_default()), ("remaining", remaining.unwrap_or_default())];
            match self {
                Self::OpenAi => {
                    for (part, number) in numbers {
                        set(headers, &format!("x-ratelimit-{part}-{what}"), &number.to_string());
                    }
                    set(headers, &format!("x-ratelimit-reset-{what}"), &go_duration(reset));
                }
                Self::Anthropic => {
                    for (part, number) in numbers {
                        set(headers, &format!("anthropic-ratelimit-{what}-{part}"), &number.to_string());
                    }
                    let then = core.clock.0.now_ms() + i64::try_from(reset.as_millis()).unwrap_or_default();
                    let then = jiff::Timestamp::from_millisecond(then).unwrap_or_default();
                    set(headers, &format!("anthropic-ratelimit-{what}-reset"), &then.to_string());
                }
                Self::Gemini => {}
            }
        }
    }
}

/// The JSON of a request's body.
pub(super) fn read_json(body: &Bytes) -> Result<Value, Error> {
    serde_json::from_slice(body).map_err(|error| bad_request(format!("the body is no JSON: {error}")))
}

/// A response of JSON.
pub(super) fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// `GET /v1/models`, in the dialect of whoever asks.
pub(super) async fn models(State(core): State<Arc<SimCore>>, uri: Uri, headers: HeaderMap) -> Response {
    let models = &core.options().models;
    let body = match Wire::of(uri.path(), &headers) {
        Wire::Anthropic => json!({
            "data": models.iter().map(|id| anthropic_model(id)).collect::<Vec<_>>(),
            "has_more": false,
            "first_id": models.first(),
            "last_id": models.last(),
        }),
        Wire::OpenAi | Wire::Gemini => {
            json!({ "object": "list", "data": models.iter().map(|id| openai_model(id)).collect::<Vec<_>>() })
        }
    };
    json_response(StatusCode::OK, &body)
}

/// `GET /v1/models/{id}`.
pub(super) async fn model(
    State(core): State<Arc<SimCore>>,
    Path(id): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let wire = Wire::of(uri.path(), &headers);
    if !core.options().models.contains(&id) {
        return wire.refusal(&core, &missing(&format!("model: {id}")));
    }
    let body = if wire == Wire::Anthropic { anthropic_model(&id) } else { openai_model(&id) };
    json_response(StatusCode::OK, &body)
}

fn openai_model(id: &str) -> Value {
    json!({ "id": id, "object": "model", "created": 0, "owned_by": "sim" })
}

fn anthropic_model(id: &str) -> Value {
    json!({ "type": "model", "id": id, "display_name": id, "created_at": "1970-01-01T00:00:00Z" })
}

/// Any other path.
pub(super) async fn not_found(State(core): State<Arc<SimCore>>, uri: Uri, headers: HeaderMap) -> Response {
    Wire::of(uri.path(), &headers).refusal(&core, &missing(&format!("path: {}", uri.path())))
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
        headers.insert(name, value);
    }
}

/// As Go prints it: `12ms`, `1.5s`, `6m0s`.
fn go_duration(duration: Duration) -> String {
    let millis = duration.as_micros().div_ceil(1000);
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    match (minutes, rest) {
        (0, millis) if millis < 1000 => format!("{millis}ms"),
        (0, millis) => format!("{}s", millis as f64 / 1000.0),
        (minutes, millis) => format!("{minutes}m{}s", millis as f64 / 1000.0),
    }
}
