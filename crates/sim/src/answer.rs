//! The right answer to a request, from the seed and the request alone.

use serde_json::json;

use super::content::{Content, model_name, text_of, tokens};
use super::draw::{Draw, Purpose};
use super::{schema, words};
use longhaul_llm::types::{Answer, ChatRequest, Dialect, Role, Stop, Tool, ToolCall, ToolChoice, Usage};

/// How many words of the prompt an answer takes up.
const TOPIC_WORDS: usize = 3;
/// Shortest word that is taken for a topic.
const TOPIC_LETTERS_MIN: usize = 5;
/// What a refusal says.
pub const REFUSAL: &str = "I cannot help with that.";

/// Exactly what the undisturbed answer to a request says: its text, or the arguments of the tool that it calls. `max_tokens`
/// is not looked at: an answer that was cut off is not right.
pub fn answer_key(seed: u64, request: &ChatRequest) -> String {
    match compose(seed, request, &Content::of(request)) {
        Made::Text(text) => text,
        Made::Refusal => REFUSAL.to_owned(),
        Made::Call(call) => call.arguments,
    }
}

/// The name under which a request is in the simulator's log.
pub fn request_key(request: &ChatRequest) -> String {
    format!("{:016x}", Content::of(request).request)
}

/// What a request is answered with before anything disturbs it.
pub(crate) enum Made {
    Text(String),
    Refusal,
    Call(ToolCall),
}

pub(crate) fn compose(seed: u64, request: &ChatRequest, content: &Content) -> Made {
    if content.orders.refuse {
        return Made::Refusal;
    }
    let mut draw = Draw::new(seed, content.question, Purpose::Answer);
    if let Some(tool) = called_tool(request, content, &mut draw) {
        let id = format!("call_{:016x}", draw.next());
        let arguments = schema::value_for(&tool.parameters, &mut draw).to_string();
        return Made::Call(ToolCall { id, name: tool.name.clone(), arguments });
    }
    if let Some(said) = &content.orders.say {
        return Made::Text(said.clone());
    }
    match &request.schema {
        Some(output) => Made::Text(schema::value_for(&output.schema, &mut draw).to_string()),
        None if wants_object(request) => {
            Made::Text(json!({ "answer": prose(request, content, &mut draw) }).to_string())
        }
        None => Made::Text(prose(request, content, &mut draw)),
    }
}

/// Whether JSON is asked for without a schema.
fn wants_object(request: &ChatRequest) -> bool {
    let said = |field: &str, name: &str| request.extra.get(field).map(|value| &value[name]);
    match request.dialect {
        Dialect::OpenAi => said("response_format", "type").is_some_and(|kind| kind == "json_object"),
        Dialect::Gemini => {
            said("generationConfig", "responseMimeType").is_some_and(|kind| kind == "application/json")
        }
        Dialect::Anthropic => false,
    }
}

fn called_tool<'a>(request: &'a ChatRequest, content: &Content, draw: &mut Draw) -> Option<&'a Tool> {
    let named = |name: &str| request.tools.iter().find(|tool| tool.name == name);
    match &request.tool_choice {
        _ if request.tools.is_empty() => None,
        Some(ToolChoice::None) => None,
        Some(ToolChoice::Required) => content
            .orders
            .call
            .as_deref()
            .and_then(named)
            .or_else(|| request.tools.get(draw.place(request.tools.len()))),
        Some(ToolChoice::Named(name)) => named(name),
        None | Some(ToolChoice::Auto) => content.orders.call.as_deref().and_then(named),
    }
}

/// A mark that no other request has, the topic, and one to four sentences.
fn prose(request: &ChatRequest, content: &Content, draw: &mut Draw) -> String {
    let mut text = format!("Ref {:012x}", draw.next() >> 16);
    let asked = request.messages.iter().rev().find(|message| message.role == Role::User).map(text_of);
    let asked = asked.unwrap_or_default();
    let letters = |word: &&str| word.len() >= TOPIC_LETTERS_MIN && word.chars().all(char::is_alphabetic);
    let topics: Vec<&str> =
        asked.split([' ', '\n', ',', '.', '?']).filter(letters).take(TOPIC_WORDS).collect();
    if !topics.is_empty() {
        text.push_str(", on ");
        text.push_str(&topics.join(", "));
    }
    text.push(':');
    let sentences = content.orders.words.map_or_else(|| 1 + draw.below(4), |words| words.div_ceil(7).max(1));
    for _ in 0..sentences {
        text.push(' ');
        words::sentence(draw, &mut text);
    }
    for stop in request.stop.iter().filter(|stop| !stop.is_empty()) {
        if let Some(at) = text.find(stop) {
            text.truncate(at);
        }
    }
    text
}

/// The answer as the model gives it: within `max_tokens`, with its usage.
pub(crate) fn answer(request: &ChatRequest, content: &Content, attempt: u32, made: Made) -> Answer {
    let (mut text, tool_calls, mut stop) = match made {
        Made::Text(text) => (text, Vec::new(), Stop::End),
        Made::Refusal => (REFUSAL.to_owned(), Vec::new(), Stop::Refused),
        Made::Call(call) => (String::new(), vec![call], Stop::ToolCalls),
    };
    if content.orders.truncate {
        cut(&mut text, 0.5);
        stop = Stop::Length;
    }
    let most = request.max_tokens.map_or(u64::MAX, |most| u64::from(most.max(1)));
    if tokens(text.len() as u64) > most {
        let bytes = usize::try_from(most * super::content::BYTES_PER_TOKEN).unwrap_or(usize::MAX);
        text.truncate(text.floor_char_boundary(bytes));
        stop = Stop::Length;
    }
    let mut answer = Answer {
        id: format!("sim_{:016x}_{attempt}", content.request),
        model: model_name(&request.model).to_owned(),
        text,
        tool_calls,
        vectors: Vec::new(),
        own: None,
        stop,
        usage: Usage { fresh_in: content.input_tokens, ..Usage::default() },
    };
    count(&mut answer);
    answer
}

/// Sets the usage of output to what the answer holds.
pub(crate) fn count(answer: &mut Answer) {
    let calls: usize = answer.tool_calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    answer.usage.out = tokens((answer.text.len() + calls) as u64);
}

/// Cuts a text off after a part of it.
pub(crate) fn cut(text: &mut String, part: f64) {
    let bytes = (text.len() as f64 * part) as usize;
    text.truncate(text.floor_char_boundary(bytes));
}
