//! From a request for a response to one for a chat completion, which says the same in other words.

use serde_json::{Map, Value, json};

use crate::types::Dialect;
use crate::wire::FieldError;
use crate::wire::openai::check_choices;

/// Fields that refer to what was stored. Nothing is.
const STATEFUL: [&str; 3] = ["previous_response_id", "conversation", "prompt"];
/// Fields that mean something else in a chat completion, or are put into its words below; what it does not know stays behind.
const NOT_PASSED: [&str; 6] =
    ["moderation", "store", "stream_options", "tool_choice", "tools", "top_logprobs"];

/// The fields of a request, if it needs no memory.
pub fn fields_of(body: Value) -> Result<Map<String, Value>, FieldError> {
    let Value::Object(fields) = body else {
        return Err(FieldError { field: None, text: "the body: expected an object".to_owned() });
    };
    if let Some(name) =
        STATEFUL.into_iter().find(|name| fields.get(*name).is_some_and(|value| !value.is_null()))
    {
        let text = format!("{name}: responses are not stored here; send the whole conversation as input");
        return Err(FieldError::at(name, text));
    }
    if fields.get("background") == Some(&Value::Bool(true)) {
        let text = "background: responses are not stored here; use a batch for work that nobody waits for";
        return Err(FieldError::at("background", text));
    }
    Ok(fields)
}

/// The chat completion that a line of a batch asks for.
pub fn chat_of_line(body: Value) -> Result<Value, FieldError> {
    let fields = fields_of(body)?;
    check_choices(&fields)?;
    chat_of(&fields)
}

/// The chat completion that a request asks for.
pub fn chat_of(fields: &Map<String, Value>) -> Result<Value, FieldError> {
    let is_passed = |name: &str| Dialect::OpenAi.knows(name) && !NOT_PASSED.contains(&name);
    let passed = fields.iter().filter(|(name, _)| is_passed(name));
    let mut chat: Map<String, Value> = passed.map(|(name, value)| (name.clone(), value.clone())).collect();
    let field = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let optional = [
        ("max_completion_tokens", field("max_output_tokens").cloned()),
        ("reasoning_effort", field("reasoning").map(|reasoning| reasoning["effort"].clone())),
        ("response_format", field("text").and_then(|text| format_of(&text["format"]))),
        ("verbosity", field("text").map(|text| text["verbosity"].clone())),
        ("tool_choice", field("tool_choice").map(choice_of)),
        ("tools", field("tools").map(tools_of).transpose()?),
    ];
    let given = optional.into_iter().filter_map(|(name, value)| Some((name, value?)));
    chat.extend(given.filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)));
    let mut messages = Vec::new();
    if let Some(instructions) = field("instructions").and_then(Value::as_str) {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    match field("input") {
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                add_item(&mut messages, item, index)?;
            }
        }
        _ => return Err(FieldError::at("input", "input: expected a string or a list of items")),
    }
    chat.insert("messages".to_owned(), Value::Array(messages));
    Ok(Value::Object(chat))
}

fn add_item(messages: &mut Vec<Value>, item: &Value, index: usize) -> Result<(), FieldError> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            messages.push(json!({ "role": item["role"], "content": content_of(&item["content"]) }));
        }
        "function_call" => {
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            // Calls belong to the turn of the assistant that made them.
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) => match last["tool_calls"].as_array_mut() {
                    Some(calls) => calls.push(call),
                    None => last["tool_calls"] = json!([call]),
                },
                None => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
            }
        }
        "function_call_output" => {
            let output = content_of(&item["output"]);
            messages.push(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": output }));
        }
        // A model's own notes, sealed for itself.
        "reasoning" => {}
        other => {
            let at = format!("input[{index}]");
            let text =
                format!("{at}: items of type {other:?} are not known here; send messages and function calls");
            return Err(FieldError::at(at, text));
        }
    }
    Ok(())
}

fn content_of(content: &Value) -> Value {
    let Value::Array(parts) = content else { return content.clone() };
    let part = |part: &Value| match part["type"].as_str().unwrap_or_default() {
        "input_text" | "output_text" | "text" => json!({ "type": "text", "text": part["text"] }),
        "input_image" => {
            let mut image = json!({ "url": part["image_url"] });
            if let Some(detail) = part["detail"].as_str().filter(|detail| *detail != "auto") {
                image["detail"] = json!(detail);
            }
            json!({ "type": "image_url", "image_url": image })
        }
        "input_file" => {
            let mut file = part.clone();
            if let Some(file) = file.as_object_mut() {
                file.shift_remove("type");
            }
            json!({ "type": "file", "file": file })
        }
        _ => part.clone(),
    };
    parts.iter().map(part).collect()
}

fn format_of(format: &Value) -> Option<Value> {
    match format["type"].as_str()? {
        "json_schema" => {
            let mut schema = format.clone();
            schema.as_object_mut()?.shift_remove("type");
            Some(json!({ "type": "json_schema", "json_schema": schema }))
        }
        "json_object" => Some(json!({ "type": "json_object" })),
        _ => None,
    }
}

fn choice_of(choice: &Value) -> Value {
    match choice["name"].as_str() {
        Some(name) if choice["type"] == "function" => {
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => choice.clone(),
    }
}

fn tools_of(tools: &Value) -> Result<Value, FieldError> {
    let tools = tools.as_array().ok_or_else(|| FieldError::at("tools", "tools: expected a list"))?;
    let tool = |(index, tool): (usize, &Value)| {
        let at = format!("tools[{index}]");
        if tool["type"] != "function" {
            let text = format!("{at}: only functions are possible here, and nothing that OpenAI itself runs");
            return Err(FieldError::at(at, text));
        }
        let known = ["name", "description", "parameters", "strict"];
        let function = known.into_iter().filter_map(|name| Some((name.to_owned(), tool.get(name)?.clone())));
        let function: Map<String, Value> = function.filter(|(_, value)| !value.is_null()).collect();
        Ok(json!({ "type": "function", "function": function }))
    };
    tools.iter().enumerate().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let body = json!({
            "model": "m", "instructions": "be brief", "top_a": 1,
            "input": [
                { "role": "user", "content": [{ "type": "input_text", "text": "weather?" }] },
                { "type": "reasoning", "id": "rs", "summary": [] },
                { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
                { "type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c1", "output": "rain" },
            ],
            "text": { "format": { "type": "json_schema", "name": "n", "schema": {}, "strict": true } },
            "tools": [{ "type": "function", "name": "f", "parameters": {} }],
        });
        let fields = fields_of(body).expect("no memory needed");
        let chat = chat_of(&fields).expect("known items");
        let roles: Vec<&str> = chat["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .filter_map(|message| message["role"].as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(chat["messages"][2]["tool_calls"][1]["id"], "c2");
        assert_eq!(chat["response_format"]["json_schema"]["name"], "n");
        assert_eq!(chat["tools"][0]["function"]["name"], "f");
        assert_eq!((chat.get("top_a"), chat.get("input")), (None, None));
    }

    #[test]
    fn what_needs_memory_or_tools_of_others_is_refused_by_its_field() {
        let with = |name: &str, value: Value| {
            let mut body = json!({ "model": "m", "input": "hi" });
            body[name] = value;
            fields_of(body).and_then(|fields| chat_of(&fields)).expect_err(name)
        };
        let rows = [
            ("previous_response_id", json!("resp_1"), "previous_response_id"),
            ("background", json!(true), "background"),
            ("tools", json!([{ "type": "web_search" }]), "tools[0]"),
            ("input", json!([{ "type": "item_reference", "id": "x" }]), "input[0]"),
            ("input", json!(7), "input"),
        ];
        for (name, value, field) in rows {
            assert_eq!(with(name, value).field.as_deref(), Some(field));
        }
    }
}
