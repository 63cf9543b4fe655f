//! Anthropic's recorded shapes.

use serde_json::{Value, json};

use super::read_stream;
use crate::error::{Class, Result};
use crate::provider::{BatchItem, BatchState, LineOutcome};
use crate::sse::SseEvent;
use crate::types::*;
use crate::wire::anthropic::*;
use crate::wire::{BatchCounts, BatchObject};

fn message() -> Value {
    json!({
        "id": "msg_013Zva2CMHLNnjNjJJKqJ2EF", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
        "content": [
            { "type": "thinking", "thinking": "hmm", "signature": "EqQB" },
            { "type": "text", "text": "Hi!" },
            { "type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": { "location": "Paris" } }],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": { "input_tokens": 19, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 1000,
            "cache_creation": { "ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 0 },
            "output_tokens": 110, "service_tier": "batch" },
    })
}

#[test]
fn a_message_is_read() {
    let answer = answer_from_json(&message()).unwrap();
    assert_eq!((answer.text.as_str(), answer.stop), ("Hi!", Stop::ToolCalls));
    assert_eq!(answer.tool_calls, [super::call("toolu_1", "get_weather", r#"{"location":"Paris"}"#)]);
    assert_eq!(
        answer.usage,
        Usage { fresh_in: 19, cache_write: 200, cache_read: 1000, out: 110, reasoning: 0 }
    );
    assert_eq!(answer_from_json(&json!({ "hello": 1 })).unwrap_err().class, Class::Network);
}

#[test]
fn every_reason_to_stop_is_known() {
    let cases = [
        ("end_turn", Stop::End),
        ("stop_sequence", Stop::End),
        ("pause_turn", Stop::End),
        ("max_tokens", Stop::Length),
        ("model_context_window_exceeded", Stop::Length),
        ("tool_use", Stop::ToolCalls),
        ("refusal", Stop::Refused),
    ];
    for (reason, stop) in cases {
        let mut body = message();
        body["stop_reason"] = json!(reason);
        assert_eq!(answer_from_json(&body).unwrap().stop, stop, "{reason}");
    }
}

fn events(data: &[Value]) -> Vec<SseEvent> {
    data.iter().map(|data| SseEvent::named(data["type"].as_str().unwrap(), data.to_string())).collect()
}

#[test]
fn a_recorded_stream_is_read() {
    let start = json!({ "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude-x",
        "stop_reason": null, "stop_sequence": null,
        "usage": { "input_tokens": 472, "cache_read_input_tokens": 10, "output_tokens": 2 } });
    let delta =
        |index: u64, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
    let mut recorded = events(&[
        json!({ "type": "message_start", "message": start }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "" } }),
        json!({ "type": "ping" }),
        delta(0, json!({ "type": "thinking_delta", "thinking": "let me see" })),
        delta(0, json!({ "type": "signature_delta", "signature": "EqQB" })),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } }),
        delta(1, json!({ "type": "text_delta", "text": "Okay" })),
        delta(1, json!({ "type": "text_delta", "text": "!" })),
        json!({ "type": "content_block_start", "index": 2, "content_block":
            { "type": "tool_use", "id": "toolu_1", "name": "f", "input": {} } }),
        delta(2, json!({ "type": "input_json_delta", "partial_json": "" })),
        delta(2, json!({ "type": "input_json_delta", "partial_json": "{\"a\":" })),
        delta(2, json!({ "type": "input_json_delta", "partial_json": "1}" })),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use", "stop_sequence": null },
            "usage": { "output_tokens": 89 } }),
        json!({ "type": "message_stop" }),
    ]);
    recorded.insert(3, SseEvent::unnamed("an event without a name is ignored"));
    let (text, ends) = read_stream(&mut AnthropicStream::default(), &recorded).unwrap();
    assert_eq!(text, "Okay!");
    let [answer] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(answer.tool_calls, [super::call("toolu_1", "f", "{\"a\":1}")]);
    assert_eq!(answer.usage, Usage { fresh_in: 472, cache_read: 10, out: 89, ..Usage::default() });

    let error = json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } });
    let error = read_stream(&mut AnthropicStream::default(), &events(&[error])).unwrap_err();
    assert_eq!((error.class, error.status, error.maybe_billed), (Class::Overloaded, Some(529), true));
}

#[test]
fn instructions_stand_apart_and_results_share_a_turn() {
    let body = request_to_json(&super::rich_request()).unwrap();
    assert_eq!(body["system"], "be brief");
    let turns = body["messages"].as_array().unwrap();
    let roles: Vec<&str> = turns.iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "user"]);
    assert_eq!(turns[2]["content"].as_array().unwrap().len(), 2);
    assert_eq!(turns[0]["content"][1]["source"]["media_type"], "image/png");
    assert_eq!(body["output_config"]["format"]["type"], "json_schema");
    let bare = ChatRequest { model: "m".to_owned(), ..ChatRequest::default() };
    assert_eq!(request_to_json(&bare).unwrap()["max_tokens"], MAX_TOKENS_DEFAULT);
}

#[test]
fn what_types_cannot_say_is_passed_on() {
    let body = json!({
        "model": "m", "max_tokens": 5, "thinking": { "type": "enabled", "budget_tokens": 1024 },
        "system": [{ "type": "text", "text": "long", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": "failed", "is_error": true }] }],
        "tools": [{ "type": "web_search_20250305", "name": "web_search" }],
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
        "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": { "type": "object" } } },
    });
    let request = request_from_json(body.clone()).unwrap();
    assert!(request.schema.is_some());
    assert_eq!(request_to_json(&request).unwrap(), body);
}

#[test]
fn wrong_requests_name_the_field() {
    let turns = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        (json!({ "model": "m", "messages": turns }), "max_tokens: expected a whole number, found nothing"),
        (json!({ "model": "m", "max_tokens": 1 }), "messages: expected a list, found nothing"),
        (
            json!({ "model": "m", "max_tokens": 1, "messages": [{ "role": "robot", "content": "x" }] }),
            "messages[0].role: expected one of user, assistant, system, found \"robot\"",
        ),
        (
            json!({ "model": "m", "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "text": "x" }] }] }),
            "messages[0].content[0].type: expected a string, found nothing",
        ),
        (
            json!({ "model": "m", "max_tokens": 1, "messages": turns, "tools": [{ "name": "f" }] }),
            "tools[0].input_schema: expected an object, found nothing",
        ),
    ];
    for (body, expected) in cases {
        let error = request_from_json(body).unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (Class::BadRequest, expected));
    }
}

fn batch(status: &str, counts: [u64; 5], cancelled: bool) -> Value {
    let [processing, succeeded, errored, canceled, expired] = counts;
    json!({
        "id": "msgbatch_013Zva2CMHLNnjNjJJKqJ2EF", "type": "message_batch", "processing_status": status,
        "request_counts": { "processing": processing, "succeeded": succeeded, "errored": errored,
            "canceled": canceled, "expired": expired },
        "ended_at": (status == "ended").then_some("2024-08-20T18:37:24.100435Z"),
        "created_at": "2024-08-20T18:37:24.100435Z", "expires_at": "2024-08-21T18:37:24.100435Z",
        "archived_at": null, "cancel_initiated_at": cancelled.then_some("2024-08-20T18:37:25Z"),
        "results_url": "https://api.anthropic.com/v1/messages/batches/msgbatch_013/results",
    })
}

#[test]
fn recorded_batches_are_read() {
    let cases = [
        (batch("in_progress", [100, 0, 0, 0, 0], false), BatchState::Running, None),
        (batch("canceling", [100, 0, 0, 0, 0], true), BatchState::Cancelling, None),
        (batch("ended", [0, 95, 5, 0, 0], false), BatchState::Completed, Some(95)),
        (batch("ended", [0, 40, 0, 0, 60], false), BatchState::Expired, Some(40)),
        (batch("ended", [0, 40, 0, 60, 0], true), BatchState::Cancelled, Some(40)),
        (batch("ended", [0, 100, 0, 0, 0], true), BatchState::Cancelled, Some(100)),
    ];
    for (recorded, state, completed) in cases {
        let read = batch_from_json(&recorded).unwrap();
        assert_eq!((read.state, read.requests, read.created_at_s), (state, Some(100), 1_724_179_044));
        assert_eq!(read.status().completed, completed, "{state:?}: zeros before the end are no knowledge");
    }
    assert!(batch_from_json(&batch("dancing", [0; 5], false)).is_err());
}

#[test]
fn states_of_a_batch_survive_as_far_as_they_can_be_said() {
    let cases = [
        (BatchState::Running, 0, 0),
        (BatchState::Cancelling, 0, 0),
        (BatchState::Completed, 0, 0),
        (BatchState::Expired, 2, 0),
        (BatchState::Cancelled, 0, 2),
    ];
    for (state, expired, cancelled) in cases {
        let counts = BatchCounts { completed: 3, failed: 1, cancelled, expired };
        let written = BatchObject {
            state,
            requests: Some(4 + expired + cancelled),
            counts: Some(counts),
            ..BatchObject::new("msgbatch_1", 100)
        };
        let read = batch_from_json(&batch_to_json(&written)).unwrap();
        assert_eq!((read.state, read.requests), (state, written.requests));
        assert_eq!(read.counts, state.is_terminal().then_some(counts));
    }
}

#[test]
fn recorded_lines_are_read() {
    let fate =
        |result: Value| line_from_json(&json!({ "custom_id": "c-1", "result": result })).unwrap().outcome;
    assert!(
        matches!(fate(json!({ "type": "succeeded", "message": message() })), LineOutcome::Answered(answer) if answer.text == "Hi!")
    );
    let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": "bad" }, "request_id": "r" });
    let LineOutcome::Failed(error) = fate(json!({ "type": "errored", "error": error })) else {
        panic!("failed")
    };
    assert_eq!((error.class, error.status), (Class::BadRequest, Some(400)));
    assert!(matches!(fate(json!({ "type": "expired" })), LineOutcome::NotRun));
    assert!(matches!(fate(json!({ "type": "canceled" })), LineOutcome::NotRun));
    assert!(line_from_json(&json!({ "custom_id": "c-1", "result": { "type": "new" } })).is_err());
}

#[test]
fn the_body_of_a_batch_survives() {
    let request = super::rich_request_in(Dialect::Anthropic);
    let item = |id: &str| BatchItem { custom_id: id.to_owned(), request: request.clone().into() };
    for items in [vec![], vec![item("a")], vec![item("a"), item("b")]] {
        let body: Value = serde_json::from_slice(&create_to_body(&items).unwrap()).unwrap();
        let read = create_from_json(body).unwrap().into_iter().map(item_from_json);
        assert_eq!(read.collect::<Result<Vec<_>>>().unwrap(), items);
    }
}
