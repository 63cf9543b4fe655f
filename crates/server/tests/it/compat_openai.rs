//! What OpenAI's clients see, over sockets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_llm::Answer;
use longhaul_llm::sse::{SseEvent, SseParser};
use longhaul_llm::types::Delta;
use longhaul_llm::wire::StreamReader;
use longhaul_llm::wire::openai::{OpenAiStream, answer_from_json};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::stage::{Stage, json_of};

/// Sends JSON and expects a good answer.
pub(crate) async fn post(stage: &Stage, path: &str, body: &Value) -> reqwest::Response {
    let response = stage.request(Method::POST, path).body(body.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), StatusCode::OK, "{path}: {:?}", response.text().await);
    response
}

/// The events of a stream.
pub(crate) async fn events_of(response: reqwest::Response) -> Vec<SseEvent> {
    let bytes = response.bytes().await.expect("a body");
    let mut parser = SseParser::default();
    let mut events = parser.push(&bytes).expect("events");
    events.extend(parser.finish().expect("an end"));
    events
}

/// The data of an event.
pub(crate) fn data(event: &SseEvent) -> Value {
    serde_json::from_str(&event.data).expect("JSON")
}

fn put_together(events: &[SseEvent], mut reader: impl StreamReader) -> Answer {
    for event in events {
        if let Some(Delta::End(answer)) = reader.push(event).expect("a good event") {
            return answer;
        }
    }
    panic!("no end in {events:?}")
}

fn chat(text: &str) -> Value {
    json!({ "model": "sim-small", "messages": [{ "role": "user", "content": text }] })
}

#[tokio::test]
async fn a_chat_is_the_same_whole_and_in_chunks() {
    let stage = Stage::new().await;
    let mut asked = chat("Tell me of lighthouses. [[sim:words 60]]");
    let whole = json_of(post(&stage, "/v1/chat/completions", &asked).await).await;
    assert_eq!(whole["object"], "chat.completion");
    let whole = answer_from_json(&whole).expect("an answer");
    asked["stream"] = json!(true);
    asked["stream_options"] = json!({ "include_usage": true });
    let response = post(&stage, "/v1/chat/completions", &asked).await;
    let kind = response.headers()["content-type"].to_str().expect("text").to_owned();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let events = events_of(response).await;
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"));
    let usage = data(&events[events.len() - 2]);
    assert_eq!(
        (&usage["choices"], &usage["usage"]["prompt_tokens"]),
        (&json!([]), &json!(whole.usage.input()))
    );
    let told = put_together(&events, OpenAiStream::default());
    assert_eq!((told.text, told.usage, told.stop), (whole.text, whole.usage, whole.stop));
    let ids: Vec<Value> = events[..events.len() - 1].iter().map(|event| data(event)["id"].clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && id.as_str().is_some_and(|id| id.starts_with("chatcmpl-"))));
    stage.stop().await;
}

#[tokio::test]
async fn calls_of_tools_come_before_the_end_and_refusals_with_it() {
    let stage = Stage::new().await;
    let parameters =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    let function = json!({ "name": "weather", "parameters": parameters, "strict": true });
    let mut asked = chat("Rain in Paris? [[sim:call weather]]");
    asked["tools"] = json!([{ "type": "function", "function": function }]);
    asked["stream"] = json!(true);
    let events = events_of(post(&stage, "/v1/chat/completions", &asked).await).await;
    let told = put_together(&events, OpenAiStream::default());
    let arguments: Value = serde_json::from_str(&told.tool_calls[0].arguments).expect("JSON");
    assert!(told.tool_calls[0].name == "weather" && arguments["city"].is_string(), "{told:?}");
    assert_eq!(data(&events[events.len() - 2])["choices"][0]["finish_reason"], "tool_calls");

    let refused = json_of(post(&stage, "/v1/chat/completions", &chat("[[sim:refuse]]")).await).await;
    assert_eq!(refused["choices"][0]["finish_reason"], "content_filter");
    stage.stop().await;
}

#[tokio::test]
async fn vectors_come_as_floats_or_as_the_base64_that_sdks_ask_for() {
    let stage = Stage::new().await;
    let mut asked = json!({ "model": "sim-embed", "input": ["one", "two"], "encoding_format": "float" });
    let floats = json_of(post(&stage, "/v1/embeddings", &asked).await).await;
    asked["encoding_format"] = json!("base64");
    let packed = json_of(post(&stage, "/v1/embeddings", &asked).await).await;
    for (float, packed) in [(0, 0), (1, 1)].map(|(a, b)| (&floats["data"][a], &packed["data"][b])) {
        let bytes = STANDARD.decode(packed["embedding"].as_str().expect("text")).expect("base64");
        let numbers = float["embedding"].as_array().expect("a list");
        let unpacked: Vec<f32> =
            bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect();
        let given: Vec<f32> =
            numbers.iter().map(|number| number.as_f64().expect("a number") as f32).collect();
        assert!(!given.is_empty() && given == unpacked);
    }
    asked["input"] = json!("only one");
    let one = json_of(post(&stage, "/v1/embeddings", &asked).await).await;
    assert_eq!(one["data"].as_array().map(Vec::len), Some(1));
    asked["input"] = json!([[1, 2, 3], [4]]);
    let of_tokens = json_of(post(&stage, "/v1/embeddings", &asked).await).await;
    assert_eq!(of_tokens["data"].as_array().map(Vec::len), Some(2));
    stage.stop().await;
}

#[tokio::test]
async fn a_response_needs_no_memory_and_its_events_are_numbered() {
    let stage = Stage::new().await;
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let mut asked = json!({
        "model": "sim-small", "instructions": "be brief",
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "a number" }] }],
        "text": { "format": { "type": "json_schema", "name": "n", "schema": schema, "strict": true } },
    });
    let whole = json_of(post(&stage, "/v1/responses", &asked).await).await;
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("completed")));
    let text = whole["output"][0]["content"][0]["text"].as_str().expect("text");
    assert!(serde_json::from_str::<Value>(text).expect("JSON")["n"].is_i64(), "{text}");
    asked["stream"] = json!(true);
    let events = events_of(post(&stage, "/v1/responses", &asked).await).await;
    let names: Vec<&str> = events.iter().filter_map(|event| event.name.as_deref()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(
        names[names.len() - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    for (number, event) in events.iter().enumerate() {
        let data = data(event);
        assert_eq!(
            (data["sequence_number"].as_u64(), data["type"].as_str()),
            (Some(number as u64), event.name.as_deref())
        );
    }
    let last = data(&events[events.len() - 1]);
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], text);

    asked["previous_response_id"] = json!("resp_1");
    let request = stage.request(Method::POST, "/v1/responses").body(asked.to_string());
    let refused = request.send().await.expect("an answer");
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    assert_eq!(json_of(refused).await["error"]["param"], "previous_response_id");
    let gone = stage.request(Method::GET, "/v1/responses/resp_1").send().await.expect("an answer");
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    stage.stop().await;
}

#[tokio::test]
async fn an_old_completion_is_a_chat_of_one_message() {
    let stage = Stage::new().await;
    let mut asked =
        json!({ "model": "sim-small", "prompt": "[[sim:say hello there]]", "echo": true, "logprobs": 3 });
    let whole = json_of(post(&stage, "/v1/completions", &asked).await).await;
    assert_eq!(
        (&whole["object"], &whole["choices"][0]["text"]),
        (&json!("text_completion"), &json!("hello there"))
    );
    asked["stream"] = json!(true);
    let events = events_of(post(&stage, "/v1/completions", &asked).await).await;
    let (done, chunks) = events.split_last().expect("events");
    assert_eq!(done.data, "[DONE]");
    let text: String = chunks
        .iter()
        .filter_map(|event| data(event)["choices"][0]["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "hello there");
    stage.stop().await;
}

#[tokio::test]
async fn models_are_listed_under_plain_names_and_with_their_profile() {
    let stage = Stage::new().await;
    let list = json_of(stage.request(Method::GET, "/v1/models").send().await.expect("an answer")).await;
    let ids: Vec<&str> =
        list["data"].as_array().expect("a list").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(
        ids,
        ["sim-small", "sim-large", "sim-embed", "sim/sim-small", "sim/sim-large", "sim/sim-embed"]
    );
    for path in ["/v1/models/sim/sim-small", "/v1/models/sim%2Fsim-small"] {
        let one = json_of(stage.request(Method::GET, path).send().await.expect("an answer")).await;
        assert_eq!((&one["id"], &one["object"]), (&json!("sim/sim-small"), &json!("model")));
    }
    let none = stage.request(Method::GET, "/v1/models/gpt-0").send().await.expect("an answer");
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
    assert_eq!(json_of(none).await["error"]["code"], "model_not_found");
    stage.stop().await;
}
