//! Spoiled requests and files: whatever comes in, nobody panics, nothing is answered with a 5xx, and what is refused is refused in
//! the form of its family.

use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures_util::StreamExt as _;
use longhaul_queue::State;
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_server::ServerOptions;
use reqwest::Method;
use serde_json::{Value, json};

use crate::raw::{self, Answer};
use crate::stage::{Setup, Stage};

mod corpus;
mod mutate;

use corpus::Case;

/// What every run tries beside what it draws for itself.
const SEED: u64 = 4;
/// Spoiled requests for each seed.
const REQUESTS: usize = 1_500;
/// Spoiled files for each seed.
const FILES: usize = 40;
/// Requests at once.
const AT_ONCE: usize = 8;
/// Failures that are shown.
const SHOWN: usize = 8;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Counts panics of the server, which runs in this process. Those of tests are told by their place.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let of_a_test = panic.location().is_some_and(|place| place.file().contains("tests/it/"));
            if !of_a_test {
                PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
            }
            before(panic);
        }));
    });
}

fn assert_no_panic(seed: u64) {
    // A copy: the hook takes the lock when the assertion fails.
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(panics.is_empty(), "seed {seed}: {panics:#?}");
}

fn options() -> ServerOptions {
    ServerOptions {
        // Some requests promise more than they send.
        body_wait: Duration::from_millis(200),
        mcp_allow_write: true,
        ..ServerOptions::default()
    }
}

#[tokio::test]
async fn spoiled_requests_are_refused_in_the_form_of_their_family() {
    for seed in [SEED, fastrand::u64(..)] {
        requests(seed).await;
    }
}

async fn requests(seed: u64) {
    count_panics();
    let stage = Stage::of(Setup { options: options(), ..Setup::sync() }).await;
    let things = corpus::things(&stage).await;
    let cases = corpus::cases(&things);
    let mut rng = Rng::with_seed(seed);
    let spoiled = (0..REQUESTS).map(|number| mutate::spoil(&mut rng, &cases[number % cases.len()]));
    let sent = cases.iter().cloned().chain(spoiled.collect::<Vec<_>>());
    let mut faults = send_all(&stage, sent).await;
    // What was let in can be looked at.
    faults.extend(send_all(&stage, corpus::reads(&things)).await);
    faults.extend(look_at_all(&stage).await);
    let shown = &faults[..faults.len().min(SHOWN)];
    assert!(faults.is_empty(), "seed {seed}: {} faults: {shown:#?}", faults.len());
    assert_no_panic(seed);
    stage.get("/readyz").await;
    stage.stop().await;
}

/// What spoiled requests have found.
#[tokio::test]
async fn what_was_found_is_refused() {
    let stage = Stage::of(Setup { options: options(), ..Setup::sync() }).await;
    let host = stage.address();
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let json = "content-type: application/json";
    let form = "content-type: multipart/form-data; boundary=b";
    let long = json!({"model": "m".repeat(257), "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    let rows = [
        ("POST /v1/files", form, "--b\r\nContent".to_owned(), 7, 408, "/error/message"),
        ("POST /v1/chat/completions", json, long, 0, 400, "/error/param"),
        ("POST /v1/models/%ff", json, String::new(), 0, 405, "/error/message"),
        ("GET /v1/files?limit=x", json, String::new(), 0, 400, "/error/message"),
        ("GET /v1/messages/batches/%ff", json, String::new(), 0, 400, "/error/message"),
        ("GET /api/v1/webhooks/%ff", json, String::new(), 0, 400, "/detail"),
        ("POST /api/v1/jobs", json, r#"{"kind": "a", "payload": "\ud800"}"#.to_owned(), 0, 400, "/detail"),
        ("POST /api/v1/jobs", json, r#"{"kind": "a", "payload": 1e999}"#.to_owned(), 0, 400, "/detail"),
        ("POST /api/v1/jobs", json, format!(r#"{{"kind": "a", "payload": {deep}}}"#), 0, 400, "/detail"),
    ];
    for (line, kind, body, missing, status, place) in rows {
        let length = body.len() + missing;
        let head = format!("{line} HTTP/1.1\r\nhost: {host}\r\nx-longhaul: 1\r\nconnection: close\r\n{kind}");
        let text = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        let answer = raw::send(&stage, text.as_bytes()).await.expect(line);
        let said = answer.json();
        assert_eq!(answer.status, status, "{line}: {said}");
        assert!(said.pointer(place).is_some_and(Value::is_string), "{line}: {said}");
    }
    stage.stop().await;
}

async fn send_all(stage: &Stage, cases: impl IntoIterator<Item = Case>) -> Vec<String> {
    let host = stage.address().to_string();
    let answers = futures_util::stream::iter(cases).map(|case| {
        let bytes = case.bytes(&host);
        async move { (raw::send(stage, &bytes).await, case) }
    });
    let faults = answers.buffer_unordered(AT_ONCE).filter_map(async |(answer, case)| {
        let fault = answer.and_then(|answer| judge(&case, &answer)).err()?;
        Some(format!("{fault}\n{case}"))
    });
    faults.collect().await
}

/// Whether this is how such a request may be answered.
fn judge(case: &Case, answer: &Answer) -> Result<(), String> {
    let Answer { status, head, body } = answer;
    let fault = |text: &str| Err(format!("{text}: {head}\n{}", String::from_utf8_lossy(body)));
    if *status >= 500 {
        return fault("a failure of the server");
    }
    if *status < 400 || case.method == "HEAD" {
        return Ok(());
    }
    // What is no HTTP is refused before anybody knows which family was meant.
    if !answer.has("x-request-id") {
        return if body.is_empty() && [400, 413, 414, 431].contains(status) {
            Ok(())
        } else {
            fault("no name")
        };
    }
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let kind = answer.header("content-type").unwrap_or_default();
    let said = answer.json();
    let path = case.path.split('?').next().unwrap_or_default();
    let is_problem = kind == "application/problem+json"
        && is_text(&said["detail"])
        && is_text(&said["code"])
        && said["status"] == *status;
    let fits = match path {
        _ if path == "/v1/messages" || path.starts_with("/v1/messages/") => {
            said["type"] == "error" && is_text(&said["error"]["type"]) && is_text(&said["error"]["message"])
        }
        _ if path.starts_with("/v1/") => {
            is_text(&said["error"]["type"]) && is_text(&said["error"]["message"])
        }
        "/mcp" => is_problem || (said["jsonrpc"] == "2.0" && is_text(&said["error"]["message"])),
        _ => is_problem,
    };
    if fits { Ok(()) } else { fault("not in the form of its family") }
}

/// Every job that is there now, by all ways to look at it, and by a worker.
async fn look_at_all(stage: &Stage) -> Vec<String> {
    let mut faults = Vec::new();
    let mut path = "/api/v1/jobs?limit=50".to_owned();
    loop {
        let (status, page) = stage.send(Method::GET, &path, None).await;
        if !status.is_success() {
            faults.push(format!("{path}: {page}"));
            break;
        }
        for job in page["items"].as_array().into_iter().flatten() {
            let id = job["id"].as_str().unwrap_or_default();
            let tool = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_job", "arguments": {"id": id}}});
            let looks = [
                stage.send(Method::GET, &format!("/api/v1/jobs/{id}"), None).await,
                stage.send(Method::GET, &format!("/api/v1/jobs/{id}/explain"), None).await,
                stage.send(Method::POST, "/mcp", Some(tool)).await,
            ];
            let wrong = looks
                .into_iter()
                .find(|(status, said)| !status.is_success() || said["result"]["isError"] == true);
            faults.extend(wrong.map(|(status, said)| format!("{id}: {status} {said}")));
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/jobs?limit=50&cursor={next}"),
            None => break,
        }
    }
    let claim = json!({"worker": "w", "queues": ["default", "q"], "limit": 1_000});
    let (status, claims) = stage.send(Method::POST, "/api/v1/work/claim", Some(claim)).await;
    if !status.is_success() {
        faults.push(format!("claim: {claims}"));
    }
    faults
}

#[tokio::test]
async fn spoiled_files_end_as_batches_that_name_their_lines() {
    for seed in [SEED, fastrand::u64(..)] {
        files(seed).await;
    }
}

async fn files(seed: u64) {
    count_panics();
    let mut rng = Rng::with_seed(seed);
    let stage = Stage::of(Setup { options: options(), ..Setup::sync() }).await;
    let worker = stage.work().await;
    let mut made = Vec::new();
    for _ in 0..FILES {
        let file = spoiled_file(&mut rng);
        let id = upload(&stage, file.clone()).await;
        let new =
            json!({"input_file_id": id, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
        let (status, batch) = stage.post("/v1/batches", &new).await;
        assert!(status.is_success(), "seed {seed}: {batch}");
        made.push((batch["id"].as_str().unwrap_or_default().to_owned(), file));
    }
    for (id, file) in made {
        let is_over =
            |batch: &Value| matches!(batch["status"].as_str(), Some("completed" | "failed" | "expired"));
        let batch = stage.until(&format!("/v1/batches/{id}"), is_over).await;
        let errors = batch["errors"]["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        let named = |error: &Value| error["line"].is_u64() || error["code"] == "empty_file";
        let fits = match batch["status"].as_str() {
            Some("failed") => !errors.is_empty() && errors.iter().all(named),
            status => status == Some("completed"),
        };
        assert!(fits, "seed {seed}: {batch}\n{}", file[..file.len().min(3_000)].escape_ascii());
    }
    message_batches(&stage, &mut rng, seed).await;
    let filter =
        Filter { states: vec![State::Failed], kind: Some("api.batch".to_owned()), ..Filter::default() };
    let request = ListRequest { filter, newest_first: true, cursor: None, limit: 10 };
    let failed = stage.ctx.queue().list(request).await.expect("a list").items;
    assert!(failed.is_empty(), "seed {seed}: {failed:#?}");
    assert_no_panic(seed);
    worker.drain().await;
    stage.stop().await;
}

fn spoiled_file(rng: &mut Rng) -> Vec<u8> {
    let mut file = Vec::new();
    for number in 0..rng.usize(1..5) {
        match rng.u8(0..4) {
            0 => file.extend(corpus::line(number).into_bytes()),
            1 => file.extend(mutate::spoil_bytes(rng, corpus::line(number).into_bytes())),
            _ => {
                file.extend(mutate::spoil_json(rng, corpus::request(number)));
                file.push(b'\n');
            }
        }
    }
    file
}

async fn upload(stage: &Stage, content: Vec<u8>) -> Value {
    let file = reqwest::multipart::Part::bytes(content).file_name("input.jsonl");
    let form = reqwest::multipart::Form::new().text("purpose", "batch").part("file", file);
    let sent = stage.request(Method::POST, "/v1/files").multipart(form).send().await.expect("an answer");
    crate::stage::json_of(sent).await["id"].clone()
}

/// Those in Anthropic's form are checked before they are taken, so those that are taken end.
async fn message_batches(stage: &Stage, rng: &mut Rng, seed: u64) {
    for _ in 0..FILES {
        let body = mutate::spoil_json(rng, corpus::message_batch());
        let request =
            stage.request(Method::POST, "/v1/messages/batches").header("content-type", "application/json");
        let sent = request.body(body.clone()).send().await.expect("an answer");
        let status = sent.status();
        let batch = crate::stage::json_of(sent).await;
        let shown = body[..body.len().min(3_000)].escape_ascii();
        assert!(!status.is_server_error(), "seed {seed}: {batch} {shown}");
        if status.is_success() {
            let path = format!("/v1/messages/batches/{}", batch["id"].as_str().unwrap_or_default());
            let batch = stage.until(&path, |batch| batch["processing_status"] == "ended").await;
            let counted = batch["request_counts"]
                .as_object()
                .map(|counts| counts.values().filter_map(Value::as_u64).sum::<u64>());
            assert!(counted > Some(0), "seed {seed}: {batch} {shown}");
        }
    }
}
