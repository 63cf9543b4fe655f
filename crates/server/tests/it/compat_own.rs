//! What a provider says in its own dialect reaches clients of the same dialect as it came: further answers, log probabilities,
//! thinking, fields that we do not know. The provider is a fixture that answers fixed bytes.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post as route;
use longhaul_llm::profile::{Profile, ProviderKind};
use longhaul_llm::{Scope, Secret};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::compat_openai::{data, events_of, post};
use crate::stage::{Setup, Stage, json_of};

/// A completion with two answers and what else OpenAI's models and others of its dialect say.
fn completion() -> Value {
    let logprobs =
        json!({ "content": [{ "token": "Hi", "logprob": -0.25, "bytes": [72, 105], "top_logprobs": [] }] });
    let message = |text: &str| json!({ "role": "assistant", "content": text, "refusal": null, "reasoning_content": "hm" });
    json!({
        "id": "chatcmpl-up", "object": "chat.completion", "created": 1_700_000_000, "model": "m-2",
        "system_fingerprint": "fp_1", "service_tier": "flex", "timings": { "predicted_ms": 1.5 },
        "choices": [
            { "index": 0, "message": message("Hi"), "logprobs": logprobs, "finish_reason": "stop" },
            { "index": 1, "message": message("Hello"), "logprobs": logprobs, "finish_reason": "length" },
        ],
        "usage": {
            "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
            "completion_tokens_details": { "reasoning_tokens": 0, "audio_tokens": 2 },
        },
    })
}

fn chunks() -> Vec<Value> {
    let chunk = |choices: Value, usage: Value| {
        json!({ "id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1, "model": "m-2",
            "system_fingerprint": "fp_1", "choices": choices, "usage": usage })
    };
    let choice = |index: u64, delta: Value, logprobs: Value, reason: Value| json!([{ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason }]);
    let said = json!({ "content": [{ "token": "Hi", "logprob": -0.25 }] });
    vec![
        chunk(
            choice(1, json!({ "role": "assistant", "content": "Hel" }), Value::Null, Value::Null),
            Value::Null,
        ),
        chunk(choice(0, json!({ "role": "assistant", "content": "Hi" }), said, Value::Null), Value::Null),
        chunk(choice(1, json!({ "content": "lo" }), Value::Null, Value::Null), Value::Null),
        chunk(choice(0, json!({}), Value::Null, json!("stop")), Value::Null),
        chunk(choice(1, json!({}), Value::Null, json!("length")), Value::Null),
        chunk(json!([]), json!({ "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13 })),
    ]
}

/// A message with thinking and a stop sequence.
fn message() -> Value {
    json!({
        "id": "msg_up", "type": "message", "role": "assistant", "model": "c-2",
        "content": [{ "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "text", "text": "Hi" }],
        "stop_reason": "stop_sequence", "stop_sequence": "###", "container": { "id": "box" },
        "usage": { "input_tokens": 9, "output_tokens": 4, "server_tool_use": { "web_search_requests": 1 } },
    })
}

fn message_events() -> Vec<Value> {
    let started = json!({ "id": "msg_up", "type": "message", "role": "assistant", "model": "c-2", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 9, "output_tokens": 1 } });
    vec![
        json!({ "type": "message_start", "message": started }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "", "signature": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "thinking_delta", "thinking": "hm" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "signature_delta", "signature": "s" } }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": "Hi" } }),
        json!({ "type": "content_block_stop", "index": 1 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "stop_sequence", "stop_sequence": "###" }, "usage": { "output_tokens": 4 } }),
        json!({ "type": "message_stop" }),
    ]
}

type Asked = Arc<Mutex<Vec<Value>>>;

/// Answers whole or in events, and remembers what it was asked.
fn answered(asked: &Asked, body: &str, whole: &Value, events: String) -> Response {
    let body: Value = serde_json::from_str(body).expect("JSON");
    let streams = body["stream"] == true;
    asked.lock().expect("no panic").push(body);
    match streams {
        true => ([(header::CONTENT_TYPE, "text/event-stream")], events).into_response(),
        false => axum::Json(whole.clone()).into_response(),
    }
}

async fn complete(State(asked): State<Asked>, body: String) -> Response {
    let chunks = chunks().into_iter().map(|chunk| format!("data: {chunk}\n\n"));
    answered(&asked, &body, &completion(), chunks.chain(["data: [DONE]\n\n".to_owned()]).collect())
}

async fn speak(State(asked): State<Asked>, body: String) -> Response {
    let events = message_events().into_iter();
    let events =
        events.map(|data| format!("event: {}\ndata: {data}\n\n", data["type"].as_str().expect("a name")));
    answered(&asked, &body, &message(), events.collect())
}

/// A server beside providers of both dialects.
async fn staged() -> (Stage, Asked) {
    let asked = Asked::default();
    let router = Router::new()
        .route("/v1/chat/completions", route(complete))
        .route("/v1/messages", route(speak))
        .with_state(Arc::clone(&asked));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let profile = |name: &str, kind: ProviderKind| Profile {
        base_url: url.clone(),
        key: Some(Secret::new("k".to_owned())),
        ..Profile::new(name, kind)
    };
    let others = vec![profile("up", ProviderKind::OpenAi), profile("claude", ProviderKind::Anthropic)];
    (Stage::of(Setup { others, ..Setup::sync() }).await, asked)
}

fn chat(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hi?" }], "max_tokens": 50, "n": 2,
        "logprobs": true, "top_logprobs": 1, "brand_new": { "x": 1 } })
}

#[tokio::test]
async fn a_completion_reaches_clients_of_its_dialect_with_all_it_says() {
    let (stage, asked) = staged().await;
    let told = json_of(post(&stage, "/v1/chat/completions", &chat("up/m-2")).await).await;
    let sent = asked.lock().expect("no panic").pop().expect("a call");
    assert_eq!(
        (&sent["n"], &sent["top_logprobs"], &sent["brand_new"]),
        (&json!(2), &json!(1), &json!({ "x": 1 }))
    );
    for field in ["id", "model", "choices", "system_fingerprint", "service_tier", "timings"] {
        assert_eq!(told[field], completion()[field], "{field}");
    }
    assert_eq!(told["usage"]["completion_tokens_details"]["audio_tokens"], 2);
    let spent = stage.ctx.llm().ledger().totals(&Scope::tag("http")).await.expect("totals");
    assert_eq!((spent.calls, spent.usage.out), (1, 4), "both answers are one call");
    // Clients of another dialect are told what both know, and nothing of a form that they cannot read.
    let message =
        json!({ "model": "up/m-2", "max_tokens": 50, "messages": [{ "role": "user", "content": "Hi?" }] });
    let told = json_of(post(&stage, "/v1/messages", &message).await).await;
    assert_eq!(told["content"], json!([{ "type": "text", "text": "Hi" }]));
    assert!(told.get("choices").is_none() && told.get("system_fingerprint").is_none(), "{told}");
    stage.stop().await;
}

#[tokio::test]
async fn chunks_reach_clients_of_their_dialect_as_they_came() {
    let (stage, _) = staged().await;
    let mut wanted = chat("up/m-2");
    wanted["stream"] = json!(true);
    let mut without = events_of(post(&stage, "/v1/chat/completions", &wanted).await).await;
    assert_eq!(without.pop().map(|event| event.data).as_deref(), Some("[DONE]"));
    let mut expected = chunks();
    expected.pop();
    for chunk in &mut expected {
        chunk.as_object_mut().expect("a chunk").shift_remove("usage");
    }
    assert_eq!(without.iter().map(data).collect::<Vec<_>>(), expected, "the usage was not asked for");
    wanted["stream_options"] = json!({ "include_usage": true });
    let mut with = events_of(post(&stage, "/v1/chat/completions", &wanted).await).await;
    with.pop();
    assert_eq!(with.iter().map(data).collect::<Vec<_>>(), chunks());
    // Another dialect is told the first answer alone.
    let message = json!({ "model": "up/m-2", "max_tokens": 50, "stream": true, "messages": [{ "role": "user", "content": "Hi?" }] });
    let events = events_of(post(&stage, "/v1/messages", &message).await).await;
    let text: String =
        events.iter().filter_map(|event| data(event)["delta"]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(text, "Hi");
    assert_eq!(data(&events[0])["type"], "message_start");
    let spent = stage.ctx.llm().ledger().totals(&Scope::tag("http")).await.expect("totals");
    assert_eq!((spent.calls, spent.open_calls, spent.unknown_calls), (3, 0, 0));
    stage.stop().await;
}

#[tokio::test]
async fn a_message_reaches_clients_of_its_dialect_with_all_it_says() {
    let (stage, _) = staged().await;
    let mut wanted = json!({ "model": "claude/c-2", "max_tokens": 50, "messages": [{ "role": "user", "content": "Hi?" }] });
    let told = json_of(post(&stage, "/v1/messages", &wanted).await).await;
    for field in ["id", "model", "content", "stop_reason", "stop_sequence", "container"] {
        assert_eq!(told[field], message()[field], "{field}");
    }
    assert_eq!(told["usage"]["server_tool_use"], message()["usage"]["server_tool_use"]);
    wanted["stream"] = json!(true);
    let events = events_of(post(&stage, "/v1/messages", &wanted).await).await;
    assert_eq!(events.iter().map(data).collect::<Vec<_>>(), message_events());
    let chat =
        json!({ "model": "claude/c-2", "messages": [{ "role": "user", "content": "Hi?" }], "stream": true });
    let chunks = events_of(post(&stage, "/v1/chat/completions", &chat).await).await;
    let text = |event: &longhaul_llm::sse::SseEvent| {
        let chunk: Value = serde_json::from_str(&event.data).ok()?;
        chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
    };
    assert_eq!(chunks.iter().filter_map(text).collect::<String>(), "Hi", "thinking is no answer");
    stage.stop().await;
}

#[tokio::test]
async fn the_cache_loses_nothing_of_several_answers() {
    let (stage, asked) = staged().await;
    let calls = || asked.lock().expect("no panic").len();
    let mut wanted = chat("up/m-2");
    let send = async |wanted: &Value| {
        let request = stage.request(Method::POST, "/v1/chat/completions").header("x-longhaul-cache", "auto");
        request.body(wanted.to_string()).send().await.expect("an answer")
    };
    wanted["stream"] = json!(true);
    for _ in 0..2 {
        assert_eq!(
            events_of(send(&wanted).await).await.len(),
            chunks().len(),
            "the last chunk became the end"
        );
    }
    assert_eq!(calls(), 2, "pieces are not kept as if they were the whole");
    wanted["stream"] = json!(false);
    for _ in 0..2 {
        assert_eq!(json_of(send(&wanted).await).await["choices"], completion()["choices"]);
    }
    assert_eq!(calls(), 3, "the whole is");
    wanted["stream"] = json!(true);
    assert_eq!(events_of(send(&wanted).await).await.len(), chunks().len());
    assert_eq!(calls(), 4, "and is not told in pieces without its rest");
    stage.stop().await;
}

#[tokio::test]
async fn several_answers_are_refused_by_name_where_nobody_gives_them() {
    let (stage, asked) = staged().await;
    let legacy = json!({ "model": "up/m-2", "prompt": "Hi?", "n": 2 });
    let rows = [
        ("/v1/chat/completions", chat("sim-small")),
        ("/v1/chat/completions", chat("claude/c-2")),
        ("/v1/completions", legacy),
    ];
    for (path, body) in rows {
        let (status, problem) = stage.post(path, &body).await;
        assert_eq!(
            (status, &problem["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("n")),
            "{path}: {problem}"
        );
    }
    assert!(asked.lock().expect("no panic").is_empty(), "nothing was sent");
    stage.stop().await;
}

#[tokio::test]
async fn lines_of_a_batch_say_what_the_provider_said() {
    let (stage, _) = staged().await;
    let line =
        json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat("up/m-2")});
    let file = stage.upload(line.to_string()).await;
    let new =
        json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let worker = stage.work().await;
    let (_, batch) = stage.post("/v1/batches", &new).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("a name"));
    let ended = stage.until(&path, |batch| batch["status"] == "completed").await;
    let output = ended["output_file_id"].as_str().expect("a file");
    let request = stage.request(Method::GET, &format!("/v1/files/{output}/content"));
    let told = json_of(request.send().await.expect("an answer")).await;
    let body = &told["response"]["body"];
    assert_eq!((&body["choices"], &body["timings"]), (&completion()["choices"], &completion()["timings"]));
    let batches = json!({"requests": [{"custom_id": "b", "params": {"model": "claude/c-2", "max_tokens": 50,
        "messages": [{"role": "user", "content": "Hi?"}]}}]});
    let (_, batch) = stage.post("/v1/messages/batches", &batches).await;
    let path = format!("/v1/messages/batches/{}", batch["id"].as_str().expect("a name"));
    stage.until(&path, |batch| batch["processing_status"] == "ended").await;
    let request = stage.request(Method::GET, &format!("{path}/results"));
    let told = json_of(request.send().await.expect("an answer")).await;
    assert_eq!(told["result"]["message"]["content"], message()["content"]);
    worker.drain().await;
    stage.stop().await;
}
