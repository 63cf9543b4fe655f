//! From a client's dialect to its model's. Where both are the same, everything passes as it came. Where they differ, tools and parts
//! that are written in the client's form are put into ours, fields that only the client's own provider knows are left out, by the
//! tables below, and all others pass: whoever sends a field that neither table knows means the provider behind.

use longhaul_llm::types::{Message, Part, Request, Tool, ToolChoice};
use longhaul_llm::{ChatRequest, Role};
use serde_json::{Map, Value, json};

use super::Dialect;

/// Fields of chat completions that other providers refuse or misread.
const OPENAI_ONLY: [&str; 26] = [
    "audio",
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "logprobs",
    "metadata",
    "modalities",
    "moderation",
    "n",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "store",
    "top_logprobs",
    "user",
    "verbosity",
    "web_search_options",
];

/// Fields of messages that other providers refuse or misread.
const ANTHROPIC_ONLY: [&str; 14] = [
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "mcp_servers",
    "metadata",
    "output_config",
    "service_tier",
    "speed",
    "thinking",
    "top_k",
    "user_profile_id",
    "workspace_id",
];

/// Said by the call, not by the request.
const OF_THE_CALL: [&str; 2] = ["stream", "stream_options"];

/// Makes a request of a client fit for a provider.
pub(super) fn carry(request: &mut Request, client: Dialect, provider: &str) {
    match request {
        Request::Chat(chat) => carry_chat(chat, client, provider),
        Request::Embed(embed) if provider != "openai" => {
            embed.extra.retain(|name, _| !OPENAI_ONLY.contains(&name.as_str()));
        }
        Request::Embed(_) => {}
    }
}

fn carry_chat(request: &mut ChatRequest, client: Dialect, provider: &str) {
    request.extra.retain(|name, _| !OF_THE_CALL.contains(&name.as_str()));
    let own = match client {
        Dialect::OpenAi => "openai",
        Dialect::Anthropic => "anthropic",
    };
    if own == provider {
        return;
    }
    carry_tools(request, client);
    request.messages = std::mem::take(&mut request.messages).into_iter().flat_map(carry_message).collect();
    let left_out: &[&str] = match client {
        Dialect::OpenAi => &OPENAI_ONLY,
        Dialect::Anthropic => &ANTHROPIC_ONLY,
    };
    request.extra.retain(|name, _| !left_out.contains(&name.as_str()));
}

/// A codec leaves a list of tools as it came where one says more than our type can. Tools that are no functions stay behind: only
/// their own provider runs them.
fn carry_tools(request: &mut ChatRequest, client: Dialect) {
    if let Some(Value::Array(tools)) = request.extra.remove("tools") {
        request.tools = tools.iter().filter_map(|tool| tool_of(tool, client)).collect();
    }
    if let Some(choice) = request.extra.remove("tool_choice") {
        request.tool_choice = choice_of(&choice);
    }
    if request.tools.is_empty() {
        request.tool_choice = None;
    }
}

fn tool_of(tool: &Value, client: Dialect) -> Option<Tool> {
    let (function, parameters) = match client {
        Dialect::OpenAi => (tool.get("function")?, "parameters"),
        Dialect::Anthropic => (tool.get("input_schema").map(|_| tool)?, "input_schema"),
    };
    Some(Tool {
        name: function["name"].as_str()?.to_owned(),
        description: function["description"].as_str().map(str::to_owned),
        parameters: function.get(parameters).cloned().unwrap_or_else(|| json!({ "type": "object" })),
    })
}

fn choice_of(choice: &Value) -> Option<ToolChoice> {
    match choice["type"].as_str()? {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::None),
        "any" => Some(ToolChoice::Required),
        "tool" => Some(ToolChoice::Named(choice["name"].as_str()?.to_owned())),
        _ => None,
    }
}

/// A message with its parts in our form. Results of tools that said more than our type can become messages before it.
fn carry_message(mut message: Message) -> Vec<Message> {
    let mut carried = Vec::new();
    let had_parts = !message.content.is_empty();
    for part in std::mem::take(&mut message.content) {
        match part {
            Part::Other(Value::Object(part)) => match kind_of(&part) {
                "tool_result" => carried.push(result_of(&part)),
                _ => message.content.extend(part_of(part)),
            },
            part => message.content.push(part),
        }
    }
    let emptied = had_parts && message.content.is_empty() && message.tool_calls.is_empty();
    if !emptied {
        carried.push(message);
    }
    carried
}

/// A part in our form; what has none stays as it is, and the provider says what it thinks of it.
fn part_of(part: Map<String, Value>) -> Option<Part> {
    let text = |name: &str| part.get(name).and_then(Value::as_str).map(str::to_owned);
    let source = |name: &str| part.get("source").and_then(|source| source[name].as_str());
    let plain = match kind_of(&part) {
        "text" => text("text").map(Part::Text),
        "refusal" => text("refusal").map(Part::Text),
        "image_url" => part
            .get("image_url")
            .and_then(|image| image["url"].as_str())
            .map(|url| Part::Image(url.to_owned())),
        "image" => match (source("url"), source("media_type"), source("data")) {
            (Some(url), ..) => Some(Part::Image(url.to_owned())),
            (None, Some(kind), Some(data)) => Some(Part::Image(format!("data:{kind};base64,{data}"))),
            _ => None,
        },
        // A model's own notes, sealed for itself.
        "thinking" | "redacted_thinking" => return None,
        _ => None,
    };
    Some(plain.unwrap_or(Part::Other(Value::Object(part))))
}

fn kind_of(part: &Map<String, Value>) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn result_of(block: &Map<String, Value>) -> Message {
    let content = match block.get("content") {
        Some(Value::String(text)) => vec![Part::Text(text.clone())],
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.as_object().cloned()).filter_map(part_of).collect()
        }
        _ => Vec::new(),
    };
    let id = block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
    Message { role: Role::Tool, content, tool_calls: Vec::new(), tool_call_id: Some(id.to_owned()) }
}

#[cfg(test)]
mod tests {
    use longhaul_llm::wire::{anthropic, openai};

    use super::*;

    fn carried(mut request: ChatRequest, client: Dialect, provider: &str) -> ChatRequest {
        carry_chat(&mut request, client, provider);
        request
    }

    #[test]
    fn fields_pass_within_a_dialect_and_are_chosen_between_two() {
        let body = json!({
            "model": "m", "messages": [{ "role": "user", "content": "hi" }], "stream": true,
            "logprobs": true, "seed": -1, "top_a": 0.5, "tools": [{ "type": "function", "function": { "name": "f", "strict": true } }],
        });
        let request = openai::request_from_json(body).expect("a request");
        let same = carried(request.clone(), Dialect::OpenAi, "openai");
        let names: Vec<&str> = same.extra.keys().map(String::as_str).collect();
        assert_eq!(names, ["logprobs", "seed", "tools", "top_a"]);
        for provider in ["anthropic", "gemini", "sim"] {
            let other = carried(request.clone(), Dialect::OpenAi, provider);
            assert_eq!(other.extra.keys().collect::<Vec<_>>(), ["top_a"]);
            assert_eq!(other.tools[0].name, "f");
        }
    }

    #[test]
    fn blocks_of_one_dialect_become_parts_of_another() {
        let body = json!({
            "model": "m", "max_tokens": 9, "thinking": { "type": "adaptive" }, "top_k": 3,
            "system": [{ "type": "text", "text": "be brief", "cache_control": { "type": "ephemeral" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "tools": [{ "name": "f", "input_schema": { "type": "object" }, "strict": true }, { "type": "web_search", "name": "w" }],
            "messages": [
                { "role": "assistant", "content": [{ "type": "thinking", "thinking": "…", "signature": "s" }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": true },
                    { "type": "image", "source": { "type": "url", "url": "https://x/y.png" }, "cache_control": {} },
                    { "type": "document", "source": { "type": "text", "data": "d" } },
                ]},
            ],
        });
        let request = anthropic::request_from_json(body).expect("a request");
        let other = carried(request, Dialect::Anthropic, "openai");
        assert!(other.extra.is_empty(), "{:?}", other.extra);
        assert_eq!(other.tools.len(), 1);
        assert_eq!(other.tool_choice, Some(ToolChoice::Required));
        let [system, result, user] = other.messages.as_slice() else { panic!("{:?}", other.messages) };
        assert_eq!(system.content, [Part::Text("be brief".to_owned())]);
        assert_eq!((result.role, result.tool_call_id.as_deref()), (Role::Tool, Some("t")));
        assert!(matches!(&user.content[..], [Part::Image(_), Part::Other(_)]), "{:?}", user.content);
    }
}
