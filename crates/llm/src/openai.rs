//! OpenAI and what speaks its dialect.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use crate::clock::WallClock;
use crate::error::{Class, Error, Result};
use crate::http::{Http, Service};
use crate::profile::{Profile, ProviderKind};
use crate::provider::*;
use crate::search::{Order, Search, creation_failed, id_in_path, line_of};
use crate::types::{Answer, ChatRequest, Delta, EmbedRequest, Embeddings};
use crate::wire::BatchObject;
use crate::wire::batch::TAG_KEY;
use crate::wire::openai::{self as wire, LimitName, OpenAiStream};

const REQUESTS_MAX: usize = 50_000;
const BYTES_MAX: usize = 200_000_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Texts to embed in a batch, and in one request.
const INPUTS_MAX: usize = 50_000;
const INPUTS_EACH_MAX: usize = 2_048;

/// Models behind OpenAI's dialect.
pub struct OpenAi {
    http: Http,
    batches: bool,
    limit: LimitName,
}

impl OpenAi {
    /// Makes a client of a profile.
    pub fn new(profile: &Profile, clock: Arc<dyn WallClock>) -> Result<Self> {
        let key = profile.key.iter().map(|key| ("authorization", format!("Bearer {}", key.expose())));
        let base = base_of(&profile.base_url);
        // Their newer models insist on the newer name; some engines do not know it and would ignore the limit.
        let own = base == ProviderKind::OpenAi.base_url();
        let limit = if own { LimitName::MaxCompletionTokens } else { LimitName::MaxTokens };
        let service = Service { base, headers: key.collect(), error_from: wire::error_from };
        Ok(Self { http: Http::new(profile, service, clock)?, batches: profile.has_batches(), limit })
    }

    async fn batch(&self, id: &str) -> Result<BatchObject> {
        let request = self.http.request(Method::GET, &format!("/batches/{}", id_in_path(id)?));
        Ok(self.http.json(request, wire::batch_from_json).await?.value)
    }

    fn no_batches(&self) -> Result<()> {
        if self.batches {
            return Ok(());
        }
        Err(Error::new(
            Class::BadRequest,
            "this service has no batches; set `batches` in its profile if it does",
        ))
    }
}

#[async_trait]
impl Provider for OpenAi {
    fn caps(&self) -> Caps {
        let batches = BatchCaps {
            requests_max: REQUESTS_MAX,
            bytes_max: BYTES_MAX,
            tagged: true,
            window: WINDOW,
            embeddings: Some(EmbedCaps { inputs_max: INPUTS_MAX, inputs_each_max: INPUTS_EACH_MAX }),
        };
        Caps {
            dialect: "openai",
            schema: true,
            embeddings: true,
            token_inputs: true,
            batches: self.batches.then_some(batches),
            simulated: false,
        }
    }

    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>> {
        let body = wire::request_to_json(request, self.limit)?.to_string().into_bytes();
        self.http.json(self.http.post("/chat/completions", body), wire::answer_from_json).await
    }

    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>> {
        let mut body = wire::request_to_json(request, self.limit)?;
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let call = self.http.post("/chat/completions", body.to_string().into_bytes());
        self.http.deltas(call, Box::new(OpenAiStream::default()), wire::answer_from_json).await
    }

    async fn embed(&self, request: &EmbedRequest) -> Result<Reply<Embeddings>> {
        let body = wire::embed_request_to_json(request).to_string().into_bytes();
        self.http.json(self.http.post("/embeddings", body), wire::embeddings_from_json).await
    }

    async fn models(&self) -> Result<Vec<ModelInfo>> {
        let model = |model: &Value| {
            Some(ModelInfo {
                id: model["id"].as_str()?.to_owned(),
                owner: model["owned_by"].as_str().map(str::to_owned),
            })
        };
        let read =
            |value: &Value| Ok(value["data"].as_array().into_iter().flatten().filter_map(model).collect());
        Ok(self.http.json(self.http.request(Method::GET, "/models"), read).await?.value)
    }

    async fn upload_batch(&self, input: &BatchInput) -> Result<Option<String>> {
        self.no_batches()?;
        let mut lines = Vec::new();
        for item in &input.items {
            lines.extend_from_slice(wire::input_to_json(item, self.limit)?.to_string().as_bytes());
            lines.push(b'\n');
        }
        let file = Part::bytes(lines).file_name(format!("{}.jsonl", input.tag));
        let form = Form::new().text("purpose", "batch").part("file", file);
        let request = self.http.request(Method::POST, "/files").multipart(form);
        let read = |value: &Value| {
            let id = value["id"].as_str().map(str::to_owned);
            id.ok_or_else(|| Error::new(Class::Network, "the uploaded file has no id"))
        };
        Ok(Some(self.http.upload(request, read).await?.value))
    }

    async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus> {
        self.no_batches()?;
        let missing =
            || Error::new(Class::BadRequest, "a batch of this service is made from an uploaded file");
        let create = wire::BatchCreate {
            input_file: file.ok_or_else(missing)?.to_owned(),
            endpoint: input.first()?.endpoint().url().to_owned(),
            window: "24h".to_owned(),
            metadata: [(TAG_KEY.to_owned(), json!(input.tag))].into_iter().collect(),
        };
        let body = wire::create_to_json(&create).to_string().into_bytes();
        let batch = self.http.json(self.http.post("/batches", body), wire::batch_from_json).await;
        batch.map(|reply| reply.value.status()).map_err(|error| {
            // Files take a moment to be known everywhere: the same call works a little later.
            let early = error.status == Some(400) && error.message.contains("Cannot find file");
            let class = if early { Class::Overloaded } else { error.class };
            Error { class, ..creation_failed(error) }
        })
    }

    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        let mut search = Search::new(probe, Order::NewestFirst);
        let mut after: Option<String> = None;
        while search.goes_on()? {
            let query: Vec<_> =
                [("limit", "100")].into_iter().chain(after.as_deref().map(|a| ("after", a))).collect();
            let request = self.http.list("/batches", &query)?;
            let page = self.http.json(request, |value| Ok(value.clone())).await?.value;
            let batches = page["data"].as_array().into_iter().flatten().map(wire::batch_from_json);
            let batches = batches.collect::<Result<Vec<_>>>()?;
            after = batches.last().map(|batch| batch.id.clone());
            search.add(&batches, |batch| {
                let by_file = probe.file.is_some() && batch.input_file == probe.file;
                (by_file || batch.tag() == Some(&probe.tag)).then_some(true)
            });
            if after.is_none() || page["has_more"] != true {
                break;
            }
        }
        Ok(search.found)
    }

    async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        Ok(self.batch(id).await?.status())
    }

    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>> {
        let batch = self.batch(id).await?;
        let http = self.http.clone();
        let files = [batch.output_file, batch.error_file].into_iter().flatten();
        // One after the other: a connection that waits for its turn would be closed.
        let open = move |file: String| {
            let http = http.clone();
            async move {
                let request = http.request(Method::GET, &format!("/files/{}/content", id_in_path(&file)?));
                http.lines(request, line).await
            }
        };
        Ok(stream::iter(files.collect::<Vec<_>>()).then(open).try_flatten().boxed())
    }

    async fn cancel_batch(&self, id: &str) -> Result<()> {
        let request = self.http.request(Method::POST, &format!("/batches/{}/cancel", id_in_path(id)?));
        self.http.json(request, |_| Ok(())).await.map(|reply| reply.value)
    }
}

fn line(text: &str) -> BatchLine {
    line_of(text, wire::line_from_json)
}

/// Users leave out the path of an engine's address: without one it is `/v1`.
fn base_of(base_url: &str) -> String {
    let base = base_url.trim_end_matches('/');
    let bare = base.split_once("://").is_some_and(|(_, rest)| !rest.contains('/'));
    if bare { format!("{base}/v1") } else { base.to_owned() }
}
