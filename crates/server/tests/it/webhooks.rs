//! Webhooks: signed, sent again, logged.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use longhaul_pipeline::webhooks::Wish;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::stage::{Setup, Stage};

/// Someone who is told, and answers as planned.
struct Listener {
    address: SocketAddr,
    heard: mpsc::UnboundedReceiver<(HeaderMap, String)>,
}

#[derive(Clone)]
struct Plan {
    answers: Arc<Mutex<VecDeque<StatusCode>>>,
    heard: mpsc::UnboundedSender<(HeaderMap, String)>,
}

impl Listener {
    async fn new(answers: &[u16]) -> Self {
        let answers = answers.iter().map(|code| StatusCode::from_u16(*code).expect("a status")).collect();
        let (sender, heard) = mpsc::unbounded_channel();
        let plan = Plan { answers: Arc::new(Mutex::new(answers)), heard: sender };
        let hear = async |State(plan): State<Plan>, headers: HeaderMap, body: String| {
            plan.heard.send((headers, body)).expect("a test that listens");
            plan.answers.lock().expect("no panic").pop_front().unwrap_or(StatusCode::OK)
        };
        let router = Router::new().route("/", post(hear)).with_state(plan);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, heard }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

async fn put(stage: &Stage, url: &str, allow_private: bool) -> Value {
    let body = json!({"url": url, "events": ["batch.*", "webhook.test"], "allow_private": allow_private});
    let request =
        stage.request(Method::PUT, "/api/v1/webhooks/ops").header("content-type", "application/json");
    let response = request.body(body.to_string()).send().await.expect("an answer");
    crate::stage::json_of(response).await
}

#[tokio::test]
async fn the_end_of_a_batch_is_told_signed_and_told_again_until_it_is_heard() {
    let stage = Stage::of(Setup::sync()).await;
    let mut listener = Listener::new(&[500, 200]).await;
    let made = put(&stage, &listener.url(), true).await;
    assert!(made["secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")), "{made}");
    let shown = stage.get("/api/v1/webhooks/ops").await;
    assert!(shown.get("secret").is_none() && !shown.to_string().contains("whsec_"), "{shown}");
    let worker = stage.work().await;
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body":
        {"model": "sim-small", "messages": [{"role": "user", "content": "Hi"}]}});
    let file = stage.upload(line.to_string()).await;
    let new =
        json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let (_, batch) = stage.post("/v1/batches", &new).await;
    let (headers, body) = listener.heard.recv().await.expect("the first try");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        (told["type"].as_str(), told["data"]["counts"]["completed"].as_u64()),
        (Some("batch.completed"), Some(1))
    );
    // As OpenAI's SDKs read an event.
    assert_eq!((&told["object"], &told["data"]["id"]), (&json!("event"), &batch["id"]));
    assert!(
        told["id"].is_string() && told["created_at"].as_i64().is_some_and(|at| at > 1_700_000_000),
        "{told}"
    );
    let text = |headers: &HeaderMap, name: &str| headers[name].to_str().expect("text").to_owned();
    let endpoint = stage.ctx.endpoints.get("ops").expect("there");
    let seconds = text(&headers, "webhook-timestamp").parse().expect("seconds");
    let signature = endpoint.signature(&text(&headers, "webhook-id"), seconds, &body);
    assert_eq!(text(&headers, "webhook-signature"), signature);
    // The refused try stands in the log, and a person sends it again before its time.
    let log = "/api/v1/webhooks/ops/deliveries";
    let waits = |log: &Value| log["items"][0]["state"] == "scheduled";
    let listed = stage.until(log, waits).await;
    assert!(
        listed["items"][0]["tries"][0]["error"]["text"].as_str().is_some_and(|text| text.contains("500")),
        "{listed}"
    );
    let id = listed["items"][0]["delivery"].as_str().expect("a name");
    let (status, _) = stage.post(&format!("{log}/{id}/resend"), &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    let (again, _) = listener.heard.recv().await.expect("the second");
    assert_eq!(text(&again, "webhook-id"), text(&headers, "webhook-id"), "the same message");
    worker.drain().await;
}

#[tokio::test]
async fn addresses_of_this_machine_are_refused_unless_allowed_and_gone_means_gone() {
    let stage = Stage::new().await;
    let mut listener = Listener::new(&[410]).await;
    let refused = put(&stage, &listener.url(), false).await;
    assert_eq!(
        (&refused["code"], &refused["field"]),
        (&json!("private_address"), &json!("url")),
        "{refused}"
    );
    // A name that led elsewhere when it was put may lead here by the time of a delivery.
    let wish = Wish {
        name: "ops".to_owned(),
        url: listener.url(),
        events: vec!["*".to_owned()],
        allow_private: false,
    };
    stage.ctx.endpoints.put(wish, stage.ctx.queue().clock().now()).expect("kept");
    let worker = stage.work().await;
    stage.post("/api/v1/webhooks/ops/test", &json!({})).await;
    let log = "/api/v1/webhooks/ops/deliveries";
    let refused = stage.until(log, |log| log["items"][0]["state"] == "failed").await;
    let text = refused["items"][0]["error"]["text"].as_str().expect("a reason");
    assert!(text.contains("allow_private"), "{text}");
    put(&stage, &listener.url(), true).await;
    stage.post("/api/v1/webhooks/ops/test", &json!({})).await;
    listener.heard.recv().await.expect("a try");
    stage.until(log, |log| log["items"][0]["state"] == "succeeded").await;
    assert_eq!(stage.get("/api/v1/webhooks/ops").await["disabled"], "it answered 410 Gone");
    worker.drain().await;
}

#[tokio::test]
async fn a_run_that_is_held_is_told_once_until_it_is_resumed() {
    let stage = Stage::new().await;
    let mut listener = Listener::new(&[]).await;
    let hook = json!({"url": listener.url(), "events": ["run.*"], "allow_private": true});
    stage.send(Method::PUT, "/api/v1/webhooks/ops", Some(hook)).await;
    let requests: Vec<Value> = (0..5).map(|number| json!({"prompt": format!("say {number}")})).collect();
    let run = json!({"model": "sim-small", "requests": requests, "mode": "sync", "max_tokens": 1000, "max_cost_usd": 0.000001});
    let (status, run) = stage.post("/api/v1/prompts", &run).await;
    assert_eq!(status, StatusCode::CREATED, "{run}");
    let id = run["id"].as_str().expect("a name");
    let worker = stage.work().await;
    let mut heard = async || -> Value {
        let (_, body) = listener.heard.recv().await.expect("a message");
        serde_json::from_str(&body).expect("JSON")
    };
    let held = json!({"id": id, "run": id, "reason": "budget"});
    let told = heard().await;
    assert_eq!((&told["type"], &told["data"]), (&json!("run.held"), &held));
    let path = format!("/api/v1/processes/{id}");
    stage.until(&path, |process| process["counts"]["parked"] == 5).await;
    let (status, _) =
        stage.post(&format!("/api/v1/runs/{id}/resume"), &json!({"max_cost_usd": 0.000002})).await;
    assert_eq!(status, StatusCode::OK);
    let told = heard().await;
    assert_eq!((&told["type"], &told["data"]), (&json!("run.held"), &held), "still too little");
    stage.until(&path, |process| process["counts"]["parked"] == 5).await;
    stage.post(&format!("/api/v1/runs/{id}/resume"), &json!({"max_cost_usd": 10})).await;
    assert_eq!(heard().await["type"], "run.completed");
    let log = stage.get("/api/v1/webhooks/ops/deliveries").await;
    let types: Vec<&Value> =
        log["items"].as_array().expect("a log").iter().map(|item| &item["type"]).collect();
    assert_eq!(types, ["run.completed", "run.held", "run.held"], "ten jobs were held, in two openings");
    worker.drain().await;
}

#[tokio::test]
async fn the_log_names_an_event_as_the_message_does_and_a_resent_one_is_the_same() {
    let stage = Stage::new().await;
    let mut listener = Listener::new(&[]).await;
    let hook = json!({"url": listener.url(), "allow_private": true});
    stage.send(Method::PUT, "/api/v1/webhooks/ops", Some(hook)).await;
    let (_, jobs) = stage.post("/api/v1/jobs", &json!({"kind": "a", "webhook": "ops"})).await;
    let job = jobs[0]["id"].clone();
    let (_, claims) = stage.post("/api/v1/work/claim", &json!({"queues": ["default"]})).await;
    let done = json!({"items": [{"lease": claims["jobs"][0]["lease"], "outcome": {"done": 1}}]});
    stage.post("/api/v1/work/settle", &done).await;
    let worker = stage.work().await;
    let mut heard = async || -> Value {
        let (_, body) = listener.heard.recv().await.expect("a message");
        serde_json::from_str(&body).expect("JSON")
    };
    let first = heard().await;
    assert_eq!((&first["type"], &first["data"]["id"]), (&json!("job.succeeded"), &job));
    let log = "/api/v1/webhooks/ops/deliveries";
    let listed = stage.until(log, |log| log["items"][0]["state"] == "succeeded").await;
    assert_eq!(listed["items"][0]["type"], "job.succeeded", "{listed}");
    let id = listed["items"][0]["delivery"].as_str().expect("a name");
    stage.post(&format!("{log}/{id}/resend"), &json!({})).await;
    let second = heard().await;
    assert_eq!(
        (&second["type"], &second["data"], &second["id"]),
        (&first["type"], &first["data"], &first["id"])
    );
    worker.drain().await;
}

#[tokio::test]
async fn the_longest_name_of_a_webhook_leaves_room_for_its_deliveries() {
    let stage = Stage::new().await;
    let put = async |name: &str| {
        let hook = json!({"url": "http://127.0.0.1:9/", "allow_private": true});
        stage.send(Method::PUT, &format!("/api/v1/webhooks/{name}"), Some(hook)).await
    };
    let (longest, longer) = ("w".repeat(100), "w".repeat(101));
    assert_eq!(put(&longest).await.0, StatusCode::OK);
    let (status, told) = stage.post(&format!("/api/v1/webhooks/{longest}/test"), &json!({})).await;
    assert!(status.is_success(), "{told}");
    let (status, problem) = put(&longer).await;
    assert_eq!((status, &problem["field"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("name")), "{problem}");
    stage.stop().await;
}
