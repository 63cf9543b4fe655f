//! Engines on this machine or nearby: which one answers at an address, what models it has, and how many calls it works on
//! at once. They never answer 429, so this is what rate control has to go by. None of them has batches.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde::Serialize;
use serde_json::Value;

use crate::clock::SystemWallClock;
use crate::error::Result;
use crate::http::{Http, Service, is_this_machine};
use crate::profile::{Profile, ProviderKind, ProxyChoice, Timeouts};
use crate::wire::openai::error_from;

/// Where engines listen by custom: Ollama, llama.cpp, vLLM.
pub const DEFAULT_ADDRESSES: [&str; 3] =
    ["http://127.0.0.1:11434", "http://127.0.0.1:8080", "http://127.0.0.1:8000"];

/// An engine nearby answers such a question at once, or is not there.
const PROBE_WAIT: Duration = Duration::from_secs(2);
const PROBE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// An engine that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocalEngine {
    /// What it is.
    pub kind: EngineKind,
    /// The base URL for a profile of OpenAI's dialect.
    pub base_url: String,
    /// Its version, where told.
    pub version: Option<String>,
    /// Its models.
    pub models: Vec<String>,
    /// How many calls it works on at once, where told.
    pub slots: Option<u32>,
    /// Whether it takes calls; otherwise it is loading a model.
    pub ready: bool,
}

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// Ollama.
    Ollama,
    /// llama.cpp's server.
    LlamaCpp,
    /// vLLM.
    Vllm,
    /// LM Studio.
    LmStudio,
    /// Something that lists models as OpenAI does. It may run them, or pass calls on to a provider that bills them.
    Compatible,
}

impl EngineKind {
    /// Whether it runs models itself, so that a call costs nothing.
    pub const fn runs_models(self) -> bool {
        match self {
            Self::Ollama | Self::LlamaCpp | Self::Vllm | Self::LmStudio => true,
            Self::Compatible => false,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ollama => "Ollama",
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vLLM",
            Self::LmStudio => "LM Studio",
            Self::Compatible => "an OpenAI-compatible server",
        })
    }
}

/// What answers at an address, with or without `/v1` at its end; `None` if nothing does.
pub async fn detect(address: &str) -> Result<Option<LocalEngine>> {
    let root = address.trim_end_matches('/').trim_end_matches("/v1").to_owned();
    let probe = Probe::new(&root)?;
    // The order matters: the more particular question goes first.
    if let Some(version) = probe.text("/api/version", "version").await
        && let Some(tags) = probe.get("/api/tags").await
    {
        let models = names(&tags["models"], "name");
        let engine = LocalEngine::new(EngineKind::Ollama, &root);
        return Ok(Some(LocalEngine { version: Some(version), models, ..engine }));
    }
    if let Some(props) = probe.get("/props").await
        && let Some(slots) = props["total_slots"].as_u64()
    {
        let version = props["build_info"].as_str().map(str::to_owned);
        let slots = u32::try_from(slots).ok();
        let engine = LocalEngine::new(EngineKind::LlamaCpp, &root);
        return Ok(Some(LocalEngine { version, models: probe.models().await, slots, ..engine }));
    }
    if probe.is_loading().await {
        return Ok(Some(LocalEngine { ready: false, ..LocalEngine::new(EngineKind::LlamaCpp, &root) }));
    }
    // LM Studio's own list tells how each model is quantized; a gateway would not know.
    if let Some(list) = probe.get("/api/v0/models").await
        && list["data"].as_array().into_iter().flatten().any(|model| model["quantization"].is_string())
    {
        let engine = LocalEngine::new(EngineKind::LmStudio, &root);
        return Ok(Some(LocalEngine { models: names(&list["data"], "id"), ..engine }));
    }
    let Some(list) = probe.get("/v1/models").await.filter(|list| list["data"].is_array()) else {
        return Ok(None);
    };
    // Many gateways have a version; `owned_by` says whose models they are.
    let owned = list["data"].as_array().into_iter().flatten().any(|model| model["owned_by"] == "vllm");
    let kind = if owned { EngineKind::Vllm } else { EngineKind::Compatible };
    let version = if owned { probe.text("/version", "version").await } else { None };
    let models = names(&list["data"], "id");
    Ok(Some(LocalEngine { version, models, ..LocalEngine::new(kind, &root) }))
}

/// The command that starts the engine which listens at an address by custom.
pub fn start_command(base_url: &str) -> Option<&'static str> {
    let commands = ["ollama serve", "llama-server -m MODEL.gguf", "vllm serve MODEL"];
    let url: reqwest::Url = base_url.parse().ok()?;
    let at =
        |address: &str| address.ends_with(&format!(":{}", url.port_or_known_default().unwrap_or_default()));
    let known = DEFAULT_ADDRESSES.iter().zip(commands).find(|(address, _)| at(address));
    known.filter(|_| is_this_machine(&url)).map(|(_, command)| command)
}

/// The engines at the customary addresses.
pub async fn detect_all() -> Vec<LocalEngine> {
    let found = join_all(DEFAULT_ADDRESSES.iter().map(|address| detect(address))).await;
    found.into_iter().filter_map(|found| found.ok().flatten()).collect()
}

impl LocalEngine {
    fn new(kind: EngineKind, root: &str) -> Self {
        let base_url = format!("{root}/v1");
        Self { kind, base_url, version: None, models: Vec::new(), slots: None, ready: true }
    }
}

struct Probe {
    http: Http,
}

impl Probe {
    fn new(root: &str) -> Result<Self> {
        let waits =
            Timeouts { connect: PROBE_WAIT, answer: PROBE_WAIT, silence: PROBE_WAIT, transfer: PROBE_WAIT };
        let profile = Profile {
            base_url: root.to_owned(),
            proxy: ProxyChoice::Direct,
            timeouts: waits,
            body_bytes_max: PROBE_BYTES_MAX,
            ..Profile::new("local", ProviderKind::OpenAi)
        };
        let service = Service { base: root.to_owned(), headers: Vec::new(), error_from };
        Ok(Self { http: Http::new(&profile, service, Arc::new(SystemWallClock))? })
    }

    /// Whatever goes wrong means that this is not the engine that was asked for.
    async fn get(&self, path: &str) -> Option<Value> {
        let reply = self.http.json(self.http.request(Method::GET, path), |value| Ok(value.clone())).await;
        reply.ok().map(|reply| reply.value)
    }

    async fn text(&self, path: &str, key: &str) -> Option<String> {
        self.get(path).await?[key].as_str().map(str::to_owned)
    }

    async fn models(&self) -> Vec<String> {
        names(&self.get("/v1/models").await.unwrap_or_default()["data"], "id")
    }

    /// llama.cpp answers 503 to everything while it loads a model.
    async fn is_loading(&self) -> bool {
        let reply = self.http.json(self.http.request(Method::GET, "/health"), |_| Ok(())).await;
        reply.is_err_and(|error| error.status == Some(503) && error.message.contains("Loading model"))
    }
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item[key].as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_started_by_its_own_command_where_it_listens_by_custom() {
        let commands = [
            ("http://127.0.0.1:11434/v1", Some("ollama serve")),
            ("http://localhost:8080", Some("llama-server -m MODEL.gguf")),
            ("http://127.0.0.1:8000/v1", Some("vllm serve MODEL")),
            ("http://127.0.0.1:9/v1", None),
            ("http://gpu.example.org:11434/v1", None),
            ("https://api.openai.com/v1", None),
        ];
        for (url, command) in commands {
            assert_eq!(start_command(url), command, "{url}");
        }
    }
}
