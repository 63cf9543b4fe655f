//! Runs of prompts: how one is handed in.

use std::fmt;

use longhaul_llm::NanoUsd;
use longhaul_llm::cache::CacheMode;
use longhaul_queue::Timestamp;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// A run to hand in, or to estimate: `model` and `requests`, or `input_file`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunIn {
    /// The model, as its provider names it or as `PROFILE/MODEL`.
    #[schema(example = "sim/sim-small")]
    pub model: Option<String>,
    /// The provider profile; default by the model's name. With one, the model may be left out where the profile has its own.
    pub profile: Option<String>,
    /// The prompts, each as a text or as an object.
    pub requests: Vec<PromptIn>,
    /// A file uploaded with `/v1/files`, with a request a line: each as in `requests`, or in the form of OpenAI's batches. Lines of
    /// that form name their models.
    #[schema(example = "file-0198c5a2")]
    pub input_file: Option<String>,
    /// What is asked of the model: `/v1/chat/completions` (default) or `/v1/embeddings`. Lines of a file must ask the same.
    #[schema(example = "/v1/chat/completions")]
    pub endpoint: Option<String>,
    /// `sync`: one by one; `batch`: in provider batches; `auto`: in batches where there are any. Default is the server's setting
    /// `llm.bulk_strategy`, which is `sync` unless it was changed, as for `longhaul run`.
    pub mode: Option<ModeIn>,
    /// Be done by then, as cheaply as possible, in milliseconds since 1970: in provider batches where they are fast enough.
    #[schema(value_type = Option<i64>)]
    pub by: Option<Timestamp>,
    /// Nothing is sent that could exceed this total.
    pub max_cost_usd: Option<f64>,
    /// Calls without a price pass under its budgets, uncounted. Needs the scope `admin`.
    pub allow_unpriced: bool,
    /// Where the same run was there before: ask again what has no answer.
    pub ask_again: bool,
    /// Labels; spending is counted by them too.
    pub tags: Vec<String>,
    /// A name for people.
    pub name: Option<String>,
    /// With `input_file`: a digest of all prompts that these are from. What a sample cost is the base of the estimate for the others.
    pub content: Option<String>,
    /// A system message for requests that have none.
    pub system: Option<String>,
    /// Output tokens for requests that name none.
    pub max_tokens: Option<u32>,
    /// For requests that name none.
    pub temperature: Option<f64>,
    /// Length of vectors, for embeddings that name none.
    pub dimensions: Option<u32>,
    /// JSON Schema of the answers.
    #[schema(value_type = Option<Object>)]
    pub schema: Option<Value>,
    /// Asked when the first model cannot give a usable answer.
    pub fallback_model: Option<String>,
    /// Whether answers are looked up and kept: `auto` (default), `off` or `only`.
    #[schema(value_type = String, default = "auto")]
    pub cache: CacheMode,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModeIn {
    /// One by one.
    Sync,
    /// In provider batches; one by one where there are none.
    Batch,
    /// In provider batches where there are any.
    Auto,
}

/// A prompt.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PromptIn {
    /// A prompt, or a text to embed, and nothing more.
    Text(String),
    /// With a name, or as a body.
    Request(RequestIn),
}

impl<'de> Deserialize<'de> for PromptIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrObject;

        impl<'de> Visitor<'de> for TextOrObject {
            type Value = PromptIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a prompt as a string, or an object with `prompt` or `body` and an optional `custom_id`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PromptIn, E> {
                Ok(PromptIn::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PromptIn, A::Error> {
                RequestIn::deserialize(MapAccessDeserializer::new(map)).map(PromptIn::Request)
            }
        }

        deserializer.deserialize_any(TextOrObject)
    }
}

/// A request with a name or a body.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestIn {
    /// The caller's name for it, which comes back with the answer.
    pub custom_id: Option<String>,
    /// OpenAI's form of a chat, or of a call for embeddings.
    #[schema(value_type = Option<Object>)]
    pub body: Option<Map<String, Value>>,
    /// A prompt, or a text to embed, alone instead of a body.
    pub prompt: Option<String>,
}

/// A run that was handed in.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// Its name.
    pub id: String,
    /// It was there before: the same input with the same settings is the same run.
    pub resumed: bool,
    /// Requests that are asked again, where that was wanted.
    pub asked_again: u64,
    /// Total number of requests.
    pub requests: u64,
    /// `sync` or `batch`.
    pub mode: String,
    /// Why it is not the mode that was asked for.
    pub mode_note: Option<String>,
    /// What it is expected to cost, in dollars; absent without a price.
    #[schema(value_type = Option<f64>)]
    pub estimate_usd: Option<NanoUsd>,
    /// The upper end of it.
    #[schema(value_type = Option<f64>)]
    pub estimate_max_usd: Option<NanoUsd>,
}
