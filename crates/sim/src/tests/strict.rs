//! Over HTTP the simulator refuses what the services refuse, in their words, and does what their fields ask for.

use serde_json::{Value, json};

use super::sockets::Site;
use crate::{BatchOptions, SimOptions};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/v1beta/models/sim-small:generateContent";

fn with(path: &str, name: &str, value: Value) -> Value {
    let mut body = match path {
        CHAT => json!({ "model": "sim-small", "messages": [{ "role": "user", "content": "hi" }] }),
        MESSAGES => {
            json!({ "model": "sim-small", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] })
        }
        _ => json!({ "contents": [{ "role": "user", "parts": [{ "text": "hi" }] }] }),
    };
    body[name] = value;
    body
}

#[tokio::test]
async fn what_a_service_does_not_know_is_refused_in_its_own_words() {
    let site = Site::new(SimOptions::default()).await;
    let block = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let parts = json!([{ "role": "user", "parts": [{ "type": "text", "text": "hi" }] }]);
    let rows = [
        (CHAT, "thinking", json!({}), "Unknown parameter: 'thinking'."),
        (CHAT, "messages", json!([]), "Invalid 'messages': empty array."),
        (
            CHAT,
            "messages",
            block(json!({ "type": "text", "text": "hi", "cache_control": {} })),
            "Unknown parameter: 'messages[0].content[0].cache_control'.",
        ),
        (CHAT, "tools", json!([{ "name": "f", "input_schema": {} }]), "Unknown parameter: 'tools[0].name'."),
        (CHAT, "response_format", json!({ "type": "json_object" }), "must contain the word 'json'"),
        (MESSAGES, "user", json!("me"), "user: Extra inputs are not permitted"),
        (MESSAGES, "messages", json!([]), "messages: at least one message is required"),
        (
            MESSAGES,
            "messages",
            block(json!({ "type": "image_url", "image_url": { "url": "x" } })),
            "messages.0.content.0.image_url: Extra inputs are not permitted",
        ),
        (GENERATE, "messages", json!([]), "Unknown name \"messages\": Cannot find field."),
        (GENERATE, "contents", json!([]), "contents is not specified"),
        (GENERATE, "contents", parts, "Unknown name \"type\" at 'contents[0].parts[0]'"),
        (GENERATE, "generationConfig", json!({ "top_k": 3 }), "Unknown name \"top_k\""),
    ];
    for (path, name, value, words) in rows {
        let seen = site.send("POST", path, &with(path, name, value)).await;
        assert_eq!(seen.status, 400, "{path} {name}: {}", seen.text);
        let message = seen.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(words), "{path} {name}: {message}");
    }
    let local = Site::new(SimOptions { slots: Some(1), ..SimOptions::default() }).await;
    local.post(CHAT, &with(CHAT, "top_k", json!(3))).await;
}

#[tokio::test]
async fn json_comes_where_it_is_asked_for_and_strict_tools_are_called() {
    let site = Site::new(SimOptions::default()).await;
    let mut chat = with(CHAT, "response_format", json!({ "type": "json_object" }));
    chat["messages"][0]["content"] = json!("answer in JSON");
    let answer = site.post(CHAT, &chat).await;
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(serde_json::from_str::<Value>(text).expect("JSON").is_object(), "{text}");

    let config = json!({ "responseMimeType": "application/json" });
    let answer = site.post(GENERATE, &with(GENERATE, "generationConfig", config)).await;
    let text = answer["candidates"][0]["content"]["parts"][0]["text"].as_str().expect("a text");
    assert!(serde_json::from_str::<Value>(text).expect("JSON").is_object(), "{text}");

    let parameters =
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let strict = json!([{ "type": "function", "function": { "name": "f", "parameters": parameters, "strict": true } }]);
    let mut chat = with(CHAT, "tools", strict);
    chat["tool_choice"] = json!("required");
    let answer = site.post(CHAT, &chat).await;
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f");
}

#[tokio::test]
async fn a_line_that_the_service_refuses_fails_alone() {
    // So fast that a batch has ended when it is asked for.
    let batch = BatchOptions { time_scale: 1e12, ..BatchOptions::default() };
    let site = Site::new(SimOptions { batch, ..SimOptions::default() }).await;
    let requests = json!({ "requests": [
        { "custom_id": "good", "params": with(MESSAGES, "system", json!("be brief")) },
        { "custom_id": "bad", "params": with(MESSAGES, "user", json!("me")) } ] });
    let batch = site.post("/v1/messages/batches", &requests).await;
    let path = format!("/v1/messages/batches/{}", batch["id"].as_str().expect("a name"));
    assert_eq!(site.get(&path).await["request_counts"]["errored"], 1);
    let results = site.send("GET", &format!("{path}/results"), &Value::Null).await.text;
    let lines: Vec<Value> = results.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |id: &str| lines.iter().find(|line| line["custom_id"] == id).expect("a line");
    assert_eq!(of("good")["result"]["type"], "succeeded");
    let error = &of("bad")["result"]["error"]["error"];
    assert_eq!(error["message"], "user: Extra inputs are not permitted", "{error}");
}
