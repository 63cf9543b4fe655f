//! How many tokens a request will be counted as, before anybody has counted. Four bytes are about a token in English; the
//! caller brings the factor by which a model's real counts have differed so far.

use std::io::Write;

use serde::Serialize;

use crate::types::{ChatRequest, EmbedInput, EmbedRequest, Message, Part, Request, ToolCall};

/// Bytes of text that make a token.
const BYTES_PER_TOKEN: u64 = 4;
/// What a provider wraps around each message: its role and its ends.
const TOKENS_PER_MESSAGE: u64 = 4;
/// What it wraps around the conversation.
const TOKENS_PER_REQUEST: u64 = 3;
/// A picture of middling size. Providers count by its pixels, which an address does not tell.
const TOKENS_PER_IMAGE: u64 = 1_000;

/// Estimates a request's input tokens. `factor` is the real count divided by this estimate at 1.0, as learnt from earlier
/// answers; what is no positive number counts as 1.0.
pub fn estimate(request: &Request, factor: f64) -> u64 {
    let plain = match request {
        Request::Chat(request) => of_chat(request),
        Request::Embed(request) => of_embed(request),
    };
    if !factor.is_finite() || factor <= 0.0 {
        return plain;
    }
    // A cast from a double ends at the largest integer by itself.
    (plain as f64 * factor).ceil() as u64
}

/// The most input tokens that a request can have: no token has less than a byte.
pub fn most(request: &Request) -> u64 {
    estimate(request, BYTES_PER_TOKEN as f64)
}

/// Estimates a text's tokens.
pub fn of_text(text: &str) -> u64 {
    of_bytes(text.len())
}

fn of_embed(request: &EmbedRequest) -> u64 {
    let input = |input: &EmbedInput| match input {
        EmbedInput::Text(text) => of_text(text),
        EmbedInput::Tokens(tokens) => tokens.len() as u64,
    };
    request.inputs.iter().map(input).sum()
}

fn of_chat(request: &ChatRequest) -> u64 {
    let messages: u64 = request.messages.iter().map(of_message).sum();
    let schema = request.schema.as_ref().map_or(0, |schema| of_json(&schema.schema));
    let tools: u64 = request.tools.iter().map(of_json).sum();
    // Fields of the provider's own may hold anything, such as documents; each is counted as if it were read.
    let extra: u64 = request.extra.values().map(of_json).sum();
    TOKENS_PER_REQUEST + messages + schema + tools + extra
}

fn of_message(message: &Message) -> u64 {
    let parts: u64 = message.content.iter().map(of_part).sum();
    let calls: u64 = message.tool_calls.iter().map(of_call).sum();
    TOKENS_PER_MESSAGE + parts + calls
}

fn of_part(part: &Part) -> u64 {
    match part {
        Part::Text(text) => of_text(text),
        Part::Image(_) => TOKENS_PER_IMAGE,
        Part::Other(value) => of_json(value),
    }
}

fn of_call(call: &ToolCall) -> u64 {
    TOKENS_PER_MESSAGE + of_text(&call.name) + of_text(&call.arguments)
}

/// Counts JSON without writing it anywhere.
fn of_json(value: &impl Serialize) -> u64 {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Plain data always becomes JSON; an estimate could not use an error anyway.
    let _ = serde_json::to_writer(&mut count, value);
    of_bytes(count.0)
}

fn of_bytes(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(BYTES_PER_TOKEN)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types::{OutputSchema, Role, Tool};

    fn request(messages: Vec<Message>) -> ChatRequest {
        ChatRequest { messages, ..ChatRequest::default() }
    }

    #[test]
    fn an_estimate_counts_all_that_is_sent() {
        let text = |text: &str| Message::text(Role::User, text);
        let image = Message { content: vec![Part::Image("data:image/png;base64,AAAA".into())], ..text("") };
        let other = Message { content: vec![Part::Other(json!({"a": 1}))], ..text("") };
        let call = ToolCall { id: "1".into(), name: "find".into(), arguments: "{}".into() };
        let calling = Message { tool_calls: vec![call], ..text("") };
        let schema = OutputSchema { name: "x".into(), schema: json!({"type": "object"}), strict: true };
        let tool = Tool { name: "find".into(), description: None, parameters: json!({}), strict: None };
        let table = [
            (request(vec![]), 3),
            (request(vec![text("")]), 7),
            (request(vec![text("abcd"), text("abcde")]), 3 + 4 + 1 + 4 + 2),
            (request(vec![text("日本")]), 3 + 4 + 2),
            (request(vec![image]), 3 + 4 + 1_000),
            (request(vec![other]), 3 + 4 + 2),
            (request(vec![calling]), 3 + 4 + 4 + 1 + 1),
            (ChatRequest { schema: Some(schema), ..request(vec![]) }, 3 + 5),
            (ChatRequest { tools: vec![tool], ..request(vec![]) }, 3 + 8),
        ];
        for (request, tokens) in table {
            assert_eq!(estimate(&request.clone().into(), 1.0), tokens, "{request:?}");
        }
    }

    #[test]
    fn texts_to_embed_are_counted_without_anything_around_them() {
        let inputs = vec!["abcde".into(), EmbedInput::Tokens(vec![1, 2, 3])];
        let request = EmbedRequest { inputs, ..EmbedRequest::default() };
        assert_eq!(estimate(&request.into(), 1.0), 2 + 3);
    }

    #[test]
    fn a_factor_scales_and_a_senseless_one_is_ignored() {
        let request = request(vec![Message::text(Role::User, "x".repeat(372))]).into();
        assert_eq!(estimate(&request, 1.0), 100);
        assert_eq!(estimate(&request, 1.255), 126);
        for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(estimate(&request, factor), 100);
        }
        assert_eq!(estimate(&request, 1e300), u64::MAX);
    }
}
