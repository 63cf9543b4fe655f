//! Texts to embed, and their vectors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, Stop, Usage};

/// Texts to embed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbedRequest {
    /// The model.
    pub model: String,
    /// What to embed; each has a vector of its own.
    pub inputs: Vec<EmbedInput>,
    /// Length of the vectors, where the model can choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<u32>,
    /// Further fields of the provider's own, sent as they are.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// One thing to embed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EmbedInput {
    /// A text.
    Text(String),
    /// A text as the numbers of its tokens, which only OpenAI's dialect knows.
    Tokens(Vec<u32>),
}

impl From<&str> for EmbedInput {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// One vector a text, in the order of the texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// The model that answered.
    pub model: String,
    /// The vectors.
    pub vectors: Vec<Vec<f32>>,
    /// What it used.
    pub usage: Usage,
}

impl From<Embeddings> for Answer {
    fn from(embeddings: Embeddings) -> Self {
        let Embeddings { model, vectors, usage } = embeddings;
        Self {
            id: String::new(),
            model,
            text: String::new(),
            tool_calls: Vec::new(),
            vectors,
            stop: Stop::End,
            usage,
            own: None,
        }
    }
}

/// A vector in the compact form that OpenAI's dialect knows: base64 of little-endian 32-bit floats.
pub fn vector_to_base64(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
}

/// Reads the compact form.
pub fn vector_from_base64(text: &str) -> Option<Vec<f32>> {
    let bytes = STANDARD.decode(text).ok()?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

/// Vectors in their compact form where they are stored: a third of what their digits take, and exact.
pub mod compact {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes vectors.
    pub fn serialize<S: Serializer>(vectors: &[Vec<f32>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(vectors.iter().map(|vector| super::vector_to_base64(vector)))
    }

    /// Reads vectors.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<f32>>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let vectors = texts.iter().map(|text| super::vector_from_base64(text)).collect::<Option<_>>();
        vectors.ok_or_else(|| D::Error::custom("a stored vector cannot be read"))
    }
}
