//! Anthropic's client.

use axum::http::StatusCode;
use axum::response::IntoResponse;
use futures_util::TryStreamExt;
use longhaul_llm::provider::{BatchInput, BatchItem, BatchLine, BatchProbe, BatchState, LineOutcome};
use longhaul_llm::types::EmbedRequest;
use longhaul_llm::{Class, ProviderKind};
use serde_json::{Value, json};

use super::stub::{KEY, Stub, client, json as answer, question};

const KIND: ProviderKind = ProviderKind::Anthropic;

fn message(text: &str) -> Value {
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "stop_reason": "end_turn",
        "stop_sequence": null, "content": [{ "type": "text", "text": text }],
        "usage": { "input_tokens": 9, "output_tokens": 3 } })
}

fn batch(id: &str, status: &str, created_at: &str, requests: u64) -> Value {
    let done = if status == "ended" { requests } else { 0 };
    json!({ "id": id, "type": "message_batch", "processing_status": status, "created_at": created_at,
        "request_counts": { "processing": requests - done, "succeeded": done, "errored": 0, "canceled": 0, "expired": 0 },
        "expires_at": "2026-11-16T12:00:00Z", "ended_at": null, "cancel_initiated_at": null, "archived_at": null,
        "results_url": "http://elsewhere.example/results" })
}

#[tokio::test]
async fn a_call_is_made_and_its_limits_are_read() {
    let stub = Stub::start(|_| {
        let headers = [("anthropic-ratelimit-input-tokens-limit", "40000")];
        (headers, axum::Json(message("Hello!"))).into_response()
    })
    .await;
    let client = client(KIND, &format!("{}/v1/", stub.url));
    let reply = client.complete(&question()).await.unwrap();
    assert_eq!((reply.value.text.as_str(), reply.value.usage.total()), ("Hello!", 12));
    assert_eq!(reply.rate.input_tokens.and_then(|window| window.limit), Some(40_000));
    let seen = stub.last();
    assert_eq!(seen.line, "POST /v1/messages");
    assert_eq!(seen.header("authorization"), format!("Bearer {KEY}"));
    assert!(!seen.header("anthropic-version").is_empty());
    let request = EmbedRequest::default();
    assert_eq!(client.embed(&request).await.unwrap_err().class, Class::BadRequest);
}

#[tokio::test]
async fn a_profile_can_replace_headers() {
    let stub = Stub::start(|_| answer(message("x"))).await;
    let mut profile = super::stub::profile(KIND, &stub.url);
    profile.headers.insert("Anthropic-Version".to_owned(), longhaul_llm::Secret::new("2023-06-01"));
    longhaul_llm::connect(&profile).unwrap().complete(&question()).await.unwrap();
    assert_eq!(stub.last().header("anthropic-version"), "2023-06-01");
}

#[tokio::test]
async fn a_batch_lives_its_life() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "POST /v1/messages/batches" => answer(batch("msgbatch_1", "in_progress", "2026-11-15T12:00:00Z", 2)),
        "GET /v1/messages/batches/msgbatch_1" => {
            answer(batch("msgbatch_1", "ended", "2026-11-15T12:00:00Z", 2))
        }
        "GET /v1/messages/batches/msgbatch_1/results" => format!(
            "{}\n{}\n",
            json!({ "custom_id": "b", "result": { "type": "succeeded", "message": message("yes") } }),
            json!({ "custom_id": "a", "result": { "type": "expired" } }),
        )
        .into_response(),
        "POST /v1/messages/batches/msgbatch_1/cancel" => {
            answer(batch("msgbatch_1", "canceling", "2026-11-15T12:00:00Z", 2))
        }
        other => (StatusCode::NOT_FOUND, format!("no {other}")).into_response(),
    })
    .await;
    let client = client(KIND, &stub.url);
    let item = |id: &str| BatchItem { custom_id: id.to_owned(), request: question().into() };
    let input = BatchInput { tag: "chunk-1".to_owned(), items: vec![item("a"), item("b")] };
    assert_eq!(client.upload_batch(&input).await.unwrap(), None);
    let status = client.create_batch(&input, None).await.unwrap();
    assert_eq!((status.state, status.completed), (BatchState::Running, None));
    let body = stub.last().json();
    assert_eq!(
        (&body["requests"][1]["custom_id"], &body["requests"][1]["params"]["model"]),
        (&json!("b"), &json!("m-1"))
    );
    let status = client.poll_batch("msgbatch_1").await.unwrap();
    assert_eq!((status.state, status.completed), (BatchState::Completed, Some(2)));
    let lines: Vec<BatchLine> =
        client.batch_results("msgbatch_1").await.unwrap().try_collect().await.unwrap();
    assert!(matches!(&lines[0].outcome, LineOutcome::Answered(answer) if answer.text == "yes"));
    assert!(matches!(lines[1].outcome, LineOutcome::NotRun));
    client.cancel_batch("msgbatch_1").await.unwrap();
}

#[tokio::test]
async fn a_lost_batch_is_guessed_by_time_and_size() {
    let stub = Stub::start(|seen| {
        let (page, more) = match seen.line.as_str() {
            "GET /v1/messages/batches?limit=100" => (
                vec![
                    batch("late", "in_progress", "2026-11-15T13:00:00Z", 2),
                    batch("small", "in_progress", "2026-11-15T12:00:01Z", 1),
                ],
                true,
            ),
            "GET /v1/messages/batches?limit=100&after_id=small" => {
                (vec![batch("ours", "in_progress", "2026-11-15T12:00:00Z", 2)], false)
            }
            other => panic!("{other} is not needed"),
        };
        answer(json!({ "data": page, "has_more": more, "first_id": null, "last_id": null }))
    })
    .await;
    // One second before the batch, by our clock.
    let probe = BatchProbe { tag: "t".to_owned(), file: None, sent_at_ms: 1_794_743_999_000, requests: 2 };
    let found = client(KIND, &stub.url).find_batches(&probe).await.unwrap();
    assert_eq!((found.len(), found[0].status.id.as_str(), found[0].certain), (1, "ours", false));
}
