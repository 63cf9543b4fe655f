//! What is asked of a model and what it answers, in one form for all providers. Plain data; a dialect turns it into a
//! provider's wire form and back.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::sse::SseEvent;

mod dialect;
mod embed;
mod request;

pub use dialect::Dialect;
pub use embed::{EmbedInput, EmbedRequest, Embeddings, compact, vector_from_base64, vector_to_base64};
pub use request::{Endpoint, Request};

/// One chat request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The model, as its provider names it.
    pub model: String,
    /// The conversation so far; system messages may stand anywhere in it.
    pub messages: Vec<Message>,
    /// Most tokens to answer with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Texts that end the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Sampling seed, where the provider knows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The answer is JSON of this schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<OutputSchema>,
    /// Functions that the model may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Whether it may or must call one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whose words `extra` and [`Part::Other`] are.
    #[serde(default, skip_serializing_if = "Dialect::is_openai")]
    pub dialect: Dialect,
    /// Further fields in the words of `dialect`: sent as they are where the provider speaks it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Whose turn.
    pub role: Role,
    /// What was said, in order.
    pub content: Vec<Part>,
    /// An assistant's calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a `Tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Further fields in the words of the request's dialect.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A turn of plain text.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self::of(role, vec![Part::Text(text.into())])
    }

    /// A turn of these parts.
    pub fn of(role: Role, content: Vec<Part>) -> Self {
        Self { role, content, tool_calls: Vec::new(), tool_call_id: None, extra: Map::new() }
    }

    /// What a tool answered to a call.
    pub fn result(id: String, content: Vec<Part>) -> Self {
        Self { tool_call_id: Some(id), ..Self::of(Role::Tool, content) }
    }
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text(String),
    /// A picture: an `https:` address or a `data:` URL.
    Image(String),
    /// Anything else, in the words of the request's dialect.
    Other(Value),
}

/// The form of a structured answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputSchema {
    /// A name that some providers ask for.
    pub name: String,
    /// JSON Schema.
    pub schema: Value,
    /// Whether the provider is asked to hold the model to it.
    pub strict: bool,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub parameters: Value,
    /// Whether the provider is asked to hold the model to it, where it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model may or must call a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// It decides.
    Auto,
    /// It may not.
    None,
    /// It must call some tool.
    Required,
    /// It must call this one.
    Named(String),
}

/// A call that the model makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call; its result carries it.
    pub id: String,
    /// Which tool.
    pub name: String,
    /// Arguments as JSON text, as the model wrote them.
    pub arguments: String,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The provider's name for the answer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// The model that answered, as the provider names it.
    pub model: String,
    /// The visible text.
    pub text: String,
    /// Calls of tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Vectors, in the order of the texts that were to be embedded.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "compact")]
    pub vectors: Vec<Vec<f32>>,
    /// Why it ended.
    pub stop: Stop,
    /// What it used.
    pub usage: Usage,
    /// What the provider said beyond all this, for whoever speaks its dialect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Box<Own>>,
}

/// Fields of a provider's own answer that [`Answer`] has no place for, as they stood there: further choices, log probabilities,
/// thinking. Written again over an answer that is told in the same dialect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Own {
    /// Of a chat completion.
    #[serde(rename = "openai")]
    OpenAi(Map<String, Value>),
    /// Of a message.
    #[serde(rename = "anthropic")]
    Anthropic(Map<String, Value>),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// It was complete, or a stop text came.
    End,
    /// `max_tokens`, or the model's context, was full: the answer is cut off.
    Length,
    /// The model waits for the results of its tool calls.
    ToolCalls,
    /// The provider or the model declined.
    Refused,
}

/// Tokens in disjoint classes: their sum is what went over the wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Input that no cache knew.
    pub fresh_in: u64,
    /// Input that was written to the provider's cache.
    pub cache_write: u64,
    /// Input that came from the provider's cache.
    pub cache_read: u64,
    /// Visible output.
    pub out: u64,
    /// Hidden output: reasoning.
    pub reasoning: u64,
}

impl Usage {
    /// All input.
    pub fn input(&self) -> u64 {
        self.fresh_in + self.cache_write + self.cache_read
    }

    /// All output.
    pub fn output(&self) -> u64 {
        self.out + self.reasoning
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.input() + self.output()
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let Self { fresh_in, cache_write, cache_read, out, reasoning } = other;
        self.fresh_in += fresh_in;
        self.cache_write += cache_write;
        self.cache_read += cache_read;
        self.out += out;
        self.reasoning += reasoning;
    }
}

/// A piece of an answer while it is written.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// An event as the provider wrote it, before what it adds to the answer. Those of a whole stream, but the last, tell the
    /// whole answer to whoever speaks the dialect.
    Own {
        /// The provider's dialect.
        dialect: &'static str,
        /// The event.
        event: SseEvent,
    },
    /// More visible text.
    Text(String),
    /// The end: the whole answer with its usage.
    End(Answer),
}
