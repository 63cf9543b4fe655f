//! Errors, in both directions.

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::error::{Class, Error};
use crate::wire::failure::{Around, Told, error_of, json_of, tells_of_context};
use crate::wire::shapes::text;

/// Reads an error answer. `now_ms` is when it came.
pub fn error_from(status: u16, headers: &HeaderMap, body: &str, now_ms: i64) -> Error {
    let told = told_by(&json_of(body)["error"]);
    error_of(&Around { status, headers, body, now_ms }, told)
}

/// Writes an error: its status and body.
pub fn error_to_json(error: &Error) -> (u16, Value) {
    let (status, kind) = match error.class {
        Class::Throttled => (429, "rate_limit_error"),
        Class::Overloaded | Class::Stopped => (529, "overloaded_error"),
        Class::ContextTooLong => (413, "request_too_large"),
        Class::Refused | Class::BadRequest | Class::CacheMiss => (400, "invalid_request_error"),
        Class::Auth => (401, "authentication_error"),
        Class::Quota | Class::Budget => (402, "billing_error"),
        Class::Unreachable | Class::Network | Class::Truncated | Class::BadShape => (500, "api_error"),
    };
    let kind = match error.status {
        Some(403) => "permission_error",
        Some(404) => "not_found_error",
        Some(500) => "api_error",
        Some(504) => "timeout_error",
        _ => kind,
    };
    let body = json!({ "type": "error", "error": { "type": kind, "message": error.message } });
    (error.status.unwrap_or(status), body)
}

/// An error that stands where an answer should be: a body, an event or a line of results.
pub(super) fn error_of_answer(value: &Value) -> Option<Error> {
    if value["type"] != "error" {
        return None;
    }
    let told = told_by(&value["error"]);
    let status = match value["error"]["type"].as_str().unwrap_or_default() {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => 500,
    };
    let around = Around { status, headers: &HeaderMap::new(), body: "", now_ms: 0 };
    Some(error_of(&around, told))
}

fn told_by(error: &Value) -> Told {
    let kind = error["type"].as_str().unwrap_or_default();
    let stable = error["details"]["error_code"].as_str();
    let message = text(&error["message"]);
    let says = |part: &str| message.as_deref().is_some_and(|message| message.contains(part));
    let class = match (kind, stable) {
        (_, Some("enforced_spend_limit_reached")) | ("billing_error", _) => Some(Class::Quota),
        ("invalid_request_error", _) if says("credit balance is too low") => Some(Class::Quota),
        ("invalid_request_error", _) if message.as_deref().is_some_and(tells_of_context) => {
            Some(Class::ContextTooLong)
        }
        ("invalid_request_error" | "not_found_error", _) => Some(Class::BadRequest),
        ("authentication_error" | "permission_error", _) => Some(Class::Auth),
        ("request_too_large", _) => Some(Class::ContextTooLong),
        ("rate_limit_error", _) => Some(Class::Throttled),
        ("api_error" | "timeout_error" | "overloaded_error", _) => Some(Class::Overloaded),
        _ => None,
    };
    Told {
        class,
        code: stable.map(str::to_owned).or_else(|| text(&error["type"])),
        message,
        ..Told::default()
    }
}
