//! What holds for all dialects: what is written can be read. The recorded shapes of each stand in its own file.

mod anthropic;
mod errors;
mod gemini;
mod openai;
mod translate;

use serde_json::json;

use super::{StreamReader, anthropic as a, gemini as g, openai as o};
use crate::error::Result;
use crate::provider::{BatchLine, LineOutcome};
use crate::sse::SseEvent;
use crate::types::*;

/// A request that uses everything that all dialects can say, and a field that only one knows.
fn rich_request_in(dialect: Dialect) -> ChatRequest {
    ChatRequest { dialect, ..rich_request() }
}

fn rich_request() -> ChatRequest {
    let image = "data:image/png;base64,AAAA".to_owned();
    ChatRequest {
        model: "m-1".to_owned(),
        messages: vec![
            Message::text(Role::System, "be brief"),
            Message::of(Role::User, vec![Part::Text("what is this?".to_owned()), Part::Image(image)]),
            Message {
                tool_calls: vec![call("c1", "look", r#"{"at":"a"}"#), call("c2", "look", r#"{"at":"b"}"#)],
                ..Message::text(Role::Assistant, "let me look")
            },
            tool_result("c1", "a cat"),
            tool_result("c2", "a dog"),
            Message::text(Role::User, "go on"),
        ],
        max_tokens: Some(64),
        temperature: Some(0.5),
        top_p: Some(0.9),
        stop: vec!["END".to_owned()],
        seed: None,
        schema: Some(OutputSchema {
            name: "answer".to_owned(),
            schema: json!({ "type": "object", "properties": { "animal": { "type": "string" } } }),
            strict: true,
        }),
        tools: vec![Tool {
            name: "look".to_owned(),
            description: Some("looks".to_owned()),
            parameters: json!({ "type": "object", "properties": { "at": { "type": "string" } } }),
            strict: None,
        }],
        tool_choice: Some(ToolChoice::Named("look".to_owned())),
        dialect: Dialect::OpenAi,
        extra: json!({ "some_new_field": { "x": [1, null] } }).as_object().cloned().unwrap(),
    }
}

fn tool_result(id: &str, text: &str) -> Message {
    Message { tool_call_id: Some(id.to_owned()), ..Message::text(Role::Tool, text) }
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Answers of every kind. Anthropic does not tell reasoning apart, Gemini no cache writes: `usage` is what they share.
fn answers(usage: Usage) -> Vec<Answer> {
    let plain = Answer {
        id: "r-1".to_owned(),
        model: "m-1".to_owned(),
        text: "Größe: 日本語, and a text that is longer than one piece of a stream.".to_owned(),
        tool_calls: Vec::new(),
        vectors: Vec::new(),
        own: None,
        stop: Stop::End,
        usage,
    };
    let calls = vec![call("c1", "look", r#"{"at":"a"}"#), call("c2", "stop", "{}")];
    vec![
        Answer { stop: Stop::Length, ..plain.clone() },
        Answer { stop: Stop::Refused, ..plain.clone() },
        Answer { stop: Stop::ToolCalls, tool_calls: calls.clone(), ..plain.clone() },
        Answer { stop: Stop::ToolCalls, tool_calls: calls, text: String::new(), ..plain.clone() },
        Answer { text: String::new(), ..plain.clone() },
        plain,
    ]
}

/// Feeds a stream and answers its text and its end.
fn read_stream(reader: &mut dyn StreamReader, events: &[SseEvent]) -> Result<(String, Vec<Answer>)> {
    let mut text = String::new();
    let mut ends = Vec::new();
    let mut take = |delta: Option<Delta>| match delta {
        Some(Delta::Text(piece)) => text.push_str(&piece),
        Some(Delta::End(answer)) => ends.push(answer),
        Some(Delta::Own { .. }) | None => {}
    };
    for event in events {
        take(reader.push(event)?);
    }
    take(reader.finish()?);
    Ok((text, ends))
}

#[test]
fn requests_survive_the_way_there_and_back() {
    let named = ToolChoice::Named("look".to_owned());
    for choice in [named, ToolChoice::Auto, ToolChoice::None, ToolChoice::Required] {
        let request = |dialect| ChatRequest { tool_choice: Some(choice.clone()), ..rich_request_in(dialect) };
        let openai = request(Dialect::OpenAi);
        for limit in [o::LimitName::MaxTokens, o::LimitName::MaxCompletionTokens] {
            assert_eq!(o::request_from_json(o::request_to_json(&openai, limit).unwrap()).unwrap(), openai);
        }
        let anthropic = request(Dialect::Anthropic);
        assert_eq!(a::request_from_json(a::request_to_json(&anthropic).unwrap()).unwrap(), anthropic);
        let gemini = request(Dialect::Gemini);
        assert_eq!(g::request_from_json("models/m-1", g::request_to_json(&gemini).unwrap()).unwrap(), gemini);
    }
}

#[test]
fn answers_survive_the_way_there_and_back() {
    let usage = Usage { fresh_in: 10, cache_write: 3, cache_read: 5, out: 7, reasoning: 2 };
    for answer in answers(usage) {
        assert_eq!(o::answer_from_json(&o::answer_to_json(&answer, 1)).unwrap(), answer);
    }
    for answer in answers(Usage { reasoning: 0, ..usage }) {
        assert_eq!(a::answer_from_json(&a::answer_to_json(&answer)).unwrap(), answer);
    }
    for answer in answers(Usage { cache_write: 0, ..usage }) {
        assert_eq!(g::answer_from_json(&g::answer_to_json(&answer)).unwrap(), answer);
    }
}

#[test]
fn streams_bring_the_same_answer() {
    let usage = Usage { fresh_in: 10, cache_write: 0, cache_read: 5, out: 7, reasoning: 0 };
    for answer in answers(usage) {
        let options = o::EventOptions { created_s: 1, include_usage: true };
        let streams: [(&mut dyn StreamReader, Vec<SseEvent>); 3] = [
            (&mut o::OpenAiStream::default(), o::answer_to_events(&answer, options)),
            (&mut a::AnthropicStream::default(), a::answer_to_events(&answer)),
            (&mut g::GeminiStream::default(), g::answer_to_events(&answer)),
        ];
        for (reader, events) in streams {
            let (text, ends) = read_stream(reader, &events).unwrap();
            assert_eq!(ends, std::slice::from_ref(&answer));
            // OpenAI streams a refusal under a name of its own; it is no visible text.
            assert!(text == answer.text || answer.stop == Stop::Refused, "{text}");
        }
    }
}

/// A stream is whole once the reason of its end has come, though a last line may be missing.
#[test]
fn a_stream_that_breaks_off_is_an_error_that_may_have_cost() {
    let check = |name: &str, reader: fn() -> Box<dyn StreamReader>, events: &[SseEvent], whole: usize| {
        for cut in 0..=events.len() {
            let result = read_stream(reader().as_mut(), &events[..cut]);
            match result {
                Ok(_) => assert!(cut >= whole, "{name} cut at {cut} of {whole}"),
                Err(error) => assert!(cut < whole && error.maybe_billed, "{name} cut at {cut} of {whole}"),
            }
        }
    };
    for answer in answers(Usage::default()) {
        let events = o::answer_to_events(&answer, o::EventOptions::default());
        check("openai", || Box::new(o::OpenAiStream::default()), &events, events.len() - 1);
        let events = a::answer_to_events(&answer);
        check("anthropic", || Box::new(a::AnthropicStream::default()), &events, events.len() - 1);
        let events = g::answer_to_events(&answer);
        check("gemini", || Box::new(g::GeminiStream::default()), &events, events.len());
    }
}

#[test]
fn lines_of_results_survive_the_way_there_and_back() {
    let context = super::LineContext { request_id: "req_1", created_s: 1, cancelled: false };
    let usage = Usage { fresh_in: 10, out: 7, ..Usage::default() };
    for answer in answers(usage) {
        let line = BatchLine {
            custom_id: Some("k".to_owned()),
            outcome: LineOutcome::Answered(Box::new(answer.clone())),
        };
        let read = [
            o::line_from_json(&o::line_to_json(&line, &context)).unwrap(),
            a::line_from_json(&a::line_to_json(&line, &context)).unwrap(),
            g::line_from_json(&g::line_to_json(&line).unwrap()).unwrap(),
        ];
        for line in read {
            assert_eq!(line.custom_id.as_deref(), Some("k"));
            assert!(matches!(line.outcome, LineOutcome::Answered(read) if *read == answer));
        }
    }
    let line = BatchLine { custom_id: Some("k".to_owned()), outcome: LineOutcome::NotRun };
    for cancelled in [true, false] {
        let context = super::LineContext { cancelled, ..context };
        let openai = o::line_from_json(&o::line_to_json(&line, &context)).unwrap();
        let anthropic = a::line_from_json(&a::line_to_json(&line, &context)).unwrap();
        assert!(matches!(openai.outcome, LineOutcome::NotRun));
        assert!(matches!(anthropic.outcome, LineOutcome::NotRun));
    }
    assert!(g::line_to_json(&line).is_none());
}
