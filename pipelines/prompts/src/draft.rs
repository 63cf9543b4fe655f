//! From what a caller wants to the settings of a run: the one way for the command line, the API, the tools of agents and the
//! batches of SDKs. Pure.

use longhaul_llm::cache::CacheMode;
use longhaul_llm::{Endpoint, Route, schema};
use longhaul_queue::Timestamp;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::plan::{self, Strategy};
use super::run::hex;
use super::{Error, NewRequest, RunSettings, Source};

/// A run that somebody wants. What is left out of it is as by default.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Provider profile.
    pub profile: String,
    /// Model for requests that name none.
    pub model: String,
    /// What all requests ask for.
    pub endpoint: Endpoint,
    /// For requests that lack them.
    pub defaults: Defaults,
    /// JSON Schema of the answers.
    pub schema: Option<Value>,
    /// Asked when the first model cannot give a usable answer.
    pub fallback_model: Option<String>,
    /// How requests are to be sent.
    pub strategy: Strategy,
    /// When all answers are to be there.
    pub by: Option<Timestamp>,
    /// Whether answers are looked up and kept.
    pub cache: CacheMode,
    /// Labels.
    pub tags: Vec<String>,
    /// Where the requests come from.
    pub source: Source,
}

/// What requests have that do not say otherwise.
#[derive(Debug, Clone, Default)]
pub struct Defaults {
    /// A system message.
    pub system: Option<String>,
    /// Most tokens to answer with.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Length of vectors.
    pub dimensions: Option<u32>,
}

impl From<Defaults> for Map<String, Value> {
    fn from(defaults: Defaults) -> Self {
        let Defaults { system, max_tokens, temperature, dimensions } = defaults;
        let fields = [
            ("system", system.map(Value::from)),
            ("max_tokens", max_tokens.map(Value::from)),
            ("temperature", temperature.map(Value::from)),
            ("dimensions", dimensions.map(Value::from)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// Why a run cannot be as it is wanted.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct Unfit {
    /// The setting that is wrong, where it is one.
    pub field: Option<&'static str>,
    /// Why.
    pub error: longhaul_llm::Error,
}

impl From<Unfit> for longhaul_llm::Error {
    fn from(unfit: Unfit) -> Self {
        unfit.error
    }
}

impl From<Unfit> for Error {
    fn from(unfit: Unfit) -> Self {
        Self::Llm(unfit.error)
    }
}

impl Draft {
    /// The settings, once it is decided how requests are sent; or what is wrong with the draft, before anything is stored. The
    /// estimate is still missing: it takes the requests.
    pub fn settings(self, route: &Route, now: Timestamp) -> Result<RunSettings, Unfit> {
        if let Some(wanted) = &self.schema {
            schema::Compiled::new(wanted).map_err(|error| Unfit { field: Some("schema"), error })?;
        }
        let left = self.by.map(|by| by.since(now));
        let batches = route.batch_limits(self.endpoint);
        let decision = plan::decide(self.strategy, batches, self.source.requests, left);
        let settings = RunSettings {
            profile: self.profile,
            model: self.model,
            endpoint: self.endpoint,
            defaults: self.defaults.into(),
            schema: self.schema,
            fallback_model: self.fallback_model,
            mode: decision.mode,
            mode_note: decision.note,
            switch_at: decision.switch_after.map(|after| now + after),
            cache: self.cache,
            tags: self.tags,
            source: self.source,
            expected: None,
        };
        settings.check(route)?;
        Ok(settings)
    }
}

impl Source {
    /// Of requests that are at hand; by their digest the same ones are known again.
    pub fn given(name: Option<String>, form: &str, requests: &[NewRequest]) -> Self {
        let mut digest = Sha256::new();
        for NewRequest { custom_id, body, .. } in requests {
            // With its length before it, so that no two lists read the same.
            let text = json!([custom_id, body]).to_string();
            digest.update(text.len().to_be_bytes());
            digest.update(text);
        }
        Self {
            name: name.unwrap_or_else(|| form.to_owned()),
            sha256: hex(&digest.finalize()),
            content: String::new(),
            requests: requests.len() as u64,
            form: form.to_owned(),
        }
    }
}
