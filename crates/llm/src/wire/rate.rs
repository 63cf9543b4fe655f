//! What headers tell of limits: OpenAI's and Anthropic's names, and Together's, which count by the second. Compatible
//! services use any of them, so one function reads all.

use std::time::Duration;

use reqwest::header::HeaderMap;

use crate::provider::{RateSignals, RateWindow};

/// The longest wait that is believed. A nonsense header must not stop a route for years.
const WAIT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Reads the limits. `now_ms` is when the answer came, in milliseconds since the epoch.
pub fn rate_signals(headers: &HeaderMap, now_ms: i64) -> RateSignals {
    let openai = |what: &str| {
        window(headers, now_ms, |part| format!("x-ratelimit-{part}-{what}"))
            .or_else(|| window(headers, now_ms, |part| format!("anthropic-ratelimit-{what}-{part}")))
    };
    let anthropic = |what: &str| window(headers, now_ms, |part| format!("anthropic-ratelimit-{what}-{part}"));
    let mut signals = RateSignals {
        requests: openai("requests"),
        tokens: openai("tokens"),
        input_tokens: anthropic("input-tokens"),
        output_tokens: anthropic("output-tokens"),
    };
    // `x-ratelimit-limit` alone may count anything; together with the token header it is Together's.
    if headers.contains_key("x-tokenlimit-limit") {
        let second = |name: &str| window(headers, now_ms, |part| format!("{name}-{part}")).map(per_minute);
        signals.requests = signals.requests.or_else(|| second("x-ratelimit"));
        signals.tokens = signals.tokens.or_else(|| second("x-tokenlimit"));
    }
    signals
}

/// How long the headers ask to wait: `retry-after-ms`, or `retry-after` in seconds or as a date.
pub fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let number = |text: &str| text.parse::<f64>().ok();
    if let Some(ms) = header(headers, "retry-after-ms").and_then(number) {
        return seconds(ms / 1000.0);
    }
    let text = header(headers, "retry-after")?;
    if let Some(s) = number(text) {
        return seconds(s);
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(until(date.as_millisecond(), now_ms))
}

/// A duration as Go writes it: `6m0s`, `12ms`, `1h2m3.5s`; a bare number counts seconds.
pub(super) fn go_duration(text: &str) -> Option<Duration> {
    if let Ok(number) = text.parse::<f64>() {
        return seconds(number);
    }
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        total += number
            * match &rest[digits..unit_end] {
                "d" => 86_400.0,
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    seconds(total)
}

/// A wait of so many seconds, if that makes sense.
pub(super) fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().map(|wait| wait.min(WAIT_MAX))
}

fn window(headers: &HeaderMap, now_ms: i64, name: impl Fn(&str) -> String) -> Option<RateWindow> {
    let number = |part: &str| header(headers, &name(part))?.parse::<f64>().ok().map(|n| n.max(0.0) as u64);
    let window = RateWindow {
        limit: number("limit"),
        remaining: number("remaining"),
        reset_after: header(headers, &name("reset")).and_then(|text| reset(text, now_ms)),
    };
    (window.limit.is_some() || window.remaining.is_some()).then_some(window)
}

fn reset(text: &str, now_ms: i64) -> Option<Duration> {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => Some(until(time.as_millisecond(), now_ms)),
        Err(_) => go_duration(text),
    }
}

fn until(then_ms: i64, now_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(then_ms.saturating_sub(now_ms)).unwrap_or(0)).min(WAIT_MAX)
}

fn per_minute(window: RateWindow) -> RateWindow {
    let minute = |count: u64| count.saturating_mul(60);
    RateWindow { limit: window.limit.map(minute), remaining: window.remaining.map(minute), ..window }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    Some(headers.get(name)?.to_str().ok()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-15T12:00:00Z.
    const NOW_MS: i64 = 1_794_744_000_000;

    type Pairs = &'static [(&'static str, &'static str)];

    fn headers(pairs: Pairs) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn all(limit: u64, remaining: u64, reset_ms: u64) -> Option<RateWindow> {
        let reset_after = Some(Duration::from_millis(reset_ms));
        Some(RateWindow { limit: Some(limit), remaining: Some(remaining), reset_after })
    }

    #[test]
    fn limits_of_each_service() {
        let openai = headers(&[
            ("x-ratelimit-limit-requests", "500"),
            ("x-ratelimit-remaining-requests", "499"),
            ("x-ratelimit-reset-requests", "120ms"),
            ("x-ratelimit-limit-tokens", "30000"),
            ("x-ratelimit-remaining-tokens", "29000"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ]);
        let signals = rate_signals(&openai, NOW_MS);
        assert_eq!(signals.requests, all(500, 499, 120));
        assert_eq!(signals.tokens, all(30_000, 29_000, 360_000));
        assert_eq!(signals.input_tokens, None);

        let anthropic = headers(&[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2026-11-15T12:00:01Z"),
            ("anthropic-ratelimit-input-tokens-limit", "40000"),
            ("anthropic-ratelimit-input-tokens-remaining", "39000"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-11-15T12:00:02.5Z"),
            ("anthropic-ratelimit-output-tokens-limit", "8000"),
            ("anthropic-ratelimit-output-tokens-remaining", "8000"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-11-15T11:59:00Z"),
        ]);
        let signals = rate_signals(&anthropic, NOW_MS);
        assert_eq!(signals.requests, all(50, 49, 1_000));
        assert_eq!(signals.tokens, None);
        assert_eq!(signals.input_tokens, all(40_000, 39_000, 2_500));
        assert_eq!(signals.output_tokens, all(8_000, 8_000, 0));

        let together = headers(&[
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "9"),
            ("x-ratelimit-reset", "1"),
            ("x-tokenlimit-limit", "3000"),
            ("x-tokenlimit-remaining", "1500"),
        ]);
        let signals = rate_signals(&together, NOW_MS);
        assert_eq!(signals.requests, all(600, 540, 1_000));
        assert_eq!(signals.tokens.and_then(|window| window.limit), Some(180_000));

        let unknown = headers(&[("x-ratelimit-limit", "10"), ("x-ratelimit-limit-requests", "many")]);
        assert_eq!(rate_signals(&unknown, NOW_MS), RateSignals::default());
    }

    #[test]
    fn waits_in_every_form() {
        let cases: [(Pairs, Option<u64>); 9] = [
            (&[("retry-after", "2")], Some(2_000)),
            (&[("retry-after", "1.5")], Some(1_500)),
            (&[("retry-after-ms", "599"), ("retry-after", "1")], Some(599)),
            (&[("retry-after", "Sun, 15 Nov 2026 12:00:30 GMT")], Some(30_000)),
            (&[("retry-after", "Sun, 15 Nov 2026 11:00:00 GMT")], Some(0)),
            (&[("retry-after", "-3")], None),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "999999999999")], Some(7 * 24 * 3600 * 1000)),
            (&[], None),
        ];
        for (pairs, expected) in cases {
            let wait = retry_after(&headers(pairs), NOW_MS);
            assert_eq!(wait, expected.map(Duration::from_millis), "{pairs:?}");
        }
    }

    #[test]
    fn durations_as_go_writes_them() {
        let cases = [
            ("6m0s", Some(360_000)),
            ("12ms", Some(12)),
            ("1h2m3.5s", Some(3_723_500)),
            ("2m59.56s", Some(179_560)),
            ("1d", Some(86_400_000)),
            ("7", Some(7_000)),
            ("7x", None),
            ("ms", None),
        ];
        for (text, expected) in cases {
            assert_eq!(go_duration(text), expected.map(Duration::from_millis), "{text}");
        }
    }
}
