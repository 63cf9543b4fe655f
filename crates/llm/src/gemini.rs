//! Gemini.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use reqwest::Method;
use serde_json::{Value, json};

use crate::clock::WallClock;
use crate::error::{Class, Error, Result};
use crate::http::{Http, Service};
use crate::profile::Profile;
use crate::provider::*;
use crate::search::{Order, Search, creation_failed, id_in_path, line_of};
use crate::types::{Answer, ChatRequest, Delta, EmbedRequest, Embeddings, Endpoint};
use crate::wire::BatchObject;
use crate::wire::gemini::{self as wire, GeminiStream, model_path};

const REQUESTS_MAX: usize = 50_000;
/// The service takes ten times as much; but the input is held in memory while it is sent.
const BYTES_MAX: usize = 200_000_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);
/// Larger inputs go as a file, so that their results can be read line by line.
const INLINE_REQUESTS_MAX: usize = 100;
const INLINE_BYTES_MAX: usize = 1_000_000;

/// Google's models.
pub struct Gemini {
    http: Http,
    batches: bool,
}

impl Gemini {
    /// Makes a client of a profile.
    pub fn new(profile: &Profile, clock: Arc<dyn WallClock>) -> Result<Self> {
        let headers = profile.key.iter().map(|key| ("x-goog-api-key", key.expose().to_owned())).collect();
        // The paths carry the version; other tools want it in the address.
        let base = profile.base_url.trim_end_matches('/').trim_end_matches("/v1beta").to_owned();
        let service = Service { base, headers, error_from: wire::error_from };
        Ok(Self { http: Http::new(profile, service, clock)?, batches: profile.has_batches() })
    }

    fn model_call(model: &str, verb: &str) -> Result<String> {
        Ok(format!("/v1beta/{}:{verb}", id_in_path(&model_path(model))?))
    }

    async fn batch(&self, id: &str) -> Result<BatchObject> {
        let request = self.http.request(Method::GET, &format!("/v1beta/{}", id_in_path(id)?));
        Ok(self.http.json(request, wire::batch_from_json).await?.value)
    }
}

#[async_trait]
impl Provider for Gemini {
    fn caps(&self) -> Caps {
        let batches = BatchCaps {
            requests_max: REQUESTS_MAX,
            bytes_max: BYTES_MAX,
            tagged: true,
            window: WINDOW,
            // A line of a batch has one content, and one vector comes back for it.
            embeddings: Some(EmbedCaps { inputs_max: REQUESTS_MAX, inputs_each_max: 1 }),
        };
        Caps {
            dialect: "gemini",
            schema: true,
            embeddings: true,
            token_inputs: false,
            batches: self.batches.then_some(batches),
            simulated: false,
        }
    }

    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>> {
        let path = Self::model_call(&request.model, "generateContent")?;
        let body = wire::request_to_json(request)?.to_string().into_bytes();
        self.http.json(self.http.post(&path, body), wire::answer_from_json).await
    }

    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>> {
        let path = Self::model_call(&request.model, "streamGenerateContent?alt=sse")?;
        let body = wire::request_to_json(request)?.to_string().into_bytes();
        let call = self.http.post(&path, body);
        self.http.deltas(call, Box::new(GeminiStream::default()), wire::answer_from_json).await
    }

    async fn embed(&self, request: &EmbedRequest) -> Result<Reply<Embeddings>> {
        let path = Self::model_call(&request.model, "batchEmbedContents")?;
        let body = wire::embed_request_to_json(request)?.to_string().into_bytes();
        let read = |value: &Value| wire::embeddings_from_json(&request.model, value);
        self.http.json(self.http.post(&path, body), read).await
    }

    async fn models(&self) -> Result<Vec<ModelInfo>> {
        let model = |model: &Value| {
            let name = model["name"].as_str()?;
            Some(ModelInfo { id: name.trim_start_matches("models/").to_owned(), owner: None })
        };
        let read =
            |value: &Value| Ok(value["models"].as_array().into_iter().flatten().filter_map(model).collect());
        Ok(self.http.json(self.http.request(Method::GET, "/v1beta/models?pageSize=1000"), read).await?.value)
    }

    /// Google's resumable protocol in two steps: announce the file, then send all of it at once.
    async fn upload_batch(&self, input: &BatchInput) -> Result<Option<String>> {
        let mut lines = Vec::new();
        for item in &input.items {
            lines.extend_from_slice(wire::input_to_json(item)?.to_string().as_bytes());
            lines.push(b'\n');
        }
        if input.items.len() <= INLINE_REQUESTS_MAX && lines.len() <= INLINE_BYTES_MAX {
            return Ok(None);
        }
        let about = json!({ "file": { "displayName": input.tag } }).to_string().into_bytes();
        let start = self.http.post("/upload/v1beta/files", about);
        let start = start
            .header("x-goog-upload-protocol", "resumable")
            .header("x-goog-upload-command", "start")
            .header("x-goog-upload-header-content-length", lines.len())
            .header("x-goog-upload-header-content-type", "application/jsonl");
        let url = self.http.header(start, "x-goog-upload-url").await?;
        let send = self.http.foreign(&url);
        let send = send
            .header("x-goog-upload-offset", 0)
            .header("x-goog-upload-command", "upload, finalize")
            .body(lines);
        let read = |value: &Value| {
            let name = value["file"]["name"].as_str().map(str::to_owned);
            name.ok_or_else(|| Error::new(Class::Network, "the uploaded file has no name"))
        };
        Ok(Some(self.http.upload(send, read).await?.value))
    }

    async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus> {
        let first = input.first()?;
        let verb = match first.endpoint() {
            Endpoint::Chat => "batchGenerateContent",
            Endpoint::Embeddings => "asyncBatchEmbedContent",
        };
        let path = Self::model_call(first.model(), verb)?;
        let body = match file {
            Some(file) => wire::create_of_file_to_json(&input.tag, file).to_string().into_bytes(),
            None => wire::create_inline_to_body(&input.tag, &input.items)?,
        };
        let batch = self.http.upload(self.http.post(&path, body), wire::batch_from_json).await;
        batch.map(|reply| reply.value.status()).map_err(creation_failed)
    }

    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        let mut search = Search::new(probe, Order::Unknown);
        let mut token: Option<String> = None;
        while search.goes_on()? {
            let query: Vec<_> =
                [("pageSize", "100")].into_iter().chain(token.as_deref().map(|t| ("pageToken", t))).collect();
            let request = self.http.list("/v1beta/batches", &query)?;
            let page = self.http.json(request, |value| Ok(value.clone())).await?.value;
            let batches = page["operations"].as_array().into_iter().flatten().map(wire::batch_from_json);
            let batches = batches.collect::<Result<Vec<_>>>()?;
            search.add(&batches, |batch| (batch.tag() == Some(&probe.tag)).then_some(true));
            match page["nextPageToken"].as_str() {
                Some(next) if !next.is_empty() => token = Some(next.to_owned()),
                _ => break,
            }
        }
        Ok(search.found)
    }

    async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        Ok(self.batch(id).await?.status())
    }

    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>> {
        let batch = self.batch(id).await?;
        match batch.output_file {
            Some(file) => {
                let path = format!("/download/v1beta/{}:download?alt=media", id_in_path(&file)?);
                self.http.lines(self.http.request(Method::GET, &path), line).await
            }
            None => Ok(stream::iter(batch.inline.unwrap_or_default().into_iter().map(Ok)).boxed()),
        }
    }

    async fn cancel_batch(&self, id: &str) -> Result<()> {
        let path = format!("/v1beta/{}:cancel", id_in_path(id)?);
        self.http.json(self.http.post(&path, b"{}".to_vec()), |_| Ok(())).await.map(|reply| reply.value)
    }
}

fn line(text: &str) -> BatchLine {
    line_of(text, wire::line_from_json)
}
