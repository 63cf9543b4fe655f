//! Small shapes that several dialects share.

use serde_json::{Map, Value, json};

use crate::error::{Class, Error};
use crate::types::Part;

/// The name of a schema where a dialect has no place for one.
pub(super) const SCHEMA_NAME: &str = "answer";

/// Letters in one piece of a streamed answer.
const PIECE_CHARS: usize = 24;

/// The call was answered, but not with an answer: it may have been charged.
pub(super) fn no_answer(what: impl Into<String>) -> Error {
    Error::new(Class::Network, what).maybe_billed()
}

/// Media type and base64 text of a `data:` URL.
pub(super) fn data_url(url: &str) -> Option<(&str, &str)> {
    let (kind, data) = url.strip_prefix("data:")?.split_once(";base64,")?;
    Some((kind, data))
}

/// A call's arguments where the wire wants an object. A model may have written no JSON: its text is kept under one name.
pub(super) fn arguments_object(text: &str) -> Value {
    if text.trim().is_empty() {
        return json!({});
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Value::Object(map),
        Ok(other) => json!({ "input": other }),
        Err(_) => json!({ "input": text }),
    }
}

/// The text, if a message is nothing but one text.
pub(super) fn only_text(content: &[Part]) -> Option<&str> {
    match content {
        [] => Some(""),
        [Part::Text(text)] => Some(text),
        _ => None,
    }
}

/// A text cut into pieces as a stream would bring it.
pub(super) fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(PIECE_CHARS).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// What a provider's answer says beyond what we make of it: `written` with it [`merge`]d over it reads as `told` does. What is
/// empty says nothing. A list that differs is kept whole.
pub(super) fn beyond(told: &Value, written: &Value) -> Option<Value> {
    match (told, written) {
        (Value::Null, _) => None,
        (Value::Object(told), _) => {
            let more =
                told.iter().filter_map(|(key, value)| Some((key.clone(), beyond(value, &written[key])?)));
            let more: Map<String, Value> = more.collect();
            (!more.is_empty()).then_some(Value::Object(more))
        }
        (Value::Array(items), Value::Array(ours)) if items.len() == ours.len() => {
            let differ = items.iter().zip(ours).any(|(told, written)| beyond(told, written).is_some());
            differ.then(|| told.clone())
        }
        (Value::Array(items), _) => (!items.is_empty()).then(|| told.clone()),
        _ => (told != written).then(|| told.clone()),
    }
}

/// Whether it counts nothing, such as tokens of a kind that were not used.
pub(super) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_zero),
        value => value.as_f64() == Some(0.0),
    }
}

/// Adds fields; where both have an object, their fields are merged.
pub(super) fn merge(into: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (key, value) in extra {
        match (into.get_mut(key), value) {
            (Some(Value::Object(own)), Value::Object(more)) => merge(own, more),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// A count on the wire: a number, or digits as Google writes 64-bit numbers. Zero if absent.
pub(super) fn count(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// A text on the wire; an empty one counts as absent.
pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A vector as numbers, each with no more digits than it takes to read the same 32 bits again.
pub(super) fn numbers(vector: &[f32]) -> Value {
    let number = |number: &f32| number.to_string().parse::<f64>().map_or(Value::Null, Value::from);
    vector.iter().map(number).collect()
}

/// Seconds since the epoch of an RFC 3339 time.
pub(super) fn seconds_of(time: &Value) -> Option<i64> {
    Some(time.as_str()?.parse::<jiff::Timestamp>().ok()?.as_second())
}

/// An RFC 3339 time.
pub(super) fn time_of(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}
