//! Reading what clients send: windows, pages of lists.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use longhaul_prompts::sdk_batches::{BatchPayload, NewBatch};
use serde_json::Value;

use crate::guard::Caller;
use crate::problem::Problem;

/// Longest window of a batch.
const WINDOW_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A window such as `24h`, `90m` or `7d`.
pub(crate) fn window(text: &str) -> Result<Duration, Problem> {
    let wrong = || {
        let text = format!("completion_window is {text:?}: write 24h, or another time such as 90m, 1h or 7d");
        Problem::invalid(text).at("completion_window")
    };
    let (number, seconds) = match text.char_indices().last() {
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3_600),
        Some((at, 'd')) => (&text[..at], 24 * 3_600),
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let window = Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
    if window.is_zero() || window > WINDOW_MAX { Err(wrong()) } else { Ok(window) }
}

/// A batch as this call asks for it.
pub(crate) fn new_batch(payload: BatchPayload, caller: &Caller, headers: &HeaderMap) -> NewBatch {
    NewBatch {
        payload,
        idempotency_key: idempotency_key(headers),
        is_repeated: is_repeated(headers),
        trace: caller.trace,
    }
}

/// The client's own name for a creation.
fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    let key = headers.get("idempotency-key")?.to_str().ok()?;
    (!key.is_empty()).then(|| key.to_owned())
}

/// Whether an SDK says that it has sent this request before.
fn is_repeated(headers: &HeaderMap) -> bool {
    let count = headers.get("x-stainless-retry-count").and_then(|value| value.to_str().ok());
    count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0)
}

/// The rows of a page, within what the API allows. Odd figures are bent rather than refused: so does the original.
pub(crate) fn page_size(asked: Option<i64>, default: usize, max: usize) -> usize {
    asked.map_or(default, |asked| usize::try_from(asked).unwrap_or(0).clamp(1, max))
}

/// A body of text that is made as it is sent.
pub(crate) fn text_stream(
    kind: &'static str,
    pieces: impl Stream<Item = longhaul_pipeline::Result<String>> + Send + 'static,
) -> Response {
    // An error in the middle can only break the body off, which the client notices.
    let body = Body::from_stream(pieces.map(|piece| piece.map(Bytes::from)));
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}

/// A page of a list in OpenAI's form.
pub(crate) fn list_page(data: &[Value], has_more: bool) -> Value {
    let id = |value: Option<&Value>| value.map_or(Value::Null, |value| value["id"].clone());
    serde_json::json!({
        "object": "list",
        "first_id": id(data.first()),
        "last_id": id(data.last()),
        "data": data,
        "has_more": has_more,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_times_within_a_bound() {
        let hour = Duration::from_secs(3_600);
        for (text, expected) in
            [("24h", Some(24 * hour)), ("90m", Some(hour * 3 / 2)), ("7d", Some(24 * 7 * hour))]
        {
            assert_eq!(window(text).ok(), expected, "{text}");
        }
        for text in ["", "h", "0h", "24", "-1h", "1y", "999999999999999999d", "31d", "1.5h", "２４h"] {
            assert_eq!(window(text).expect_err(text).field.as_deref(), Some("completion_window"));
        }
    }
}
