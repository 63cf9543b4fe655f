//! Batches over real sockets, from upload to results. Time is scaled so far that a batch has ended when it is asked for.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::ask;
use super::sockets::Site;
use crate::{BatchOptions, SimOptions, answer_key};
use longhaul_llm::provider::{BatchItem, BatchLine, BatchState, LineOutcome};
use longhaul_llm::wire::openai::LimitName;
use longhaul_llm::wire::{BatchObject, anthropic, gemini, openai};

const AT_ONCE: f64 = 1e12;
const COUNT: usize = 30;

fn items(count: usize) -> Vec<BatchItem> {
    let item = |number| BatchItem {
        custom_id: format!("line-{number}"),
        request: ask(&format!("request {number}")).into(),
    };
    (0..count).map(item).collect()
}

async fn site(batch: BatchOptions) -> Site {
    Site::new(SimOptions { batch, ..SimOptions::default() }).await
}

fn at_once() -> BatchOptions {
    BatchOptions { time_scale: AT_ONCE, ..BatchOptions::default() }
}

/// Lines by name, checked against the key; those that were not answered are counted.
fn check(lines: Vec<BatchLine>) -> (usize, usize) {
    let mut unanswered = 0;
    let mut by_name = BTreeMap::new();
    for line in lines {
        let name = line.custom_id.expect("a name");
        let number = name.strip_prefix("line-").expect("ours");
        match &line.outcome {
            LineOutcome::Answered(answer) => {
                assert_eq!(answer.text, answer_key(1, &ask(&format!("request {number}"))));
            }
            LineOutcome::Failed(_) | LineOutcome::NotRun => unanswered += 1,
        }
        assert!(by_name.insert(name, ()).is_none(), "a line came twice");
    }
    (by_name.len() - unanswered, unanswered)
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

async fn upload(site: &Site, items: &[BatchItem]) -> String {
    let lines: Vec<String> = items
        .iter()
        .map(|item| openai::input_to_json(item, LimitName::MaxTokens).unwrap().to_string())
        .collect();
    let part = reqwest::multipart::Part::text(lines.join("\n")).file_name("in.jsonl");
    let form = reqwest::multipart::Form::new().part("file", part).text("purpose", "batch");
    let response = site.request("POST", "/v1/files").multipart(form).send().await.expect("a response");
    let file: Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
    assert_eq!((&file["object"], &file["purpose"]), (&json!("file"), &json!("batch")));
    file["id"].as_str().expect("an id").to_owned()
}

fn creation(file: &str, tag: &str) -> Value {
    json!({
        "input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": {"longhaul": tag}
    })
}

async fn openai_lines(site: &Site, batch: &BatchObject) -> Vec<BatchLine> {
    let mut lines = Vec::new();
    for file in [&batch.output_file, &batch.error_file].into_iter().flatten() {
        let seen = site.send("GET", &format!("/v1/files/{file}/content"), &Value::Null).await;
        assert_eq!(seen.status, 200);
        let about = site.get(&format!("/v1/files/{file}")).await;
        assert_eq!(about["bytes"], seen.text.len());
        lines.extend(json_lines(&seen.text).iter().map(|line| openai::line_from_json(line).expect("a line")));
    }
    lines
}

#[tokio::test]
async fn openai_from_upload_to_results() {
    let site = site(at_once()).await;
    let file = upload(&site, &items(COUNT)).await;
    assert_eq!(site.get("/v1/files?purpose=batch").await["data"][0]["id"], json!(file));
    let id =
        site.post("/v1/batches", &creation(&file, "chunk-1")).await["id"].as_str().expect("an id").to_owned();
    let batch = openai::batch_from_json(&site.get(&format!("/v1/batches/{id}")).await).expect("a batch");
    assert_eq!((batch.state, batch.tag()), (BatchState::Completed, Some("chunk-1")));
    assert_eq!(batch.input_file.as_ref(), Some(&file));
    assert!(batch.error_file.is_none() && batch.output_file.is_some());
    assert_eq!(check(openai_lines(&site, &batch).await), (COUNT, 0));
    assert_eq!(site.send("DELETE", &format!("/v1/files/{file}"), &Value::Null).await.json()["deleted"], true);
    assert_eq!(site.send("GET", &format!("/v1/files/{file}"), &Value::Null).await.status, 404);
    let stats = site.server.core().stats();
    assert_eq!((stats.batches_created, stats.lines_executed), (1, COUNT as u64));
}

#[tokio::test]
async fn expired_openai_batch_has_both_files() {
    let site = site(BatchOptions { expire_after: Some(0.5), ..at_once() }).await;
    let file = upload(&site, &items(COUNT)).await;
    let id = site.post("/v1/batches", &creation(&file, "x")).await["id"].as_str().expect("an id").to_owned();
    let batch = openai::batch_from_json(&site.get(&format!("/v1/batches/{id}")).await).expect("a batch");
    assert_eq!(batch.state, BatchState::Expired);
    let lines = openai_lines(&site, &batch).await;
    let not_run = lines.iter().filter(|line| matches!(line.outcome, LineOutcome::NotRun)).count();
    let (answered, unanswered) = check(lines);
    assert_eq!((answered + unanswered, not_run), (COUNT, unanswered));
    assert!((10..=20).contains(&answered), "{answered}");
}

#[tokio::test]
async fn lost_creation_is_found_by_tag_and_file() {
    let site = site(BatchOptions { rate_create_lost: 1.0, ..at_once() }).await;
    let file = upload(&site, &items(3)).await;
    let body = creation(&file, "chunk-7").to_string();
    assert!(site.request("POST", "/v1/batches").body(body).send().await.is_err(), "the response is lost");
    let list = site.get("/v1/batches?limit=100").await;
    let found = openai::batch_from_json(&list["data"][0]).expect("a batch");
    assert_eq!((found.tag(), found.input_file.as_deref()), (Some("chunk-7"), Some(file.as_str())));
    assert_eq!(check(openai_lines(&site, &found).await), (3, 0));
}

#[tokio::test]
async fn bad_file_fails_its_batch_and_a_missing_one_its_creation() {
    let site = site(at_once()).await;
    let mut twice = items(2);
    twice[1].custom_id = "line-0".to_owned();
    let file = upload(&site, &twice).await;
    let id = site.post("/v1/batches", &creation(&file, "x")).await["id"].as_str().expect("an id").to_owned();
    let batch = openai::batch_from_json(&site.get(&format!("/v1/batches/{id}")).await).expect("a batch");
    assert_eq!(batch.state, BatchState::Failed);
    assert!(batch.error.is_some_and(|error| error.contains("occurs twice")));
    assert_eq!(site.send("POST", "/v1/batches", &creation("file-none", "x")).await.status, 400);
    assert_eq!(site.send("GET", "/v1/batches/batch_none", &Value::Null).await.status, 404);
}

#[tokio::test]
async fn lists_come_in_pages() {
    let site = site(at_once()).await;
    let file = upload(&site, &items(1)).await;
    for tag in ["a", "b", "c"] {
        site.post("/v1/batches", &creation(&file, tag)).await;
    }
    let first = site.get("/v1/batches?limit=2").await;
    let tags = |page: &Value| -> Vec<Value> {
        page["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|batch| batch["metadata"]["longhaul"].clone())
            .collect()
    };
    assert_eq!((tags(&first), &first["has_more"]), (vec![json!("c"), json!("b")], &json!(true)));
    let second =
        site.get(&format!("/v1/batches?limit=2&after={}", first["last_id"].as_str().expect("an id"))).await;
    assert_eq!((tags(&second), &second["has_more"]), (vec![json!("a")], &json!(false)));
    for _ in 0..3 {
        let body = json!({"batch": {"displayName": "g", "inputConfig": {"requests": {"requests": [
            {"request": {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}, "metadata": {"key": "k"}}
        ]}}}});
        site.post("/v1beta/models/sim-small:batchGenerateContent", &body).await;
    }
    let first = site.get("/v1beta/batches?pageSize=2").await;
    let token = first["nextPageToken"].as_str().expect("a token");
    let second = site.get(&format!("/v1beta/batches?pageSize=2&pageToken={token}")).await;
    let operations = |page: &Value| page["operations"].as_array().expect("a list").len();
    assert_eq!((operations(&first), operations(&second)), (2, 1));
    assert!(second.get("nextPageToken").is_none());
}

#[tokio::test]
async fn anthropic_from_creation_to_results() {
    let site = site(BatchOptions { rate_line_failed: 0.2, ..at_once() }).await;
    let body: Value =
        serde_json::from_slice(&anthropic::create_to_body(&items(COUNT)).expect("chats")).expect("JSON");
    let created = site.post("/v1/messages/batches", &body).await;
    let id = created["id"].as_str().expect("an id");
    let shown = site.get(&format!("/v1/messages/batches/{id}")).await;
    let batch = anthropic::batch_from_json(&shown).expect("a batch");
    assert_eq!((batch.state, batch.requests), (BatchState::Completed, Some(COUNT as u64)));
    let results = shown["results_url"].as_str().expect("an address");
    let text = site.send("GET", results, &Value::Null).await.text;
    let lines =
        json_lines(&text).iter().map(|line| anthropic::line_from_json(line).expect("a line")).collect();
    let (answered, failed) = check(lines);
    assert_eq!((answered + failed, batch.counts.map(|counts| counts.failed)), (COUNT, Some(failed as u64)));
    let page = site.get("/v1/messages/batches?limit=1").await;
    assert_eq!((&page["first_id"], &page["has_more"]), (&json!(id), &json!(false)));
    let gone = site.send("DELETE", &format!("/v1/messages/batches/{id}"), &Value::Null).await.json();
    assert_eq!(gone["type"], "message_batch_deleted");
}

#[tokio::test]
async fn counts_are_hidden_until_an_anthropic_batch_has_ended() {
    let site =
        site(BatchOptions { queue_s: 0.0, run_s: 1.0, time_scale: 1e-3, ..BatchOptions::default() }).await;
    let body: Value =
        serde_json::from_slice(&anthropic::create_to_body(&items(2)).expect("chats")).expect("JSON");
    let id = site.post("/v1/messages/batches", &body).await["id"].as_str().expect("an id").to_owned();
    let shown = site.get(&format!("/v1/messages/batches/{id}")).await;
    assert_eq!((&shown["processing_status"], &shown["results_url"]), (&json!("in_progress"), &Value::Null));
    assert_eq!(shown["request_counts"]["processing"], 2);
    assert_eq!(
        site.send("GET", &format!("/v1/messages/batches/{id}/results"), &Value::Null).await.status,
        400
    );
    let cancelled = site.post(&format!("/v1/messages/batches/{id}/cancel"), &Value::Null).await;
    assert_eq!(cancelled["processing_status"], "canceling");
}

#[tokio::test]
async fn gemini_inline_and_by_file() {
    let site = site(at_once()).await;
    let create = "/v1beta/models/sim-small:batchGenerateContent";
    let body: Value =
        serde_json::from_slice(&gemini::create_inline_to_body("chunk-1", &items(COUNT)).expect("chats"))
            .expect("JSON");
    let name = site.post(create, &body).await["name"].as_str().expect("a name").to_owned();
    let batch = gemini::batch_from_json(&site.get(&format!("/v1beta/{name}")).await).expect("a batch");
    assert_eq!((batch.state, batch.tag()), (BatchState::Completed, Some("chunk-1")));
    assert_eq!(check(batch.inline.expect("results with the batch")), (COUNT, 0));

    let start = site.request("POST", "/upload/v1beta/files").header("x-goog-upload-command", "start");
    let started = start.body("{}").send().await.expect("a response");
    let address = started.headers()["x-goog-upload-url"].to_str().expect("an address").to_owned();
    let path = address.strip_prefix(&site.server.url()).expect("here");
    let lines: Vec<String> =
        items(COUNT).iter().map(|item| gemini::input_to_json(item).expect("a chat").to_string()).collect();
    let sent =
        site.request("POST", path).header("x-goog-upload-command", "upload, finalize").body(lines.join("\n"));
    let file: Value =
        serde_json::from_str(&sent.send().await.expect("a response").text().await.expect("a body"))
            .expect("JSON");
    let file = file["file"]["name"].as_str().expect("a name").to_owned();
    let name = site.post(create, &gemini::create_of_file_to_json("chunk-2", &file)).await["name"].clone();
    let name = name.as_str().expect("a name");
    let batch = gemini::batch_from_json(&site.get(&format!("/v1beta/{name}")).await).expect("a batch");
    let output = batch.output_file.expect("a file of results");
    let text =
        site.send("GET", &format!("/download/v1beta/{output}:download?alt=media"), &Value::Null).await.text;
    let lines = json_lines(&text).iter().map(|line| gemini::line_from_json(line).expect("a line")).collect();
    assert_eq!(check(lines), (COUNT, 0));
}

#[tokio::test]
async fn gemini_batch_is_cancelled_and_deleted() {
    let site = site(BatchOptions { time_scale: 1e-3, cancel_s: 0.0, ..BatchOptions::default() }).await;
    let body: Value =
        serde_json::from_slice(&gemini::create_inline_to_body("c", &items(2)).expect("chats")).expect("JSON");
    let create = "/v1beta/models/sim-small:batchGenerateContent";
    let name = site.post(create, &body).await["name"].as_str().expect("a name").to_owned();
    assert_eq!(site.send("DELETE", &format!("/v1beta/{name}"), &Value::Null).await.status, 400);
    site.post(&format!("/v1beta/{name}:cancel"), &Value::Null).await;
    let batch = gemini::batch_from_json(&site.get(&format!("/v1beta/{name}")).await).expect("a batch");
    assert_eq!(batch.state, BatchState::Cancelled);
    assert_eq!(site.send("DELETE", &format!("/v1beta/{name}"), &Value::Null).await.status, 200);
    assert_eq!(site.send("GET", &format!("/v1beta/{name}"), &Value::Null).await.status, 404);
}
