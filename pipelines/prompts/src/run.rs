//! A run of prompts: its settings, which are the payload of its manifest, and its name, which follows from them.

use std::fmt;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::{Class, CostRange, Endpoint, NanoUsd, Route};
use longhaul_pipeline::run::{self, RunId, TAG};
use longhaul_queue::store::{Filter, ListRequest};
use longhaul_queue::{Job, Json, NewJob, Queue, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::draft::Unfit;
use super::{ABOUT, Error, Result};

/// Kind of the job that holds a run's settings.
pub const KIND: &str = "llm.run";

/// Jobs of runs ask others and wait: whatever kills their worker is not them. A machine that reboots again and again must not fail
/// them, but one that runs out of memory at the same request each time must.
pub const CRASHES_MAX: u32 = 20;

/// What all requests of a run have in common. Written once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Provider profile; secrets stay there.
    pub profile: String,
    /// Model for requests that name none.
    pub model: String,
    /// What all requests ask for.
    #[serde(default, skip_serializing_if = "is_chat")]
    pub endpoint: Endpoint,
    /// Fields for requests that lack them, in OpenAI's form; `system` is a message of its own.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub defaults: Map<String, Value>,
    /// JSON Schema of the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Asked when the first model cannot give a usable answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_model: Option<String>,
    /// Whether requests are sent one by one or as provider batches.
    pub mode: Mode,
    /// Why it is not the mode that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_note: Option<String>,
    /// In batch mode: when the rest is taken from the provider's batch and sent one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch_at: Option<Timestamp>,
    /// Whether answers are looked up and kept.
    #[serde(default)]
    pub cache: CacheMode,
    /// Labels; spending is counted by them too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Where the requests came from.
    pub source: Source,
    /// What the requests were expected to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
}

/// What the requests of a run were expected to use, before it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expected {
    /// The lower end; absent without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<NanoUsd>,
    /// The upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_max_usd: Option<NanoUsd>,
    /// Input tokens, by their bytes.
    pub input_tokens: u64,
    /// Requests that were not in the cache.
    pub requests: u64,
}

impl Expected {
    /// What it was expected to cost.
    pub fn cost(&self) -> Option<CostRange> {
        Some(CostRange { low: self.cost_usd?, high: self.cost_max_usd? })
    }
}

/// Runs that were stored before there was anything else are of chats, and have the names they had.
fn is_chat(endpoint: &Endpoint) -> bool {
    *endpoint == Endpoint::Chat
}

impl RunSettings {
    /// Refuses what cannot be asked of a model, or makes no sense together; asked before anything is stored.
    pub fn check(&self, route: &Route) -> Result<(), Unfit> {
        route.caps().check_endpoint(self.endpoint).map_err(|error| Unfit { field: None, error })?;
        let refused = |field: &'static str, text: String| {
            Err(Unfit { field: Some(field), error: longhaul_llm::Error::new(Class::BadRequest, text) })
        };
        if self.endpoint == Endpoint::Chat {
            return match self.defaults.contains_key("dimensions") {
                true => refused("dimensions", "only embeddings have dimensions".to_owned()),
                false => Ok(()),
            };
        }
        // Vectors of two models cannot be compared, so none stands in for another.
        let shaping = [
            ("schema", "a schema", self.schema.is_some()),
            ("fallback_model", "a fallback model", self.fallback_model.is_some()),
            ("system", "a system text", self.defaults.contains_key("system")),
            ("temperature", "a temperature", self.defaults.contains_key("temperature")),
            ("max_tokens", "a limit of output", self.defaults.contains_key("max_tokens")),
        ];
        match shaping.iter().find(|(_, _, set)| *set) {
            Some((field, what, _)) => refused(field, format!("embeddings cannot have {what}")),
            None => Ok(()),
        }
    }
}

/// How requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One by one, by workers under the rate control.
    Sync,
    /// In provider batches.
    Batch,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sync => "sync",
            Self::Batch => "batch",
        })
    }
}

/// Where the requests of a run came from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// A name for people, such as the file's.
    pub name: String,
    /// SHA-256 of the content and of how it is read.
    pub sha256: String,
    /// The same whichever part of the content is asked: it links a sample to its run. Empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content: String,
    /// How many requests it holds.
    pub requests: u64,
    /// The form it has, which answers have too unless told otherwise; the caller's word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub form: String,
}

/// Where the numbers of batches begin; requests are counted from 0.
pub(super) const FIRST_BATCH: u64 = 1 << 47;
/// The number of the job that calls a slice back.
pub const CALLBACK: u64 = (1 << 48) - 2;

impl RunSettings {
    /// The run of these requests with these settings. How they are sent and what they may cost does not make another
    /// run: the same work is not to be paid for twice.
    pub fn run_id(&self) -> RunId {
        let Self { profile, model, endpoint, defaults, schema, fallback_model, source, .. } = self;
        let mut shape = serde_json::json!([profile, model, defaults, schema, fallback_model, source.sha256]);
        if let (false, Some(parts)) = (is_chat(endpoint), shape.as_array_mut()) {
            parts.push(endpoint.url().into());
        }
        RunId::derived(&ABOUT, &shape.to_string())
    }
}

/// A run that is stored.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its name.
    pub id: RunId,
    /// Its settings.
    pub settings: RunSettings,
    /// The job that holds them.
    pub job: Job,
}

impl Run {
    /// The run of this name.
    pub async fn find(queue: &Queue, id: &RunId) -> Result<Option<Self>> {
        longhaul_pipeline::Run::find(queue, id).await?.map(Self::read).transpose()
    }

    /// The run of this name, which must exist.
    pub async fn get(queue: &Queue, id: &RunId) -> Result<Self> {
        Self::read(longhaul_pipeline::Run::get(queue, id).await?)
    }

    /// A run with its settings read.
    pub fn read(run: longhaul_pipeline::Run) -> Result<Self> {
        if run.job.kind != KIND {
            return Err(Error::Invalid(format!("{} is not a run of prompts", run.id)));
        }
        Ok(Self { settings: run.settings.to()?, id: run.id, job: run.job })
    }

    /// Runs of prompts, newest first.
    pub(super) async fn list(queue: &Queue, limit: usize) -> Result<Vec<Job>> {
        let filter = Filter { tag: Some(TAG.to_owned()), kind: Some(KIND.to_owned()), ..Filter::default() };
        Ok(queue.list(ListRequest { filter, newest_first: true, cursor: None, limit }).await?.items)
    }
}

/// The job that holds a run's settings and ends it.
pub(super) fn manifest(id: &RunId, settings: &RunSettings) -> Result<NewJob> {
    let title = settings.source.name.clone();
    let mut job = run::manifest(&ABOUT, id, Json::of(settings)?, title).max_crashes(CRASHES_MAX);
    job.options.tags.extend(settings.tags.iter().cloned());
    Ok(job)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
