//! Errors, in both directions.

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::error::{Class, Error};
use crate::wire::failure::{Around, Told, error_of, json_of, tells_of_context};
use crate::wire::shapes::text;

/// Reads an error answer. `now_ms` is when it came.
pub fn error_from(status: u16, headers: &HeaderMap, body: &str, now_ms: i64) -> Error {
    let told = told_by(&json_of(body), status);
    error_of(&Around { status, headers, body, now_ms }, told)
}

/// Writes an error: its status and body.
pub fn error_to_json(error: &Error) -> (u16, Value) {
    let (status, kind, code) = match error.class {
        Class::Throttled => (429, "requests", Some("rate_limit_exceeded")),
        Class::Overloaded | Class::Stopped => (503, "server_error", None),
        Class::ContextTooLong => (400, "invalid_request_error", Some("context_length_exceeded")),
        Class::Refused => (400, "invalid_request_error", Some("content_filter")),
        Class::BadRequest | Class::CacheMiss => (400, "invalid_request_error", None),
        Class::Auth => (401, "invalid_request_error", Some("invalid_api_key")),
        Class::Quota | Class::Budget => (429, "insufficient_quota", Some("insufficient_quota")),
        Class::Unreachable | Class::Network | Class::Truncated | Class::BadShape => {
            (502, "server_error", None)
        }
    };
    let code = error.code.as_deref().or(code);
    let body = json!({ "error": { "message": error.message, "type": kind, "param": null, "code": code } });
    (error.status.unwrap_or(status), body)
}

/// An error that stands in a body or chunk of status 200.
pub(super) fn error_of_answer(value: &Value) -> Option<Error> {
    let error = value.get("error").filter(|error| !error.is_null())?;
    let status = error["code"].as_u64().and_then(|code| u16::try_from(code).ok()).filter(|code| *code >= 400);
    let text = value.to_string();
    let around = Around { status: status.unwrap_or(500), headers: &HeaderMap::new(), body: &text, now_ms: 0 };
    Some(error_of(&around, told_by(value, around.status)))
}

/// What a body tells. Engines put the message in four places.
fn told_by(body: &Value, status: u16) -> Told {
    let error = &body["error"];
    let message = [&error["message"], error, &body["message"], &body["detail"]].into_iter().find_map(text);
    let code = text(&error["code"]).or_else(|| text(&error["type"])).or_else(|| text(&body["type"]));
    let kind = error["type"].as_str().unwrap_or_default();
    let named = |name: &str| code.as_deref() == Some(name) || kind == name;
    let client_side = (400..500).contains(&status) && status != 429;
    let class = if ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"]
        .into_iter()
        .any(named)
    {
        Some(Class::Quota)
    } else if named("context_length_exceeded") || named("exceed_context_size_error") {
        Some(Class::ContextTooLong)
    } else if named("content_filter") || named("content_policy_violation") {
        Some(Class::Refused)
    } else if named("rate_limit_exceeded") && status != 413 {
        Some(Class::Throttled)
    } else if client_side && status != 401 && message.as_deref().is_some_and(tells_of_context) {
        Some(Class::ContextTooLong)
    } else {
        None
    };
    Told { class, code, message, ..Told::default() }
}
