//! What calls of clients cost, and what becomes of those that go wrong.

use std::time::Duration;

use longhaul_llm::profile::{Profile, ProviderKind};
use longhaul_llm::{Class, Error, Scope, Totals};
use longhaul_server::ServerOptions;
use longhaul_sim::{Faults, Latency, SimOptions};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::compat_openai::{data, events_of, post};
use crate::stage::{Stage, json_of};

/// Patience of a test.
const WAIT_MAX: Duration = Duration::from_secs(20);

fn chat(text: &str) -> Value {
    json!({ "model": "sim-small", "messages": [{ "role": "user", "content": text }], "max_tokens": 900 })
}

async fn totals(stage: &Stage) -> Totals {
    stage.ctx.llm().ledger().totals(&Scope::tag("http")).await.expect("totals")
}

/// The books once they look as expected: what a client that left has cost is written a little later.
async fn settled(stage: &Stage, done: impl Fn(&Totals) -> bool) -> Totals {
    let looking = async {
        loop {
            let totals = totals(stage).await;
            if done(&totals) {
                return totals;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_MAX, looking).await.expect("the books are settled in time")
}

#[tokio::test]
async fn each_call_is_booked_once_and_the_cache_is_asked_only_on_request() {
    let stage = Stage::new().await;
    let asked = chat("What is a quay?");
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    post(&stage, "/v1/chat/completions", &asked).await;
    events_of(post(&stage, "/v1/chat/completions", &streamed).await).await;
    post(&stage, "/v1/embeddings", &json!({ "model": "sim-embed", "input": "quay" })).await;
    let booked = totals(&stage).await;
    assert_eq!((booked.calls, booked.answers, booked.open_calls, booked.unknown_calls), (3, 3, 0, 0));
    assert!(booked.cost.0 > 0 && booked.cached == 0, "{booked:?}");

    let with = |mode: &'static str, body: &Value| {
        stage
            .request(Method::POST, "/v1/chat/completions")
            .header("x-longhaul-cache", mode)
            .body(body.to_string())
            .send()
    };
    let miss = with("only", &asked).await.expect("an answer");
    assert_eq!(miss.status(), StatusCode::NOT_FOUND);
    assert_eq!(json_of(miss).await["error"]["code"], "not_cached");
    let first = json_of(with("auto", &asked).await.expect("an answer")).await;
    let again = json_of(with("only", &asked).await.expect("an answer")).await;
    assert_eq!(first["choices"], again["choices"]);
    let told = events_of(with("only", &streamed).await.expect("an answer")).await;
    assert_eq!(told.last().map(|event| event.data.as_str()), Some("[DONE]"));
    let booked = settled(&stage, |totals| totals.cached == 2).await;
    assert_eq!(booked.calls, 4);
    let wrong = with("maybe", &asked).await.expect("an answer");
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    stage.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_in_the_middle_is_booked_once_at_its_ceiling() {
    let latency = Latency { per_token_us: 20_000, ..Latency::default() };
    let sim = SimOptions { latency, ..SimOptions::default() };
    let stage = Stage::with(ServerOptions::default(), sim).await;
    let paths = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];
    for (place, path) in paths.into_iter().enumerate() {
        let mut asked = chat(&format!("{place} [[sim:words 3000]]"));
        asked["stream"] = json!(true);
        asked["input"] = json!("[[sim:words 3000]]");
        let mut response = post(&stage, path, &asked).await;
        response.chunk().await.expect("a piece").expect("it has begun");
        drop(response);
        let calls = place as u64 + 1;
        let booked = settled(&stage, |totals| totals.unknown_calls == calls).await;
        assert_eq!((booked.calls, booked.open_calls, booked.answers), (0, 0, 0), "{path}");
        assert!(booked.unknown_ceiling.0 > 0);
    }
    assert_eq!(stage.core.stats().calls, 3, "nothing was asked again");
    stage.stop().await;
}

#[tokio::test]
async fn a_whole_answer_whose_client_left_is_still_booked_as_it_came() {
    let stage = Stage::new().await;
    let asked = chat("[[sim:slow 400ms]] hello");
    let request = stage.request(Method::POST, "/v1/chat/completions").body(asked.to_string());
    let given_up = tokio::time::timeout(Duration::from_millis(150), request.send()).await;
    assert!(given_up.is_err(), "it is slow");
    let booked = settled(&stage, |totals| totals.calls == 1).await;
    assert_eq!((booked.answers, booked.open_calls, booked.unknown_calls), (1, 0, 0));
    stage.stop().await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_and_not_with_the_end() {
    let faults = Faults { rate_drop: 1.0, ..Faults::default() };
    let stage = Stage::with(ServerOptions::default(), SimOptions { faults, ..SimOptions::default() }).await;
    let mut broken = 0;
    for number in 0..12 {
        let mut asked = chat(&format!("{number} [[sim:words 60]]"));
        asked["stream"] = json!(true);
        let path = if number % 2 == 0 { "/v1/chat/completions" } else { "/v1/messages" };
        let request = stage.request(Method::POST, path).body(asked.to_string());
        let response = request.send().await.expect("an answer");
        if response.status() != StatusCode::OK {
            // It broke before the first piece; or enough calls in a row did for this to be an outage.
            let expected = [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE];
            assert!(expected.contains(&response.status()), "{}", response.status());
            continue;
        }
        let events = events_of(response).await;
        let last = events.last().expect("events");
        assert!(data(last)["error"]["message"].is_string(), "{last:?}");
        assert_eq!(last.name.as_deref(), (number % 2 == 1).then_some("error"));
        broken += 1;
    }
    assert!(broken > 0, "half of the calls break in the middle");
    let booked = settled(&stage, |totals| totals.open_calls == 0).await;
    assert!(booked.calls == 0 && booked.unknown_calls >= broken, "{booked:?}");
    stage.stop().await;
}

#[tokio::test]
async fn a_429_is_told_at_once_with_a_wait_that_clients_can_bear() {
    let faults = Faults { rate_429: 1.0, retry_after_ms: 300_000, ..Faults::default() };
    let stage = Stage::with(ServerOptions::default(), SimOptions { faults, ..SimOptions::default() }).await;
    let mut streamed = chat("hello");
    streamed["stream"] = json!(true);
    streamed["model"] = json!("sim-large");
    // A single refusal says nothing of a limit, so the last is sent too.
    let rows = [
        ("/v1/chat/completions", chat("hello")),
        ("/v1/messages", streamed),
        ("/v1/chat/completions", chat("hello")),
    ];
    for (path, asked) in rows {
        let refused =
            stage.request(Method::POST, path).body(asked.to_string()).send().await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "120");
        let told = json_of(refused).await;
        let kind = told["error"]["type"].as_str().expect("a type");
        assert_eq!(kind, if path.contains("messages") { "rate_limit_error" } else { "requests" });
    }
    let booked = settled(&stage, |totals| totals.throttled == 3).await;
    assert_eq!((booked.calls, booked.open_calls, booked.unknown_calls), (0, 0, 0), "nothing was paid for");
    stage.stop().await;
}

#[tokio::test]
async fn a_person_may_knock_at_a_route_that_was_closed_for_its_key() {
    let stage = Stage::new().await;
    let route = stage.ctx.llm().route("sim", "sim-small").await.expect("a route");
    route.controller().close(&Error::new(Class::Auth, "the key was refused"));
    post(&stage, "/v1/chat/completions", &chat("mended?")).await;
    stage.stop().await;

    let sim = SimOptions { keys_expired: true, ..SimOptions::default() };
    let stage = Stage::with(ServerOptions::default(), sim).await;
    for _ in 0..2 {
        let asked = stage.request(Method::POST, "/v1/messages").body(chat("hello").to_string());
        let refused = asked.send().await.expect("an answer");
        assert_eq!(
            (refused.status(), &refused.headers()["x-should-retry"]),
            (StatusCode::BAD_GATEWAY, &"false".parse().expect("a value"))
        );
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_in_the_form_of_its_api() {
    let options = ServerOptions { json_bytes_max: 1_000, ..ServerOptions::default() };
    let stage = Stage::with(options, SimOptions::default()).await;
    for (path, kind) in
        [("/v1/messages", "request_too_large"), ("/v1/chat/completions", "invalid_request_error")]
    {
        let asked = stage.request(Method::POST, path).body(chat(&"x".repeat(2_000)).to_string());
        let refused = asked.send().await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(json_of(refused).await["error"]["type"], kind);
    }
    stage.stop().await;
}

#[tokio::test]
async fn a_model_of_a_profile_that_does_not_exist_is_not_found_in_the_form_of_its_api() {
    let stage = Stage::new().await;
    let asked =
        json!({ "model": "nope/x", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 9 });
    for (path, place, kind) in [
        ("/v1/messages", "/error/type", "not_found_error"),
        ("/v1/chat/completions", "/error/code", "model_not_found"),
    ] {
        let (status, refused) = stage.post(path, &asked).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{refused}");
        assert_eq!(refused.pointer(place), Some(&json!(kind)), "{refused}");
        assert!(
            refused["error"]["message"].as_str().is_some_and(|text| text.contains("profiles sim")),
            "{refused}"
        );
    }
    let mut gateway = Profile::new("gateway", ProviderKind::OpenAi);
    gateway.base_url = "http://127.0.0.1:9/v1".to_owned();
    let beside = Stage::beside(ServerOptions::default(), SimOptions::default(), vec![gateway]).await;
    let (_, refused) =
        beside.post("/v1/chat/completions", &json!({ "model": "gateway/vendor/x", "messages": [] })).await;
    assert_ne!(refused["error"]["code"], "model_not_found", "{refused}");
    stage.stop().await;
    beside.stop().await;
}
