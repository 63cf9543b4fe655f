//! Which trace a call belongs to. Spans get their ids from whoever subscribes to them, and a program has one subscriber;
//! so the way to ask it is a matter of the program, not of one client.

use std::sync::OnceLock;

use reqwest::header::HeaderValue;

/// W3C's header.
pub const TRACEPARENT: &str = "traceparent";

type Current = Box<dyn Fn() -> Option<String> + Send + Sync>;

static CURRENT: OnceLock<Current> = OnceLock::new();

/// From here on each call carries the `traceparent` that this answers while the call is made. The first to say so counts.
pub fn ask_traceparent(current: impl Fn() -> Option<String> + Send + Sync + 'static) {
    let _ = CURRENT.set(Box::new(current));
}

/// The header of a call that is made now.
pub(crate) fn traceparent() -> Option<HeaderValue> {
    CURRENT.get()?().and_then(|text| HeaderValue::from_str(&text).ok())
}
