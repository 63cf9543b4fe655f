//! What of a request counts: its hash, its size, and what its text tells the simulator to do. Only what all dialects carry
//! is hashed, so that a request has the same answer in process and over any wire.

use std::time::Duration;

use serde_json::Value;

use super::draw::ContentHash;
use longhaul_llm::types::{ChatRequest, EmbedInput, EmbedRequest, Message, Part, Request, Role, ToolChoice};

/// Bytes of text that count as one token.
pub const BYTES_PER_TOKEN: u64 = 4;
/// Longest answer that `[[sim:words N]]` can ask for.
pub const WORDS_MAX: u64 = 20_000;
/// Longest wait that `[[sim:slow D]]` can ask for.
pub const SLOW_MAX: Duration = Duration::from_secs(3600);

/// What counts of a chat request.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// Of the whole conversation: attempts and bills are counted under it.
    pub(crate) request: u64,
    /// Of the conversation without attempts at repair: the answer comes from it.
    pub(crate) question: u64,
    pub(crate) input_tokens: u64,
    pub(crate) orders: Orders,
}

impl Content {
    pub(crate) fn of(request: &ChatRequest) -> Self {
        let asked = asked_len(request);
        let (whole, bytes) = hash(request, &request.messages);
        let question =
            if asked == request.messages.len() { whole } else { hash(request, &request.messages[..asked]).0 };
        let orders = Orders::of(&request.messages[..asked]);
        Self { request: whole, question, input_tokens: tokens(bytes), orders }
    }
}

/// Tokens of so many bytes.
pub(crate) fn tokens(bytes: u64) -> u64 {
    (bytes / BYTES_PER_TOKEN).max(1)
}

/// Hash and tokens of a request, under which it is counted.
pub(crate) fn counted(request: &Request) -> (u64, u64) {
    match request {
        Request::Chat(request) => {
            let content = Content::of(request);
            (content.request, content.input_tokens)
        }
        Request::Embed(request) => embed_content(request),
    }
}

/// Hash and tokens of texts to embed.
pub(crate) fn embed_content(request: &EmbedRequest) -> (u64, u64) {
    let mut hash = ContentHash::new();
    hash.field(b"embed");
    hash.field(model_name(&request.model).as_bytes());
    let mut counted = 0;
    for input in &request.inputs {
        match input {
            EmbedInput::Text(text) => {
                hash.field(text.as_bytes());
                counted += tokens(text.len() as u64);
            }
            EmbedInput::Tokens(tokens) => {
                tokens.iter().for_each(|token| hash.push(&token.to_le_bytes()));
                hash.end();
                counted += tokens.len() as u64;
            }
        }
    }
    (hash.value(), counted)
}

/// A model's name without the folder that Gemini puts before it.
pub(crate) fn model_name(model: &str) -> &str {
    model.strip_prefix("models/").unwrap_or(model)
}

fn hash(request: &ChatRequest, messages: &[Message]) -> (u64, u64) {
    let mut hash = ContentHash::new();
    hash.field(model_name(&request.model).as_bytes());
    let named = hash.bytes();
    // Anthropic and Gemini take system texts out of the conversation.
    for message in messages.iter().filter(|message| message.role == Role::System) {
        push_message(&mut hash, message);
    }
    hash.end();
    // Some wires join turns of the same side, so only a change of sides is a border.
    let mut side = Role::System;
    for message in messages.iter().filter(|message| message.role != Role::System) {
        if message.role != side {
            hash.end();
            side = message.role;
            hash.push(&[side as u8]);
        }
        push_message(&mut hash, message);
    }
    hash.end();
    if let Some(schema) = &request.schema {
        push_json(&mut hash, &schema.schema);
        hash.end();
    }
    for tool in &request.tools {
        hash.field(tool.name.as_bytes());
        hash.field(tool.description.as_deref().unwrap_or_default().as_bytes());
        push_json(&mut hash, &tool.parameters);
        hash.end();
    }
    match &request.tool_choice {
        _ if request.tools.is_empty() => {}
        None | Some(ToolChoice::Auto) => {}
        Some(ToolChoice::None) => hash.field(b"none"),
        Some(ToolChoice::Required) => hash.field(b"required"),
        Some(ToolChoice::Named(name)) => hash.field(name.as_bytes()),
    }
    (hash.value(), hash.bytes() - named)
}

fn push_message(hash: &mut ContentHash, message: &Message) {
    for part in &message.content {
        match part {
            Part::Text(text) | Part::Image(text) => hash.push(text.as_bytes()),
            Part::Other(value) => push_json(hash, value),
        }
    }
    // Ids of calls are left out: Gemini has none.
    for call in &message.tool_calls {
        hash.push(call.name.as_bytes());
        match serde_json::from_str::<Value>(&call.arguments) {
            Ok(arguments) => push_json(hash, &arguments),
            Err(_) => hash.push(call.arguments.as_bytes()),
        }
    }
}

fn push_json(hash: &mut ContentHash, value: &Value) {
    // A hash takes everything, and a value can always be written.
    let _ = serde_json::to_writer(hash, value);
}

/// How many messages belong to the question. When JSON of a schema was asked for, an answer that is not of the schema and
/// the complaint about it are an attempt at repair: they change nothing of what the right answer is. Otherwise a run in
/// which one answer came out broken could never equal a run in which none did.
fn asked_len(request: &ChatRequest) -> usize {
    let mut asked = request.messages.len();
    let Some(schema) = &request.schema else { return asked };
    let mut validator = None;
    while asked >= 3 {
        let [answer, complaint] = &request.messages[asked - 2..asked] else { break };
        if answer.role != Role::Assistant || complaint.role != Role::User || !answer.tool_calls.is_empty() {
            break;
        }
        let text = text_of(answer);
        let conforms = serde_json::from_str::<Value>(&text).is_ok_and(|value| {
            let validator = validator.get_or_insert_with(|| jsonschema::validator_for(&schema.schema).ok());
            validator.as_ref().is_none_or(|validator| validator.is_valid(&value))
        });
        if conforms {
            break;
        }
        asked -= 2;
    }
    asked
}

/// The text of a message.
pub(crate) fn text_of(message: &Message) -> String {
    let texts = message.content.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Image(_) | Part::Other(_) => None,
    });
    texts.collect()
}

/// What the prompt tells the simulator to do, in `[[sim:…]]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Orders {
    pub(crate) refuse: bool,
    pub(crate) truncate: bool,
    pub(crate) slow: Option<Duration>,
    pub(crate) words: Option<u64>,
    pub(crate) say: Option<String>,
    pub(crate) call: Option<String>,
}

impl Orders {
    fn of(messages: &[Message]) -> Self {
        let mut orders = Self::default();
        for message in messages.iter().filter(|message| matches!(message.role, Role::User | Role::System)) {
            for part in &message.content {
                if let Part::Text(text) = part {
                    orders.read(text);
                }
            }
        }
        // Once a tool has answered, the order to call it has been carried out.
        if messages.last().is_some_and(|message| message.role == Role::Tool) {
            orders.call = None;
        }
        orders
    }

    fn read(&mut self, text: &str) {
        for piece in text.split("[[sim:").skip(1) {
            let Some((order, _)) = piece.split_once("]]") else { continue };
            let (verb, rest) = order.split_once(' ').unwrap_or((order, ""));
            match verb {
                "refuse" => self.refuse = true,
                "truncate" => self.truncate = true,
                "slow" => self.slow = duration(rest).map(|slow| slow.min(SLOW_MAX)),
                "words" => self.words = rest.trim().parse().ok().map(|words: u64| words.min(WORDS_MAX)),
                "say" => self.say = Some(rest.to_owned()),
                "call" => self.call = Some(rest.trim().to_owned()),
                _ => {}
            }
        }
    }
}

/// `250ms`, `2s`, `1.5m`, `1h`.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}
