//! JSON out of an answer's text, by the cheapest step that works: as it is, out of a code fence, out of prose, and last
//! with small mistakes mended. What then fails is asked again with the reason.
//!
//! Two things are never done. A cut-off answer is not completed: the missing part is unknown. And a piece of a broken
//! value is not taken for the whole.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Class, Error, Result};
use crate::schema::shortened;
use crate::types::{Answer, ChatRequest, Message, Role, Stop};

mod mend;

/// Bytes of text that are looked at. No model answers as much.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Code fences that are tried.
const FENCES_MAX: usize = 16;
/// How often the text may be read over in search of brackets, so that odd ones cost no quadratic time.
const READINGS_MAX: usize = 16;
/// Bytes of the wrong answer that a re-ask repeats; the beginning and the end are kept.
const REASK_ANSWER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the error that a re-ask tells.
const REASK_ERROR_BYTES_MAX: usize = 2 * 1024;

/// The step that brought the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The text was JSON.
    AsIs,
    /// It stood in a code fence.
    Fence,
    /// It stood in prose.
    Prose,
    /// Small mistakes were mended.
    Mended,
}

impl Step {
    /// Its name in output and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AsIs => "as_is",
            Self::Fence => "fence",
            Self::Prose => "prose",
            Self::Mended => "mended",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The JSON value in an answer. An answer that was cut off or declined is told as such and not touched.
pub fn of_answer(answer: &Answer) -> Result<(Value, Step)> {
    let refuse = |class, message: &str| Err(Error::new(class, message).with_answer(answer.clone()));
    match answer.stop {
        Stop::Length => refuse(Class::Truncated, "the answer was cut off at its longest; raise max_tokens"),
        Stop::Refused => refuse(Class::Refused, "the model declined to answer"),
        Stop::End | Stop::ToolCalls => {
            extract(&answer.text).map_err(|error| error.with_answer(answer.clone()))
        }
    }
}

/// The JSON value in a text that is known to be complete; see [`of_answer`] otherwise.
pub fn extract(text: &str) -> Result<(Value, Step)> {
    let text = text.trim_matches(|char: char| char.is_whitespace() || char == '\u{feff}');
    if text.is_empty() {
        return Err(bad("the answer is empty"));
    }
    if text.len() > TEXT_BYTES_MAX {
        return Err(bad("the answer is too long to be searched for JSON"));
    }
    if let Ok(value) = serde_json::from_str(text) {
        return Ok((value, Step::AsIs));
    }
    if let Some(value) = fenced(text) {
        return Ok((value, Step::Fence));
    }
    in_prose(text)
}

fn bad(message: &str) -> Error {
    Error::new(Class::BadShape, message)
}

/// The longest code fence that holds JSON and nothing else. JSON may itself speak of fences in a text: those never begin
/// a line, so only marks that do are openings, and each is tried with the last mark as well as with the next.
fn fenced(text: &str) -> Option<Value> {
    const MARK: &str = "```";
    let mut best: Option<(usize, Value)> = None;
    let begins_line =
        |at: &usize| text[..*at].trim_end_matches([' ', '\t']).ends_with(['\n', '\r']) || *at == 0;
    let openings = text.match_indices(MARK).map(|(at, _)| at).filter(begins_line);
    for open in openings.take(FENCES_MAX) {
        let inside = &text[open + MARK.len()..];
        for end in [inside.rfind(MARK), inside.find(MARK), Some(inside.len())].into_iter().flatten() {
            let content = &inside[..end];
            if best.as_ref().is_none_or(|(bytes, _)| content.len() > *bytes)
                && let Some(value) = fence_content(content)
            {
                best = Some((content.len(), value));
            }
        }
    }
    best.map(|(_, value)| value)
}

fn fence_content(content: &str) -> Option<Value> {
    let after_language =
        content.trim_start_matches(|char: char| char.is_ascii_alphanumeric() || "_+-".contains(char));
    let parsed = |text: &str| serde_json::from_str(text.trim()).ok();
    parsed(after_language).or_else(|| parsed(content))
}

/// The longest object or list that stands in the text, mended where that is needed.
fn in_prose(text: &str) -> Result<(Value, Step)> {
    let mut budget = text.len().saturating_mul(READINGS_MAX);
    let (mut at, mut best) = (0, None::<(usize, Option<(Value, Step)>)>);
    while let Some(start) = text[at..].find(['{', '[']).map(|found| at + found) {
        let rest = &text[start..];
        let (end, found) = match mend::value(rest) {
            Some((value, end)) => (end, Some(as_is_or_mended(&rest[..end], value))),
            // What is not JSON is skipped with all that is in it: a piece of a broken value is not the answer.
            None => match closing(rest, &mut budget) {
                Some(end) if looks_like_json(rest) => (end, None),
                Some(end) => {
                    at = start + end;
                    continue;
                }
                None if budget == 0 || looks_like_json(rest) => {
                    return Err(bad("the JSON in the answer is broken or not closed"));
                }
                // A lone bracket of the prose.
                None => {
                    at = start + 1;
                    continue;
                }
            },
        };
        at = start + end;
        if best.as_ref().is_none_or(|(bytes, _)| end > *bytes) {
            best = Some((end, found));
        }
    }
    match best {
        Some((_, Some(found))) => Ok(found),
        Some((_, None)) => Err(bad("the JSON in the answer is broken")),
        None => Err(bad("there is no JSON in the answer")),
    }
}

fn as_is_or_mended(text: &str, mended: Value) -> (Value, Step) {
    match serde_json::from_str(text) {
        Ok(value) => (value, Step::Prose),
        Err(_) => (mended, Step::Mended),
    }
}

/// Whether a bracket is rather the beginning of a value than a mark of the prose.
fn looks_like_json(text: &str) -> bool {
    let mut chars = text.chars();
    let bracket = chars.next();
    let Some(next) = chars.find(|char| !char.is_whitespace()) else { return true };
    match bracket {
        Some('{') => matches!(next, '"' | '\'' | '}'),
        Some('[') => matches!(next, '"' | '\'' | '{' | '[' | ']' | '-') || next.is_ascii_digit(),
        Some(_) | None => false,
    }
}

/// The end of the bracket that the text begins with; brackets in double quotes do not count.
fn closing(text: &str, budget: &mut usize) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if *budget == 0 {
            return None;
        }
        *budget -= 1;
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The same question again, with the answer that could not be used and the reason. Pass the request as it first was: then
/// a second re-ask is no longer than the first.
pub fn reask(request: &ChatRequest, answer: &str, error: &str) -> ChatRequest {
    // Providers refuse an empty turn.
    let answer = if answer.trim().is_empty() { "(nothing)" } else { answer };
    let form = if request.schema.is_some() { "JSON of the required schema" } else { "JSON" };
    let complaint = format!(
        "That answer cannot be used: {}\nAnswer again, completely, with {form} and nothing else: no prose, no code fence.",
        shortened(error, REASK_ERROR_BYTES_MAX)
    );
    let mut request = request.clone();
    request.messages.push(Message::text(Role::Assistant, ends_of(answer, REASK_ANSWER_BYTES_MAX)));
    request.messages.push(Message::text(Role::User, complaint));
    request
}

/// Beginning and end of a long text.
fn ends_of(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(bytes_max / 2);
    let tail = text.ceil_char_boundary(text.len() - bytes_max / 2);
    format!("{}\n[{} bytes left out]\n{}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests;
