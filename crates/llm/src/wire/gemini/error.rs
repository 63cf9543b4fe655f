//! Errors, in both directions. There are no rate headers here: the wait stands in the body, and so does the limit that was
//! met.

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::error::{Class, Error};
use crate::provider::{RateSignals, RateWindow};
use crate::wire::failure::{Around, Told, error_of, json_of, tells_of_context};
use crate::wire::rate::go_duration;
use crate::wire::shapes::text;

/// The quota that a written error of class `Quota` names.
const DAILY_QUOTA: &str = "GenerateRequestsPerDayPerProjectPerModel";

/// The quotas that a written 429 names.
const REQUEST_QUOTA: &str = "GenerateRequestsPerMinutePerProjectPerModel";
const TOKEN_QUOTA: &str = "GenerateContentTokensPerModelPerMinute";

/// Reads an error answer. `now_ms` is when it came.
pub fn error_from(status: u16, headers: &HeaderMap, body: &str, now_ms: i64) -> Error {
    let told = told_by(&json_of(body)["error"], status);
    error_of(&Around { status, headers, body, now_ms }, told)
}

/// Writes an error: its status and body.
pub fn error_to_json(error: &Error) -> (u16, Value) {
    let (status, word) = match error.class {
        Class::Throttled | Class::Quota | Class::Budget => (429, "RESOURCE_EXHAUSTED"),
        Class::Overloaded | Class::Stopped => (503, "UNAVAILABLE"),
        Class::ContextTooLong | Class::Refused | Class::BadRequest | Class::CacheMiss => {
            (400, "INVALID_ARGUMENT")
        }
        Class::Auth => (403, "PERMISSION_DENIED"),
        Class::Unreachable | Class::Network | Class::Truncated | Class::BadShape => (500, "INTERNAL"),
    };
    let status = error.status.unwrap_or(status);
    let mut details = Vec::new();
    let violation = match error.class {
        Class::Quota | Class::Budget => Some(json!({ "quotaId": DAILY_QUOTA })),
        Class::Throttled => violation_of(&error.rate),
        _ => None,
    };
    if let Some(violation) = violation {
        let kind = "type.googleapis.com/google.rpc.QuotaFailure";
        details.push(json!({ "@type": kind, "violations": [violation] }));
    }
    if let Some(wait) = error.retry_after {
        let kind = "type.googleapis.com/google.rpc.RetryInfo";
        details.push(json!({ "@type": kind, "retryDelay": format!("{}s", wait.as_secs_f64()) }));
    }
    let message = match error.class {
        // The only sign of it in this dialect is in words.
        Class::ContextTooLong if !tells_of_context(&error.message) => {
            format!("The input token count exceeds the maximum number of tokens allowed: {}", error.message)
        }
        _ => error.message.clone(),
    };
    let mut body = json!({ "code": status, "message": message, "status": word });
    if !details.is_empty() {
        body["details"] = json!(details);
    }
    (status, json!({ "error": body }))
}

/// The limit that a refused call met: the one of requests if none is left, else the one of tokens.
fn violation_of(rate: &RateSignals) -> Option<Value> {
    let spent = |window: &RateWindow| window.remaining == Some(0);
    let (id, window) = match (rate.requests.filter(spent), rate.tokens) {
        (Some(requests), _) => (REQUEST_QUOTA, requests),
        (None, tokens) => (TOKEN_QUOTA, tokens?),
    };
    Some(json!({ "quotaId": id, "quotaValue": window.limit?.to_string() }))
}

/// The limits a minute that were met. What is left of them is not told.
fn limits_of<'a>(violations: impl Iterator<Item = &'a Value>) -> RateSignals {
    let mut rate = RateSignals::default();
    for violation in violations {
        let [id, metric] =
            ["quotaId", "quotaMetric"].map(|name| violation[name].as_str().unwrap_or_default());
        let value = &violation["quotaValue"];
        let limit = value.as_u64().or_else(|| value.as_str()?.parse().ok());
        if limit.is_none() || !id.contains("PerMinute") {
            continue;
        }
        let window = Some(RateWindow { limit, remaining: None, reset_after: None });
        if id.contains("InputToken") || metric.contains("input_token") {
            rate.input_tokens = window;
        } else if id.contains("Token") || metric.contains("token") {
            rate.tokens = window;
        } else {
            rate.requests = window;
        }
    }
    rate
}

/// An error that stands where an answer should be.
pub(super) fn error_of_answer(value: &Value) -> Option<Error> {
    let error = value.get("error").filter(|error| error.is_object())?;
    Some(error_of_status(error))
}

/// The error of a `google.rpc.Status`, whose code may be HTTP's or gRPC's.
pub(super) fn error_of_status(error: &Value) -> Error {
    let code = error["code"].as_u64().unwrap_or(500);
    let status = match code {
        3 | 9 | 11 => 400,
        16 => 401,
        7 => 403,
        5 => 404,
        10 => 409,
        8 => 429,
        1 => 499,
        12 => 501,
        14 => 503,
        4 => 504,
        400..=599 => u16::try_from(code).unwrap_or(500),
        _ => 500,
    };
    let body = error.to_string();
    error_of(&Around { status, headers: &HeaderMap::new(), body: &body, now_ms: 0 }, told_by(error, status))
}

fn told_by(error: &Value, status: u16) -> Told {
    let message = text(&error["message"]);
    let word = text(&error["status"]);
    let says = |part: &str| message.as_deref().is_some_and(|message| message.contains(part));
    let details = || error["details"].as_array().into_iter().flatten();
    let violations = || details().flat_map(|detail| detail["violations"].as_array().into_iter().flatten());
    let daily =
        violations().any(|violation| violation["quotaId"].as_str().is_some_and(|id| id.contains("PerDay")));
    let bad_key = details().any(|detail| detail["reason"] == "API_KEY_INVALID") || says("API key not valid");
    let class = if daily {
        Some(Class::Quota)
    } else if bad_key {
        Some(Class::Auth)
    } else if status == 400 && message.as_deref().is_some_and(tells_of_context) {
        Some(Class::ContextTooLong)
    } else if word.as_deref() == Some("FAILED_PRECONDITION") && says("billing") {
        Some(Class::Quota)
    } else {
        None
    };
    let wait = details().find_map(|detail| go_duration(detail["retryDelay"].as_str()?));
    Told { class, code: word, message, retry_after: wait, rate: limits_of(violations()) }
}
