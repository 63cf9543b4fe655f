//! What belongs to a token: its files, its batches and its idempotency keys.

use longhaul_server::{Scope, ServerOptions};
use longhaul_sim::SimOptions;
use reqwest::multipart::{Form, Part};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Stage, json_of};

const LINE: &str = r#"{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"sim-small","messages":[{"role":"user","content":"Hello"}]}}"#;

pub(crate) async fn guarded() -> Stage {
    let options = ServerOptions { token_required: true, ..ServerOptions::default() };
    Stage::with(options, SimOptions::default()).await
}

pub(crate) async fn sent(request: RequestBuilder, token: &str) -> (StatusCode, Value) {
    let response = request.bearer_auth(token).send().await.expect("an answer");
    (response.status(), serde_json::from_str(&response.text().await.expect("a body")).unwrap_or_default())
}

pub(crate) fn with(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header("content-type", "application/json").body(body.to_string())
}

pub(crate) async fn upload(stage: &Stage, token: &str) -> String {
    let part = Part::bytes(LINE.as_bytes().to_vec()).file_name("in.jsonl");
    let form = Form::new().text("purpose", "batch").part("file", part);
    let (status, file) = sent(stage.request(Method::POST, "/v1/files").multipart(form), token).await;
    assert_eq!(status, StatusCode::OK, "{file}");
    file["id"].as_str().expect("an id").to_owned()
}

fn ids(list: &Value) -> Vec<&str> {
    list["data"].as_array().expect("a list").iter().filter_map(|item| item["id"].as_str()).collect()
}

#[tokio::test]
async fn a_file_is_seen_used_and_deleted_by_its_owner_or_an_admin_only() {
    let stage = guarded().await;
    let token = |name: &str, scopes: &[Scope]| stage.ctx.tokens.add(name, scopes).expect("a token");
    let (ann, bob) = (token("ann", &[Scope::Enqueue]), token("bob", &[Scope::Enqueue]));
    let admin = token("admin", &[Scope::Enqueue, Scope::Admin]);
    let file = upload(&stage, &ann).await;
    let get = |path: String| stage.request(Method::GET, &path);
    for path in [format!("/v1/files/{file}"), format!("/v1/files/{file}/content")] {
        assert_eq!(sent(get(path.clone()), &bob).await.0, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(sent(get(path.clone()), &ann).await.0, StatusCode::OK, "{path}");
        assert_eq!(sent(get(path), &admin).await.0, StatusCode::OK);
    }
    assert_eq!(ids(&sent(get("/v1/files".to_owned()), &bob).await.1), Vec::<&str>::new());
    assert_eq!(ids(&sent(get("/v1/files".to_owned()), &ann).await.1), [&file]);
    let batch =
        json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let run = json!({"input_file": file});
    let sheet = json!({"file_id": file, "model": "sim-small", "categories": [{"name": "a"}], "layout": {"columns": {"text": "text"}}});
    for (path, body) in [("/v1/batches", &batch), ("/api/v1/prompts", &run), ("/api/v1/sheets", &sheet)] {
        let (status, problem) = sent(with(stage.request(Method::POST, path), body), &bob).await;
        assert!(status.is_client_error() && problem.to_string().contains(&file), "{path}: {problem}");
    }
    let delete = || stage.request(Method::DELETE, &format!("/v1/files/{file}"));
    assert_eq!(sent(delete(), &bob).await.0, StatusCode::NOT_FOUND);
    assert_eq!(sent(delete(), &ann).await.0, StatusCode::OK);
    let other = upload(&stage, &ann).await;
    let by_admin = stage.request(Method::DELETE, &format!("/v1/files/{other}"));
    assert_eq!(sent(by_admin, &admin).await.0, StatusCode::OK);
    stage.stop().await;
}

#[tokio::test]
async fn handing_in_a_run_again_neither_opens_budgets_nor_what_an_operator_paused() {
    let stage = guarded().await;
    let token = |name: &str, scopes: &[Scope]| stage.ctx.tokens.add(name, scopes).expect("a token");
    let (ann, admin) = (token("ann", &[Scope::Enqueue]), token("admin", &[Scope::Enqueue, Scope::Admin]));
    let post = |path: &str, body: &Value| with(stage.request(Method::POST, path), body);
    let mut run = json!({"model": "sim-small", "requests": ["a", "b"], "ask_again": true});
    let (status, made) = sent(post("/api/v1/prompts", &run), &ann).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let path = format!("/api/v1/runs/{}", made["id"].as_str().expect("a name"));
    let state = async || sent(stage.request(Method::GET, &path), &admin).await.1["state"].clone();
    assert_eq!(sent(post(&format!("{path}/pause"), &json!(null)), &admin).await.0, StatusCode::OK);
    assert_eq!(sent(post("/api/v1/prompts", &run), &ann).await.0, StatusCode::OK);
    assert_eq!(state().await, "paused");
    assert_eq!(sent(post("/api/v1/prompts", &run), &admin).await.0, StatusCode::OK);
    assert_eq!(state().await, "running");
    run["max_cost_usd"] = json!(5);
    let (status, problem) = sent(post("/api/v1/prompts", &run), &ann).await;
    assert_eq!((status, &problem["field"]), (StatusCode::FORBIDDEN, &json!("max_cost_usd")), "{problem}");
    assert_eq!(sent(post("/api/v1/prompts", &run), &admin).await.0, StatusCode::OK);
    assert_eq!(sent(post("/api/v1/prompts", &run), &ann).await.0, StatusCode::OK, "the limit it has");
    assert_eq!(sent(post(&format!("{path}/pause"), &json!(null)), &admin).await.0, StatusCode::OK);
    assert_eq!(sent(post(&format!("{path}/cancel"), &json!(null)), &admin).await.0, StatusCode::OK);
    assert_eq!(sent(post("/api/v1/prompts", &run), &ann).await.1["asked_again"], 0);
    assert_eq!(state().await, "cancelled", "also after a pause");
    run["allow_unpriced"] = json!(true);
    let (status, problem) = sent(post("/api/v1/prompts", &run), &ann).await;
    assert_eq!((status, &problem["field"]), (StatusCode::FORBIDDEN, &json!("allow_unpriced")), "{problem}");
    assert_eq!(sent(post("/api/v1/prompts", &run), &admin).await.0, StatusCode::OK);
    for path in ["/api/v1/costs/unknown", "/api/v1/costs/decisions"] {
        assert_eq!(sent(stage.request(Method::GET, path), &ann).await.0, StatusCode::FORBIDDEN);
        assert_eq!(sent(stage.request(Method::GET, path), &admin).await.0, StatusCode::OK);
    }
    let resolve = json!({"verdict": "not_billed"});
    assert_eq!(sent(post("/api/v1/costs/resolve", &resolve), &ann).await.0, StatusCode::FORBIDDEN);
    stage.stop().await;
}

#[tokio::test]
async fn a_batch_and_its_answers_belong_to_who_created_it() {
    let stage = guarded().await;
    let token = |name: &str| stage.ctx.tokens.add(name, &[Scope::Enqueue]).expect("a token");
    let (ann, bob) = (token("ann"), token("bob"));
    let file = upload(&stage, &ann).await;
    let body = json!({"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let create = || with(stage.request(Method::POST, "/v1/batches").header("idempotency-key", "k"), &body);
    let (_, batch) = sent(create(), &ann).await;
    let id = batch["id"].as_str().expect("an id").to_owned();
    assert_eq!(sent(create(), &ann).await.1["id"], *id, "the same call again");
    let message = json!({"requests": [{"custom_id": "1", "params": {"model": "sim-small", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}}]});
    let (_, messages) = sent(with(stage.request(Method::POST, "/v1/messages/batches"), &message), &ann).await;
    let messages = messages["id"].as_str().expect("an id").to_owned();
    let working = stage.work().await;
    loop {
        let (_, shown) = sent(stage.request(Method::GET, &format!("/v1/batches/{id}")), &ann).await;
        if shown["output_file_id"].is_string() {
            let output = format!("/v1/files/{}/content", shown["output_file_id"].as_str().expect("a name"));
            assert_eq!(sent(stage.request(Method::GET, &output), &bob).await.0, StatusCode::NOT_FOUND);
            assert_eq!(sent(stage.request(Method::GET, &output), &ann).await.0, StatusCode::OK);
            break;
        }
    }
    working.drain().await;
    let foreign = [
        (Method::GET, format!("/v1/batches/{id}")),
        (Method::POST, format!("/v1/batches/{id}/cancel")),
        (Method::GET, format!("/v1/messages/batches/{messages}")),
        (Method::GET, format!("/v1/messages/batches/{messages}/results")),
        (Method::POST, format!("/v1/messages/batches/{messages}/cancel")),
        (Method::DELETE, format!("/v1/messages/batches/{messages}")),
    ];
    for (method, path) in foreign {
        assert_eq!(sent(stage.request(method, &path), &bob).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/v1/batches", "/v1/messages/batches", "/v1/files?purpose=batch_output"] {
        assert_eq!(ids(&sent(stage.request(Method::GET, path), &bob).await.1), Vec::<&str>::new(), "{path}");
        assert_eq!(ids(&sent(stage.request(Method::GET, path), &ann).await.1).len(), 1, "{path}");
    }
    stage.stop().await;
}

#[tokio::test]
async fn the_same_idempotency_key_of_two_tokens_is_two_keys() {
    let stage = guarded().await;
    let token = |name: &str| stage.ctx.tokens.add(name, &[Scope::Enqueue]).expect("a token");
    let (ann, bob) = (token("ann"), token("bob"));
    let enqueue = async |token: &str, payload: u32| {
        let request = stage.request(Method::POST, "/api/v1/jobs").header("idempotency-key", "k");
        sent(with(request, &json!({"kind": "a", "payload": payload})), token).await
    };
    let (first, job) = enqueue(&ann, 1).await;
    let (second, other) = enqueue(&bob, 2).await;
    assert_eq!((first, second), (StatusCode::CREATED, StatusCode::CREATED), "{other}");
    assert_ne!(job[0]["id"], other[0]["id"]);
    let (again, same) = enqueue(&ann, 1).await;
    assert_eq!((again, &same[0]["id"]), (StatusCode::OK, &job[0]["id"]));
    stage.stop().await;
}

#[tokio::test]
async fn a_webhook_is_shown_without_its_password_and_refused_at_a_private_address() {
    let stage = Stage::new().await;
    let put = async |url: &str, allow_private: bool| {
        let body = json!({"url": url, "allow_private": allow_private});
        stage.send(Method::PUT, "/api/v1/webhooks/ops", Some(body)).await
    };
    let private = ["http://127.0.0.1:9/", "http://localhost/", "http://[::127.0.0.1]/", "http://10.0.0.1/x"];
    let disguised = ["http://localhost./", "https://foo.localhost/x", "http://Foo.LocalHost.:9/"];
    for url in private.into_iter().chain(disguised) {
        let (status, problem) = put(url, false).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("private_address")),
            "{url}"
        );
    }
    assert_eq!(stage.get("/api/v1/webhooks").await["items"], json!([]));
    let (status, kept) = put("http://user:hunter2@127.0.0.1:9/hook?token=hunter2&n=1", true).await;
    assert_eq!(
        (status, &kept["url"]),
        (StatusCode::OK, &json!("http://127.0.0.1:9/hook?token=[redacted]&n=1"))
    );
    for path in ["/api/v1/webhooks", "/api/v1/webhooks/ops"] {
        let shown = stage.get(path).await.to_string();
        assert!(!shown.contains("hunter2") && !shown.contains("user"), "{shown}");
    }
    let response = stage.request(Method::GET, "/api/v1/webhooks/ops").send().await.expect("an answer");
    assert_eq!(json_of(response).await["secret"], Value::Null);
    stage.stop().await;
}
