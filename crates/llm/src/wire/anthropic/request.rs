//! The body of a message request.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::types::{ChatRequest, Dialect, Message, OutputSchema, Part, Role, Tool, ToolCall, ToolChoice};
use crate::wire::fields::{Fields, unknown, wrong};
use crate::wire::shapes::{SCHEMA_NAME, arguments_object, data_url, merge, only_text};
use crate::wire::translate::translated;

/// What is sent as `max_tokens` where the request has none: this dialect insists on one.
pub const MAX_TOKENS_DEFAULT: u32 = 8192;

/// Fields of a call and of a result that our types hold.
const CALL: [&str; 4] = ["type", "id", "name", "input"];
const RESULT: [&str; 3] = ["type", "tool_use_id", "content"];

/// Writes a request. A seed has no place in this dialect.
pub fn request_to_json(request: &ChatRequest) -> Result<Value> {
    let request = translated(request, Dialect::Anthropic)?;
    let ChatRequest {
        model,
        messages,
        max_tokens,
        temperature,
        top_p,
        stop,
        schema,
        tools,
        tool_choice,
        extra,
        seed: _,
        dialect: _,
    } = &*request;
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("max_tokens".to_owned(), json!(max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)));
    body.insert("messages".to_owned(), turns_to_json(messages));
    let optional = [
        ("system", system_to_json(messages)),
        ("temperature", temperature.map(Value::from)),
        ("top_p", top_p.map(Value::from)),
        ("stop_sequences", (!stop.is_empty()).then(|| json!(stop))),
        ("output_config", schema.as_ref().map(schema_to_json)),
        ("tools", (!tools.is_empty()).then(|| tools.iter().map(tool_to_json).collect())),
        ("tool_choice", tool_choice.as_ref().map(choice_to_json)),
    ];
    body.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    merge(&mut body, extra);
    // Whether an answer is streamed is said by the call, not by the request.
    body.retain(|name, _| name != "stream");
    Ok(Value::Object(body))
}

/// Reads a request. What this crate's types have no place for stays in `extra`, as it came.
pub fn request_from_json(value: Value) -> Result<ChatRequest> {
    let mut fields = Fields::new(value, "")?;
    let mut messages = Vec::new();
    if let Some(content) = content_from(&mut fields, "system")? {
        let content = content.into_iter().enumerate();
        let parts = content.map(|(index, block)| part_from_json(block, &format!("system[{index}]")));
        let content = parts.collect::<Result<Vec<_>>>()?;
        messages.push(Message::of(Role::System, content));
    }
    for (index, turn) in fields.needed_list("messages")?.into_iter().enumerate() {
        turn_from_json(turn, &format!("messages[{index}]"), &mut messages)?;
    }
    let max_tokens = fields.count("max_tokens")?;
    Ok(ChatRequest {
        model: fields.needed_text("model")?,
        messages,
        max_tokens: Some(fields.need("max_tokens", "a whole number", max_tokens)?),
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        stop: fields.texts("stop_sequences")?,
        seed: None,
        schema: schema_from(&mut fields)?,
        tools: tools_from(&mut fields)?,
        tool_choice: choice_from(&mut fields),
        dialect: Dialect::Anthropic,
        extra: fields.rest(),
    })
}

/// The instructions that stand before all turns.
fn system_to_json(messages: &[Message]) -> Option<Value> {
    let parts: Vec<Part> = messages
        .iter()
        .take_while(|message| message.role == Role::System)
        .flat_map(|message| message.content.iter().cloned())
        .collect();
    if parts.is_empty() {
        return None;
    }
    Some(only_text(&parts).map_or_else(|| parts.iter().map(part_to_json).collect(), |text| json!(text)))
}

/// The turns. Results of tools that follow each other become one turn of the user, as the dialect wants it.
fn turns_to_json(messages: &[Message]) -> Value {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_tool = false;
    for message in messages.iter().skip_while(|message| message.role == Role::System) {
        match message.role {
            Role::System => turns.push(json!({ "role": "system", "content": content_to_json(message) })),
            Role::Tool => {
                let block = result_to_json(message);
                match turns.last_mut().and_then(|turn| turn["content"].as_array_mut()) {
                    Some(blocks) if after_tool => blocks.push(block),
                    _ => turns.push(json!({ "role": "user", "content": [block] })),
                }
            }
            Role::User => turns.push(json!({ "role": "user", "content": content_to_json(message) })),
            Role::Assistant => {
                turns.push(json!({ "role": "assistant", "content": content_to_json(message) }));
            }
        }
        after_tool = message.role == Role::Tool;
    }
    Value::Array(turns)
}

fn content_to_json(message: &Message) -> Value {
    if message.tool_calls.is_empty()
        && let Some(text) = only_text(&message.content)
    {
        return json!(text);
    }
    // An empty text block is refused by the service.
    let parts = message.content.iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty()));
    parts.map(part_to_json).chain(message.tool_calls.iter().map(call_to_json)).collect()
}

fn result_to_json(message: &Message) -> Value {
    let content = match only_text(&message.content) {
        Some(text) => json!(text),
        None => message.content.iter().map(part_to_json).collect(),
    };
    json!({ "type": "tool_result", "tool_use_id": message.tool_call_id, "content": content })
}

fn part_to_json(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "type": "text", "text": text }),
        Part::Image(url) => {
            let source = match data_url(url) {
                Some((kind, data)) => json!({ "type": "base64", "media_type": kind, "data": data }),
                None => json!({ "type": "url", "url": url }),
            };
            json!({ "type": "image", "source": source })
        }
        Part::Other(value) => value.clone(),
    }
}

/// A call as turns and answers carry it.
pub(super) fn call_to_json(call: &ToolCall) -> Value {
    json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(&call.arguments) })
}

fn schema_to_json(schema: &OutputSchema) -> Value {
    json!({ "format": { "type": "json_schema", "schema": schema.schema } })
}

fn tool_to_json(tool: &Tool) -> Value {
    let mut value = json!({ "name": tool.name, "input_schema": tool.parameters });
    if let Some(description) = &tool.description {
        value["description"] = json!(description);
    }
    if let Some(strict) = tool.strict {
        value["strict"] = json!(strict);
    }
    value
}

fn choice_to_json(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Named(name) => json!({ "type": "tool", "name": name }),
    }
}

/// Blocks; a plain string is one block of text.
fn content_from(fields: &mut Fields, key: &str) -> Result<Option<Vec<Value>>> {
    match fields.take(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(vec![json!({ "type": "text", "text": text })])),
        Some(Value::Array(blocks)) => Ok(Some(blocks)),
        Some(other) => Err(wrong(&fields.path(key), "a string or a list of blocks", Some(&other))),
    }
}

/// Reads a turn: results of tools become messages of their own, before the rest of the turn.
fn turn_from_json(value: Value, at: &str, messages: &mut Vec<Message>) -> Result<()> {
    let mut fields = Fields::new(value, at)?;
    let role = match fields.needed_text("role")?.as_str() {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => return Err(unknown(&fields.path("role"), "one of user, assistant, system", other)),
    };
    let blocks = content_from(&mut fields, "content")?;
    let blocks = fields.need("content", "a string or a list of blocks", blocks)?;
    let mut turn = Message::of(role, Vec::new());
    let before = messages.len();
    for (index, block) in blocks.into_iter().enumerate() {
        let at = format!("{at}.content[{index}]");
        match block["type"].as_str() {
            Some("tool_use") if has_only(&block, &CALL) => turn.tool_calls.push(call_from_json(block, &at)?),
            Some("tool_result") if has_only(&block, &RESULT) => messages.push(result_from_json(block, &at)?),
            _ => turn.content.push(part_from_json(block, &at)?),
        }
    }
    let only_results = messages.len() > before && turn.content.is_empty() && turn.tool_calls.is_empty();
    if !only_results {
        messages.push(turn);
    }
    Ok(())
}

/// A call or a result with further fields, such as `is_error`, is passed on as it came.
fn has_only(block: &Value, known: &[&str]) -> bool {
    block.as_object().is_some_and(|map| map.keys().all(|key| known.contains(&key.as_str())))
}

fn result_from_json(block: Value, at: &str) -> Result<Message> {
    let mut fields = Fields::new(block, at)?;
    let id = fields.needed_text("tool_use_id")?;
    let parts = content_from(&mut fields, "content")?.unwrap_or_default();
    let parts = parts.into_iter().enumerate();
    let parts = parts.map(|(index, block)| part_from_json(block, &format!("{at}.content[{index}]")));
    let content = parts.collect::<Result<Vec<_>>>()?;
    Ok(Message::result(id, content))
}

fn part_from_json(block: Value, at: &str) -> Result<Part> {
    let mut fields = Fields::new(block, at)?;
    let kind = fields.needed_word("type")?;
    if kind == "text" && fields.has_only(&["type", "text"]) {
        return Ok(Part::Text(fields.needed_text("text")?));
    }
    if kind == "image" && fields.has_only(&["type", "source"]) {
        let source = fields.peek("source").cloned().unwrap_or_default();
        match (source["type"].as_str(), source["media_type"].as_str(), source["data"].as_str()) {
            (Some("base64"), Some(kind), Some(data)) => {
                return Ok(Part::Image(format!("data:{kind};base64,{data}")));
            }
            (Some("url"), _, _) if source["url"].is_string() => {
                return Ok(Part::Image(source["url"].as_str().unwrap_or_default().to_owned()));
            }
            _ => {}
        }
    }
    Ok(Part::Other(Value::Object(fields.rest())))
}

fn call_from_json(block: Value, at: &str) -> Result<ToolCall> {
    let mut fields = Fields::new(block, at)?;
    let arguments = fields.take("input").unwrap_or_else(|| json!({})).to_string();
    Ok(ToolCall { id: fields.needed_text("id")?, name: fields.needed_text("name")?, arguments })
}

fn schema_from(fields: &mut Fields) -> Result<Option<OutputSchema>> {
    let Some(mut config) = fields.object("output_config")? else { return Ok(None) };
    let is_schema = config.peek("format").is_some_and(|format| format["type"] == "json_schema");
    let schema = match config.peek("format") {
        Some(format) if is_schema => Some(format["schema"].clone()),
        _ => None,
    };
    if schema.as_ref().is_some_and(|schema| !schema.is_object()) {
        return Err(wrong("output_config.format.schema", "an object", schema.as_ref()));
    }
    if is_schema {
        config.take("format");
    }
    let rest = config.rest();
    if !rest.is_empty() {
        fields.put_back("output_config", Value::Object(rest));
    }
    Ok(schema.map(|schema| OutputSchema { name: SCHEMA_NAME.to_owned(), schema, strict: true }))
}

/// Tools, if all are plain functions; a list with others in it is passed on as it came.
fn tools_from(fields: &mut Fields) -> Result<Vec<Tool>> {
    let known = ["name", "description", "input_schema", "strict"];
    let plain = |tool: &Value| {
        tool.as_object().is_none_or(|map| {
            map.iter()
                .all(|(key, value)| known.contains(&key.as_str()) || (key == "type" && value == "custom"))
        })
    };
    if fields.peek("tools").and_then(Value::as_array).is_some_and(|tools| !tools.iter().all(plain)) {
        return Ok(Vec::new());
    }
    let tools = fields.list("tools")?.unwrap_or_default();
    let tool = |(index, tool)| {
        let mut tool = Fields::new(tool, &format!("tools[{index}]"))?;
        let parameters = tool.take("input_schema");
        let parameters = tool.need("input_schema", "an object", parameters)?;
        let (description, strict) = (tool.text("description")?, tool.flag("strict")?);
        Ok(Tool { name: tool.needed_text("name")?, description, parameters, strict })
    };
    tools.into_iter().enumerate().map(tool).collect()
}

/// The choice, unless it says more than our type can.
fn choice_from(fields: &mut Fields) -> Option<ToolChoice> {
    let choice = fields.peek("tool_choice")?;
    if choice.as_object()?.keys().any(|key| key != "type" && key != "name") {
        return None;
    }
    let choice = match choice["type"].as_str()? {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(choice["name"].as_str()?.to_owned()),
        _ => return None,
    };
    fields.take("tool_choice");
    Some(choice)
}
