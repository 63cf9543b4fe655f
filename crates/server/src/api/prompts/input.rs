//! What a run is made of: prompts in the call itself, or in a file that was uploaded before.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use longhaul_llm::cache::CacheMode;
use longhaul_llm::catalog::{Chosen, check_model};
use longhaul_llm::{Endpoint, NanoUsd};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::sdk_batches::Form;
use longhaul_prompts::sdk_batches::input::{Reading, read_ahead};
use longhaul_prompts::{Defaults, Draft, Estimate, NewRequest, RunSettings, Source};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// How runs of this door call themselves when nobody names them.
const SOURCE: &str = "api";
/// Faults of a file that are told.
const FAULTS_TOLD: usize = 5;

/// A run to hand in, or to estimate: `model` and `requests`, or `input_file`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::api) struct RunIn {
    /// The model, as its provider names it or as `PROFILE/MODEL`.
    #[schema(example = "sim/sim-small")]
    model: Option<String>,
    /// The provider profile; default by the model's name. With one, the model may be left out where the profile has its own.
    profile: Option<String>,
    /// The prompts, each as a text or as an object.
    requests: Vec<PromptIn>,
    /// A file uploaded with `/v1/files`, with a request a line in the form of OpenAI's batches. Its lines name their models.
    #[schema(example = "file-0198c5a2")]
    input_file: Option<String>,
    /// What is asked of the model: `/v1/chat/completions` (default) or `/v1/embeddings`. Lines of a file must ask the same.
    #[schema(example = "/v1/chat/completions")]
    endpoint: Option<String>,
    /// `sync`: one by one; `batch`: in provider batches; `auto`: in batches where there are any. Default is the server's setting
    /// `llm.bulk_strategy`, which is `sync` unless it was changed, as for `longhaul run`.
    mode: Option<ModeIn>,
    /// Nothing is sent that could exceed this total.
    pub(in crate::api) max_cost_usd: Option<f64>,
    /// Labels; spending is counted by them too.
    tags: Vec<String>,
    /// A name for people.
    name: Option<String>,
    /// A system message for requests that have none.
    system: Option<String>,
    /// Output tokens for requests that name none.
    max_tokens: Option<u32>,
    /// For requests that name none.
    temperature: Option<f64>,
    /// Length of vectors, for embeddings that name none.
    dimensions: Option<u32>,
    /// JSON Schema of the answers.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// Asked when the first model cannot give a usable answer.
    fallback_model: Option<String>,
    /// Whether answers are looked up and kept: `auto` (default), `off` or `only`.
    #[schema(value_type = String, default = "auto")]
    cache: CacheMode,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ModeIn {
    /// One by one.
    Sync,
    /// In provider batches; one by one where there are none.
    Batch,
    /// In provider batches where there are any.
    Auto,
}

/// A prompt.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum PromptIn {
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
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestIn {
    /// The caller's name for it, which comes back with the answer.
    custom_id: Option<String>,
    /// OpenAI's form of a chat, or of a call for embeddings.
    #[schema(value_type = Option<Object>)]
    body: Option<Map<String, Value>>,
    /// A prompt, or a text to embed, alone instead of a body.
    prompt: Option<String>,
}

/// A run that can be handed in.
pub(in crate::api) struct Wanted {
    pub(in crate::api) settings: RunSettings,
    prompts: Prompts,
}

enum Prompts {
    Given(Vec<NewRequest>),
    File(PathBuf),
}

/// Requests one after the other, from wherever they come.
pub(in crate::api) enum Requests {
    Given(std::vec::IntoIter<NewRequest>),
    File(mpsc::Receiver<std::io::Result<NewRequest>>),
}

impl Requests {
    pub(in crate::api) async fn next(&mut self) -> Result<Option<NewRequest>, Problem> {
        match self {
            Self::Given(requests) => Ok(requests.next()),
            Self::File(requests) => requests.recv().await.transpose().map_err(Problem::unavailable),
        }
    }
}

impl Wanted {
    /// Checks all of it before anything is stored.
    pub(in crate::api) async fn new(ctx: &Ctx, caller: &Caller, asked: RunIn) -> Result<Self, Problem> {
        let endpoint = match &asked.endpoint {
            None => Endpoint::Chat,
            Some(url) => Endpoint::of_url(url).ok_or_else(|| {
                let known = Endpoint::ALL.map(Endpoint::url).join(" and ");
                wrong("endpoint", format!("endpoint is {url:?}: there are {known}"))
            })?,
        };
        let (prompts, chosen, source) = match (&asked.input_file, asked.requests.is_empty()) {
            (None, true) => return Err(wrong("requests", "send requests, or the input_file that has them")),
            (Some(_), false) => {
                return Err(wrong("input_file", "requests and input_file exclude each other"));
            }
            (Some(file), true) => from_file((ctx, caller), file, endpoint, &asked).await?,
            (None, false) => given(ctx, endpoint, &asked)?,
        };
        if let Some(model) = &asked.fallback_model {
            check_model("fallback_model", model)?;
        }
        let route = ctx.llm().route(&chosen.profile, &chosen.model).await?;
        let RunIn { system, max_tokens, temperature, dimensions, .. } = asked;
        let draft = Draft {
            profile: chosen.profile,
            model: chosen.model,
            endpoint,
            defaults: Defaults { system, max_tokens, temperature, dimensions },
            schema: asked.schema,
            fallback_model: asked.fallback_model,
            strategy: match asked.mode {
                None => ctx.options.run_strategy,
                Some(ModeIn::Sync) => Strategy::Sync,
                Some(ModeIn::Batch) => Strategy::Batch,
                Some(ModeIn::Auto) => Strategy::Auto,
            },
            cache: asked.cache,
            tags: asked.tags,
            source: Source { name: asked.name.unwrap_or(source.name), ..source },
            by: None,
        };
        let settings = draft.settings(&route, ctx.queue().clock().now());
        let settings = settings
            .map_err(|unfit| Problem { status: StatusCode::UNPROCESSABLE_ENTITY, ..Problem::from(unfit) })?;
        Ok(Self { settings, prompts })
    }

    /// Its requests from the start.
    pub(in crate::api) fn requests(&self, ctx: &Ctx) -> Requests {
        match &self.prompts {
            Prompts::Given(requests) => Requests::Given(requests.clone().into_iter()),
            Prompts::File(path) => {
                let url = self.settings.endpoint.url();
                Requests::File(read_ahead(&ctx.catalog, Form::OpenAi, url, path.clone()))
            }
        }
    }

    /// What it would cost.
    pub(in crate::api) async fn estimate(&self, ctx: &Ctx) -> Result<Estimate, Problem> {
        let route = ctx.llm().route(&self.settings.profile, &self.settings.model).await?;
        let mut estimate = Estimate::new(Some(ctx.queue()), ctx.llm(), &route, &self.settings).await?;
        let mut requests = self.requests(ctx);
        while let Some(request) = requests.next().await? {
            let place = estimate.requests;
            estimate.add(request.body, &self.settings, &route).map_err(|error| {
                let problem = Problem::from(error);
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                Problem { status, ..problem }.at(format!("requests[{place}].body"))
            })?;
        }
        Ok(estimate)
    }
}

fn given(ctx: &Ctx, endpoint: Endpoint, asked: &RunIn) -> Result<(Prompts, Chosen, Source), Problem> {
    let chosen = ctx.catalog.choose(asked.profile.as_deref(), asked.model.as_deref().unwrap_or_default())?;
    let mut requests = Vec::with_capacity(asked.requests.len());
    let of_text = |text: &str| match endpoint {
        Endpoint::Chat => json!({"messages": [{"role": "user", "content": text}]}),
        Endpoint::Embeddings => json!({"input": text}),
    };
    for (index, prompt) in asked.requests.iter().enumerate() {
        let (custom_id, body) = match prompt {
            PromptIn::Text(text) => (None, of_text(text)),
            PromptIn::Request(RequestIn { custom_id, body: Some(body), prompt: None }) => {
                (custom_id.clone(), Value::Object(body.clone()))
            }
            PromptIn::Request(RequestIn { custom_id, body: None, prompt: Some(text) }) => {
                (custom_id.clone(), of_text(text))
            }
            PromptIn::Request(_) => {
                return Err(wrong(&format!("requests[{index}]"), "a request has a body or a prompt"));
            }
        };
        requests.push(NewRequest { custom_id, body, ..NewRequest::default() });
    }
    let source = Source::given(None, SOURCE, &requests);
    Ok((Prompts::Given(requests), chosen, source))
}

async fn from_file(
    (ctx, caller): (&Ctx, &Caller),
    file: &str,
    endpoint: Endpoint,
    asked: &RunIn,
) -> Result<(Prompts, Chosen, Source), Problem> {
    if asked.model.is_some() || asked.profile.is_some() {
        let field = if asked.model.is_some() { "model" } else { "profile" };
        return Err(wrong(field, "the lines of a file name their models, so the call names none"));
    }
    let record = ctx.uploads.get(file, ctx.queue().clock().now());
    let Some(record) = record.filter(|record| caller.owns(record.owner.as_deref())) else {
        return Err(wrong("input_file", format!("there is no file {file}: upload it to /v1/files")));
    };
    let path = ctx.uploads.content(&record);
    let (this, checked) = (ctx.clone(), path.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let reading = Reading { form: Form::OpenAi, endpoint: endpoint.url(), catalog: &this.catalog };
        Ok::<_, std::io::Error>((reading.check(&checked)?, digest_of(&checked)?))
    });
    let (summary, sha256) = checked.await.map_err(Problem::internal)?.map_err(Problem::unavailable)?;
    // The caller of a run can correct a line at once; the caller of a batch reads about it in the error file.
    let summary = summary.and_then(|summary| match summary.refused {
        Some(fault) => Err(vec![fault]),
        None => Ok(summary),
    });
    let summary = summary.map_err(|faults| {
        let told = faults.iter().take(FAULTS_TOLD).map(|fault| match fault.line {
            Some(line) => format!("line {line}: {}", fault.message),
            None => fault.message.clone(),
        });
        let more = faults.len().saturating_sub(FAULTS_TOLD);
        let more = if more > 0 { format!("; {more} more faults") } else { String::new() };
        wrong("input_file", format!("{}{more}", told.collect::<Vec<_>>().join("; ")))
    })?;
    let source = Source {
        name: record.filename,
        sha256,
        requests: summary.requests,
        content: String::new(),
        form: Form::OpenAi.tag().to_owned(),
    };
    Ok((Prompts::File(path), summary.chosen, source))
}

fn digest_of(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Dollars as they are counted.
pub(in crate::api) fn amount(field: &str, dollars: f64) -> Result<NanoUsd, Problem> {
    NanoUsd::from_dollars(dollars).ok_or_else(|| {
        wrong(field, format!("{field} is {dollars}: expected an amount in dollars, such as 2.5"))
    })
}

fn wrong(field: &str, text: impl fmt::Display) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text).at(field)
}
