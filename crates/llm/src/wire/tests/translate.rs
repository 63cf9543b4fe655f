//! What passes from one dialect to another, and in which order.

use serde_json::{Value, json};

use super::{a, g, o};
use crate::error::{Class, Result};
use crate::types::*;

/// A request as it is sent to a provider of each dialect.
fn sent(request: &ChatRequest, to: Dialect) -> Result<Value> {
    match to {
        Dialect::OpenAi => o::request_to_json(request, o::LimitName::MaxTokens),
        Dialect::Anthropic => a::request_to_json(request),
        Dialect::Gemini => g::request_to_json(request),
    }
}

const ALL: [Dialect; 3] = [Dialect::OpenAi, Dialect::Anthropic, Dialect::Gemini];

/// A request of OpenAI's with every field that it knows and two that nobody does.
fn everything_of_openai() -> Value {
    json!({
        "model": "m", "messages": [{ "role": "user", "name": "ann", "content": [
            { "type": "text", "text": "what is this?" },
            { "type": "image_url", "image_url": { "url": "https://x/y.png", "detail": "low" } }] }],
        "audio": {}, "frequency_penalty": 1, "function_call": "auto", "functions": [], "logit_bias": {}, "logprobs": true,
        "max_completion_tokens": 9, "metadata": {}, "modalities": ["text"], "moderation": {}, "n": 1,
        "parallel_tool_calls": false, "prediction": {}, "presence_penalty": 1, "prompt_cache_key": "k",
        "prompt_cache_options": {}, "prompt_cache_retention": "24h", "reasoning_effort": "low",
        "response_format": { "type": "json_object" }, "safety_identifier": "me", "seed": 7, "service_tier": "flex",
        "stop": ["END"], "store": true, "stream": true, "stream_options": {}, "temperature": 0.5, "tool_choice": "required",
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" }, "strict": true } }],
        "top_logprobs": 1, "top_p": 0.9, "user": "me", "verbosity": "low", "web_search_options": {},
        "brand_new": { "x": 1 }, "top_a": 0.5,
    })
}

fn everything_of_anthropic() -> Value {
    json!({
        "model": "m", "max_tokens": 9, "stop_sequences": ["END"], "temperature": 0.5, "top_p": 0.9, "top_k": 3,
        "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "tools": [{ "name": "f", "input_schema": { "type": "object" }, "strict": true, "cache_control": { "type": "ephemeral" } },
            { "type": "web_search_20250305", "name": "w" }],
        "messages": [
            { "role": "user", "content": "weather?" },
            { "role": "assistant", "content": [{ "type": "thinking", "thinking": "…", "signature": "s" },
                { "type": "tool_use", "id": "t", "name": "f", "input": { "b": 1, "a": 2 }, "cache_control": {} }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": true },
                { "type": "image", "source": { "type": "url", "url": "https://x/y.png" }, "cache_control": {} }] },
        ],
        "cache_control": {}, "container": "c", "context_management": {}, "diagnostics": {}, "inference_geo": "us",
        "mcp_servers": [], "metadata": { "user_id": "me" }, "output_config": { "effort": "low" }, "service_tier": "auto",
        "speed": "fast", "stream": true, "thinking": { "type": "adaptive" }, "user_profile_id": "u", "workspace_id": "w",
        "brand_new": { "x": 1 }, "top_a": 0.5,
    })
}

fn names(body: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn within_a_dialect_everything_passes_as_it_came() {
    let openai = everything_of_openai();
    let body = sent(&o::request_from_json(openai.clone()).unwrap(), Dialect::OpenAi).unwrap();
    for (name, value) in openai.as_object().unwrap() {
        match name.as_str() {
            // Said by the call.
            "stream" | "stream_options" => assert_eq!(body.get(name), None),
            "max_completion_tokens" => assert_eq!(body["max_tokens"], 9),
            _ => assert_eq!(body[name], *value, "{name}"),
        }
    }
    let mut anthropic = everything_of_anthropic();
    let body = sent(&a::request_from_json(anthropic.clone()).unwrap(), Dialect::Anthropic).unwrap();
    anthropic.as_object_mut().unwrap().shift_remove("stream");
    assert_eq!(body, anthropic);
}

#[test]
fn between_dialects_only_what_both_can_say_passes() {
    let openai = o::request_from_json(everything_of_openai()).unwrap();
    let body = sent(&openai, Dialect::Anthropic).unwrap();
    assert_eq!(
        names(&body),
        ["max_tokens", "messages", "model", "stop_sequences", "temperature", "tool_choice", "tools", "top_p"]
    );
    assert_eq!(body["tool_choice"], json!({ "type": "any", "disable_parallel_tool_use": true }));
    assert_eq!(body["tools"], json!([{ "name": "f", "input_schema": { "type": "object" }, "strict": true }]));
    assert_eq!(
        body["messages"][0]["content"][1],
        json!({ "type": "image", "source": { "type": "url", "url": "https://x/y.png" } })
    );

    let body = sent(&openai, Dialect::Gemini).unwrap();
    assert_eq!(names(&body), ["contents", "generationConfig", "toolConfig", "tools"]);
    assert_eq!(
        body["generationConfig"],
        json!({ "maxOutputTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"], "seed": 7,
            "responseMimeType": "application/json" })
    );
    assert_eq!(
        body["tools"],
        json!([{ "functionDeclarations": [{ "name": "f", "parametersJsonSchema": { "type": "object" } }] }])
    );

    let anthropic = a::request_from_json(everything_of_anthropic()).unwrap();
    let body = sent(&anthropic, Dialect::OpenAi).unwrap();
    assert_eq!(
        names(&body),
        [
            "max_tokens",
            "messages",
            "model",
            "parallel_tool_calls",
            "stop",
            "temperature",
            "tool_choice",
            "tools",
            "top_p"
        ]
    );
    assert_eq!((&body["tool_choice"], &body["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    assert_eq!(body["tools"].as_array().unwrap().len(), 1, "only its own provider runs a search");
    let roles: Vec<&str> =
        body["messages"].as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    assert_eq!(body["messages"][2]["tool_calls"][0]["function"]["arguments"], r#"{"b":1,"a":2}"#);
    assert_eq!(body["messages"][0]["content"], "be brief");
    let body = sent(&anthropic, Dialect::Gemini).unwrap();
    assert_eq!(names(&body), ["contents", "generationConfig", "systemInstruction", "toolConfig", "tools"]);
    assert_eq!(body["generationConfig"]["topK"], 3);
    assert!(!body.to_string().contains("cache_control"), "{body}");
}

#[test]
fn a_field_that_only_the_provider_knows_is_meant_for_it() {
    let request = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }], "brand_new": 1,
        "thinking": { "type": "adaptive" }, "safetySettings": [], "reasoning_effort": "low" });
    let request = o::request_from_json(request).unwrap();
    assert_eq!(
        names(&sent(&request, Dialect::Anthropic).unwrap()),
        ["max_tokens", "messages", "model", "thinking"]
    );
    assert_eq!(names(&sent(&request, Dialect::Gemini).unwrap()), ["contents", "safetySettings"]);
}

#[test]
fn content_without_a_counterpart_is_refused_and_a_document_is_translated() {
    let ask = |part: Value| {
        let body =
            json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": [part] }] });
        a::request_from_json(body).unwrap()
    };
    let pdf = json!({ "type": "document", "source": { "type": "base64", "media_type": "application/pdf", "data": "AA" } });
    let body = sent(&ask(pdf.clone()), Dialect::OpenAi).unwrap();
    assert_eq!(body["messages"][0]["content"][0]["file"]["file_data"], "data:application/pdf;base64,AA");
    let back = sent(&o::request_from_json(body).unwrap(), Dialect::Anthropic).unwrap();
    assert_eq!(back["messages"][0]["content"], json!([pdf]));
    let body = sent(&ask(pdf), Dialect::Gemini).unwrap();
    assert_eq!(body["contents"][0]["parts"][0]["inlineData"]["mimeType"], "application/pdf");

    let search = json!({ "type": "search_result", "source": "s", "title": "t", "content": [] });
    let image = json!({ "type": "image", "source": { "type": "url", "url": "https://x/y.png" } });
    let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [image] });
    for (part, found) in [(search, "search_result"), (result, "image")] {
        for to in [Dialect::OpenAi, Dialect::Gemini] {
            let error = sent(&ask(part.clone()), to).unwrap_err();
            assert_eq!((error.class, error.status), (Class::BadRequest, Some(400)));
            assert!(
                error.message.starts_with("messages: expected ") && error.message.contains(found),
                "{error}"
            );
        }
        assert!(sent(&ask(part), Dialect::Anthropic).is_ok());
    }
}

/// A model writes its answer in the order of the schema: reasons that come after the answer are no reasons.
#[test]
fn schemas_and_tools_keep_the_order_of_their_writer() {
    let properties = json!({ "reasoning": { "type": "string" }, "answer": { "type": "string" } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["reasoning", "answer"] });
    let openai = json!({ "model": "m", "zeta": 1, "alpha": 2, "messages": [{ "role": "user", "content": "hi" }],
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema } }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } } });
    let anthropic = json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }],
        "tools": [{ "name": "f", "input_schema": schema }],
        "output_config": { "format": { "type": "json_schema", "schema": schema } } });
    let requests = [o::request_from_json(openai).unwrap(), a::request_from_json(anthropic).unwrap()];
    for request in &requests {
        for to in ALL {
            let text = sent(request, to).unwrap().to_string();
            assert_eq!(text.matches(&schema.to_string()).count(), 2, "{text}");
        }
    }
    let text = sent(&requests[0], Dialect::OpenAi).unwrap().to_string();
    assert!(text.find("zeta") < text.find("alpha"), "{text}");
}
