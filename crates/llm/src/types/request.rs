//! The one place that knows what can be asked of a model.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ChatRequest, EmbedRequest};

/// What is asked of a model. Untagged, so that a chat request has the same name in a cache as ever.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are chats, so a box would only cost an allocation each"
)]
pub enum Request {
    /// An answer in a conversation.
    Chat(ChatRequest),
    /// Vectors of texts.
    Embed(EmbedRequest),
}

/// What is asked, without its content: the kinds of requests that do not mix in a batch or a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    #[default]
    Chat,
    /// `/v1/embeddings`.
    Embeddings,
}

impl Endpoint {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Chat, Self::Embeddings];

    /// Its path in OpenAI's dialect, which names it in files of batches.
    pub const fn url(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// The one of a path.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.url() == url)
    }
}

impl Request {
    /// What it asks for.
    pub fn endpoint(&self) -> Endpoint {
        match self {
            Self::Chat(_) => Endpoint::Chat,
            Self::Embed(_) => Endpoint::Embeddings,
        }
    }

    /// The model.
    pub fn model(&self) -> &str {
        match self {
            Self::Chat(request) => &request.model,
            Self::Embed(request) => &request.model,
        }
    }

    /// The same of another model.
    pub fn with_model(&self, model: String) -> Self {
        match self {
            Self::Chat(request) => Self::Chat(ChatRequest { model, ..request.clone() }),
            Self::Embed(request) => Self::Embed(EmbedRequest { model, ..request.clone() }),
        }
    }

    /// Most tokens of output, where there is a limit. Vectors are none.
    pub fn max_tokens(&self) -> Option<u32> {
        match self {
            Self::Chat(request) => request.max_tokens,
            Self::Embed(_) => Some(0),
        }
    }

    /// How many answers it asks for; each may be as long as `max_tokens` allows.
    pub fn choices(&self) -> u64 {
        match self {
            Self::Chat(request) => {
                let asked = ["n", "best_of"].map(|name| request.extra.get(name).and_then(Value::as_u64));
                asked.into_iter().flatten().max().unwrap_or(1).max(1)
            }
            Self::Embed(_) => 1,
        }
    }

    /// How many vectors it asks for.
    pub fn vectors(&self) -> usize {
        match self {
            Self::Chat(_) => 0,
            Self::Embed(request) => request.inputs.len(),
        }
    }

    /// The chat request that it is, if it is one.
    pub fn as_chat(&self) -> Option<&ChatRequest> {
        match self {
            Self::Chat(request) => Some(request),
            Self::Embed(_) => None,
        }
    }
}

impl From<ChatRequest> for Request {
    fn from(request: ChatRequest) -> Self {
        Self::Chat(request)
    }
}

impl From<EmbedRequest> for Request {
    fn from(request: EmbedRequest) -> Self {
        Self::Embed(request)
    }
}
