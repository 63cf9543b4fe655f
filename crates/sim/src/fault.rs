//! What goes wrong with one attempt at a request, and how a wrong answer looks.

use serde_json::Value;

use super::answer::{count, cut};
use super::draw::{Draw, Purpose};
use super::options::Faults;
use longhaul_llm::types::{Answer, ChatRequest, Stop};

/// A fault of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A random 429.
    Throttled,
    /// An error of the server, with its status.
    Status(u16),
    /// A page of HTML.
    Html,
    /// The call hangs; whether it is executed all the same.
    Hang {
        /// Whether it is paid for.
        executed: bool,
    },
    /// The connection ends before anything is sent or done.
    Dropped,
    /// The connection ends in the middle of the answer.
    CutOff,
    /// A broken answer.
    Malformed,
    /// An answer that ends half-way.
    Truncated,
    /// JSON of a wrong shape.
    SchemaBreak,
    /// JSON between prose and fences.
    Fenced,
}

impl Fault {
    /// Number of kinds, for counters.
    pub(crate) const KINDS: usize = 10;

    /// Names in [`super::Stats`], in the order of [`Fault::index`].
    pub(crate) const NAMES: [&'static str; Self::KINDS] = [
        "throttled",
        "status_5xx",
        "html",
        "timeout",
        "dropped",
        "cut_off",
        "malformed",
        "truncated",
        "schema_break",
        "fenced",
    ];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Throttled => 0,
            Self::Status(_) => 1,
            Self::Html => 2,
            Self::Hang { .. } => 3,
            Self::Dropped => 4,
            Self::CutOff => 5,
            Self::Malformed => 6,
            Self::Truncated => 7,
            Self::SchemaBreak => 8,
            Self::Fenced => 9,
        }
    }

    /// Whether it spoils the answer rather than the way of it.
    pub(crate) fn is_of_content(self) -> bool {
        matches!(self, Self::Malformed | Self::Truncated | Self::SchemaBreak | Self::Fenced)
    }

    /// The fault of an attempt, if it has one. One number decides, so that kinds exclude each other and rates are exact.
    pub(crate) fn draw(seed: u64, request: u64, attempt: u32, faults: &Faults) -> Option<Self> {
        if faults.calm_after.is_some_and(|calm_after| attempt > calm_after) {
            return None;
        }
        let mut draw = Draw::of_attempt(seed, request, attempt, Purpose::Fault);
        let mut left = draw.unit();
        let mut hit = |rate: f64| {
            left -= rate;
            left < 0.0
        };
        if hit(faults.rate_429) {
            Some(Self::Throttled)
        } else if hit(faults.rate_5xx) {
            Some(Self::Status(draw.pick(&[500, 502, 503, 529])))
        } else if hit(faults.rate_html) {
            Some(Self::Html)
        } else if hit(faults.rate_timeout) {
            Some(Self::Hang { executed: draw.below(2) == 1 })
        } else if hit(faults.rate_drop) {
            Some(draw.pick(&[Self::Dropped, Self::CutOff]))
        } else if hit(faults.rate_malformed) {
            Some(Self::Malformed)
        } else if hit(faults.rate_truncated) {
            Some(Self::Truncated)
        } else if hit(faults.rate_schema_break) {
            Some(Self::SchemaBreak)
        } else if hit(faults.rate_fenced) {
            Some(Self::Fenced)
        } else {
            None
        }
    }

    /// Spoils an answer; whether there was anything to spoil.
    pub(crate) fn spoil(
        self,
        seed: u64,
        content: u64,
        attempt: u32,
        request: &ChatRequest,
        answer: &mut Answer,
    ) -> bool {
        if answer.stop != Stop::End && answer.stop != Stop::ToolCalls {
            return false;
        }
        let mut draw = Draw::of_attempt(seed, content, attempt, Purpose::Shape);
        let json = request.schema.is_some() || !answer.tool_calls.is_empty();
        match self {
            Self::Malformed if json => break_json(json_of(answer), &mut draw),
            Self::Malformed => {
                answer.text = format!("Sure, here it is:\n\n\"\"\"\n{}\n\"\"\"\n(end of answer", answer.text);
            }
            Self::Truncated => {
                cut(json_of(answer), 0.5);
                answer.stop = Stop::Length;
            }
            Self::SchemaBreak if json => break_shape(request, json_of(answer), &mut draw),
            Self::Fenced if request.schema.is_some() && answer.tool_calls.is_empty() => {
                let opening = draw.pick(&["Here is the JSON you asked for:", "Of course!", "Result:"]);
                let closing =
                    draw.pick(&["Let me know if you need anything else.", "I hope this helps {you}.", ""]);
                answer.text = format!("{opening}\n\n```json\n{}\n```\n{closing}", answer.text);
            }
            Self::SchemaBreak | Self::Fenced => return false,
            Self::Throttled
            | Self::Status(_)
            | Self::Html
            | Self::Hang { .. }
            | Self::Dropped
            | Self::CutOff => return false,
        }
        count(answer);
        true
    }
}

fn json_of(answer: &mut Answer) -> &mut String {
    match answer.tool_calls.first_mut() {
        Some(call) => &mut call.arguments,
        None => &mut answer.text,
    }
}

/// JSON that no parser takes.
fn break_json(text: &mut String, draw: &mut Draw) {
    match draw.below(3) {
        0 => cut(text, 0.7),
        1 => text.push_str(",}"),
        _ => *text = format!("{{'answer': {text}"),
    }
    // A short number cut off is still JSON.
    if serde_json::from_str::<Value>(text).is_ok() {
        text.push('{');
    }
}

/// JSON that parses but is something else: a list that is too short, an array around what should be an object, an
/// object around anything else.
fn break_shape(request: &ChatRequest, text: &mut String, draw: &mut Draw) {
    let wrapped =
        || if text.starts_with('{') { format!("[{text}]") } else { format!("{{\"value\":{text}}}") };
    let short = if draw.below(2) == 1 { shortened(request, text) } else { None };
    *text = short.unwrap_or_else(wrapped);
}

/// The same with one entry less in a list whose length the schema fixes.
fn shortened(request: &ChatRequest, text: &str) -> Option<String> {
    let properties = request.schema.as_ref()?.schema["properties"].as_object()?;
    let mut value: Value = serde_json::from_str(text).ok()?;
    for (name, property) in properties {
        let least = property["minItems"].as_u64().unwrap_or(0);
        if let Some(list) = value.get_mut(name).and_then(Value::as_array_mut)
            && list.len() as u64 == least
            && list.pop().is_some()
        {
            return Some(value.to_string());
        }
    }
    None
}
