//! What a run is made of: prompts in the call itself, or in a file that was uploaded before.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use axum::http::StatusCode;
use longhaul_api::prompts::{ModeIn, PromptIn, RequestIn, RunIn};
use longhaul_llm::catalog::{Chosen, check_model};
use longhaul_llm::{Endpoint, NanoUsd};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::sdk_batches::Form;
use longhaul_prompts::sdk_batches::input::{Reading, read_ahead};
use longhaul_prompts::{Defaults, Draft, Estimate, NewRequest, RunSettings, Source};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::problem::Problem;

/// How runs of this door call themselves when nobody names them.
const SOURCE: &str = "api";
/// Faults of a file that are told.
const FAULTS_TOLD: usize = 5;

mod lines;

/// A run that can be handed in.
pub(in crate::api) struct Wanted {
    pub(in crate::api) settings: RunSettings,
    prompts: Prompts,
}

enum Prompts {
    Given(Vec<NewRequest>),
    /// A request a line, as in the call.
    Lines(PathBuf),
    /// A line each in the form of OpenAI's batches.
    BatchLines(PathBuf),
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
                None if asked.by.is_some() => Strategy::Auto,
                None => ctx.options.run_strategy,
                Some(ModeIn::Sync) => Strategy::Sync,
                Some(ModeIn::Batch) => Strategy::Batch,
                Some(ModeIn::Auto) => Strategy::Auto,
            },
            cache: asked.cache,
            tags: asked.tags,
            source: Source { name: asked.name.unwrap_or(source.name), ..source },
            by: asked.by,
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
            Prompts::Lines(path) => Requests::File(lines::read_ahead(path.clone(), self.settings.endpoint)),
            Prompts::BatchLines(path) => {
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
    let requests: Result<Vec<_>, _> = asked
        .requests
        .iter()
        .enumerate()
        .map(|(index, prompt)| {
            request(prompt.clone(), endpoint).map_err(|text| wrong(&format!("requests[{index}]"), text))
        })
        .collect();
    let requests = requests?;
    let source = Source::given(None, SOURCE, &requests);
    Ok((Prompts::Given(requests), chosen, source))
}

/// A prompt as runs store it.
fn request(prompt: PromptIn, endpoint: Endpoint) -> Result<NewRequest, &'static str> {
    let of_text = |text: String| match endpoint {
        Endpoint::Chat => json!({"messages": [{"role": "user", "content": text}]}),
        Endpoint::Embeddings => json!({"input": text}),
    };
    let (custom_id, body) = match prompt {
        PromptIn::Text(text) => (None, of_text(text)),
        PromptIn::Request(RequestIn { custom_id, body: Some(body), prompt: None }) => {
            (custom_id, Value::Object(body))
        }
        PromptIn::Request(RequestIn { custom_id, body: None, prompt: Some(text) }) => {
            (custom_id, of_text(text))
        }
        PromptIn::Request(_) => return Err("a request has a body or a prompt"),
    };
    Ok(NewRequest { custom_id, body, ..NewRequest::default() })
}

async fn from_file(
    (ctx, caller): (&Ctx, &Caller),
    file: &str,
    endpoint: Endpoint,
    asked: &RunIn,
) -> Result<(Prompts, Chosen, Source), Problem> {
    let record = ctx.uploads.get(file, ctx.queue().clock().now());
    let Some(record) = record.filter(|record| caller.owns(record.owner.as_deref())) else {
        return Err(wrong("input_file", format!("there is no file {file}: upload it to /v1/files")));
    };
    let path = ctx.uploads.content(&record);
    let looked_at = path.clone();
    let form = tokio::task::spawn_blocking(move || lines::form_of(&looked_at)).await;
    if form.map_err(Problem::internal)?.map_err(Problem::unavailable)? == lines::LineForm::Requests {
        let chosen =
            ctx.catalog.choose(asked.profile.as_deref(), asked.model.as_deref().unwrap_or_default())?;
        let checked = path.clone();
        let checked = tokio::task::spawn_blocking(move || lines::check(&checked, endpoint)).await;
        let (requests, sha256) = checked
            .map_err(Problem::internal)?
            .map_err(Problem::unavailable)?
            .map_err(|faults| wrong("input_file", faults))?;
        let form = lines::FORM.to_owned();
        let content = asked.content.clone().unwrap_or_default();
        let source = Source { name: record.filename, sha256, requests, content, form };
        return Ok((Prompts::Lines(path), chosen, source));
    }
    if asked.model.is_some() || asked.profile.is_some() {
        let field = if asked.model.is_some() { "model" } else { "profile" };
        return Err(wrong(field, "lines in the form of batches name their models, so the call names none"));
    }
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
    Ok((Prompts::BatchLines(path), summary.chosen, source))
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
