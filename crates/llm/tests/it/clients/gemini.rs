//! Gemini's client.

use std::sync::{Arc, OnceLock};

use axum::http::StatusCode;
use axum::response::IntoResponse;
use futures_util::TryStreamExt;
use longhaul_llm::ProviderKind;
use longhaul_llm::provider::{BatchInput, BatchItem, BatchLine, BatchProbe, BatchState, LineOutcome};
use longhaul_llm::types::EmbedRequest;
use serde_json::{Value, json};

use super::stub::{KEY, Stub, client, json as answer, question};

const KIND: ProviderKind = ProviderKind::Gemini;

fn content(text: &str) -> Value {
    json!({ "candidates": [{ "content": { "parts": [{ "text": text }], "role": "model" }, "finishReason": "STOP" }],
        "usageMetadata": { "promptTokenCount": 9, "candidatesTokenCount": 3, "totalTokenCount": 12 },
        "modelVersion": "m-1", "responseId": "r" })
}

fn operation(name: &str, state: &str, tag: &str, output: &Value) -> Value {
    json!({ "name": name, "metadata": { "state": state, "displayName": tag, "createTime": "2026-11-15T12:00:00Z",
        "model": "models/m-1", "output": output } })
}

fn input(items: usize) -> BatchInput {
    let items = (0..items).map(|n| BatchItem { custom_id: format!("k-{n}"), request: question().into() });
    BatchInput { tag: "chunk-1".to_owned(), items: items.collect() }
}

#[tokio::test]
async fn calls_name_the_model_in_the_address() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "POST /v1beta/models/m-1:generateContent" => answer(content("Hello!")),
        "POST /v1beta/models/m-1:streamGenerateContent?alt=sse" => {
            answer(json!([content("Hel"), content("lo")]))
        }
        "POST /v1beta/models/e:batchEmbedContents" => answer(json!({ "embeddings": [{ "values": [0.5] }] })),
        "GET /v1beta/models?pageSize=1000" => answer(json!({ "models": [{ "name": "models/m-1" }] })),
        other => (StatusCode::NOT_FOUND, format!("no {other}")).into_response(),
    })
    .await;
    let client = client(KIND, &format!("{}/v1beta", stub.url));
    let reply = client.complete(&question()).await.unwrap();
    assert_eq!((reply.value.text.as_str(), reply.value.usage.total()), ("Hello!", 12));
    assert_eq!(stub.last().header("x-goog-api-key"), KEY);
    let deltas: Vec<_> = client.stream(&question()).await.unwrap().value.try_collect().await.unwrap();
    assert_eq!(deltas.len(), 2, "a list of chunks where events were asked for");
    let request = EmbedRequest { model: "e".to_owned(), inputs: vec!["a".into()], ..EmbedRequest::default() };
    assert_eq!(client.embed(&request).await.unwrap().value.vectors, [vec![0.5]]);
    assert_eq!(client.models().await.unwrap()[0].id, "m-1");
}

#[tokio::test]
async fn a_small_batch_goes_with_the_call() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "POST /v1beta/models/m-1:batchGenerateContent" => {
            answer(operation("batches/1", "BATCH_STATE_PENDING", "chunk-1", &Value::Null))
        }
        "GET /v1beta/batches/1" => {
            let lines = json!([{ "metadata": { "key": "k-1" }, "response": content("yes") },
                { "metadata": { "key": "k-0" }, "error": { "code": 3, "message": "bad" } }]);
            let output = json!({ "inlinedResponses": { "inlinedResponses": lines } });
            answer(operation("batches/1", "BATCH_STATE_SUCCEEDED", "chunk-1", &output))
        }
        "POST /v1beta/batches/1:cancel" => answer(json!({})),
        other => (StatusCode::NOT_FOUND, format!("no {other}")).into_response(),
    })
    .await;
    let client = client(KIND, &stub.url);
    assert_eq!(client.upload_batch(&input(2)).await.unwrap(), None);
    let status = client.create_batch(&input(2), None).await.unwrap();
    assert_eq!((status.id.as_str(), status.state), ("batches/1", BatchState::Queued));
    let body = stub.last().json();
    assert_eq!(body["batch"]["displayName"], "chunk-1");
    assert_eq!(body["batch"]["inputConfig"]["requests"]["requests"][1]["metadata"]["key"], "k-1");
    assert_eq!(client.poll_batch("batches/1").await.unwrap().state, BatchState::Completed);
    let lines: Vec<BatchLine> = client.batch_results("batches/1").await.unwrap().try_collect().await.unwrap();
    assert!(matches!(&lines[0].outcome, LineOutcome::Answered(answer) if answer.text == "yes"));
    assert!(matches!(&lines[1].outcome, LineOutcome::Failed(error) if error.status == Some(400)));
    client.cancel_batch("batches/1").await.unwrap();
}

#[tokio::test]
async fn a_large_batch_goes_as_a_file() {
    let address = Arc::new(OnceLock::<String>::new());
    let own = Arc::clone(&address);
    let stub = Stub::start(move |seen| match seen.line.as_str() {
        "POST /upload/v1beta/files" => {
            let url = format!("{}/somewhere?upload_id=7", own.get().unwrap());
            ([("x-goog-upload-url", url)], "").into_response()
        }
        "POST /somewhere?upload_id=7" => answer(json!({ "file": { "name": "files/in" } })),
        "POST /v1beta/models/m-1:batchGenerateContent" => {
            answer(operation("batches/1", "BATCH_STATE_PENDING", "chunk-1", &Value::Null))
        }
        "GET /v1beta/batches/1" => answer(operation(
            "batches/1",
            "BATCH_STATE_SUCCEEDED",
            "chunk-1",
            &json!({ "responsesFile": "files/out" }),
        )),
        "GET /download/v1beta/files/out:download?alt=media" => {
            let lines = (0..3)
                .map(|n| format!("{}\n", json!({ "key": format!("k-{n}"), "response": content("yes") })));
            lines.collect::<String>().into_response()
        }
        other => (StatusCode::NOT_FOUND, format!("no {other}")).into_response(),
    })
    .await;
    address.set(stub.url.clone()).unwrap();
    let client = client(KIND, &stub.url);
    let file = client.upload_batch(&input(101)).await.unwrap();
    assert_eq!(file.as_deref(), Some("files/in"));
    let [start, send] = &stub.seen()[..] else { panic!("two calls") };
    assert_eq!(start.header("x-goog-upload-command"), "start");
    assert_eq!(start.header("x-goog-upload-header-content-length"), send.body.len().to_string());
    assert_eq!(
        (send.header("x-goog-upload-command"), send.header("x-goog-api-key")),
        ("upload, finalize", "")
    );
    assert_eq!(send.text().lines().count(), 101);

    client.create_batch(&input(101), file.as_deref()).await.unwrap();
    assert_eq!(stub.last().json()["batch"]["inputConfig"], json!({ "fileName": "files/in" }));
    let lines: Vec<BatchLine> = client.batch_results("batches/1").await.unwrap().try_collect().await.unwrap();
    assert_eq!(lines.len(), 3);
}

#[tokio::test]
async fn a_lost_batch_is_found_by_its_name() {
    let stub = Stub::start(|seen| match seen.line.as_str() {
        "GET /v1beta/batches?pageSize=100" => {
            let other = operation("batches/9", "BATCH_STATE_RUNNING", "other", &Value::Null);
            answer(json!({ "operations": [other], "nextPageToken": "a+b/c=" }))
        }
        "GET /v1beta/batches?pageSize=100&pageToken=a%2Bb%2Fc%3D" => answer(
            json!({ "operations": [operation("batches/8", "BATCH_STATE_RUNNING", "chunk-1", &Value::Null)] }),
        ),
        other => panic!("{other} is not needed"),
    })
    .await;
    let probe = BatchProbe { tag: "chunk-1".to_owned(), file: None, sent_at_ms: i64::MAX, requests: 3 };
    let found = client(KIND, &stub.url).find_batches(&probe).await.unwrap();
    assert_eq!((found.len(), found[0].status.id.as_str(), found[0].certain), (1, "batches/8", true));
}
