//! The languages of providers.

use serde::{Deserialize, Serialize};

/// In whose words a request is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI's chat completions, which many engines speak.
    #[default]
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Gemini's generateContent.
    Gemini,
}

impl Dialect {
    /// Its name in settings and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The one of a name; the simulator has none of its own.
    pub fn named(name: &str) -> Option<Self> {
        [Self::OpenAi, Self::Anthropic, Self::Gemini].into_iter().find(|dialect| dialect.as_str() == name)
    }

    /// Most requests are written in OpenAI's, so it goes without saying where they are stored.
    pub fn is_openai(&self) -> bool {
        *self == Self::OpenAi
    }
}
