//! The body of a generateContent request.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::types::{ChatRequest, Dialect, Message, OutputSchema, Part, Role, Tool, ToolCall, ToolChoice};
use crate::wire::fields::{Fields, unknown, wrong};
use crate::wire::shapes::{SCHEMA_NAME, arguments_object, data_url, merge};
use crate::wire::translate::translated;

/// The model as addresses name it: `models/NAME`.
pub fn model_path(model: &str) -> String {
    if model.contains('/') { model.to_owned() } else { format!("models/{model}") }
}

/// Writes a request. The model goes into the address.
pub fn request_to_json(request: &ChatRequest) -> Result<Value> {
    let request = translated(request, Dialect::Gemini)?;
    let ChatRequest {
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
        model: _,
        dialect: _,
    } = &*request;
    let config = [
        ("maxOutputTokens", max_tokens.map(Value::from)),
        ("temperature", temperature.map(Value::from)),
        ("topP", top_p.map(Value::from)),
        ("stopSequences", (!stop.is_empty()).then(|| json!(stop))),
        ("seed", seed.map(Value::from)),
        ("responseMimeType", schema.as_ref().map(|_| json!("application/json"))),
        ("responseJsonSchema", schema.as_ref().map(|schema| schema.schema.clone())),
    ];
    let config: Map<String, Value> =
        config.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let mut body = Map::new();
    body.insert("contents".to_owned(), turns_to_json(messages));
    let optional = [
        ("systemInstruction", system_to_json(messages)),
        ("generationConfig", (!config.is_empty()).then_some(Value::Object(config))),
        ("tools", (!tools.is_empty()).then(|| tools_to_json(tools))),
        ("toolConfig", tool_choice.as_ref().map(choice_to_json)),
    ];
    body.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    merge(&mut body, extra);
    Ok(Value::Object(body))
}

/// Reads a request for a model. What this crate's types have no place for stays in `extra`, as it came.
pub fn request_from_json(model: &str, value: Value) -> Result<ChatRequest> {
    let mut fields = Fields::new(value, "")?;
    let mut messages = Vec::new();
    if let Some(mut system) = fields.object("systemInstruction")? {
        let parts = system.needed_list("parts")?.into_iter().enumerate();
        let parts =
            parts.map(|(index, part)| part_from_json(part, &format!("systemInstruction.parts[{index}]")));
        let content = parts.collect::<Result<Vec<_>>>()?;
        messages.push(Message::of(Role::System, content));
    }
    let mut calls = Calls::default();
    for (index, turn) in fields.needed_list("contents")?.into_iter().enumerate() {
        turn_from_json(turn, &format!("contents[{index}]"), &mut calls, &mut messages)?;
    }
    let config = fields.object("generationConfig")?;
    let mut config = config.map_or_else(|| Fields::new(json!({}), "generationConfig"), Ok)?;
    let request = ChatRequest {
        model: model.strip_prefix("models/").unwrap_or(model).to_owned(),
        messages,
        max_tokens: config.count("maxOutputTokens")?,
        temperature: config.number("temperature")?,
        top_p: config.number("topP")?,
        stop: config.texts("stopSequences")?,
        seed: config.seed("seed")?,
        schema: schema_from(&mut config),
        tools: tools_from(&mut fields)?,
        tool_choice: choice_from(&mut fields),
        dialect: Dialect::Gemini,
        extra: Map::new(),
    };
    let config = config.rest();
    if !config.is_empty() {
        fields.put_back("generationConfig", Value::Object(config));
    }
    Ok(ChatRequest { extra: fields.rest(), ..request })
}

fn system_to_json(messages: &[Message]) -> Option<Value> {
    let system = messages.iter().filter(|message| message.role == Role::System);
    let parts: Vec<Value> = system.flat_map(|message| message.content.iter().map(part_to_json)).collect();
    (!parts.is_empty()).then(|| json!({ "parts": parts }))
}

/// The turns. Results of tools that follow each other become one turn, as the dialect wants it.
fn turns_to_json(messages: &[Message]) -> Value {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_tool = false;
    for (index, message) in messages.iter().enumerate() {
        let content =
            message.content.iter().filter(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        let parts = content.map(part_to_json);
        match message.role {
            Role::System => continue,
            Role::Tool => {
                let part = result_to_json(message, &messages[..index]);
                match turns.last_mut().and_then(|turn| turn["parts"].as_array_mut()) {
                    Some(parts) if after_tool => parts.push(part),
                    _ => turns.push(json!({ "role": "user", "parts": [part] })),
                }
            }
            Role::User => turns.push(json!({ "role": "user", "parts": parts.collect::<Vec<_>>() })),
            Role::Assistant => {
                let parts: Vec<Value> = parts.chain(message.tool_calls.iter().map(call_to_json)).collect();
                turns.push(json!({ "role": "model", "parts": parts }));
            }
        }
        after_tool = message.role == Role::Tool;
    }
    Value::Array(turns)
}

fn part_to_json(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({ "text": text }),
        Part::Image(url) => match data_url(url) {
            Some((kind, data)) => json!({ "inlineData": { "mimeType": kind, "data": data } }),
            None => json!({ "fileData": { "fileUri": url } }),
        },
        Part::Other(value) => value.clone(),
    }
}

/// A call as turns and answers carry it.
pub(super) fn call_to_json(call: &ToolCall) -> Value {
    json!({ "functionCall": { "id": call.id, "name": call.name, "args": arguments_object(&call.arguments) } })
}

/// A tool's result. The dialect wants the tool's name too, which stands in the call before it.
fn result_to_json(message: &Message, before: &[Message]) -> Value {
    let id = message.tool_call_id.as_deref().unwrap_or_default();
    let call = before.iter().rev().flat_map(|message| &message.tool_calls).find(|call| call.id == id);
    let name = call.map_or(id, |call| call.name.as_str());
    let texts = message.content.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Image(_) | Part::Other(_) => None,
    });
    let text: String = texts.collect();
    let response = match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Value::Object(map),
        _ => json!({ "output": text }),
    };
    json!({ "functionResponse": { "id": id, "name": name, "response": response } })
}

fn tools_to_json(tools: &[Tool]) -> Value {
    let declaration = |tool: &Tool| {
        let mut value = json!({ "name": tool.name, "parametersJsonSchema": tool.parameters });
        if let Some(description) = &tool.description {
            value["description"] = json!(description);
        }
        value
    };
    json!([{ "functionDeclarations": tools.iter().map(declaration).collect::<Vec<_>>() }])
}

fn choice_to_json(choice: &ToolChoice) -> Value {
    let config = match choice {
        ToolChoice::Auto => json!({ "mode": "AUTO" }),
        ToolChoice::None => json!({ "mode": "NONE" }),
        ToolChoice::Required => json!({ "mode": "ANY" }),
        ToolChoice::Named(name) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
    };
    json!({ "functionCallingConfig": config })
}

/// Calls of a conversation. Ids are optional in this dialect: a call without one is numbered, a result without one
/// answers the first open call of its name.
#[derive(Default)]
struct Calls {
    seen: usize,
    open: Vec<(String, String)>,
}

impl Calls {
    fn call(&mut self, value: &Value, at: &str) -> Result<ToolCall> {
        let name =
            value["name"].as_str().ok_or_else(|| wrong(&format!("{at}.name"), "a string", None))?.to_owned();
        let id = value["id"].as_str().map_or_else(|| format!("call_{}", self.seen), str::to_owned);
        self.seen += 1;
        self.open.push((id.clone(), name.clone()));
        let arguments = value.get("args").map_or_else(|| "{}".to_owned(), Value::to_string);
        Ok(ToolCall { id, name, arguments })
    }

    fn result(&mut self, value: &Value, at: &str) -> Result<Message> {
        let name = value["name"].as_str().ok_or_else(|| wrong(&format!("{at}.name"), "a string", None))?;
        let id = value["id"].as_str();
        let found = self.open.iter().position(|(own, called)| id.map_or(called == name, |id| own == id));
        let known = found.map(|at| self.open.remove(at).0);
        let id = id.map(str::to_owned).or(known).unwrap_or_else(|| name.to_owned());
        let text = match &value["response"] {
            Value::Object(map) if map.len() == 1 && map.get("output").is_some_and(Value::is_string) => {
                map["output"].as_str().unwrap_or_default().to_owned()
            }
            other => other.to_string(),
        };
        let content = vec![Part::Text(text)];
        Ok(Message::result(id, content))
    }
}

fn turn_from_json(value: Value, at: &str, calls: &mut Calls, messages: &mut Vec<Message>) -> Result<()> {
    let mut fields = Fields::new(value, at)?;
    let role = match fields.text("role")?.as_deref() {
        None | Some("user" | "function") => Role::User,
        Some("model") => Role::Assistant,
        Some(other) => return Err(unknown(&fields.path("role"), "\"user\" or \"model\"", other)),
    };
    let mut turn = Message::of(role, Vec::new());
    let before = messages.len();
    for (index, part) in fields.needed_list("parts")?.into_iter().enumerate() {
        let at = format!("{at}.parts[{index}]");
        if let Some(call) = part.get("functionCall") {
            turn.tool_calls.push(calls.call(call, &format!("{at}.functionCall"))?);
        } else if let Some(result) = part.get("functionResponse") {
            messages.push(calls.result(result, &format!("{at}.functionResponse"))?);
        } else {
            turn.content.push(part_from_json(part, &at)?);
        }
    }
    let only_results = messages.len() > before && turn.content.is_empty() && turn.tool_calls.is_empty();
    if !only_results {
        messages.push(turn);
    }
    Ok(())
}

fn part_from_json(value: Value, at: &str) -> Result<Part> {
    let mut fields = Fields::new(value, at)?;
    if fields.peek("text").is_some() && fields.has_only(&["text"]) {
        return Ok(Part::Text(fields.needed_text("text")?));
    }
    let value = Value::Object(fields.rest());
    let inline = &value["inlineData"];
    if let (Some(kind), Some(data)) = (inline["mimeType"].as_str(), inline["data"].as_str())
        && kind.starts_with("image/")
    {
        return Ok(Part::Image(format!("data:{kind};base64,{data}")));
    }
    let file = &value["fileData"];
    match file["fileUri"].as_str() {
        Some(url) if file["mimeType"].is_null() => Ok(Part::Image(url.to_owned())),
        _ => Ok(Part::Other(value)),
    }
}

fn schema_from(config: &mut Fields) -> Option<OutputSchema> {
    let schema = match config.take("responseJsonSchema") {
        Some(schema) => schema,
        None => lower_types(config.take("responseSchema")?),
    };
    config.take("responseMimeType");
    Some(OutputSchema { name: SCHEMA_NAME.to_owned(), schema, strict: true })
}

/// The older form of schemas writes types in capitals.
fn lower_types(schema: Value) -> Value {
    match schema {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| match value {
                    Value::String(kind) if key == "type" => (key, Value::String(kind.to_lowercase())),
                    other => (key, lower_types(other)),
                })
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(lower_types).collect(),
        other => other,
    }
}

/// Tools, if all are plain functions; a list with others in it is passed on as it came.
fn tools_from(fields: &mut Fields) -> Result<Vec<Tool>> {
    let plain =
        |tool: &Value| tool.as_object().is_none_or(|map| map.keys().all(|key| key == "functionDeclarations"));
    if fields.peek("tools").and_then(Value::as_array).is_some_and(|tools| !tools.iter().all(plain)) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (index, group) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut group = Fields::new(group, &format!("tools[{index}]"))?;
        for (place, tool) in group.needed_list("functionDeclarations")?.into_iter().enumerate() {
            let mut tool = Fields::new(tool, &format!("tools[{index}].functionDeclarations[{place}]"))?;
            let parameters = tool.take("parametersJsonSchema");
            let parameters = parameters.or_else(|| tool.take("parameters").map(lower_types));
            let parameters = parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
            let description = tool.text("description")?;
            found.push(Tool { name: tool.needed_text("name")?, description, parameters, strict: None });
        }
    }
    Ok(found)
}

/// The choice, unless it says more than our type can.
fn choice_from(fields: &mut Fields) -> Option<ToolChoice> {
    let config = &fields.peek("toolConfig")?["functionCallingConfig"];
    let names = config["allowedFunctionNames"].as_array().map_or(&[][..], Vec::as_slice);
    let choice = match (config["mode"].as_str()?, names) {
        ("AUTO", []) => ToolChoice::Auto,
        ("NONE", []) => ToolChoice::None,
        ("ANY", []) => ToolChoice::Required,
        ("ANY", [name]) => ToolChoice::Named(name.as_str()?.to_owned()),
        _ => return None,
    };
    fields.take("toolConfig");
    Some(choice)
}
