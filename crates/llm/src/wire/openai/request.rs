//! The body of a chat request.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::types::{ChatRequest, Dialect, Message, OutputSchema, Part, Role, Tool, ToolCall, ToolChoice};
use crate::wire::FieldError;
use crate::wire::fields::{Fields, unknown, wrong};
use crate::wire::shapes::{merge, only_text};
use crate::wire::translate::translated;

/// The name under which `max_tokens` is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitName {
    /// Known to every engine that speaks the dialect.
    MaxTokens,
    /// OpenAI's own, which newer models of theirs insist on and some engines ignore.
    MaxCompletionTokens,
}

/// Writes a chat request.
pub fn request_to_json(request: &ChatRequest, limit: LimitName) -> Result<Value> {
    let request = translated(request, Dialect::OpenAi)?;
    let ChatRequest {
        model,
        messages,
        max_tokens,
        temperature,
        top_p,
        stop,
        seed,
        schema,
        tools,
        tool_choice,
        extra,
        dialect: _,
    } = &*request;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("messages".to_owned(), messages.iter().map(message_to_json).collect());
    let limit_name = match limit {
        LimitName::MaxTokens => "max_tokens",
        LimitName::MaxCompletionTokens => "max_completion_tokens",
    };
    let optional = [
        (limit_name, max_tokens.map(Value::from)),
        ("temperature", temperature.map(Value::from)),
        ("top_p", top_p.map(Value::from)),
        ("stop", (!stop.is_empty()).then(|| json!(stop))),
        ("seed", seed.map(Value::from)),
        ("response_format", schema.as_ref().map(schema_to_json)),
        ("tools", (!tools.is_empty()).then(|| tools.iter().map(tool_to_json).collect())),
        ("tool_choice", tool_choice.as_ref().map(choice_to_json)),
    ];
    body.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    merge(&mut body, extra);
    // Whether an answer is streamed is said by the call, not by the request.
    body.retain(|name, _| name != "stream" && name != "stream_options");
    Ok(Value::Object(body))
}

/// Reads a chat request. What this crate's types have no place for stays in `extra`, as it came.
pub fn request_from_json(value: Value) -> Result<ChatRequest> {
    let mut fields = Fields::new(value, "")?;
    let messages = fields.needed_list("messages")?;
    let messages = messages
        .into_iter()
        .enumerate()
        .map(|(index, message)| message_from_json(message, &format!("messages[{index}]")));
    let messages = messages.collect::<Result<Vec<_>>>()?;
    let newer = fields.count("max_completion_tokens")?;
    let older = fields.count("max_tokens")?;
    Ok(ChatRequest {
        model: fields.needed_text("model")?,
        messages,
        max_tokens: newer.or(older),
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        stop: fields.texts("stop")?,
        seed: fields.seed("seed")?,
        schema: schema_from(&mut fields)?,
        tools: tools_from(&mut fields)?,
        tool_choice: choice_from(&mut fields),
        dialect: Dialect::OpenAi,
        extra: fields.rest(),
    })
}

/// Refuses what would be paid for and not passed on.
pub fn check_choices(fields: &Map<String, Value>) -> std::result::Result<(), FieldError> {
    for name in ["n", "best_of"] {
        if fields.get(name).and_then(Value::as_u64).is_some_and(|count| count > 1) {
            return Err(FieldError::at(name, "one answer a request: send it several times for more"));
        }
    }
    Ok(())
}

fn message_to_json(message: &Message) -> Value {
    let Message { role, content, tool_calls, tool_call_id, extra } = message;
    let role = match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let content = match only_text(content) {
        Some("") if !tool_calls.is_empty() => Value::Null,
        Some(text) => json!(text),
        None => content.iter().map(part_to_json).collect(),
    };
    let mut message = json!({ "role": role, "content": content });
    if !tool_calls.is_empty() {
        message["tool_calls"] = tool_calls.iter().map(call_to_json).collect();
    }
    if let Some(id) = tool_call_id {
        message["tool_call_id"] = json!(id);
    }
    if let Value::Object(fields) = &mut message {
        merge(fields, extra);
    }
    message
}

fn part_to_json(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(url) => json!({ "type": "image_url", "image_url": { "url": url } }),
        Part::Other(value) => value.clone(),
    }
}

/// A call as messages and answers carry it.
pub(super) fn call_to_json(call: &ToolCall) -> Value {
    let ToolCall { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn schema_to_json(schema: &OutputSchema) -> Value {
    let OutputSchema { name, schema, strict } = schema;
    json!({ "type": "json_schema", "json_schema": { "name": name, "schema": schema, "strict": strict } })
}

fn tool_to_json(tool: &Tool) -> Value {
    let mut function = json!({ "name": tool.name, "parameters": tool.parameters });
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    if let Some(strict) = tool.strict {
        function["strict"] = json!(strict);
    }
    json!({ "type": "function", "function": function })
}

fn choice_to_json(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({ "type": "function", "function": { "name": name } }),
    }
}

fn message_from_json(value: Value, at: &str) -> Result<Message> {
    let mut fields = Fields::new(value, at)?;
    let role = match fields.needed_text("role")?.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let expected = "one of system, developer, user, assistant, tool";
            return Err(unknown(&fields.path("role"), expected, other));
        }
    };
    let content = content_from(&mut fields)?;
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    let path = fields.path("tool_calls");
    let calls =
        calls.into_iter().enumerate().map(|(index, call)| call_from_json(call, &format!("{path}[{index}]")));
    let tool_calls = calls.collect::<Result<Vec<_>>>()?;
    let tool_call_id = fields.text("tool_call_id")?;
    if role == Role::Tool && tool_call_id.is_none() {
        return Err(wrong(&fields.path("tool_call_id"), "a string", None));
    }
    // Only an assistant that calls tools may say nothing.
    if content.is_none() && role != Role::Assistant {
        return Err(wrong(&fields.path("content"), "a string or a list of parts", None));
    }
    let content = content.unwrap_or_default();
    let mut extra = fields.rest();
    extra.retain(|_, value| !value.is_null());
    Ok(Message { role, content, tool_calls, tool_call_id, extra })
}

fn content_from(fields: &mut Fields) -> Result<Option<Vec<Part>>> {
    let at = fields.path("content");
    match fields.take("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(vec![Part::Text(text)])),
        Some(Value::Array(parts)) => {
            let part = |(index, part)| part_from_json(part, &format!("{at}[{index}]"));
            parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>>>().map(Some)
        }
        Some(other) => Err(wrong(&at, "a string or a list of parts", Some(&other))),
    }
}

fn part_from_json(value: Value, at: &str) -> Result<Part> {
    let mut fields = Fields::new(value, at)?;
    match fields.needed_word("type")?.as_str() {
        "text" if fields.has_only(&["type", "text"]) => Ok(Part::Text(fields.needed_text("text")?)),
        "image_url" => {
            let image = fields.object("image_url")?;
            image_from(fields.need("image_url", "an object with a url", image)?)
        }
        _ => Ok(Part::Other(Value::Object(fields.rest()))),
    }
}

/// A picture; one with further wishes, such as its detail, is kept as it came.
fn image_from(image: Fields) -> Result<Part> {
    let url = image.needed_word("url")?;
    if image.has_only(&["url"]) {
        return Ok(Part::Image(url));
    }
    Ok(Part::Other(json!({ "type": "image_url", "image_url": image.rest() })))
}

fn call_from_json(value: Value, at: &str) -> Result<ToolCall> {
    let mut fields = Fields::new(value, at)?;
    let kind = fields.text("type")?.unwrap_or_else(|| "function".to_owned());
    if kind != "function" {
        return Err(unknown(&fields.path("type"), "\"function\"", &kind));
    }
    let id = fields.needed_text("id")?;
    let function = fields.object("function")?;
    let mut function = fields.need("function", "an object", function)?;
    Ok(ToolCall { id, name: function.needed_text("name")?, arguments: function.needed_text("arguments")? })
}

fn schema_from(fields: &mut Fields) -> Result<Option<OutputSchema>> {
    let kind = fields.peek("response_format").and_then(|format| format["type"].as_str());
    if kind != Some("json_schema") {
        return Ok(None);
    }
    let format = fields.object("response_format")?;
    let mut format = fields.need("response_format", "an object", format)?;
    let inner = format.object("json_schema")?;
    let mut inner = format.need("json_schema", "an object", inner)?;
    let schema = inner.take("schema");
    let mut schema = inner.need("schema", "an object", schema)?;
    // The schema can carry the description as well, and our type has no other place for it.
    if let (Some(description), Some(map)) = (inner.take("description"), schema.as_object_mut()) {
        map.entry("description").or_insert(description);
    }
    let strict = inner.take("strict").is_some_and(|strict| strict == true);
    Ok(Some(OutputSchema { name: inner.needed_text("name")?, schema, strict }))
}

/// Tools, if all are plain functions; a list with others in it is passed on as it came.
fn tools_from(fields: &mut Fields) -> Result<Vec<Tool>> {
    let plain = |tool: &Value| {
        let keys = |value: &Value, known: &[&str]| {
            value.as_object().is_none_or(|map| map.keys().all(|key| known.contains(&key.as_str())))
        };
        tool["type"] == "function"
            && keys(tool, &["type", "function"])
            && keys(&tool["function"], &["name", "description", "parameters", "strict"])
    };
    if fields.peek("tools").and_then(Value::as_array).is_some_and(|tools| !tools.iter().all(plain)) {
        return Ok(Vec::new());
    }
    let path = fields.path("tools");
    let tools = fields.list("tools")?.unwrap_or_default();
    let tool = |(index, tool)| {
        let mut tool = Fields::new(tool, &format!("{path}[{index}]"))?;
        let function = tool.object("function")?;
        let mut function = tool.need("function", "an object", function)?;
        let name = function.needed_text("name")?;
        let description = function.text("description")?;
        let parameters =
            function.take("parameters").unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
        Ok(Tool { name, description, parameters, strict: function.flag("strict")? })
    };
    tools.into_iter().enumerate().map(tool).collect()
}

fn choice_from(fields: &mut Fields) -> Option<ToolChoice> {
    let choice = fields.peek("tool_choice")?;
    let choice = match choice.as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required") => ToolChoice::Required,
        _ => ToolChoice::Named(choice["function"]["name"].as_str()?.to_owned()),
    };
    fields.take("tool_choice");
    Some(choice)
}
