//! Batches as clients of OpenAI and Anthropic use them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_queue::{Clock, ManualClock, SystemClock};
use longhaul_server::ServerOptions;
use longhaul_sim::SimOptions;
use reqwest::multipart::{Form, Part};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Setup, Stage, json_of};

fn line(number: usize) -> String {
    let body =
        json!({"model": "sim-small", "messages": [{"role": "user", "content": format!("Say {number}")}]});
    json!({"custom_id": format!("c-{number}"), "method": "POST", "url": "/v1/chat/completions", "body": body})
        .to_string()
}

fn lines(count: usize) -> String {
    (0..count).map(|number| line(number) + "\n").collect()
}

async fn create(stage: &Stage, file: &Value, headers: &[(&str, &str)]) -> Value {
    let new = json!({
        "input_file_id": file["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"who": "me"},
    });
    let mut request = stage.request(Method::POST, "/v1/batches").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.body(new.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    json_of(response).await
}

async fn ended(stage: &Stage, batch: &Value) -> Value {
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("a name"));
    let is_over = |batch: &Value| {
        matches!(batch["status"].as_str(), Some("completed" | "failed" | "expired" | "cancelled"))
    };
    stage.until(&path, is_over).await
}

async fn read_lines(stage: &Stage, file: &Value) -> Vec<Value> {
    let path = format!("/v1/files/{}/content", file.as_str().expect("a file"));
    let response = stage.request(Method::GET, &path).send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
    let text = response.text().await.expect("a body");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn ids(lines: &[Value]) -> BTreeSet<String> {
    lines.iter().map(|line| line["custom_id"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn a_batch_of_openai_is_uploaded_run_and_read() {
    let stage = Stage::of(Setup::sync()).await;
    let worker = stage.work().await;
    let file = stage.upload(lines(50)).await;
    assert_eq!(
        (file["purpose"].as_str(), file["bytes"].as_u64()),
        (Some("batch"), Some(lines(50).len() as u64))
    );
    let batch = create(&stage, &file, &[]).await;
    assert_eq!((batch["object"].as_str(), batch["status"].as_str()), (Some("batch"), Some("validating")));
    let batch = ended(&stage, &batch).await;
    assert_eq!(batch["status"], "completed");
    assert_eq!(batch["request_counts"], json!({"total": 50, "completed": 50, "failed": 0}));
    assert_eq!((&batch["metadata"], &batch["error_file_id"]), (&json!({"who": "me"}), &Value::Null));
    assert!(batch["usage"]["total_tokens"].as_u64() > Some(50), "{batch}");
    let output = read_lines(&stage, &batch["output_file_id"]).await;
    let expected: BTreeSet<String> = (0..50).map(|number| format!("c-{number}")).collect();
    assert_eq!((output.len(), ids(&output)), (50, expected), "each once");
    assert_eq!(output[0]["response"]["body"]["object"], "chat.completion");
    let about = stage.get(&format!("/v1/files/{}", batch["output_file_id"].as_str().expect("a file"))).await;
    let length: usize = output.iter().map(|line| line.to_string().len() + 1).sum();
    assert_eq!(
        (about["purpose"].as_str(), about["bytes"].as_u64()),
        (Some("batch_output"), Some(length as u64))
    );
    assert_eq!(stage.core.stats().calls, 50);
    // What was answered goes when its file is deleted, and the batch says so.
    let path = format!("/v1/files/{}", batch["output_file_id"].as_str().expect("a file"));
    let deleted = stage.request(Method::DELETE, &path).send().await.expect("an answer");
    assert_eq!(deleted.status(), StatusCode::OK);
    let gone = stage.request(Method::GET, &format!("{path}/content")).send().await.expect("an answer");
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    assert_eq!(ended(&stage, &batch).await["output_file_id"], Value::Null);
    worker.drain().await;
}

#[tokio::test]
async fn wrong_lines_are_named_and_nothing_is_run() {
    let stage = Stage::of(Setup::sync()).await;
    let worker = stage.work().await;
    let rows = [
        ("no json".to_owned(), "invalid_json_line", None),
        (line(1).replace("c-1", "c-0"), "duplicate_custom_id", Some("custom_id")),
        (line(1).replace("\"custom_id\":\"c-1\",", ""), "missing_required_parameter", Some("custom_id")),
        (line(1).replace("/v1/chat", "/v2/chat"), "mismatched_endpoint", Some("url")),
        (line(1).replace("POST", "GET"), "invalid_method", Some("method")),
        (line(1).replace("\"sim-small\"", "\"\""), "invalid", Some("body.model")),
    ];
    for (wrong, code, param) in rows {
        let file = stage.upload(format!("{}\n\n{wrong}\n", line(0))).await;
        let batch = ended(&stage, &create(&stage, &file, &[]).await).await;
        let error = &batch["errors"]["data"][0];
        assert_eq!(
            (batch["status"].as_str(), error["code"].as_str()),
            (Some("failed"), Some(code)),
            "{wrong}: {batch}"
        );
        assert_eq!((error["line"].as_u64(), error["param"].as_str()), (Some(3), param), "{error}");
    }
    assert_eq!(stage.core.stats().calls, 0);
    let empty = stage.upload("\n\n".to_owned()).await;
    let batch = ended(&stage, &create(&stage, &empty, &[]).await).await;
    assert_eq!(batch["errors"]["data"][0]["code"], "empty_file");
    worker.drain().await;
}

#[tokio::test]
async fn a_creation_that_is_sent_again_makes_no_second_batch() {
    let stage = Stage::of(Setup::sync()).await;
    let file = stage.upload(lines(1)).await;
    let first = create(&stage, &file, &[("x-stainless-retry-count", "0")]).await;
    let again = create(&stage, &file, &[("x-stainless-retry-count", "1")]).await;
    assert_eq!(first["id"], again["id"], "the SDK repeats itself");
    let second = create(&stage, &file, &[("x-stainless-retry-count", "0")]).await;
    assert_ne!(first["id"], second["id"], "the user wants another one");
    let keyed = create(&stage, &file, &[("idempotency-key", "k")]).await;
    assert_eq!(keyed["id"], create(&stage, &file, &[("idempotency-key", "k")]).await["id"]);
    let other = stage.upload(lines(2)).await;
    let new =
        json!({"input_file_id": other["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let request = stage.request(Method::POST, "/v1/batches").header("idempotency-key", "k");
    let refused = request.header("content-type", "application/json").body(new.to_string()).send().await;
    assert_eq!(refused.expect("an answer").status(), StatusCode::UNPROCESSABLE_ENTITY);
    let listed = stage.get("/v1/batches?limit=2").await;
    assert_eq!(
        (listed["data"].as_array().map(Vec::len), listed["has_more"].as_bool()),
        (Some(2), Some(true))
    );
    let rest = stage.get(&format!("/v1/batches?after={}", listed["last_id"].as_str().expect("a name"))).await;
    assert_eq!(
        (rest["data"][0]["id"].clone(), rest["has_more"].as_bool()),
        (first["id"].clone(), Some(false))
    );
}

#[tokio::test]
async fn a_cancelled_batch_keeps_what_was_answered() {
    let slow = SimOptions { slots: Some(1), ..SimOptions::default() };
    let slow = SimOptions { latency: longhaul_sim::Latency { base_ms: 20, ..slow.latency }, ..slow };
    let stage = Stage::of(Setup { sim: slow, ..Setup::sync() }).await;
    let worker = stage.work().await;
    let file = stage.upload(lines(200)).await;
    let batch = create(&stage, &file, &[]).await;
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("a name"));
    let some = |batch: &Value| batch["request_counts"]["completed"].as_u64() > Some(2);
    let running = stage.until(&path, some).await;
    assert_eq!((running["status"].as_str(), &running["output_file_id"]), (Some("in_progress"), &Value::Null));
    let partial = read_lines(&stage, &running["partial_output_file_id"]).await;
    assert!(partial.len() > 2, "finished lines can be read before the end");
    let (status, cancelled) = stage.post(&format!("{path}/cancel"), &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    assert!(matches!(cancelled["status"].as_str(), Some("cancelling" | "cancelled")), "{cancelled}");
    let batch = ended(&stage, &batch).await;
    assert_eq!(batch["status"], "cancelled");
    let (answers, errors) = (
        read_lines(&stage, &batch["output_file_id"]).await,
        read_lines(&stage, &batch["error_file_id"]).await,
    );
    assert_eq!(answers.len() + errors.len(), 200);
    assert!(errors.iter().all(|line| line["error"]["code"] == "batch_cancelled"), "{}", errors[0]);
    assert!(ids(&answers).is_disjoint(&ids(&errors)));
    worker.drain().await;
}

#[tokio::test]
async fn a_batch_of_anthropic_comes_in_the_body_and_is_read_as_a_stream() {
    let stage = Stage::of(Setup::sync()).await;
    let worker = stage.work().await;
    let request = |number: usize| {
        let params = json!({"model": "sim-small", "max_tokens": 50, "messages": [{"role": "user", "content": format!("Say\n{number}")}]});
        json!({"custom_id": format!("c-{number}"), "params": params})
    };
    let body = json!({"requests": (0..30).map(request).collect::<Vec<_>>()});
    let (status, batch) = stage.post("/v1/messages/batches", &body).await;
    assert_eq!((status, batch["type"].as_str()), (StatusCode::OK, Some("message_batch")));
    let path = format!("/v1/messages/batches/{}", batch["id"].as_str().expect("a name"));
    let batch = stage.until(&path, |batch| batch["processing_status"] == "ended").await;
    assert_eq!(batch["request_counts"]["succeeded"], 30);
    let results = stage.request(Method::GET, batch["results_url"].as_str().expect("an address"));
    let text = results.send().await.expect("an answer").text().await.expect("a body");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(ids(&lines).len(), 30);
    assert_eq!(lines[0]["result"]["message"]["type"], "message");
    let listed = stage.get("/v1/messages/batches").await;
    assert_eq!(
        (listed["data"].as_array().map(Vec::len), listed["has_more"].as_bool()),
        (Some(1), Some(false))
    );
    let deleted = stage.request(Method::DELETE, &path).send().await.expect("an answer");
    assert_eq!(json_of(deleted).await["type"], "message_batch_deleted");
    let gone = stage.request(Method::GET, &path).send().await.expect("an answer");
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    assert!(stage.ctx.uploads.list(stage.ctx.queue().clock().now()).is_empty(), "its input is gone too");
    worker.drain().await;
}

#[tokio::test]
async fn wrong_bodies_of_anthropic_are_refused_and_leave_nothing() {
    let stage = Stage::new().await;
    let rows = [
        ("no json", ""),
        ("{}", "requests"),
        (r#"{"requests": []}"#, ""),
        (r#"{"requests": {}}"#, ""),
        (r#"{"requests": [{"params": {}}]}"#, "requests.0"),
        (r#"{"requests": [{"custom_id": "a"}]}"#, "requests.0"),
        (r#"{"requests": [1, 2"#, ""),
    ];
    for (body, named) in rows {
        let request =
            stage.request(Method::POST, "/v1/messages/batches").header("content-type", "application/json");
        let response = request.body(body).send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{body}");
        let error = json_of(response).await;
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains(named)), "{error}");
    }
    assert!(stage.ctx.uploads.list(stage.ctx.queue().clock().now()).is_empty());
}

#[tokio::test]
async fn fixed_names_are_answered_on_request() {
    let options = ServerOptions { test_objects: true, ..ServerOptions::default() };
    let stage = Stage::of(Setup { options, ..Setup::sync() }).await;
    assert_eq!(stage.get("/v1/batches/batch_id").await["object"], "batch");
    assert_eq!(stage.get("/v1/files/file_id").await["object"], "file");
    assert_eq!(stage.get("/v1/messages/batches/message_batch_id").await["type"], "message_batch");
    for _ in 0..2 {
        let deleted = stage.request(Method::DELETE, "/v1/files/file_id").send().await.expect("an answer");
        assert_eq!(json_of(deleted).await["deleted"], true);
    }
}

#[tokio::test]
async fn responses_and_embeddings_are_answered_in_batches_too() {
    let stage = Stage::of(Setup::sync()).await;
    let worker = stage.work().await;
    let rows = [
        (
            "/v1/responses",
            json!({"model": "sim-small", "input": "Hello", "max_output_tokens": 20}),
            "response",
        ),
        ("/v1/embeddings", json!({"model": "sim-embed", "input": ["one", "two"]}), "list"),
    ];
    for (endpoint, body, object) in rows {
        let line = json!({"custom_id": "a", "method": "POST", "url": endpoint, "body": body});
        let file = stage.upload(line.to_string()).await;
        let new = json!({"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"});
        let (_, batch) = stage.post("/v1/batches", &new).await;
        let batch = ended(&stage, &batch).await;
        assert_eq!(batch["status"], "completed", "{batch}");
        let output = read_lines(&stage, &batch["output_file_id"]).await;
        assert_eq!(output[0]["response"]["body"]["object"], object, "{output:?}");
    }
    worker.drain().await;
}

#[tokio::test]
async fn an_expired_upload_leaves_no_bytes_behind() {
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let stage = Stage::of(Setup { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..Setup::default() }).await;
    let part = Part::bytes(lines(1).into_bytes()).file_name("input.jsonl");
    let form = Form::new()
        .text("purpose", "batch")
        .text("expires_after[anchor]", "created_at")
        .text("expires_after[seconds]", "3600")
        .part("file", part);
    let request = stage.request(Method::POST, "/v1/files").multipart(form);
    let short = json_of(request.send().await.expect("an answer")).await;
    let long = stage.upload(lines(1)).await;
    let left = || std::fs::read_dir(stage.files()).expect("the folder").count();
    assert_eq!(left(), 4, "content and description of each");
    clock.advance(Duration::from_secs(3_600));
    let gone = async {
        while left() > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the server removes them");
    let path = |file: &Value| format!("/v1/files/{}", file["id"].as_str().expect("a name"));
    let (status, _) = stage.send(Method::GET, &path(&short), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(stage.get(&path(&long)).await["id"], long["id"], "one that does not expire stays");
    stage.stop().await;
}

#[tokio::test]
async fn the_end_of_a_batch_reads_its_answers_once() {
    let sim = SimOptions { context_tokens: Some(1_000), ..SimOptions::default() };
    let stage = Stage::of(Setup { sim, ..Setup::sync() }).await;
    let worker = stage.work().await;
    let long = line(7).replace("Say", &"word ".repeat(5_000));
    let file = stage.upload(format!("{}{long}", lines(3))).await;
    let batch = ended(&stage, &create(&stage, &file, &[]).await).await;
    assert_eq!(batch["request_counts"], json!({"total": 4, "completed": 3, "failed": 1}));
    let reads = stage.request(Method::GET, "/metrics").send().await.expect("an answer");
    let reads = reads.text().await.expect("text");
    let reads =
        reads.lines().find(|line| line.starts_with("longhaul_store_op_seconds_count{op=\"results\"}"));
    assert_eq!(reads.expect("a count").split(' ').next_back(), Some("1"), "of one page");
    // What it summed up is what is read.
    for (file, count) in [(&batch["output_file_id"], 3), (&batch["error_file_id"], 1)] {
        let (about, path) = (file.as_str().expect("a file"), "/v1/files");
        let content = stage.request(Method::GET, &format!("{path}/{about}/content")).send().await;
        let content = content.expect("an answer").text().await.expect("a body");
        assert_eq!(content.lines().count(), count);
        assert_eq!(stage.get(&format!("{path}/{about}")).await["bytes"], content.len());
    }
    assert!(batch["usage"]["total_tokens"].as_u64() > Some(0), "{batch}");
    worker.drain().await;
}

#[tokio::test]
async fn a_request_of_a_body_that_is_longer_than_a_line_may_be_is_refused() {
    let stage = Stage::new().await;
    let body = json!({"requests": [{"custom_id": "a", "params": {"x": "y".repeat(11_000_000)}}]});
    let (status, problem) = stage.post("/v1/messages/batches", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    assert!(problem.to_string().contains("longer than 10000000 bytes"), "{problem}");
}
