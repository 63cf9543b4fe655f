//! OpenAI's recorded shapes.

use serde_json::{Value, json};

use super::read_stream;
use crate::error::Class;
use crate::provider::{BatchItem, BatchLine, BatchState, LineOutcome};
use crate::sse::SseEvent;
use crate::types::*;
use crate::wire::batch::TAG_KEY;
use crate::wire::openai::*;
use crate::wire::{BatchCounts, BatchObject, LineContext};

fn completion() -> Value {
    json!({
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT", "object": "chat.completion", "created": 1741569952,
        "model": "gpt-4.1-2025-04-14",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "Hello!", "refusal": null,
            "annotations": [] }, "logprobs": null, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1019, "completion_tokens": 110, "total_tokens": 1129,
            "prompt_tokens_details": { "cached_tokens": 1000, "audio_tokens": 0 },
            "completion_tokens_details": { "reasoning_tokens": 100, "audio_tokens": 0,
                "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0 } },
        "service_tier": "default",
    })
}

#[test]
fn a_completion_is_read() {
    let answer = answer_from_json(&completion()).unwrap();
    assert_eq!((answer.text.as_str(), answer.stop), ("Hello!", Stop::End));
    assert_eq!(answer.model, "gpt-4.1-2025-04-14");
    assert_eq!(
        answer.usage,
        Usage { fresh_in: 19, cache_write: 0, cache_read: 1000, out: 10, reasoning: 100 }
    );
}

#[test]
fn completions_of_relatives_are_read() {
    let with = |pointer: &str, value: Value| {
        let mut body = completion();
        *body.pointer_mut(pointer).unwrap() = value;
        answer_from_json(&body)
    };
    let calls = json!({ "role": "assistant", "content": null,
        "tool_calls": [{ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } }] });
    let answer = with("/choices/0/message", calls).unwrap();
    assert_eq!(answer.stop, Stop::ToolCalls, "Ollama says stop after a call");
    assert_eq!(answer.tool_calls[0].arguments, "{\"a\": 1}");
    let answer = with("/choices/0/message/refusal", json!("I can't help with that.")).unwrap();
    assert_eq!(answer.stop, Stop::Refused);
    let answer = with("/choices/0/message/content", json!([{ "type": "text", "text": "a" }])).unwrap();
    assert_eq!(answer.text, "a");
    assert_eq!(with("/usage", Value::Null).unwrap().usage, Usage::default());
    let beside = json!({ "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 35,
        "completion_tokens_details": { "reasoning_tokens": 20 } });
    assert_eq!(with("/usage", beside).unwrap().usage.output(), 25);
    assert_eq!(with("/choices/0/finish_reason", json!("error")).unwrap_err().class, Class::Overloaded);
    assert_eq!(with("/choices", json!([])).unwrap_err().class, Class::Network);
    // OpenRouter answers 200 with an error in it.
    let error = answer_from_json(&json!({ "error": { "message": "slow down", "code": 429 } })).unwrap_err();
    assert_eq!((error.class, error.status), (Class::Throttled, Some(429)));
}

#[test]
fn a_recorded_stream_is_read() {
    let chunk = |choices: Value, usage: Value| {
        SseEvent::unnamed(
            json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
                "system_fingerprint": "fp", "choices": choices, "usage": usage })
            .to_string(),
        )
    };
    let delta =
        |delta: Value| chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]), Value::Null);
    let tool = |value: Value| delta(json!({ "tool_calls": [value] }));
    let events = [
        delta(json!({ "role": "assistant", "content": "" })),
        delta(json!({ "content": "Hel" })),
        delta(json!({ "content": "lo" })),
        tool(
            json!({ "index": 0, "id": "call_a", "type": "function", "function": { "name": "f", "arguments": "" } }),
        ),
        tool(
            json!({ "index": 1, "id": "call_b", "type": "function", "function": { "name": "g", "arguments": "" } }),
        ),
        tool(json!({ "index": 0, "function": { "arguments": "{\"a\"" } })),
        tool(json!({ "index": 1, "function": { "arguments": "{}" } })),
        tool(json!({ "index": 0, "function": { "arguments": ":1}" } })),
        chunk(json!([{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }]), Value::Null),
        chunk(json!([]), json!({ "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12 })),
        SseEvent::unnamed("[DONE]"),
    ];
    let (text, ends) = read_stream(&mut OpenAiStream::default(), &events).unwrap();
    assert_eq!(text, "Hello");
    let [answer] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(
        answer.tool_calls,
        [super::call("call_a", "f", "{\"a\":1}"), super::call("call_b", "g", "{}")]
    );
    assert_eq!((answer.stop, answer.usage.fresh_in, answer.usage.out), (Stop::ToolCalls, 9, 3));

    let error = SseEvent::unnamed(
        json!({ "error": { "message": "server error", "type": "server_error" } }).to_string(),
    );
    let error = read_stream(&mut OpenAiStream::default(), &[error]).unwrap_err();
    assert_eq!((error.class, error.maybe_billed), (Class::Overloaded, true));
}

#[test]
fn wrong_requests_name_the_field() {
    let message = json!([{ "role": "user", "content": "hi" }]);
    let cases = [
        (json!([]), "the request: expected an object, found a list"),
        (json!({ "model": "m" }), "messages: expected a list, found nothing"),
        (json!({ "messages": message }), "model: expected a string, found nothing"),
        (json!({ "model": 1, "messages": message }), "model: expected a string, found a number"),
        (
            json!({ "model": "m", "messages": [{ "content": "x" }] }),
            "messages[0].role: expected a string, found nothing",
        ),
        (
            json!({ "model": "m", "messages": [{ "role": "robot", "content": "x" }] }),
            "messages[0].role: expected one of system, developer, user, assistant, tool, found \"robot\"",
        ),
        (
            json!({ "model": "m", "messages": [{ "role": "user", "content": 1 }] }),
            "messages[0].content: expected a string or a list of parts, found a number",
        ),
        (
            json!({ "model": "m", "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": "x" }] }] }),
            "messages[0].content[0].image_url: expected an object, found a string",
        ),
        (
            json!({ "model": "m", "messages": [{ "role": "tool", "content": "x" }] }),
            "messages[0].tool_call_id: expected a string, found nothing",
        ),
        (
            json!({ "model": "m", "messages": message, "max_tokens": -1 }),
            "max_tokens: expected a whole number of 0 or more, found a number",
        ),
        (
            json!({ "model": "m", "messages": message, "stop": [1] }),
            "stop[0]: expected a string, found a number",
        ),
        (
            json!({ "model": "m", "messages": message, "response_format": { "type": "json_schema" } }),
            "response_format.json_schema: expected an object, found nothing",
        ),
    ];
    for (body, expected) in cases {
        let error = request_from_json(body).unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (Class::BadRequest, expected));
    }
}

#[test]
fn what_types_cannot_say_is_passed_on() {
    let body = json!({
        "model": "m", "seed": -1,
        "messages": [
            { "role": "user", "content": [
                { "type": "image_url", "image_url": { "url": "https://x/y.png", "detail": "low" } },
                { "type": "input_audio", "input_audio": { "data": "AA", "format": "wav" } }] }],
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": {}, "strict": true } }],
        "tool_choice": { "type": "allowed_tools", "allowed_tools": {} },
        "response_format": { "type": "json_object" },
        "max_completion_tokens": 5,
    });
    let request = request_from_json(body.clone()).unwrap();
    assert_eq!(request.max_tokens, Some(5));
    assert_eq!(request_to_json(&request, LimitName::MaxCompletionTokens).unwrap(), body);
}

#[test]
fn vectors_come_in_two_forms() {
    let embeddings = Embeddings {
        model: "e".to_owned(),
        vectors: vec![vec![0.5, -1.25, 3.0], vec![0.1, 0.2, 0.3]],
        usage: Usage { fresh_in: 8, ..Usage::default() },
    };
    for form in [VectorForm::Float, VectorForm::Base64] {
        assert_eq!(embeddings_from_json(&embeddings_to_json(&embeddings, form)).unwrap(), embeddings);
    }
    // 0.5 and 1.0 as little-endian floats, out of order.
    let recorded = json!({ "object": "list", "model": "e", "data": [
        { "object": "embedding", "index": 1, "embedding": [1.0] },
        { "object": "embedding", "index": 0, "embedding": "AAAAPwAAgD8=" }],
        "usage": { "prompt_tokens": 5, "total_tokens": 5 } });
    assert_eq!(embeddings_from_json(&recorded).unwrap().vectors, [vec![0.5, 1.0], vec![1.0]]);
    for body in
        [json!({ "data": [{ "embedding": "AAA=" }] }), json!({ "data": [{ "embedding": ["x"] }] }), json!({})]
    {
        assert_eq!(embeddings_from_json(&body).unwrap_err().class, Class::Network);
    }
    let request = EmbedRequest {
        model: "e".to_owned(),
        inputs: vec!["a".into()],
        dimensions: Some(3),
        ..Default::default()
    };
    assert_eq!(
        embed_request_from_json(embed_request_to_json(&request)).unwrap(),
        (request, VectorForm::Float)
    );
    let sdk = json!({ "model": "e", "input": "a", "encoding_format": "base64" });
    assert_eq!(embed_request_from_json(sdk).unwrap().1, VectorForm::Base64);
    for input in [json!(null), json!({}), json!([1, "a"]), json!([[1, -2]]), json!([true])] {
        let body = json!({ "model": "e", "input": input });
        assert!(embed_request_from_json(body).unwrap_err().message.starts_with("input"), "{input}");
    }
}

#[test]
fn what_can_be_embedded_is_passed_on_as_it_came() {
    let tokens = |tokens: &[u32]| EmbedInput::Tokens(tokens.to_vec());
    let table = [
        (json!("a"), vec!["a".into()], json!(["a"])),
        (json!(["a", "b"]), vec!["a".into(), "b".into()], json!(["a", "b"])),
        (json!([1, 2]), vec![tokens(&[1, 2])], json!([[1, 2]])),
        (json!([[1], [2, 3]]), vec![tokens(&[1]), tokens(&[2, 3])], json!([[1], [2, 3]])),
    ];
    for (input, read, written) in table {
        let body = json!({ "model": "e", "input": input, "user": "u-1" });
        let (request, _) = embed_request_from_json(body).unwrap();
        assert_eq!(request.inputs, read);
        let body = embed_request_to_json(&request);
        assert_eq!((&body["input"], &body["user"]), (&written, &json!("u-1")));
    }
}

#[test]
fn a_line_of_texts_to_embed_and_its_answer_survive() {
    let request = EmbedRequest { model: "e".to_owned(), inputs: vec!["a".into()], ..Default::default() };
    let item = BatchItem { custom_id: "c-1".to_owned(), request: request.into() };
    let line = input_to_json(&item, LimitName::MaxTokens).unwrap();
    assert_eq!(line["url"], "/v1/embeddings");
    assert_eq!(input_from_json(line).unwrap(), item);
    let answer = Answer::from(Embeddings {
        model: "e".to_owned(),
        vectors: vec![vec![0.1, -2.5]],
        usage: Usage { fresh_in: 7, ..Usage::default() },
    });
    let outcome = LineOutcome::Answered(Box::new(answer.clone()));
    let line = BatchLine { custom_id: Some("c-1".to_owned()), outcome };
    let context = LineContext { request_id: "req-1", created_s: 1, cancelled: false };
    let written = line_to_json(&line, &context);
    assert_eq!(written["response"]["body"]["data"][0]["embedding"], json!([0.1, -2.5]));
    let LineOutcome::Answered(read) = line_from_json(&written).unwrap().outcome else { panic!("{written}") };
    assert_eq!(*read, answer);
    let stored = serde_json::to_value(&answer).unwrap();
    assert_eq!(stored["vectors"], json!(["zczMPQAAIMA="]));
    assert_eq!(serde_json::from_value::<Answer>(stored).unwrap(), answer);
}

#[test]
fn a_recorded_batch_is_read() {
    let recorded = json!({
        "id": "batch_abc123", "object": "batch", "endpoint": "/v1/chat/completions", "errors": null,
        "input_file_id": "file-abc123", "completion_window": "24h", "status": "completed",
        "output_file_id": "file-out", "error_file_id": "", "created_at": 1711471533, "in_progress_at": 1711471538,
        "expires_at": 1711557933, "finalizing_at": 1711493133, "completed_at": 1711493163, "failed_at": null,
        "expired_at": null, "cancelling_at": null, "cancelled_at": null,
        "request_counts": { "total": 100, "completed": 95, "failed": 5 }, "metadata": { TAG_KEY: "chunk-1" },
    });
    let batch = batch_from_json(&recorded).unwrap();
    assert_eq!((batch.output_file.as_deref(), batch.error_file.as_deref()), (Some("file-out"), None));
    assert_eq!((batch.tag(), batch.requests), (Some("chunk-1"), Some(100)));
    let status = batch.status();
    assert_eq!((status.state, status.completed, status.failed), (BatchState::Completed, Some(95), Some(5)));
    let failed = json!({ "id": "b", "status": "failed", "errors": { "object": "list", "data": [
        { "code": "token_limit_exceeded", "line": null, "message": "Enqueued token limit reached", "param": null }] } });
    let error = batch_from_json(&failed).unwrap().error;
    assert_eq!(error.as_deref(), Some("token_limit_exceeded: Enqueued token limit reached"));
    assert!(batch_from_json(&json!({ "id": "b", "status": "dancing" })).is_err());
}

#[test]
fn every_state_of_a_batch_survives() {
    use BatchState::*;
    for state in [Queued, Running, Finalizing, Completed, Failed, Expired, Cancelling, Cancelled] {
        let counts = BatchCounts { completed: 3, failed: 1, ..BatchCounts::default() };
        let batch = BatchObject {
            state,
            requests: Some(4),
            counts: Some(counts),
            input_file: Some("file-1".to_owned()),
            error: (state == Failed).then(|| "invalid_json_line: line 3".to_owned()),
            ..BatchObject::new("batch_1", 100)
        };
        let read = batch_from_json(&batch_to_json(&batch)).unwrap();
        assert_eq!(read.status(), batch.status());
        assert_eq!((read.created_at_s, read.requests, read.counts), (100, Some(4), Some(counts)));
    }
}

#[test]
fn lines_of_both_files_are_read() {
    let fate = |response: Value, error: Value| {
        let line = json!({ "id": "batch_req_1", "custom_id": "c-1", "response": response, "error": error });
        line_from_json(&line).unwrap().outcome
    };
    let response =
        |status: u16, body: Value| json!({ "status_code": status, "request_id": "r", "body": body });
    assert!(
        matches!(fate(response(200, completion()), Value::Null), LineOutcome::Answered(answer) if answer.text == "Hello!")
    );
    let limited = json!({ "error": { "message": "m", "type": "tokens", "param": null, "code": "rate_limit_exceeded" } });
    let LineOutcome::Failed(error) = fate(response(429, limited), Value::Null) else { panic!("failed") };
    assert_eq!((error.class, error.status), (Class::Throttled, Some(429)));
    for code in ["batch_expired", "batch_cancelled"] {
        assert!(matches!(fate(Value::Null, json!({ "code": code, "message": "m" })), LineOutcome::NotRun));
    }
    let LineOutcome::Failed(error) = fate(Value::Null, json!({ "code": "request_timeout", "message": "m" }))
    else {
        panic!("failed")
    };
    assert_eq!(error.class, Class::Overloaded);
    assert!(line_from_json(&json!({ "custom_id": "c-1", "response": null, "error": null })).is_err());
    assert!(line_from_json(&json!("text")).is_err());
}

#[test]
fn lines_of_input_survive() {
    let item = BatchItem { custom_id: "c-1".to_owned(), request: super::rich_request().into() };
    let line = input_to_json(&item, LimitName::MaxTokens).unwrap();
    assert_eq!((&line["method"], &line["url"]), (&json!("POST"), &json!("/v1/chat/completions")));
    assert_eq!(input_from_json(line).unwrap(), item);
    let wrong = json!({ "custom_id": "c", "method": "GET", "url": "/v1/chat/completions", "body": {} });
    assert_eq!(input_from_json(wrong).unwrap_err().message, "method: expected \"POST\", found \"GET\"");
    let create = BatchCreate {
        input_file: "file-1".to_owned(),
        endpoint: "/v1/chat/completions".to_owned(),
        window: "24h".to_owned(),
        metadata: json!({ TAG_KEY: "t" }).as_object().cloned().unwrap(),
    };
    assert_eq!(create_from_json(create_to_json(&create)).unwrap(), create);
}

#[test]
fn what_an_answer_says_beyond_ours_is_written_again_and_the_rest_is_not_kept() {
    let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let message = json!({ "role": "assistant", "content": null, "refusal": null, "tool_calls": [call], "annotations": [] });
    let mut told = json!({
        "id": "r", "object": "chat.completion", "created": 7, "model": "m", "system_fingerprint": null,
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "completion_tokens_details": { "audio_tokens": 0 } },
    });
    let plain = answer_from_json(&told).unwrap();
    assert_eq!((plain.stop, &plain.own), (Stop::ToolCalls, &None), "an engine's other word is no news");
    told["choices"][0]["message"]["reasoning"] = json!("hm");
    told["system_fingerprint"] = json!("fp");
    let more = answer_from_json(&told).unwrap();
    let written = answer_to_json(&more, 7);
    assert_eq!(written["choices"][0]["message"]["reasoning"], "hm");
    assert_eq!(
        (&written["system_fingerprint"], &written["choices"][0]["finish_reason"]),
        (&json!("fp"), &json!("tool_calls"))
    );
    let kept: Answer = serde_json::from_value(serde_json::to_value(&more).unwrap()).unwrap();
    assert_eq!(kept, more, "it is stored with the answer");
    assert_eq!(crate::wire::anthropic::answer_to_json(&more).get("system_fingerprint"), None);
}
