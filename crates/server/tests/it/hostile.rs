//! What a web page in the user's browser could send to a server on loopback, byte by byte: nothing of it is stored.

use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Json, NewJob};
use serde_json::{Value, json};

use crate::raw;
use crate::stage::Stage;

const JSON: &str = "content-type: application/json";
const FORM: &str = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"i.jsonl\"\r\n\r\n{}\r\n--b--\r\n";

/// Requests that would write, each with its method, target, content type and body.
fn writes() -> Vec<(&'static str, &'static str, &'static str, String)> {
    let chat = json!({"model": "sim-small", "messages": [{"role": "user", "content": "Hi"}]});
    let batch = json!({"requests": [{"custom_id": "a", "params": {"model": "sim-small", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}}]});
    let tool = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "enqueue_job", "arguments": {"kind": "a"}}});
    let multipart = "content-type: multipart/form-data; boundary=b";
    vec![
        ("POST", "/api/v1/jobs", JSON, json!({"kind": "a"}).to_string()),
        ("POST", "/api/v1/prompts", JSON, json!({"model": "sim-small", "requests": [{"prompt": "Hi"}]}).to_string()),
        ("PUT", "/api/v1/webhooks/x", JSON, json!({"url": "https://evil.example/"}).to_string()),
        ("PUT", "/api/v1/schedules/x", JSON, json!({"cron": "* * * * *", "job": {"kind": "a"}}).to_string()),
        ("POST", "/api/v1/queues/default/pause", JSON, String::new()),
        ("POST", "/v1/files", multipart, FORM.to_owned()),
        ("POST", "/v1/batches", JSON, json!({"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"}).to_string()),
        ("POST", "/v1/messages/batches", JSON, batch.to_string()),
        ("POST", "/v1/chat/completions", JSON, chat.to_string()),
        ("POST", "/mcp", JSON, tool.to_string()),
    ]
}

/// A server on which all of these would be possible.
async fn stage() -> Stage {
    let options = longhaul_server::ServerOptions { mcp_allow_write: true, ..Default::default() };
    Stage::with(options, longhaul_sim::SimOptions::default()).await
}

async fn send(stage: &Stage, line: &str, headers: &[&str], body: &str) -> raw::Answer {
    let headers = headers.iter().filter(|header| !header.is_empty()).map(|header| format!("{header}\r\n"));
    let headers: String = headers.collect();
    let length = body.len();
    let text =
        format!("{line} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    raw::send(stage, text.as_bytes()).await.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// All that is kept.
async fn kept(stage: &Stage) -> Value {
    let store = stage.ctx.queue().store();
    let all = ListRequest { filter: Filter::default(), newest_first: true, cursor: None, limit: 1_000 };
    let jobs = stage.ctx.queue().list(all).await.expect("jobs").items;
    let ids = jobs.iter().map(|job| job.id).collect();
    json!({
        "jobs": format!("{:?}", store.get(ids).await.expect("jobs")),
        "queues": format!("{:?}", store.queues().await.expect("queues")),
        "schedules": format!("{:?}", store.schedules().await.expect("schedules")),
        "files": format!("{:?}", stage.ctx.uploads.list(stage.ctx.queue().clock().now())),
        "webhooks": stage.ctx.endpoints.list().len(),
        "tokens": stage.ctx.tokens.list().expect("readable").len(),
        "calls": stage.core.stats().calls,
    })
}

#[tokio::test]
async fn a_page_cannot_write_under_another_name_or_from_another_origin() {
    let stage = stage().await;
    let before = kept(&stage).await;
    let own = format!("host: {}", stage.address());
    let twice = format!("{own}\r\nhost: evil.example");
    let first = format!("host: evil.example\r\n{own}");
    let port = stage.address().port();
    let rows = [
        ("host: evil.example".to_owned(), "", 421),
        (format!("host: evil.example:{port}"), "", 421),
        (format!("host: 127.0.0.1.evil.example:{port}"), "", 421),
        (format!("host: [::1].evil.example:{port}"), "", 421),
        (format!("host: 127.0.0.1:{port}:evil.example"), "", 421),
        (format!("host: evil.example@127.0.0.1:{port}"), "", 421),
        (format!("host: localhost.:{port}"), "", 421),
        ("host: 0.0.0.0".to_owned(), "", 421),
        ("host: 10.0.0.7".to_owned(), "", 421),
        ("host:".to_owned(), "", 421),
        (String::new(), "", 421),
        (twice, "", 421),
        (first, "", 421),
        (own.clone(), "origin: https://evil.example", 403),
        (own.clone(), "origin: null", 403),
        (own.clone(), "origin:", 403),
        (own.clone(), "origin: http://127.0.0.1:9", 403),
        (own.clone(), "origin: http://localhost", 403),
    ];
    for (method, path, kind, body) in writes() {
        for (host, origin, status) in &rows {
            // Also with a header that a page could add only after it has asked.
            let headers = [host, *origin, kind, "x-longhaul: 1"];
            let answer = send(&stage, &format!("{method} {path}"), &headers, &body).await;
            assert_eq!(answer.status, *status, "{method} {path} {host} {origin}: {}", answer.json());
        }
        // The whole address as the target goes before the header.
        let line = format!("{method} http://evil.example{path}");
        let answer = send(&stage, &line, &[&own, kind, "x-longhaul: 1"], &body).await;
        assert_eq!(answer.status, 421, "{line}: {}", answer.json());
    }
    assert_eq!(kept(&stage).await, before);
    // A program of one's own may do all of it.
    for (method, path, kind, body) in writes() {
        let answer = send(&stage, &format!("{method} {path}"), &[&own, kind, "x-longhaul: 1"], &body).await;
        assert!(answer.status < 300 || path == "/v1/batches", "{method} {path}: {}", answer.json());
    }
    let after = kept(&stage).await;
    let is_changed = |name: &&str| after[*name] != before[*name];
    assert!(["jobs", "queues", "schedules", "files", "webhooks", "calls"].iter().all(is_changed), "{after}");
    stage.stop().await;
}

#[tokio::test]
async fn a_form_cannot_write_and_no_page_is_allowed_to_ask() {
    let stage = stage().await;
    let before = kept(&stage).await;
    let own = format!("host: {}", stage.address());
    let kinds = [
        "",
        "content-type:",
        "content-type: text/plain",
        "content-type: text/plain; charset=application/json",
        "content-type: TEXT/PLAIN",
        "content-type: application/x-www-form-urlencoded",
        "content-type: multipart/form-data; boundary=b",
        "content-type: text/plain\r\ncontent-type: application/json",
        "content-type: application/json\r\ncontent-type: text/plain",
    ];
    for (method, path, _, body) in writes() {
        for kind in kinds {
            for body in [body.as_str(), ""] {
                let answer = send(&stage, &format!("{method} {path}"), &[&own, kind], body).await;
                assert_eq!(answer.status, 403, "{method} {path} {kind}: {}", answer.json());
            }
        }
        for origin in
            ["origin: https://evil.example", "origin: null", &format!("origin: http://{}", stage.address())]
        {
            let asked = "access-control-request-headers: content-type, x-longhaul";
            let wish = format!("access-control-request-method: {method}");
            let answer = send(&stage, &format!("OPTIONS {path}"), &[&own, origin, &wish, asked], "").await;
            assert!(answer.status >= 400, "{path} {origin}: {}", answer.head);
            assert!(!answer.head.contains("access-control-"), "{path} {origin}: {}", answer.head);
        }
    }
    assert_eq!(kept(&stage).await, before);
    stage.stop().await;
}

#[tokio::test]
async fn looking_changes_nothing_and_is_shown_to_no_foreign_page() {
    let stage = stage().await;
    let job =
        stage.ctx.queue().enqueue(NewJob::new("a", Json::null()).process("p")).await.expect("stored").id;
    let own = format!("host: {}", stage.address());
    let (_, run) =
        stage.post("/api/v1/prompts", &json!({"model": "sim-small", "requests": [{"prompt": "Hi"}]})).await;
    let run = run["id"].as_str().expect("a run").to_owned();
    let file = stage.upload("{}".to_owned()).await["id"].as_str().expect("a file").to_owned();
    let before = kept(&stage).await;
    for path in look_paths(&job.to_string(), &run, &file).await {
        for method in ["GET", "HEAD"] {
            let answer = send(&stage, &format!("{method} {path}"), &[&own], "").await;
            assert!(answer.status < 500, "{path}: {}", answer.head);
            assert!(!answer.head.contains("access-control-"), "{path}: {}", answer.head);
        }
        let foreign = send(&stage, &format!("GET {path}"), &[&own, "origin: https://evil.example"], "").await;
        assert_eq!(foreign.status, 403, "{path}");
    }
    // Nor does one that names what only other methods do.
    for (_, path, _, body) in writes() {
        let answer = send(&stage, &format!("GET {path}"), &[&own, JSON], &body).await;
        assert!(answer.status < 500, "{path}: {}", answer.head);
    }
    assert_eq!(kept(&stage).await, before);
    stage.stop().await;
}

/// Every route that can be looked at: those of the description, and those beside it.
async fn look_paths(job: &str, run: &str, file: &str) -> Vec<String> {
    let described = longhaul_server::openapi(&crate::stage::names());
    let described: Value = serde_json::from_str(&described).expect("JSON");
    let paths = described["paths"].as_object().expect("paths");
    let looks =
        paths.iter().filter(|(_, methods)| methods.get("get").is_some()).map(|(path, _)| path.as_str());
    let beside = [
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/api/v1/events",
        "/api/v1/webhooks",
        "/api/v1/webhooks/{name}",
        "/api/v1/webhooks/{name}/deliveries",
        "/v1/files",
        "/v1/files/FILE",
        "/v1/files/FILE/content",
        "/v1/batches",
        "/v1/batches/{name}",
        "/v1/messages/batches",
        "/v1/messages/batches/{name}",
        "/v1/messages/batches/{name}/results",
        "/v1/models",
        "/v1/models/sim-small",
        "/v1/chat/completions",
        "/v1/chat/completions/{name}",
        "/v1/chat/completions/{name}/messages",
        "/v1/responses/{name}",
        "/mcp",
    ];
    looks
        .chain(beside)
        .map(|path| {
            let id = if path.starts_with("/api/v1/runs") { run } else { job };
            let id = if path.starts_with("/api/v1/processes") { "p" } else { id };
            path.replace("{id}", id).replace("{name}", "default").replace("FILE", file)
        })
        .collect()
}
