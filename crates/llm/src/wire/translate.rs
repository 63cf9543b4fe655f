//! Translates requests between dialects: the one place that decides what reaches a provider whose dialect differs from that of the
//! request. Every encoder calls it, so direct calls, runs and batches are translated alike.
//!
//! Within a dialect everything passes unchanged. Between two, a field with a counterpart is translated; a field that only the
//! provider's dialect has is meant for it and passes; all other fields are dropped. Content without a counterpart is
//! refused: an answer to half of a question looks like an answer.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::fields::unknown;
use super::shapes::data_url;
use crate::error::{Error, Result};
use crate::types::{ChatRequest, Dialect, Message, Part, Role, Tool, ToolCall, ToolChoice};

/// Fields of a chat completion.
const OPENAI: &str = "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens \
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key \
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop \
    store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options";

/// Fields of a message request. The newest SDK leaves sampling out of its types; the service still takes it.
const ANTHROPIC: &str = "cache_control container context_management diagnostics inference_geo max_tokens mcp_servers messages \
    metadata model output_config service_tier speed stop_sequences stream system temperature thinking tool_choice tools top_k \
    top_p user_profile_id workspace_id";

/// Fields of a generateContent request.
const GEMINI: &str = "cachedContent contents generationConfig labels model safetySettings serviceTier systemInstruction \
    toolConfig tools";

impl Dialect {
    /// Whether a request in this dialect may have a field of that name.
    pub fn knows(self, field: &str) -> bool {
        let fields = match self {
            Self::OpenAi => OPENAI,
            Self::Anthropic => ANTHROPIC,
            Self::Gemini => GEMINI,
        };
        fields.split(' ').any(|known| known == field)
    }

    /// Whether a field of a request in OpenAI's dialect reaches a provider of this dialect, unchanged or translated.
    pub fn takes(self, field: &str) -> bool {
        match (self, field) {
            (Self::OpenAi, _) | (Self::Anthropic, "parallel_tool_calls") | (Self::Gemini, "top_k") => true,
            (Self::Anthropic | Self::Gemini, _) => self.knows(field) && !Self::OpenAi.knows(field),
        }
    }
}

/// The request in a dialect; an error names what has no counterpart there.
pub fn translated(request: &ChatRequest, to: Dialect) -> Result<Cow<'_, ChatRequest>> {
    if request.dialect == to {
        return Ok(Cow::Borrowed(request));
    }
    let mut request = plain(request);
    let from = std::mem::replace(&mut request.dialect, to);
    let mut extra = counterparts(&request, to);
    for (name, value) in std::mem::take(&mut request.extra) {
        if to.knows(&name) && !from.knows(&name) {
            extra.entry(name).or_insert(value);
        }
    }
    request.extra = extra;
    for message in &mut request.messages {
        translate_parts(message, to)?;
    }
    if to == Dialect::Anthropic {
        // Their older models accept instructions only before all turns.
        request.messages.sort_by_key(|message| message.role != Role::System);
    }
    Ok(Cow::Owned(request))
}

/// The request with its tools, its choice of them and its content in our types wherever they fit. Tools that are not functions
/// are dropped: only their own provider runs them.
pub fn plain(request: &ChatRequest) -> ChatRequest {
    let mut request = request.clone();
    if let Some(Value::Array(tools)) = request.extra.shift_remove("tools") {
        request.tools = tools.iter().filter_map(|tool| tool_of(tool, request.dialect)).collect();
    }
    if request.dialect == Dialect::Anthropic
        && let Some(choice) = request.extra.get("tool_choice")
    {
        request.tool_choice = choice_of(choice);
    }
    let is_there = |name: &String| request.tools.iter().any(|tool| tool.name == *name);
    let is_left_behind = match &request.tool_choice {
        Some(ToolChoice::Named(name)) => !is_there(name),
        _ => request.tools.is_empty(),
    };
    if is_left_behind {
        request.tool_choice = None;
    }
    request.messages = request.messages.into_iter().flat_map(plain_message).collect();
    request
}

/// Fields that every dialect expresses in its own way.
fn counterparts(request: &ChatRequest, to: Dialect) -> Map<String, Value> {
    let ChatRequest { extra, tools, tool_choice, .. } = request;
    let alone = extra.get("parallel_tool_calls") == Some(&json!(false))
        || extra.get("tool_choice").is_some_and(|choice| choice["disable_parallel_tool_use"] == true);
    let alone = alone && !tools.is_empty() && *tool_choice != Some(ToolChoice::None);
    let mut found = Map::new();
    match to {
        Dialect::OpenAi if alone => _ = found.insert("parallel_tool_calls".to_owned(), json!(false)),
        Dialect::Anthropic if alone => {
            let choice = match tool_choice {
                // Merged over the choice that the encoder writes.
                Some(_) => json!({ "disable_parallel_tool_use": true }),
                None => json!({ "type": "auto", "disable_parallel_tool_use": true }),
            };
            found.insert("tool_choice".to_owned(), choice);
        }
        Dialect::Gemini => {
            let mut config = Map::new();
            if extra.get("response_format").is_some_and(|format| format["type"] == "json_object") {
                config.insert("responseMimeType".to_owned(), json!("application/json"));
            }
            config.extend(extra.get("top_k").map(|count| ("topK".to_owned(), count.clone())));
            if !config.is_empty() {
                found.insert("generationConfig".to_owned(), Value::Object(config));
            }
        }
        Dialect::OpenAi | Dialect::Anthropic => {}
    }
    found
}

fn tool_of(tool: &Value, dialect: Dialect) -> Option<Tool> {
    let (function, parameters) = match dialect {
        Dialect::OpenAi => (tool.get("function")?, "parameters"),
        Dialect::Anthropic => (tool.get("input_schema").map(|_| tool)?, "input_schema"),
        Dialect::Gemini => return None,
    };
    Some(Tool {
        name: function["name"].as_str()?.to_owned(),
        description: function["description"].as_str().map(str::to_owned),
        parameters: function.get(parameters).cloned().unwrap_or_else(|| json!({ "type": "object" })),
        strict: function["strict"].as_bool(),
    })
}

/// A tool choice of Anthropic's that our type cannot express fully.
fn choice_of(choice: &Value) -> Option<ToolChoice> {
    match choice["type"].as_str()? {
        "auto" => Some(ToolChoice::Auto),
        "none" => Some(ToolChoice::None),
        "any" => Some(ToolChoice::Required),
        "tool" => Some(ToolChoice::Named(choice["name"].as_str()?.to_owned())),
        _ => None,
    }
}

/// A message with its parts in our types. Tool results that our types cannot express become messages before it.
fn plain_message(mut message: Message) -> Vec<Message> {
    let mut found = Vec::new();
    let had_parts = !message.content.is_empty();
    message.extra.clear();
    for part in std::mem::take(&mut message.content) {
        match part {
            Part::Other(Value::Object(part)) if kind_of(&part) == "tool_result" => {
                found.push(result_of(&part));
            }
            Part::Other(Value::Object(part)) if kind_of(&part) == "tool_use" => {
                message.tool_calls.push(call_of(&part));
            }
            part => message.content.extend(plain_part(part)),
        }
    }
    let emptied = had_parts && message.content.is_empty() && message.tool_calls.is_empty();
    if !emptied {
        found.push(message);
    }
    found
}

/// A part in our types; one without a type stays as it is. `None` for the thinking of a model, which only its own provider can use.
fn plain_part(part: Part) -> Option<Part> {
    let Part::Other(Value::Object(part)) = part else { return Some(part) };
    let text = |name: &str| part.get(name).and_then(Value::as_str).map(|text| Part::Text(text.to_owned()));
    let source = |name: &str| part.get("source").and_then(|source| source[name].as_str());
    let plain = match kind_of(&part) {
        "thinking" | "redacted_thinking" => return None,
        "text" => text("text"),
        "refusal" => text("refusal"),
        "image_url" => part
            .get("image_url")
            .and_then(|image| image["url"].as_str())
            .map(|url| Part::Image(url.to_owned())),
        "image" => match (source("url"), source("media_type"), source("data")) {
            (Some(url), ..) => Some(Part::Image(url.to_owned())),
            (None, Some(kind), Some(data)) => Some(Part::Image(format!("data:{kind};base64,{data}"))),
            _ => None,
        },
        "document" if source("type") == Some("text") => {
            source("data").map(|text| Part::Text(text.to_owned()))
        }
        _ => None,
    };
    Some(plain.unwrap_or(Part::Other(Value::Object(part))))
}

fn call_of(block: &Map<String, Value>) -> ToolCall {
    let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let arguments = block.get("input").map_or_else(|| "{}".to_owned(), Value::to_string);
    ToolCall { id: text("id"), name: text("name"), arguments }
}

fn result_of(block: &Map<String, Value>) -> Message {
    let content = match block.get("content") {
        Some(Value::String(text)) => vec![Part::Text(text.clone())],
        Some(Value::Array(parts)) => parts.iter().cloned().map(Part::Other).filter_map(plain_part).collect(),
        _ => Vec::new(),
    };
    let id = block.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
    Message::result(id.to_owned(), content)
}

/// Translates documents and audio into a dialect, and refuses what has no counterpart.
fn translate_parts(message: &mut Message, to: Dialect) -> Result<()> {
    let is_result = message.role == Role::Tool;
    for part in &mut message.content {
        match part {
            Part::Text(_) => {}
            Part::Image(_) if is_result && to != Dialect::Anthropic => {
                return Err(refused(to, "an image in the result of a tool"));
            }
            Part::Image(_) => {}
            Part::Other(value) => {
                let kind = value["type"].as_str().unwrap_or("unknown");
                let found = media_of(value).filter(|_| !is_result).and_then(|media| media_to(&media, to));
                *value = found.ok_or_else(|| refused(to, kind))?;
            }
        }
    }
    Ok(())
}

fn refused(to: Dialect, found: &str) -> Error {
    unknown("messages", &format!("content that {} takes too", to.as_str()), found)
}

/// A document or audio with its media type.
struct Media<'a> {
    kind: &'a str,
    base64: &'a str,
}

fn media_of(part: &Value) -> Option<Media<'_>> {
    match part["type"].as_str()? {
        "file" => {
            let (kind, base64) = data_url(part["file"]["file_data"].as_str()?)?;
            Some(Media { kind, base64 })
        }
        "input_audio" => {
            let kind = if part["input_audio"]["format"] == "wav" { "audio/wav" } else { "audio/mp3" };
            Some(Media { kind, base64: part["input_audio"]["data"].as_str()? })
        }
        "document" => {
            let source = &part["source"];
            Some(Media { kind: source["media_type"].as_str()?, base64: source["data"].as_str()? })
        }
        _ => None,
    }
}

fn media_to(media: &Media<'_>, to: Dialect) -> Option<Value> {
    let Media { kind, base64 } = media;
    match (to, *kind) {
        (Dialect::OpenAi, "application/pdf") => {
            let url = format!("data:{kind};base64,{base64}");
            Some(json!({ "type": "file", "file": { "filename": "document.pdf", "file_data": url } }))
        }
        (Dialect::OpenAi, "audio/wav") => {
            Some(json!({ "type": "input_audio", "input_audio": { "data": base64, "format": "wav" } }))
        }
        (Dialect::Anthropic, "application/pdf") => Some(json!({
            "type": "document", "source": { "type": "base64", "media_type": kind, "data": base64 },
        })),
        (Dialect::Gemini, _) => Some(json!({ "inlineData": { "mimeType": kind, "data": base64 } })),
        (Dialect::OpenAi | Dialect::Anthropic, _) => None,
    }
}

fn kind_of(part: &Map<String, Value>) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or_default()
}
