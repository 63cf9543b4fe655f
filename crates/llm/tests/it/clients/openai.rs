//! OpenAI's client.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use futures_util::{StreamExt, TryStreamExt};
use longhaul_llm::provider::{BatchInput, BatchItem, BatchLine, BatchProbe, BatchState, LineOutcome};
use longhaul_llm::types::{Delta, EmbedRequest};
use longhaul_llm::{Class, ProviderKind};
use serde_json::{Value, json};

use super::stub::{KEY, Seen, Stub, client, json as answer, question};

const KIND: ProviderKind = ProviderKind::OpenAi;

fn completion(text: &str) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-1",
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12 },
    })
}

#[tokio::test]
async fn a_call_is_made_and_its_limits_are_read() {
    let stub = Stub::start(|_| {
        let headers = [("x-ratelimit-limit-requests", "500"), ("x-ratelimit-remaining-requests", "499")];
        (headers, axum::Json(completion("Hello!"))).into_response()
    })
    .await;
    let mut request = question();
    request.extra.insert("stream".to_owned(), json!(true));
    let reply = client(KIND, &stub.url).complete(&request).await.unwrap();
    assert_eq!((reply.value.text.as_str(), reply.value.usage.total()), ("Hello!", 12));
    assert_eq!(reply.rate.requests.and_then(|window| window.remaining), Some(499));
    let seen = stub.last();
    assert_eq!(seen.line, "POST /v1/chat/completions", "an address without a path gets /v1");
    assert_eq!(seen.header("authorization"), format!("Bearer {KEY}"));
    assert_eq!(
        seen.json(),
        json!({ "model": "m-1", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 16 })
    );
}

#[tokio::test]
async fn a_service_that_does_not_stream_is_read_as_a_whole() {
    let stub = Stub::start(|_| answer(completion("Hello!"))).await;
    let reply = client(KIND, &stub.url).stream(&question()).await.unwrap();
    let deltas: Vec<Delta> = reply.value.try_collect().await.unwrap();
    assert!(
        matches!(&deltas[..], [Delta::Text(text), Delta::End(answer)] if text == "Hello!" && answer.text == *text)
    );
    let body = stub.last().json();
    assert_eq!((&body["stream"], &body["stream_options"]), (&json!(true), &json!({ "include_usage": true })));
}

#[tokio::test]
async fn vectors_and_models_are_read() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "GET /v1/models" => answer(json!({ "object": "list", "data": [{ "id": "m-1", "object": "model", "owned_by": "x" }] })),
        _ => answer(json!({ "object": "list", "model": "e", "data": [{ "index": 0, "embedding": [0.5] }], "usage": { "prompt_tokens": 2 } })),
    })
    .await;
    let client = client(KIND, &stub.url);
    let models = client.models().await.unwrap();
    assert_eq!((models[0].id.as_str(), models[0].owner.as_deref()), ("m-1", Some("x")));
    let request = EmbedRequest { model: "e".to_owned(), inputs: vec!["a".into()], ..EmbedRequest::default() };
    assert_eq!(client.embed(&request).await.unwrap().value.vectors, [vec![0.5]]);
}

fn input() -> BatchInput {
    let item = |id: &str| BatchItem { custom_id: id.to_owned(), request: question().into() };
    BatchInput { tag: "chunk-1".to_owned(), items: vec![item("a"), item("b"), item("c")] }
}

fn batch(id: &str, status: &str, created_at: i64, tag: &str) -> Value {
    json!({ "id": id, "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-in",
        "completion_window": "24h", "status": status, "created_at": created_at, "output_file_id": "file-out",
        "error_file_id": "file-err", "request_counts": { "total": 3, "completed": 1, "failed": 1 },
        "metadata": { "longhaul": tag } })
}

fn batch_service(seen: &Seen) -> axum::response::Response {
    let done = json!({ "id": "batch_req_1", "custom_id": "a", "error": null,
        "response": { "status_code": 200, "request_id": "r", "body": completion("yes") } });
    let failed = json!({ "id": "batch_req_2", "custom_id": "b", "error": null, "response": { "status_code": 400,
        "request_id": "r", "body": { "error": { "message": "bad", "type": "invalid_request_error" } } } });
    let expired = json!({ "id": "batch_req_3", "custom_id": "c", "response": null,
        "error": { "code": "batch_expired", "message": "late" } });
    match seen.line.as_str() {
        "POST /v1/files" => answer(json!({ "id": "file-in", "object": "file", "purpose": "batch" })),
        "POST /v1/batches" => answer(batch("batch_1", "validating", 100, "chunk-1")),
        "GET /v1/batches/batch_1" => answer(batch("batch_1", "expired", 100, "chunk-1")),
        "GET /v1/files/file-out/content" => format!("{done}\n").into_response(),
        "GET /v1/files/file-err/content" => {
            format!("{failed}\r\n\r\n{expired}\nnot json at all").into_response()
        }
        "POST /v1/batches/batch_1/cancel" => answer(batch("batch_1", "cancelling", 100, "chunk-1")),
        other => (StatusCode::NOT_FOUND, format!("no {other}")).into_response(),
    }
}

#[tokio::test]
async fn a_batch_lives_its_life() {
    let stub = Stub::start(batch_service).await;
    let client = client(KIND, &stub.url);
    let file = client.upload_batch(&input()).await.unwrap();
    let upload = stub.last().text();
    assert!(upload.contains("name=\"purpose\"") && upload.contains("filename=\"chunk-1.jsonl\""), "{upload}");
    let lines: Vec<&str> = upload.lines().filter(|line| line.starts_with('{')).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(serde_json::from_str::<Value>(lines[1]).unwrap()["custom_id"], "b");

    let status = client.create_batch(&input(), file.as_deref()).await.unwrap();
    assert_eq!((status.id.as_str(), status.state), ("batch_1", BatchState::Queued));
    let create = json!({ "input_file_id": "file-in", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": { "longhaul": "chunk-1" } });
    assert_eq!(stub.last().json(), create);

    assert_eq!(client.poll_batch("batch_1").await.unwrap().state, BatchState::Expired);
    let lines: Vec<BatchLine> = client.batch_results("batch_1").await.unwrap().try_collect().await.unwrap();
    let ids: Vec<_> = lines.iter().map(|line| line.custom_id.as_deref()).collect();
    assert_eq!(ids, [Some("a"), Some("b"), Some("c"), None]);
    assert!(matches!(&lines[0].outcome, LineOutcome::Answered(answer) if answer.text == "yes"));
    assert!(matches!(&lines[1].outcome, LineOutcome::Failed(error) if error.class == Class::BadRequest));
    assert!(matches!(lines[2].outcome, LineOutcome::NotRun));
    assert!(matches!(&lines[3].outcome, LineOutcome::Failed(error) if error.maybe_billed));
    client.cancel_batch("batch_1").await.unwrap();
    assert!(client.poll_batch("../files").await.is_err(), "an id cannot lead elsewhere");
}

#[tokio::test]
async fn results_that_break_off_end_in_an_error() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "GET /v1/files/file-err/content" => (StatusCode::NOT_FOUND, "gone").into_response(),
        _ => batch_service(seen),
    })
    .await;
    let lines: Vec<_> = client(KIND, &stub.url).batch_results("batch_1").await.unwrap().collect().await;
    assert!(matches!(&lines[..], [Ok(_), Err(error)] if error.status == Some(404)), "{lines:?}");
}

#[tokio::test]
async fn a_lost_batch_is_found_by_tag_or_file() {
    let stub = Stub::start(|seen| {
        // Newest first; the second page holds ours, the third is older than the call.
        let page = match seen.line.as_str() {
            "GET /v1/batches?limit=100" => vec![batch("batch_9", "in_progress", 20_000, "other")],
            "GET /v1/batches?limit=100&after=batch_9" => vec![
                batch("batch_8", "in_progress", 10_000, "chunk-1"),
                batch("batch_7", "completed", 5_000, "other"),
            ],
            other => panic!("{other} is not needed"),
        };
        answer(json!({ "object": "list", "data": page, "has_more": true }))
    })
    .await;
    let client = client(KIND, &stub.url);
    let probe = BatchProbe { tag: "chunk-1".to_owned(), file: None, sent_at_ms: 10_000_000, requests: 3 };
    let found = client.find_batches(&probe).await.unwrap();
    assert_eq!((found.len(), found[0].status.id.as_str(), found[0].certain), (1, "batch_8", true));
    let by_file = BatchProbe { tag: "lost".to_owned(), file: Some("file-in".to_owned()), ..probe.clone() };
    assert_eq!(client.find_batches(&by_file).await.unwrap().len(), 3);
    let none = BatchProbe { tag: "lost".to_owned(), ..probe };
    assert!(client.find_batches(&none).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_failed_creation_tells_whether_the_batch_may_exist() {
    let early = json!({ "error": { "message": "Cannot find file file-in, or organization x does not have access.",
        "type": "invalid_request_error", "param": null, "code": null } });
    let plain = json!({ "error": { "message": "nope", "type": "x" } });
    for (status, body, class, maybe) in [
        (400, early, Class::Overloaded, false),
        (400, plain.clone(), Class::BadRequest, false),
        (500, plain.clone(), Class::Overloaded, true),
        (429, plain, Class::Throttled, false),
    ] {
        let stub = Stub::start(move |_| {
            (StatusCode::from_u16(status).unwrap(), axum::Json(body.clone())).into_response()
        });
        let stub = stub.await;
        let error = client(KIND, &stub.url).create_batch(&input(), Some("file-in")).await.unwrap_err();
        assert_eq!((error.class, error.maybe_billed), (class, maybe), "{status}: {error}");
    }
}

#[tokio::test]
async fn an_engine_without_batches_says_so() {
    let profile = longhaul_llm::Profile { batches: None, ..super::stub::profile(KIND, "http://127.0.0.1:1") };
    let client = longhaul_llm::connect(&profile).unwrap();
    assert_eq!(client.caps().batches, None);
    assert_eq!(client.upload_batch(&input()).await.unwrap_err().class, Class::BadRequest);
}

#[tokio::test]
async fn calls_go_through_the_proxy_that_was_chosen() {
    let proxy = Stub::start(|_| answer(completion("Hello!"))).await;
    let profile = longhaul_llm::Profile {
        proxy: longhaul_llm::profile::ProxyChoice::Url(longhaul_llm::Secret::new(proxy.url.clone())),
        ..super::stub::profile(KIND, "http://service.example/v1")
    };
    let reply = longhaul_llm::connect(&profile).unwrap().complete(&question()).await.unwrap();
    assert_eq!(reply.value.text, "Hello!");
    assert_eq!(proxy.last().line, "POST http://service.example/v1/chat/completions");
}
