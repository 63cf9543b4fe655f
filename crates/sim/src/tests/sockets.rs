//! The server over real sockets: each dialect answers with the key, whole and in events; keys, limits and faults show as
//! each service shows them.

use std::time::Duration;

use base64::Engine;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::{ask, ask_json, with_faults};
use crate::{Faults, Limits, SimOptions, SimServer, answer_key, embedding};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::provider::RateSignals;
use longhaul_llm::sse::SseParser;
use longhaul_llm::types::{Answer, ChatRequest, Delta, Message, Role, Stop, Tool, ToolChoice};
use longhaul_llm::wire::openai::LimitName;
use longhaul_llm::wire::{StreamReader, anthropic, gemini, openai, rate_signals};

const OPENAI: &str = "/v1/chat/completions";
const ANTHROPIC: &str = "/v1/messages";
const GEMINI: &str = "/v1beta/models/sim-small:generateContent";
const PATHS: [&str; 3] = [OPENAI, ANTHROPIC, GEMINI];

/// A server, and a client that speaks HTTP and nothing more.
pub(super) struct Site {
    pub(super) server: SimServer,
    client: reqwest::Client,
}

impl Site {
    pub(super) async fn new(options: SimOptions) -> Self {
        // Who came first has installed the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = SimServer::bind(options, ([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { server, client }
    }

    pub(super) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = reqwest::Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, format!("{}{path}", self.server.url()))
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: &Value) -> Seen {
        let mut request = self.request(method, path);
        if !body.is_null() {
            request = request.body(body.to_string());
        }
        Seen::of(request.send().await.expect("a response")).await
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let seen = self.send("GET", path, &Value::Null).await;
        assert_eq!(seen.status, 200, "{path}: {}", seen.text);
        seen.json()
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Value {
        let seen = self.send("POST", path, body).await;
        assert_eq!(seen.status, 200, "{path}: {}", seen.text);
        seen.json()
    }
}

/// A response that was read whole.
pub(super) struct Seen {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Seen {
    async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.expect("a body") }
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("a body of JSON")
    }
}

fn written(path: &str, request: &ChatRequest) -> Value {
    match path {
        OPENAI => openai::request_to_json(request, LimitName::MaxTokens).unwrap(),
        ANTHROPIC => anthropic::request_to_json(request).unwrap(),
        _ => gemini::request_to_json(request).unwrap(),
    }
}

fn answer_of(path: &str, body: &Value) -> Answer {
    let answer = match path {
        OPENAI => openai::answer_from_json(body),
        ANTHROPIC => anthropic::answer_from_json(body),
        _ => gemini::answer_from_json(body),
    };
    answer.expect("an answer")
}

fn error_of(path: &str, seen: &Seen) -> Error {
    match path {
        OPENAI => openai::error_from(seen.status, &seen.headers, &seen.text, 0),
        ANTHROPIC => anthropic::error_from(seen.status, &seen.headers, &seen.text, 0),
        _ => gemini::error_from(seen.status, &seen.headers, &seen.text, 0),
    }
}

fn requests() -> Vec<ChatRequest> {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let mut talk = ask("And you?");
    talk.messages = vec![
        Message::text(Role::System, "Be brief."),
        Message::text(Role::User, "Hello."),
        Message::text(Role::Assistant, "Hi."),
        Message::text(Role::System, "Be kind."),
        Message::text(Role::User, "How are you?"),
    ];
    talk.temperature = Some(0.3);
    talk.max_tokens = Some(2000);
    let mut tools = ask("Weather?");
    tools.tools = vec![Tool {
        name: "forecast".to_owned(),
        description: Some("tells the weather".to_owned()),
        parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
        strict: Some(true),
    }];
    tools.tool_choice = Some(ToolChoice::Required);
    vec![ask("What is a harbour?"), ask_json("How many?", schema), talk, tools]
}

#[tokio::test]
async fn every_dialect_answers_with_the_key() {
    let site = Site::new(SimOptions::default()).await;
    for path in PATHS {
        for request in requests() {
            let answer = answer_of(path, &site.post(path, &written(path, &request)).await);
            let said = answer.tool_calls.first().map_or(&answer.text, |call| &call.arguments);
            assert_eq!(*said, answer_key(1, &request), "{path}");
            assert!(answer.usage.fresh_in > 0 && answer.usage.out > 0, "{path}: {:?}", answer.usage);
        }
        let refused = answer_of(path, &site.post(path, &written(path, &ask("[[sim:refuse]]"))).await);
        assert_eq!(refused.stop, Stop::Refused, "{path}");
    }
    assert_eq!(site.server.core().stats().paid_twice, 5, "a request is the same in every dialect");
}

async fn told_in_events(site: &Site, path: &str, request: &ChatRequest) -> (String, Option<Answer>) {
    let mut body = written(path, request);
    let (path, mut reader): (&str, Box<dyn StreamReader>) = match path {
        OPENAI => (path, Box::<openai::OpenAiStream>::default()),
        ANTHROPIC => (path, Box::<anthropic::AnthropicStream>::default()),
        _ => {
            ("/v1beta/models/sim-small:streamGenerateContent?alt=sse", Box::<gemini::GeminiStream>::default())
        }
    };
    if !path.contains("v1beta") {
        body["stream"] = json!(true);
    }
    if path == OPENAI {
        body["stream_options"] = json!({"include_usage": true});
    }
    let response = site.request("POST", path).body(body.to_string()).send().await.expect("a response");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut parser = SseParser::default();
    let mut events = parser.push(&response.bytes().await.expect("a body")).expect("events");
    events.extend(parser.finish().expect("events"));
    let (mut text, mut end) = (String::new(), None);
    let deltas: Vec<_> = events.iter().map(|event| reader.push(event)).collect();
    for delta in deltas.into_iter().chain([reader.finish()]) {
        match delta.expect("a whole stream") {
            Some(Delta::Text(piece)) => text.push_str(&piece),
            Some(Delta::Own { .. }) => {}
            Some(Delta::End(answer)) => end = Some(answer),
            None => {}
        }
    }
    (text, end)
}

#[tokio::test]
async fn every_dialect_streams_the_same_answer() {
    let site = Site::new(SimOptions::default()).await;
    for path in PATHS {
        for request in requests() {
            let (text, end) = told_in_events(&site, path, &request).await;
            let answer = end.expect("an end");
            assert_eq!(text, answer.text, "{path}");
            let said = answer.tool_calls.first().map_or(&answer.text, |call| &call.arguments);
            assert_eq!(*said, answer_key(1, &request), "{path}");
            assert!(answer.usage.out > 0, "{path}");
        }
    }
    assert_eq!(site.server.core().stats().answered, 12);
}

#[tokio::test]
async fn texts_are_embedded_in_both_dialects_that_can() {
    let site = Site::new(SimOptions::default()).await;
    let expected = [embedding(1, "boats", Some(16)), embedding(1, "harbour", Some(16))];
    let body = json!({"model": "sim-embed", "input": ["boats", "harbour"], "dimensions": 16});
    let embeddings =
        openai::embeddings_from_json(&site.post("/v1/embeddings", &body).await).expect("vectors");
    assert_eq!(embeddings.vectors, expected);
    let body = json!({"model": "sim-embed", "input": "boats", "dimensions": 16, "encoding_format": "base64"});
    let encoded =
        site.post("/v1/embeddings", &body).await["data"][0]["embedding"].as_str().map(str::to_owned);
    let bytes = base64::engine::general_purpose::STANDARD.decode(encoded.expect("a text")).expect("base64");
    assert_eq!(bytes.len(), 64);
    let request = longhaul_llm::types::EmbedRequest {
        model: "sim-embed".to_owned(),
        inputs: vec!["boats".into(), "harbour".into()],
        dimensions: Some(16),
        ..Default::default()
    };
    let body = gemini::embed_request_to_json(&request).expect("texts");
    let body = site.post("/v1beta/models/sim-embed:batchEmbedContents", &body).await;
    assert_eq!(gemini::embeddings_from_json("sim-embed", &body).expect("vectors").vectors, expected);
}

#[tokio::test]
async fn models_are_listed_in_each_form() {
    let site = Site::new(SimOptions::default()).await;
    assert_eq!(site.get("/v1/models").await["data"][0]["object"], "model");
    let request = site.request("GET", "/v1/models").header("anthropic-version", "2023-06-01");
    let seen = Seen::of(request.send().await.expect("a response")).await;
    assert_eq!(seen.json()["data"][0]["type"], "model");
    assert_eq!(site.get("/v1beta/models").await["models"][0]["name"], "models/sim-small");
    assert_eq!(site.send("GET", "/v1/models/none", &Value::Null).await.status, 404);
}

#[tokio::test]
async fn limits_are_told_as_each_service_tells_them() {
    let limits = Limits { rpm: Some(6), tpm: Some(6_000_000) };
    let site = Site::new(SimOptions { limits, ..SimOptions::default() }).await;
    for (number, path) in PATHS.into_iter().enumerate() {
        let mut request = ask("x");
        // Each model has its own bucket, of one request.
        request.model = format!("model-{number}");
        let path_of_model = path.replace("sim-small", &request.model);
        let first = site.send("POST", &path_of_model, &written(path, &request)).await;
        assert_eq!(first.status, 200);
        let rate = rate_signals(
            &first.headers,
            longhaul_llm::clock::WallClock::now_ms(&longhaul_llm::clock::SystemWallClock),
        );
        let second = site.send("POST", &path_of_model, &written(path, &request)).await;
        let error = error_of(path, &second);
        assert_eq!((error.class, error.status), (Class::Throttled, Some(429)), "{path}");
        let wait = error.retry_after.expect("the wait is told");
        assert!((1.0..=10.1).contains(&wait.as_secs_f64()), "{path}: {wait:?}");
        if path == GEMINI {
            assert_eq!(rate, RateSignals::default());
            assert!(!second.headers.contains_key("retry-after"));
        } else {
            let requests = rate.requests.expect("told");
            assert_eq!((requests.limit, requests.remaining), (Some(6), Some(0)), "{path}");
            let reset = requests.reset_after.expect("told");
            assert!((1.0..=10.1).contains(&reset.as_secs_f64()), "{path}: {reset:?}");
            assert!(rate.tokens.is_some_and(|tokens| tokens.limit == Some(6_000_000)));
        }
    }
    assert_eq!(site.server.core().stats().throttled, 3);
}

#[tokio::test]
async fn keys_are_checked_in_each_form() {
    let options = SimOptions { require_key: Some("secret".to_owned()), ..SimOptions::default() };
    let site = Site::new(options).await;
    let headers = [("authorization", "Bearer secret"), ("x-api-key", "secret"), ("x-goog-api-key", "secret")];
    for (path, (name, value)) in PATHS.into_iter().zip(headers) {
        let body = written(path, &ask("x"));
        let error = error_of(path, &site.send("POST", path, &body).await);
        assert_eq!((error.class, error.status), (Class::Auth, Some(401)), "{path}");
        let request = site.request("POST", path).header(name, value).body(body.to_string());
        assert_eq!(request.send().await.expect("a response").status(), 200, "{path}");
    }
    assert_eq!(
        site.get("/sim/stats").await["calls"],
        3,
        "a refused call does not count, and books need no key"
    );
    let expired = Site::new(SimOptions { keys_expired: true, ..SimOptions::default() }).await;
    let error = error_of(OPENAI, &expired.send("POST", OPENAI, &written(OPENAI, &ask("x"))).await);
    assert_eq!((error.class, error.code.as_deref()), (Class::Auth, Some("expired_api_key")));
}

#[tokio::test]
async fn bad_requests_are_refused_in_each_form() {
    let site = Site::new(SimOptions { context_tokens: Some(50), ..SimOptions::default() }).await;
    for path in PATHS {
        let error = error_of(path, &site.send("POST", path, &json!({"model": "m"})).await);
        assert_eq!(error.class, Class::BadRequest, "{path}");
        let error =
            error_of(path, &site.send("POST", path, &written(path, &ask(&"word ".repeat(100)))).await);
        assert_eq!(error.class, Class::ContextTooLong, "{path}: {error}");
    }
    assert_eq!(site.send("GET", "/nowhere", &Value::Null).await.status, 404);
}

#[tokio::test]
async fn faults_are_real_on_the_wire() {
    let site = Site::new(SimOptions::default()).await;
    let set = async |faults: Value| site.post("/sim/faults", &faults).await;
    for path in PATHS {
        set(json!({"rate_5xx": 1.0})).await;
        let error = error_of(path, &site.send("POST", path, &written(path, &ask("5xx"))).await);
        assert_eq!(error.class, Class::Overloaded, "{path}");
        set(json!({"rate_5xx": 0.0, "rate_html": 1.0})).await;
        let seen = site.send("POST", path, &written(path, &ask("html"))).await;
        assert!(seen.status == 502 && seen.text.starts_with("<html>"), "{path}: {}", seen.text);
        set(json!({"rate_html": 0.0, "rate_drop": 1.0})).await;
        let (mut before, mut within) = (0, 0);
        for number in 0..16 {
            let body = written(path, &ask(&format!("{path} {number}"))).to_string();
            match site.request("POST", path).body(body).send().await {
                Err(_) => before += 1,
                Ok(response) => {
                    assert!(response.status() == 200 && response.bytes().await.is_err());
                    within += 1;
                }
            }
        }
        assert!(before > 1 && within > 1, "{path}: {before} {within}");
        set(json!({"rate_drop": 0.0})).await;
    }
    let stats = site.get("/sim/stats").await;
    assert_eq!(stats["executed"], stats["faults"]["cut_off"]);
}

#[tokio::test]
async fn stream_breaks_off_on_the_wire() {
    let site = Site::new(with_faults(Faults { rate_drop: 1.0, ..Faults::default() })).await;
    let mut broken = 0;
    for number in 0..16 {
        let mut body = written(OPENAI, &ask(&format!("story {number}")));
        body["stream"] = json!(true);
        let Ok(mut response) = site.request("POST", OPENAI).body(body.to_string()).send().await else {
            continue;
        };
        let first = response.chunk().await.expect("the first half").expect("some of it");
        assert!(first.starts_with(b"data: "));
        let end = loop {
            match response.chunk().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        assert!(end.is_err(), "the body must not look whole");
        broken += 1;
    }
    assert!(broken > 1);
}

#[tokio::test]
async fn knobs_and_books_are_there_over_http() {
    let site = Site::new(SimOptions::default()).await;
    site.post(OPENAI, &written(OPENAI, &ask("x"))).await;
    assert_eq!(site.get("/sim/stats").await["executed"], 1);
    let log = site.send("GET", "/sim/log", &Value::Null).await.json();
    assert_eq!((&log["kind"], &log["attempt"]), (&json!("sync"), &json!(1)));
    assert_eq!(site.post("/sim/limits", &json!({"rpm": 60})).await, json!({"rpm": 60, "tpm": null}));
    assert_eq!(
        site.post("/sim/limits", &json!({"tpm": 10, "rpm": null})).await,
        json!({"rpm": null, "tpm": 10})
    );
    assert_eq!(site.server.core().limits(), Limits { rpm: None, tpm: Some(10) });
    assert_eq!(site.send("POST", "/sim/limits", &json!({"rps": 1})).await.status, 400);
    assert_eq!(site.get("/health").await["status"], "ok");
    assert_eq!(site.send("GET", "/props", &Value::Null).await.status, 404);
    let local = Site::new(SimOptions { slots: Some(4), ..SimOptions::default() }).await;
    assert_eq!(local.get("/props").await["total_slots"], 4);
    assert_eq!(local.send("GET", "/v1/batches", &Value::Null).await.status, 404);
}

#[tokio::test]
async fn stop_ends_calls_that_hang() {
    let site = Site::new(with_faults(Faults { rate_timeout: 1.0, ..Faults::default() })).await;
    let call = site.request("POST", OPENAI).body(written(OPENAI, &ask("x")).to_string());
    let core = std::sync::Arc::clone(site.server.core());
    let call = tokio::spawn(call.send());
    while core.stats().calls == 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(Duration::from_secs(4), site.server.stop()).await.expect("it ends");
    assert!(call.await.expect("no panic").is_err(), "the connection was dropped");
}
