//! What error answers of all dialects have in common: the class by status, a short message from whatever body came, and
//! the wait.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::error::{Class, Error};
use crate::provider::RateSignals;

use super::rate::{go_duration, rate_signals, retry_after};

/// Letters of a provider's message that are kept.
const MESSAGE_CHARS_MAX: usize = 500;

/// What a provider says of an error, whatever the dialect.
#[derive(Default)]
pub(super) struct Told {
    pub(super) class: Option<Class>,
    pub(super) code: Option<String>,
    pub(super) message: Option<String>,
    pub(super) retry_after: Option<Duration>,
    /// Limits, where the body tells them.
    pub(super) rate: RateSignals,
}

/// The answer around an error.
pub(super) struct Around<'a> {
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a str,
    pub(super) now_ms: i64,
}

/// Builds the error: what the body told goes before what the status means.
pub(super) fn error_of(around: &Around<'_>, told: Told) -> Error {
    let Around { status, headers, body, now_ms } = *around;
    let message = told.message.map_or_else(|| message_of_text(headers, body), |message| short(&message));
    let class = told.class.unwrap_or_else(|| class_of_status(status));
    let wait = retry_after(headers, now_ms).or(told.retry_after);
    let mut error = Error::new(class, message).with_status(status);
    error.code = told.code;
    error.retry_after = wait.or_else(|| (class == Class::Throttled).then(|| wait_in_text(&error.message))?);
    let by_headers = rate_signals(headers, now_ms);
    error.rate = Box::new(if by_headers == RateSignals::default() { told.rate } else { by_headers });
    // Somebody on the way gave up waiting, or what came is no answer: the provider may well have done the work.
    error.maybe_billed = matches!(status, 200..=299 | 408 | 504 | 522 | 524);
    error
}

/// What a status means when the body tells nothing more.
pub(super) fn class_of_status(status: u16) -> Class {
    match status {
        // A page of a proxy or a login where an answer should be.
        200..=299 => Class::Network,
        401 | 403 | 407 => Class::Auth,
        402 => Class::Quota,
        // Time-outs and conflicts pass: every SDK tries these again.
        408 | 409 | 425 => Class::Overloaded,
        413 => Class::ContextTooLong,
        429 => Class::Throttled,
        500.. => Class::Overloaded,
        _ => Class::BadRequest,
    }
}

/// Whether a message complains about the length of the input. Engines share no code for it.
pub(super) fn tells_of_context(message: &str) -> bool {
    let message = message.to_lowercase();
    let hints = [
        "context length",
        "context_length",
        "context window",
        "context size",
        "context limit",
        "maximum context",
        "prompt is too long",
        "input token count",
        "input is too long",
    ];
    hints.iter().any(|hint| message.contains(hint))
}

/// A provider's text, at most so long.
pub(super) fn short(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// JSON of a body; on streams Google wraps an error in a list of one.
pub(super) fn json_of(body: &str) -> Value {
    match serde_json::from_str(body) {
        Ok(Value::Array(mut items)) if !items.is_empty() => items.swap_remove(0),
        Ok(value) => value,
        Err(_) => Value::Null,
    }
}

fn message_of_text(headers: &HeaderMap, body: &str) -> String {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let start = body.trim_start().get(..15).unwrap_or(body.trim_start()).to_lowercase();
    if kind.starts_with("text/html") || start.starts_with("<!doctype") || start.starts_with("<html") {
        let title = title_of(body).map(|title| format!(" titled {title:?}")).unwrap_or_default();
        return format!("a web page{title} came instead of an answer; check the base URL and the proxy");
    }
    if body.trim().is_empty() { "no text with it".to_owned() } else { short(body) }
}

fn title_of(page: &str) -> Option<String> {
    let lower = page.to_ascii_lowercase();
    let start = lower.find("<title>")? + "<title>".len();
    let end = start + lower.get(start..)?.find("</title>")?;
    Some(page.get(start..end)?.trim().chars().take(80).collect())
}

/// OpenAI sometimes tells the wait only in words: "Please try again in 599ms."
fn wait_in_text(message: &str) -> Option<Duration> {
    let (_, after) = message.split_once("try again in ")?;
    let word = after.split_whitespace().next()?;
    go_duration(word.trim_end_matches(['.', ',', ';']))
}
