//! From each dialect of clients to each dialect of providers, directly and in batches: what is sent, and in which order. The
//! providers are a fixture that remembers what it was asked.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post as route;
use longhaul_llm::Secret;
use longhaul_llm::profile::{Profile, ProviderKind};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Setup, Stage};

const MODELS: [&str; 3] = ["up/m", "claude/m", "gem/m"];

/// What the providers were asked, as text: order counts.
type Asked = Arc<Mutex<Vec<String>>>;

async fn complete(State(asked): State<Asked>, body: String) -> axum::Json<Value> {
    asked.lock().expect("no panic").push(body);
    axum::Json(json!({ "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "Hi" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 } }))
}

async fn speak(State(asked): State<Asked>, body: String) -> axum::Json<Value> {
    asked.lock().expect("no panic").push(body);
    axum::Json(
        json!({ "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{ "type": "text", "text": "Hi" }], "usage": { "input_tokens": 1, "output_tokens": 1 } }),
    )
}

async fn generate(State(asked): State<Asked>, Path(_call): Path<String>, body: String) -> axum::Json<Value> {
    asked.lock().expect("no panic").push(body);
    axum::Json(json!({ "responseId": "g", "modelVersion": "m",
        "candidates": [{ "content": { "role": "model", "parts": [{ "text": "Hi" }] }, "finishReason": "STOP" }],
        "usageMetadata": { "promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2 } }))
}

/// A server before providers of all dialects; batches go out line by line, so that what is sent can be compared.
async fn staged() -> (Stage, Asked) {
    let asked = Asked::default();
    let router = Router::new()
        .route("/v1/chat/completions", route(complete))
        .route("/v1/messages", route(speak))
        .route("/v1beta/models/{call}", route(generate))
        .with_state(Arc::clone(&asked));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let profile = |name: &str, kind: ProviderKind| Profile {
        base_url: url.clone(),
        key: Some(Secret::new("k".to_owned())),
        ..Profile::new(name, kind)
    };
    let others = vec![
        profile("up", ProviderKind::OpenAi),
        profile("claude", ProviderKind::Anthropic),
        profile("gem", ProviderKind::Gemini),
    ];
    (Stage::of(Setup { others, ..Setup::sync() }).await, asked)
}

fn schema() -> Value {
    json!({ "type": "object", "required": ["reasoning", "answer"], "additionalProperties": false,
        "properties": { "reasoning": { "type": "string" }, "answer": { "type": "string" } } })
}

/// A chat with a schema, a tool, an image, and fields that only OpenAI knows or nobody does.
fn chat() -> Value {
    json!({
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Which?" },
            { "type": "image_url", "image_url": { "url": "https://example.com/a.png", "detail": "low" } }] }],
        "max_tokens": 50, "user": "me", "store": false, "metadata": { "a": "b" }, "reasoning_effort": "low",
        "presence_penalty": 1, "parallel_tool_calls": false, "brand_new": 1, "tool_choice": "auto",
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema(), "strict": true } }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema(), "strict": true } },
    })
}

fn message() -> Value {
    json!({
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Which?", "cache_control": { "type": "ephemeral" } },
            { "type": "image", "source": { "type": "url", "url": "https://example.com/a.png" } }] }],
        "max_tokens": 50, "metadata": { "user_id": "me" }, "thinking": { "type": "adaptive" }, "brand_new": 1,
        "tools": [{ "name": "f", "input_schema": schema(), "cache_control": { "type": "ephemeral" } }],
        "output_config": { "effort": "low", "format": { "type": "json_schema", "schema": schema() } },
    })
}

fn response() -> Value {
    json!({
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Which?" }] }], "max_output_tokens": 50,
        "truncation": "auto", "brand_new": 1, "user": "me",
        "tools": [{ "type": "function", "name": "f", "parameters": schema(), "strict": true }],
        "text": { "format": { "type": "json_schema", "name": "n", "schema": schema(), "strict": true } },
    })
}

fn asked_of(mut body: Value, model: &str) -> Value {
    body["model"] = json!(model);
    body
}

/// Asks directly and answers what reached the provider.
async fn direct(stage: &Stage, asked: &Asked, path: &str, body: &Value) -> String {
    let (status, answer) = stage.post(path, body).await;
    assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    asked.lock().expect("no panic").pop().expect("a call")
}

/// Asks by a batch of one line and answers what reached the provider.
async fn in_batch(stage: &Stage, asked: &Asked, path: &str, body: &Value) -> String {
    if path == "/v1/messages" {
        let requests = json!({ "requests": [{ "custom_id": "a", "params": body }] });
        let (_, batch) = stage.post("/v1/messages/batches", &requests).await;
        let batch = format!("/v1/messages/batches/{}", batch["id"].as_str().expect("a name"));
        stage.until(&batch, |batch| batch["processing_status"] == "ended").await;
    } else {
        let line = json!({ "custom_id": "a", "method": "POST", "url": path, "body": body });
        let ended = batch_of(stage, path, &[line.to_string()]).await;
        assert_eq!(ended["request_counts"]["completed"], 1, "{path}: {ended}");
    }
    asked.lock().expect("no panic").pop().expect("a call")
}

/// Runs a file as a batch to its end.
async fn batch_of(stage: &Stage, endpoint: &str, lines: &[String]) -> Value {
    let file = stage.upload(lines.join("\n")).await;
    let new = json!({ "input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h" });
    let (_, batch) = stage.post("/v1/batches", &new).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("a name"));
    let is_over = |batch: &Value| batch["status"] == "completed" || batch["status"] == "failed";
    stage.until(&path, is_over).await
}

#[tokio::test]
async fn batches_reach_every_provider_in_the_words_of_direct_calls() {
    let (stage, asked) = staged().await;
    let worker = stage.work().await;
    let clients =
        [("/v1/chat/completions", chat()), ("/v1/messages", message()), ("/v1/responses", response())];
    for model in MODELS {
        for (path, body) in &clients {
            let body = asked_of(body.clone(), model);
            let (called, batched) =
                (direct(&stage, &asked, path, &body).await, in_batch(&stage, &asked, path, &body).await);
            let [called_json, batched_json] =
                [&called, &batched].map(|text| serde_json::from_str::<Value>(text).expect("JSON"));
            let without_stream = |mut body: Value| {
                body.as_object_mut().expect("an object").retain(|name, _| name != "stream");
                body
            };
            assert_eq!(
                without_stream(called_json),
                without_stream(batched_json.clone()),
                "{path} to {model}"
            );
            // A model writes in the order of the schema: reasons that come after the answer are no reasons.
            for text in [called, batched] {
                assert_eq!(text.matches(&schema().to_string()).count(), 2, "{path} to {model}: {text}");
            }
            let is_own =
                matches!((*path, model), ("/v1/chat/completions", "up/m") | ("/v1/messages", "claude/m"));
            let foreign = [
                "brand_new",
                "metadata",
                "cache_control",
                "reasoning_effort",
                "truncation",
                "thinking",
                "detail",
            ];
            let passed = foreign.into_iter().filter(|name| batched_json.to_string().contains(name));
            assert_eq!(passed.count() > 0, is_own, "{path} to {model}: {batched_json}");
        }
    }
    worker.drain().await;
    stage.stop().await;
}

#[tokio::test]
async fn a_line_that_cannot_be_asked_is_an_error_of_its_own_and_the_others_run() {
    let (stage, asked) = staged().await;
    let worker = stage.work().await;
    let line = |id: &str, body: Value| {
        json!({ "custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": asked_of(body, "claude/m") })
            .to_string()
    };
    let hello = json!([{ "role": "user", "content": "Hi?" }]);
    let audio = json!([{ "role": "user", "content": [{ "type": "input_audio", "input_audio": { "data": "AA", "format": "wav" } }] }]);
    let lines = [
        line("good", json!({ "messages": hello })),
        line("no messages", json!({ "messages": "hello" })),
        line("streams", json!({ "messages": hello, "stream": true })),
        line("several", json!({ "messages": hello, "n": 2 })),
        line("audio", json!({ "messages": audio })),
        line("as good", json!({ "messages": hello })),
    ];
    let ended = batch_of(&stage, "/v1/chat/completions", &lines).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["request_counts"], json!({ "total": 6, "completed": 2, "failed": 4 }));
    let file = ended["error_file_id"].as_str().expect("an error file");
    let request = stage.request(Method::GET, &format!("/v1/files/{file}/content"));
    let text = request.send().await.expect("an answer").text().await.expect("text");
    let errors: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<(&str, &Value, &str)> = errors
        .iter()
        .map(|line| {
            let message = line["response"]["body"]["error"]["message"].as_str().expect("a message");
            let field = message.split_once(':').map_or("", |(field, _)| field);
            (line["custom_id"].as_str().expect("a name"), &line["response"]["status_code"], field)
        })
        .collect();
    let refused = json!(400);
    let expected =
        [("no messages", "messages"), ("streams", "stream"), ("several", "n"), ("audio", "messages")];
    assert_eq!(told, expected.map(|(id, field)| (id, &refused, field)), "{text}");
    assert_eq!(asked.lock().expect("no panic").len(), 2, "the others were asked");

    let params = json!({ "max_tokens": 9, "messages": "hello" });
    let batch = json!({ "requests": [
        { "custom_id": "bad", "params": asked_of(params, "up/m") },
        { "custom_id": "good", "params": asked_of(json!({ "max_tokens": 9, "messages": hello }), "up/m") } ] });
    let (_, batch) = stage.post("/v1/messages/batches", &batch).await;
    let path = format!("/v1/messages/batches/{}", batch["id"].as_str().expect("a name"));
    let ended = stage.until(&path, |batch| batch["processing_status"] == "ended").await;
    assert_eq!(
        (&ended["request_counts"]["succeeded"], &ended["request_counts"]["errored"]),
        (&json!(1), &json!(1))
    );

    // What makes the file no batch still ends it, with the line.
    for (line, code) in [("{\"custom_id\": \"x\"", "invalid_json_line"), (&lines[0], "duplicate_custom_id")] {
        let ended = batch_of(&stage, "/v1/chat/completions", &[lines[0].clone(), line.to_owned()]).await;
        let error = &ended["errors"]["data"][0];
        assert_eq!(
            (&ended["status"], &error["code"], &error["line"]),
            (&json!("failed"), &json!(code), &json!(2))
        );
    }
    worker.drain().await;
    stage.stop().await;
}
