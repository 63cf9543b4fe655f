//! One line of JSON, or of text, as a request. What a line leaves open the run fills in; what it says beyond the fields
//! known here goes to the provider as it is.

use longhaul_llm::Endpoint;
use serde_json::{Map, Value, json};

use super::{PROMPT, PromptLine, Template};
use crate::jobspec::describe;

/// Longest id that a caller may give a line.
const ID_BYTES_MAX: usize = 512;
/// Field names that a message lists.
const NAMES_SHOWN_MAX: usize = 12;
/// Who may speak in a conversation.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Fields of a request whose form is checked; one that is wrong would be refused by every provider, line after line.
const KNOWN: [(&str, Kind); 13] = [
    ("model", Kind::Text),
    ("max_tokens", Kind::Count),
    ("max_completion_tokens", Kind::Count),
    ("temperature", Kind::Number),
    ("top_p", Kind::Number),
    ("seed", Kind::Number),
    ("stop", Kind::Any),
    ("n", Kind::One),
    ("stream", Kind::No),
    ("response_format", Kind::Object),
    ("tools", Kind::List),
    ("tool_choice", Kind::Any),
    ("messages", Kind::Any),
];
/// The field of what is to be embedded.
const INPUT: &str = "input";
/// Fields of a request for embeddings.
const KNOWN_OF_EMBEDDINGS: [&str; 3] = ["input", "dimensions", "encoding_format"];

const HINT_OPENAI: &str =
    r#"a line is {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[…]}}"#;
const HINT_PLAIN: &str =
    r#"a line is "a prompt", {"prompt":"…"} or {"messages":[…]}; --template makes a prompt of other fields"#;
const HINT_EMBED: &str = r#"a line to embed has one text, {"input":"…"}, or several, {"input":["…","…"]}"#;
const HINT_ARRAY: &str = "write one value a line: jq -c '.[]' FILE | longhaul run -";
const HINT_FIELD: &str = "correct the field, or leave it away to use what the run sets";
const HINT_URL: &str = "there are /v1/chat/completions and /v1/embeddings";

/// What is wrong, and what to do about it.
pub(super) type Wrong = (String, &'static str);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Count,
    Number,
    Object,
    List,
    One,
    No,
    Any,
}

impl Kind {
    /// What a value should be, unless it is that.
    fn refusal(self, value: &Value) -> Option<&'static str> {
        let (fits, wanted) = match self {
            Self::Text => (value.as_str().is_some_and(|text| !text.is_empty()), "must be a text"),
            Self::Count => (value.as_u64().is_some_and(|count| count > 0), "must be a whole number above 0"),
            Self::Number => (value.is_number(), "must be a number"),
            Self::Object => (value.is_object(), "must be an object"),
            Self::List => (value.is_array(), "must be a list"),
            // Further answers would be paid for and dropped.
            Self::One => (value.as_u64() == Some(1), "must be 1: a run keeps one answer a prompt"),
            Self::No => (value == &Value::Bool(false), "must be false: a run writes whole answers"),
            Self::Any => (true, ""),
        };
        (!fits && !value.is_null()).then_some(wanted)
    }
}

/// A line for the OpenAI batch API.
pub(super) fn openai_line(text: &str) -> Result<PromptLine, Wrong> {
    let wrong = |text: String| (text, HINT_OPENAI);
    let Value::Object(mut line) = parse(text, HINT_OPENAI)? else {
        return Err(wrong("not a JSON object".to_owned()));
    };
    let Some(custom_id) = line.shift_remove("custom_id") else {
        return Err(wrong("`custom_id` is missing".to_owned()));
    };
    let Value::String(custom_id) = custom_id else {
        return Err(wrong("`custom_id` must be a text".to_owned()));
    };
    check_id("custom_id", &custom_id)?;
    if let Some(method) = line.get("method").filter(|method| *method != "POST") {
        return Err(wrong(format!("`method` is {method}, and must be \"POST\"")));
    }
    let Some(url) = line.get("url").and_then(Value::as_str) else {
        return Err(("`url` is missing".to_owned(), HINT_URL));
    };
    let Some(endpoint) = Endpoint::of_url(url) else {
        return Err((format!("`url` is {url:?}, which a run cannot serve"), HINT_URL));
    };
    let Some(Value::Object(body)) = line.shift_remove("body") else {
        return Err(wrong("`body` must be an object".to_owned()));
    };
    check_body(&body)?;
    match endpoint {
        Endpoint::Chat => check_messages(body.get("messages"))
            .map_err(|(text, hint)| (text.replacen("`messages`", "`body.messages`", 1), hint))?,
        Endpoint::Embeddings => {
            check_input(&body).map_err(|(text, hint)| (text.replacen("`input`", "`body.input`", 1), hint))?;
        }
    }
    Ok(PromptLine { line: 0, custom_id: Some(custom_id), endpoint, body: Value::Object(body), columns: None })
}

/// A text, or an object with a prompt, with messages or with the fields of a template.
pub(super) fn plain_line(
    text: &str,
    endpoint: Endpoint,
    template: Option<&Template>,
) -> Result<PromptLine, Wrong> {
    match parse(text, HINT_PLAIN)? {
        Value::String(prompt) => bare_line(&prompt, endpoint, template),
        Value::Object(mut line) => {
            let custom_id = take_id(&mut line)?;
            if let Some(template) = template {
                return Ok(of_text(custom_id, endpoint, &fill(template, &line)?));
            }
            match endpoint {
                Endpoint::Chat => chat_line(custom_id, line),
                Endpoint::Embeddings => embed_line(custom_id, line),
            }
        }
        Value::Array(_) => Err(("a JSON list is not a prompt".to_owned(), HINT_ARRAY)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            Err(("neither a text nor an object".to_owned(), HINT_PLAIN))
        }
    }
}

/// A bare prompt. A template knows it as the field `prompt`.
pub(super) fn bare_line(
    text: &str,
    endpoint: Endpoint,
    template: Option<&Template>,
) -> Result<PromptLine, Wrong> {
    if text.trim().is_empty() {
        return Err(("the prompt is empty".to_owned(), HINT_PLAIN));
    }
    let prompt = match template {
        Some(template) => template
            .fill(|name| (name == PROMPT).then(|| text.to_owned()))
            .map_err(|name| missing(&name, [PROMPT].into_iter()))?,
        None => text.to_owned(),
    };
    Ok(of_text(None, endpoint, &prompt))
}

/// A request for one text: a turn of the user, or what is to be embedded.
pub(super) fn of_text(custom_id: Option<String>, endpoint: Endpoint, text: &str) -> PromptLine {
    prompt_line(custom_id, endpoint, text_body(endpoint, text))
}

fn text_body(endpoint: Endpoint, text: &str) -> Map<String, Value> {
    Map::from_iter([match endpoint {
        Endpoint::Chat => ("messages".to_owned(), json!([{"role": "user", "content": text}])),
        Endpoint::Embeddings => (INPUT.to_owned(), json!(text)),
    }])
}

fn prompt_line(custom_id: Option<String>, endpoint: Endpoint, body: Map<String, Value>) -> PromptLine {
    PromptLine { line: 0, custom_id, endpoint, body: Value::Object(body), columns: None }
}

/// Puts instructions before what a body says; texts to embed have none.
pub(super) fn with_system(mut line: PromptLine, system: &str) -> PromptLine {
    if let Some(Value::Array(messages)) = line.body.get_mut("messages") {
        messages.insert(0, json!({"role": "system", "content": system}));
    }
    line
}

/// A caller's id, if it can be one.
pub(super) fn check_id(name: &str, id: &str) -> Result<(), Wrong> {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err((
            format!("`{name}` must have 1 to {ID_BYTES_MAX} bytes"),
            "shorten it, or leave it away",
        ));
    }
    Ok(())
}

/// A field that a template needs and a line does not have.
pub(super) fn missing<'a>(name: &str, there: impl Iterator<Item = &'a str>) -> Wrong {
    let text = format!("the template asks for {{{{{name}}}}}, and there is {}", list(there));
    (text, "correct the name in --template; names are taken as they are written")
}

/// Names for a message; a wide table is cut short.
pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return "no field".to_owned();
    }
    let shown = names[..names.len().min(NAMES_SHOWN_MAX)].join(", ");
    if names.len() > NAMES_SHOWN_MAX {
        format!("{shown} and {} more", names.len() - NAMES_SHOWN_MAX)
    } else {
        shown
    }
}

/// The fields of a body that are none of those known here.
pub(super) fn extra_fields(body: &Value) -> impl Iterator<Item = &str> {
    let names = body.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    names.filter(|name| !KNOWN.iter().any(|(known, _)| known == name) && !KNOWN_OF_EMBEDDINGS.contains(name))
}

fn parse(text: &str, hint: &'static str) -> Result<Value, Wrong> {
    let value = serde_json::from_str(text).map_err(|error| {
        // The first line of a list or object that is spread over many.
        let spread = error.is_eof() && matches!(text.trim(), "[" | "{");
        (format!("not JSON: {}", describe(&error)), if spread { HINT_ARRAY } else { hint })
    })?;
    Ok(value)
}

fn take_id(line: &mut Map<String, Value>) -> Result<Option<String>, Wrong> {
    // A template may ask for the id too, so it stays where it is.
    let name = if line.contains_key("custom_id") { "custom_id" } else { "id" };
    let id = match line.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
            return Err((format!("`{name}` must be a text or a number"), HINT_FIELD));
        }
    };
    check_id(name, &id)?;
    Ok(Some(id))
}

fn fill(template: &Template, line: &Map<String, Value>) -> Result<String, Wrong> {
    let value = |name: &str| line.get(name).map(text_of);
    template.fill(value).map_err(|name| missing(&name, line.keys().map(String::as_str)))
}

/// A value as a reader would write it: texts bare, nothing for null, the rest as JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// The request of an object with `prompt` or `input`.
fn embed_line(custom_id: Option<String>, mut line: Map<String, Value>) -> Result<PromptLine, Wrong> {
    for name in ["id", "custom_id"] {
        line.shift_remove(name);
    }
    match (line.shift_remove(PROMPT), line.contains_key(INPUT)) {
        (Some(_), true) => return Err(("`prompt` and `input` exclude each other".to_owned(), HINT_EMBED)),
        (Some(prompt), false) => drop(line.insert(INPUT.to_owned(), prompt)),
        (None, true) => {}
        (None, false) => {
            let there = list(line.keys().map(String::as_str));
            return Err((format!("there is neither `prompt` nor `input`, but {there}"), HINT_EMBED));
        }
    }
    check_input(&line)?;
    check_body(&line)?;
    Ok(prompt_line(custom_id, Endpoint::Embeddings, line))
}

/// What can be embedded: a text, or a list of texts or tokens.
fn check_input(body: &Map<String, Value>) -> Result<(), Wrong> {
    let fits = match body.get(INPUT) {
        Some(Value::String(text)) => !text.trim().is_empty(),
        Some(Value::Array(inputs)) => !inputs.is_empty(),
        _ => false,
    };
    if fits { Ok(()) } else { Err(("`input` must be a text or a list".to_owned(), HINT_EMBED)) }
}

/// The request of an object with `prompt` or `messages`.
fn chat_line(custom_id: Option<String>, mut line: Map<String, Value>) -> Result<PromptLine, Wrong> {
    for name in ["id", "custom_id"] {
        line.shift_remove(name);
    }
    let messages = match (line.shift_remove(PROMPT), line.contains_key("messages")) {
        (Some(_), true) => {
            return Err(("`prompt` and `messages` exclude each other".to_owned(), HINT_PLAIN));
        }
        (Some(Value::String(prompt)), false) if !prompt.trim().is_empty() => {
            text_body(Endpoint::Chat, &prompt)
        }
        (Some(Value::String(_)), false) => return Err(("`prompt` is empty".to_owned(), HINT_PLAIN)),
        (Some(_), false) => {
            return Err((
                "`prompt` must be a text".to_owned(),
                "a conversation or a picture goes into `messages`",
            ));
        }
        (None, true) => Map::new(),
        (None, false) => {
            let there = list(line.keys().map(String::as_str));
            return Err((format!("there is neither `prompt` nor `messages`, but {there}"), HINT_PLAIN));
        }
    };
    line.extend(messages);
    check_messages(line.get("messages"))?;
    check_body(&line)?;
    let system = line.shift_remove("system");
    let line = prompt_line(custom_id, Endpoint::Chat, line);
    match system {
        None | Some(Value::Null) => Ok(line),
        Some(Value::String(system)) => Ok(with_system(line, &system)),
        Some(_) => Err(("`system` must be a text".to_owned(), HINT_FIELD)),
    }
}

fn check_body(body: &Map<String, Value>) -> Result<(), Wrong> {
    let problem = KNOWN.iter().find_map(|(name, kind)| Some((name, kind.refusal(body.get(*name)?)?)));
    match problem {
        Some((name, wanted)) => Err((format!("`{name}` {wanted}"), HINT_FIELD)),
        None => Ok(()),
    }
}

fn check_messages(messages: Option<&Value>) -> Result<(), Wrong> {
    let hint = r#"messages are a list such as [{"role":"user","content":"…"}]"#;
    let wrong = |text: String| Err((text, hint));
    let Some(Value::Array(messages)) = messages else {
        return wrong("`messages` must be a list".to_owned());
    };
    if messages.is_empty() {
        return wrong("`messages` is empty".to_owned());
    }
    for (index, message) in messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str);
        if !role.is_some_and(|role| ROLES.contains(&role)) {
            return wrong(format!("`messages` [{index}] needs a role: {}", ROLES.join(", ")));
        }
        let content = message.get("content").unwrap_or(&Value::Null);
        // An assistant that only calls tools says nothing.
        let silent = content.is_null() && message.get("tool_calls").is_some();
        if !(silent || content.is_string() || content.is_array()) {
            return wrong(format!("`messages` [{index}] needs `content`: a text or a list of parts"));
        }
    }
    Ok(())
}
