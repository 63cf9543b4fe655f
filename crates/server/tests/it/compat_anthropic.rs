//! What Anthropic's clients see, over sockets; and clients of one maker that are answered by another's API.

use longhaul_llm::profile::{Profile, ProviderKind};
use longhaul_sim::{SimOptions, SimServer};

use longhaul_llm::types::Delta;
use longhaul_llm::wire::StreamReader as _;
use longhaul_llm::wire::anthropic::{AnthropicStream, answer_from_json};
use longhaul_llm::{Answer, Secret};
use longhaul_server::ServerOptions;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::compat_openai::{events_of, post};
use crate::stage::{Stage, json_of};

fn message(model: &str, text: &str) -> Value {
    json!({ "model": model, "max_tokens": 400, "messages": [{ "role": "user", "content": text }] })
}

async fn streamed(stage: &Stage, mut asked: Value) -> Answer {
    asked["stream"] = json!(true);
    let events = events_of(post(stage, "/v1/messages", &asked).await).await;
    assert!(
        events.iter().all(|event| event.name.is_some())
            && events.iter().any(|event| event.name.as_deref() == Some("ping"))
    );
    let mut reader = AnthropicStream::default();
    let end = events.iter().find_map(|event| {
        reader.push(event).expect("a good event").filter(|delta| matches!(delta, Delta::End(_)))
    });
    match end {
        Some(Delta::End(answer)) => answer,
        _ => panic!("no end in {events:?}"),
    }
}

#[tokio::test]
async fn a_message_is_the_same_whole_and_in_events() {
    let stage = Stage::new().await;
    let asked = message("sim-small", "Tell me of lighthouses. [[sim:words 60]]");
    let whole = json_of(post(&stage, "/v1/messages", &asked).await).await;
    assert_eq!((&whole["type"], &whole["role"]), (&json!("message"), &json!("assistant")));
    let whole = answer_from_json(&whole).expect("an answer");
    let told = streamed(&stage, asked).await;
    assert_eq!((told.text, told.usage, told.stop), (whole.text, whole.usage, whole.stop));

    let mut asked = message("sim-small", "Rain in Paris? [[sim:call weather]]");
    asked["tools"] = json!([{ "name": "weather", "input_schema": { "type": "object" }, "strict": true, "type": "custom" }]);
    let told = streamed(&stage, asked.clone()).await;
    assert_eq!(told.tool_calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), ["weather"]);
    asked.as_object_mut().expect("an object").shift_remove("max_tokens");
    let counted = json_of(post(&stage, "/v1/messages/count_tokens", &asked).await).await;
    assert!(counted["input_tokens"].as_u64().is_some_and(|tokens| tokens > 10), "{counted}");
    stage.stop().await;
}

#[tokio::test]
async fn models_and_errors_have_the_form_of_whoever_asks() {
    let stage = Stage::new().await;
    let list = stage.request(Method::GET, "/v1/models?limit=2").header("anthropic-version", "2023-06-01");
    let list = json_of(list.send().await.expect("an answer")).await;
    assert_eq!((&list["has_more"], &list["last_id"]), (&json!(true), &json!("sim-large")));
    assert_eq!(list["data"][0]["type"], "model");
    let rows = [
        (
            "/v1/messages",
            json!({ "model": "sim-small", "messages": [] }),
            "/error/type",
            "invalid_request_error",
        ),
        ("/v1/messages", json!(7), "/error/type", "invalid_request_error"),
        ("/v1/chat/completions", json!({ "model": "sim-small", "messages": 7 }), "/error/param", "messages"),
        ("/v1/chat/completions", json!({ "model": "", "messages": [] }), "/error/param", "model"),
        ("/v1/chat/completions", json!({ "model": "m", "messages": [], "n": 2 }), "/error/param", "n"),
        ("/v1/embeddings", json!({ "model": "m", "input": [{}] }), "/error/param", "input[0]"),
        ("/v1/completions", json!({ "model": "m", "prompt": ["a", "b"] }), "/error/param", "prompt"),
    ];
    for (path, body, place, expected) in rows {
        let refused =
            stage.request(Method::POST, path).body(body.to_string()).send().await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{path} {body}");
        let told = json_of(refused).await;
        assert_eq!(told.pointer(place).and_then(Value::as_str), Some(expected), "{told}");
    }
    let no_json = stage.request(Method::POST, "/v1/messages").body("{").send().await.expect("an answer");
    assert_eq!(json_of(no_json).await["type"], "error");
    stage.stop().await;
}

#[tokio::test]
async fn any_client_is_answered_by_any_provider() {
    let behind = SimServer::bind(SimOptions::default(), "127.0.0.1:0".parse().expect("an address"))
        .await
        .expect("listening");
    let profile = |name: &str, kind, url: String| {
        let key = Some(Secret::new("k"));
        Profile { base_url: url, key, ..Profile::new(name, kind) }
    };
    let others = vec![
        profile("like-openai", ProviderKind::OpenAi, format!("{}/v1", behind.url())),
        profile("like-anthropic", ProviderKind::Anthropic, behind.url()),
        profile("like-gemini", ProviderKind::Gemini, behind.url()),
    ];
    let stage = Stage::beside(ServerOptions::default(), SimOptions::default(), others).await;
    for profile in ["sim", "like-openai", "like-anthropic", "like-gemini"] {
        let model = format!("{profile}/sim-small");
        let mut asked = message(&model, "[[sim:say the same to all]]");
        asked["thinking"] = json!({ "type": "adaptive" });
        asked["system"] =
            json!([{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }]);
        let whole = json_of(post(&stage, "/v1/messages", &asked).await).await;
        assert_eq!(whole["content"][0]["text"], "the same to all", "{profile}");
        assert_eq!(streamed(&stage, asked).await.text, "the same to all", "{profile}");
        let asked = json!({
            "model": model, "messages": [{ "role": "user", "content": "[[sim:say the same to all]]" }],
            "logprobs": true, "user": "me", "reasoning_effort": "low",
        });
        let whole = json_of(post(&stage, "/v1/chat/completions", &asked).await).await;
        assert_eq!(whole["choices"][0]["message"]["content"], "the same to all", "{profile}");
    }
    stage.stop().await;
    behind.stop().await;
}

#[tokio::test]
async fn the_files_of_an_anthropic_client_are_refused_in_its_own_form() {
    let stage = Stage::new().await;
    let request = stage.request(Method::GET, "/v1/files/file_x").header("anthropic-version", "2023-06-01");
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    let problem = json_of(response).await;
    assert_eq!((&problem["type"], &problem["error"]["type"]), (&json!("error"), &json!("not_found_error")));
    stage.stop().await;
}
