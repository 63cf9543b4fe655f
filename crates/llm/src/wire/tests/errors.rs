//! Tables of errors: status, headers and body on one side, class and wait on the other.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::error::{Class, Error};
use crate::provider::{RateSignals, RateWindow};
use crate::wire::{anthropic, gemini, openai};

type Reader = fn(u16, &HeaderMap, &str, i64) -> Error;

const DIALECTS: [(&str, Reader); 3] =
    [("openai", openai::error_from), ("anthropic", anthropic::error_from), ("gemini", gemini::error_from)];

fn check(reader: Reader, cases: &[(u16, Value, Class, Option<&str>)]) {
    for (status, body, class, code) in cases {
        let error = reader(*status, &HeaderMap::new(), &body.to_string(), 0);
        assert_eq!(error.class, *class, "{status} {body}");
        assert_eq!(error.status, Some(*status));
        assert_eq!(error.code.as_deref(), *code, "{status} {body}");
        assert!(!error.message.is_empty());
    }
}

const LONG: &str =
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.";

#[test]
fn errors_of_openai() {
    let limit = "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, \
                 Requested 2000. Please try again in 599ms. Visit https://platform.openai.com to learn more.";
    let invalid = "invalid_request_error";
    let cases = [
        (429, limit, "tokens", Some("rate_limit_exceeded"), Class::Throttled),
        (
            429,
            "You exceeded your current quota",
            "insufficient_quota",
            Some("insufficient_quota"),
            Class::Quota,
        ),
        (400, LONG, invalid, Some("context_length_exceeded"), Class::ContextTooLong),
        (400, LONG, invalid, None, Class::ContextTooLong),
        (400, "bad value", invalid, Some("invalid_value"), Class::BadRequest),
        (400, "filtered", invalid, Some("content_filter"), Class::Refused),
        (401, "Incorrect API key provided", invalid, Some("invalid_api_key"), Class::Auth),
        (403, "no access", "permission", None, Class::Auth),
        (404, "no such model", invalid, Some("model_not_found"), Class::BadRequest),
        (408, "timeout", "timeout", None, Class::Overloaded),
        (409, "conflict", "conflict", None, Class::Overloaded),
        (
            413,
            "Request too large for model: tokens per minute",
            "tokens",
            Some("rate_limit_exceeded"),
            Class::ContextTooLong,
        ),
        (422, "unprocessable", invalid, None, Class::BadRequest),
        (500, "oops", "server_error", None, Class::Overloaded),
        (503, "overloaded", "server_error", None, Class::Overloaded),
    ];
    for (status, message, kind, code, class) in cases {
        let body = json!({ "error": { "message": message, "type": kind, "param": null, "code": code } });
        check(openai::error_from, &[(status, body.clone(), class, code.or(Some(kind)))]);
        if message == limit {
            let error = openai::error_from(status, &HeaderMap::new(), &body.to_string(), 0);
            assert_eq!(error.retry_after, Some(Duration::from_millis(599)));
        }
    }
}

/// llama.cpp: the code is a number. vLLM: the error is the body. Ollama: it is a string.
#[test]
fn errors_of_local_engines() {
    let llama = json!({ "error": { "code": 400, "message": "the request exceeds the available context size",
        "type": "exceed_context_size_error", "n_ctx": 4096 } });
    let vllm = json!({ "object": "error", "message": LONG, "type": "BadRequestError", "code": 400 });
    let ollama = json!({ "error": "server busy, please try again. maximum pending requests exceeded" });
    check(
        openai::error_from,
        &[
            (400, llama, Class::ContextTooLong, Some("exceed_context_size_error")),
            (400, vllm, Class::ContextTooLong, Some("BadRequestError")),
            (503, ollama, Class::Overloaded, None),
            (422, json!({ "detail": "Field required" }), Class::BadRequest, None),
        ],
    );
}

#[test]
fn errors_of_anthropic() {
    let body = |kind: &str, message: &str| json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": "req_1" });
    let invalid = "invalid_request_error";
    let spend = json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "limit",
        "details": { "error_code": "enforced_spend_limit_reached" } } });
    let ramp = json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "ramp",
        "details": { "error_code": "ramp_limit_exceeded" } } });
    check(
        anthropic::error_from,
        &[
            (400, body(invalid, "max_tokens: field required"), Class::BadRequest, Some(invalid)),
            (
                400,
                body(invalid, "prompt is too long: 210000 tokens > 200000 maximum"),
                Class::ContextTooLong,
                Some(invalid),
            ),
            (
                400,
                body(invalid, "Your credit balance is too low to access the Anthropic API."),
                Class::Quota,
                Some(invalid),
            ),
            (
                401,
                body("authentication_error", "invalid x-api-key"),
                Class::Auth,
                Some("authentication_error"),
            ),
            (402, body("billing_error", "no money"), Class::Quota, Some("billing_error")),
            (403, body("permission_error", "not yours"), Class::Auth, Some("permission_error")),
            (404, body("not_found_error", "model: nope"), Class::BadRequest, Some("not_found_error")),
            (413, body("request_too_large", "too large"), Class::ContextTooLong, Some("request_too_large")),
            (429, body("rate_limit_error", "slow down"), Class::Throttled, Some("rate_limit_error")),
            (429, spend, Class::Quota, Some("enforced_spend_limit_reached")),
            (429, ramp, Class::Throttled, Some("ramp_limit_exceeded")),
            (500, body("api_error", "internal"), Class::Overloaded, Some("api_error")),
            (504, body("timeout_error", "timed out"), Class::Overloaded, Some("timeout_error")),
            (529, body("overloaded_error", "Overloaded"), Class::Overloaded, Some("overloaded_error")),
        ],
    );
}

#[test]
fn errors_of_gemini() {
    let body = |code: u16, status: &str, message: &str, details: Value| json!({ "error": { "code": code, "message": message, "status": status, "details": details } });
    let violation = |id: &str| {
        json!([
            { "@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{ "quotaMetric": "m", "quotaId": id }] },
            { "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.837906927s" },
        ])
    };
    let minute = body(
        429,
        "RESOURCE_EXHAUSTED",
        "quota",
        violation("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"),
    );
    let day = body(
        429,
        "RESOURCE_EXHAUSTED",
        "quota",
        violation("GenerateRequestsPerDayPerProjectPerModel-FreeTier"),
    );
    let bad_key =
        json!([{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID" }]);
    let long = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).";
    let cases = [
        (429, minute.clone(), Class::Throttled, Some("RESOURCE_EXHAUSTED")),
        (429, json!([minute]), Class::Throttled, Some("RESOURCE_EXHAUSTED")),
        (429, day, Class::Quota, Some("RESOURCE_EXHAUSTED")),
        (
            400,
            body(400, "INVALID_ARGUMENT", "API key not valid.", bad_key),
            Class::Auth,
            Some("INVALID_ARGUMENT"),
        ),
        (
            400,
            body(400, "INVALID_ARGUMENT", long, json!([])),
            Class::ContextTooLong,
            Some("INVALID_ARGUMENT"),
        ),
        (400, body(400, "INVALID_ARGUMENT", "bad", json!([])), Class::BadRequest, Some("INVALID_ARGUMENT")),
        (
            400,
            body(400, "FAILED_PRECONDITION", "enable billing", json!([])),
            Class::Quota,
            Some("FAILED_PRECONDITION"),
        ),
        (403, body(403, "PERMISSION_DENIED", "no", json!([])), Class::Auth, Some("PERMISSION_DENIED")),
        (404, body(404, "NOT_FOUND", "no model", json!([])), Class::BadRequest, Some("NOT_FOUND")),
        (500, body(500, "INTERNAL", "oops", json!([])), Class::Overloaded, Some("INTERNAL")),
        (
            503,
            body(503, "UNAVAILABLE", "The model is overloaded.", json!([])),
            Class::Overloaded,
            Some("UNAVAILABLE"),
        ),
        (
            504,
            body(504, "DEADLINE_EXCEEDED", "late", json!([])),
            Class::Overloaded,
            Some("DEADLINE_EXCEEDED"),
        ),
    ];
    check(gemini::error_from, &cases);
    let error = gemini::error_from(429, &HeaderMap::new(), &cases[0].1.to_string(), 0);
    assert_eq!(error.retry_after, Some(Duration::from_nanos(45_837_906_927)));
}

/// Gemini has no headers for them, but says which limit a refused call has met.
#[test]
fn a_429_of_gemini_tells_the_limit_that_was_met() {
    let of = |limit| Some(RateWindow { limit: Some(limit), remaining: None, reset_after: None });
    let requests = |limit| RateSignals { requests: of(limit), ..RateSignals::default() };
    let input = RateSignals { input_tokens: of(250_000), ..RateSignals::default() };
    let tokens = RateSignals { tokens: of(90), ..RateSignals::default() };
    let metric = "generativelanguage.googleapis.com/generate_content_free_tier_";
    let table = [
        ("requests", "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", json!("15"), requests(15)),
        ("requests", "GenerateRequestsPerMinutePerProjectPerModel", json!(2000), requests(2000)),
        ("input_token_count", "GenerateContentInputTokensPerModelPerMinute-FreeTier", json!("250000"), input),
        ("tokens", "GenerateContentTokensPerModelPerMinute", json!("90"), tokens),
        (
            "requests",
            "GenerateRequestsPerDayPerProjectPerModel-FreeTier",
            json!("50"),
            RateSignals::default(),
        ),
        ("requests", "GenerateRequestsPerMinutePerProjectPerModel", json!("many"), RateSignals::default()),
        ("requests", "GenerateRequestsPerMinutePerProjectPerModel", Value::Null, RateSignals::default()),
    ];
    for (what, id, value, expected) in table {
        let violation =
            json!({ "quotaMetric": format!("{metric}{what}"), "quotaId": id, "quotaValue": value });
        let details =
            json!([{ "@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation] }]);
        let body = json!({ "error": { "code": 429, "status": "RESOURCE_EXHAUSTED", "details": details } });
        let error = gemini::error_from(429, &HeaderMap::new(), &body.to_string(), 0);
        assert_eq!(*error.rate, expected, "{body}");
    }
}

#[test]
fn a_written_429_of_gemini_names_the_limit_that_was_met() {
    let window = |limit, remaining| {
        Some(RateWindow { limit: Some(limit), remaining: Some(remaining), reset_after: None })
    };
    for (left, expected) in [((0, 500), (Some(15), None)), ((3, 5), (None, Some(900)))] {
        let mut error = Error::new(Class::Throttled, "wait");
        error.rate.requests = window(15, left.0);
        error.rate.tokens = window(900, left.1);
        let (status, body) = gemini::error_to_json(&error);
        let read = gemini::error_from(status, &HeaderMap::new(), &body.to_string(), 0).rate;
        let limits = [read.requests, read.tokens].map(|window| window.and_then(|window| window.limit));
        assert_eq!(limits, [expected.0, expected.1], "{body}");
    }
}

#[test]
fn a_web_page_is_told_in_one_short_line() {
    let page = format!(
        "<!DOCTYPE html>\n<html><head><title>Sign in to the hotel</title></head>{}</html>",
        "<p>x</p>".repeat(10_000)
    );
    for (name, reader) in DIALECTS {
        for (status, class) in
            [(200, Class::Network), (502, Class::Overloaded), (403, Class::Auth), (404, Class::BadRequest)]
        {
            let error = reader(status, &HeaderMap::new(), &page, 0);
            assert_eq!(error.class, class, "{name} {status}");
            assert!(error.message.contains("Sign in to the hotel"), "{error}");
            assert!(error.message.len() < 200, "{name}: {}", error.message);
        }
        let empty = reader(500, &HeaderMap::new(), "", 0);
        assert_eq!((empty.class, empty.message.as_str()), (Class::Overloaded, "no text with it"), "{name}");
    }
}

#[test]
fn headers_tell_the_wait_and_the_limits() {
    let mut headers = HeaderMap::new();
    headers.insert("retry-after", "7".parse().unwrap());
    headers.insert("x-ratelimit-limit-requests", "500".parse().unwrap());
    for (name, reader) in DIALECTS {
        let error = reader(429, &headers, "{}", 0);
        assert_eq!(error.class, Class::Throttled, "{name}");
        assert_eq!(error.retry_after, Some(Duration::from_secs(7)), "{name}");
        assert_eq!(error.rate.requests.and_then(|window| window.limit), Some(500), "{name}");
    }
}

#[test]
fn a_time_out_on_the_way_may_have_cost() {
    for (name, reader) in DIALECTS {
        for (status, billed) in
            [(408, true), (504, true), (524, true), (429, false), (503, false), (400, false)]
        {
            assert_eq!(reader(status, &HeaderMap::new(), "{}", 0).maybe_billed, billed, "{name} {status}");
        }
    }
}

/// Classes that only our side knows come out as a failure of the service.
#[test]
fn written_errors_are_read_as_the_same_class() {
    for class in Class::ALL {
        let error = Error::new(class, "something is wrong");
        let written = [
            ("openai", openai::error_to_json(&error), openai::error_from as Reader),
            ("anthropic", anthropic::error_to_json(&error), anthropic::error_from),
            ("gemini", gemini::error_to_json(&error), gemini::error_from),
        ];
        for (name, (status, body), reader) in written {
            let read = reader(status, &HeaderMap::new(), &body.to_string(), 0);
            let expected = match class {
                Class::Unreachable | Class::Network | Class::Truncated | Class::BadShape | Class::Stopped => {
                    Class::Overloaded
                }
                Class::Budget => Class::Quota,
                Class::CacheMiss => Class::BadRequest,
                Class::Refused if name != "openai" => Class::BadRequest,
                other => other,
            };
            assert_eq!(read.class, expected, "{name}: {body}");
            assert!(read.message.ends_with("something is wrong"));
        }
    }
    let wait =
        Error { retry_after: Some(Duration::from_millis(1500)), ..Error::new(Class::Throttled, "wait") };
    let (status, body) = gemini::error_to_json(&wait);
    let read = gemini::error_from(status, &HeaderMap::new(), &body.to_string(), 0);
    assert_eq!(read.retry_after, wait.retry_after);
}
