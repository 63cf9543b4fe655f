//! Anthropic.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::{Value, json};

use crate::clock::WallClock;
use crate::error::Result;
use crate::http::{Http, Service};
use crate::profile::Profile;
use crate::provider::*;
use crate::search::{CLOCK_SLACK_MS, Order, Search, creation_failed, id_in_path, line_of};
use crate::types::{Answer, ChatRequest, Delta, EmbedRequest, Embeddings};
use crate::wire::anthropic::{self as wire, AnthropicStream};

/// The version of the interface that these shapes are of.
const VERSION: &str = "2026-10-21";
const REQUESTS_MAX: usize = 100_000;
const BYTES_MAX: usize = 256_000_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);

/// A batch that is found by time was made within this time after it was sent.
const CREATED_AFTER_MS: i64 = 30 * 60 * 1000;

/// Anthropic's models.
pub struct Anthropic {
    http: Http,
    batches: bool,
}

impl Anthropic {
    /// Makes a client of a profile.
    pub fn new(profile: &Profile, clock: Arc<dyn WallClock>) -> Result<Self> {
        let mut headers = vec![("anthropic-version", VERSION.to_owned())];
        headers.extend(profile.key.iter().map(|key| ("authorization", format!("Bearer {}", key.expose()))));
        // The paths carry the version; other tools want it in the address.
        let base = profile.base_url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let service = Service { base, headers, error_from: wire::error_from };
        Ok(Self { http: Http::new(profile, service, clock)?, batches: profile.has_batches() })
    }

    /// The body of a call. Whether it is streamed is said by the call, not by the request.
    fn body(request: &ChatRequest, stream: bool) -> Result<Vec<u8>> {
        let mut body = wire::request_to_json(request)?;
        body["stream"] = json!(stream);
        Ok(body.to_string().into_bytes())
    }

    fn batch_path(id: &str) -> Result<String> {
        Ok(format!("/v1/messages/batches/{}", id_in_path(id)?))
    }
}

#[async_trait]
impl Provider for Anthropic {
    fn caps(&self) -> Caps {
        let batches = BatchCaps {
            requests_max: REQUESTS_MAX,
            bytes_max: BYTES_MAX,
            tagged: false,
            window: WINDOW,
            embeddings: None,
        };
        Caps {
            dialect: "anthropic",
            schema: true,
            embeddings: false,
            token_inputs: false,
            batches: self.batches.then_some(batches),
            simulated: false,
        }
    }

    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>> {
        let call = self.http.post("/v1/messages", Self::body(request, false)?);
        self.http.json(call, wire::answer_from_json).await
    }

    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>> {
        let call = self.http.post("/v1/messages", Self::body(request, true)?);
        self.http.deltas(call, Box::new(AnthropicStream::default()), wire::answer_from_json).await
    }

    async fn embed(&self, _request: &EmbedRequest) -> Result<Reply<Embeddings>> {
        Err(no_embeddings("anthropic"))
    }

    async fn models(&self) -> Result<Vec<ModelInfo>> {
        let model = |model: &Value| Some(ModelInfo { id: model["id"].as_str()?.to_owned(), owner: None });
        let read =
            |value: &Value| Ok(value["data"].as_array().into_iter().flatten().filter_map(model).collect());
        Ok(self.http.json(self.http.request(Method::GET, "/v1/models?limit=1000"), read).await?.value)
    }

    async fn upload_batch(&self, _input: &BatchInput) -> Result<Option<String>> {
        Ok(None)
    }

    async fn create_batch(&self, input: &BatchInput, _file: Option<&str>) -> Result<BatchStatus> {
        let call = self.http.post("/v1/messages/batches", wire::create_to_body(&input.items)?);
        let batch = self.http.upload(call, wire::batch_from_json).await;
        batch.map(|reply| reply.value.status()).map_err(creation_failed)
    }

    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        let mut search = Search::new(probe, Order::NewestFirst);
        let mut after: Option<String> = None;
        while search.goes_on()? {
            let query: Vec<_> =
                [("limit", "100")].into_iter().chain(after.as_deref().map(|a| ("after_id", a))).collect();
            let request = self.http.list("/v1/messages/batches", &query)?;
            let page = self.http.json(request, |value| Ok(value.clone())).await?.value;
            let batches = page["data"].as_array().into_iter().flatten().map(wire::batch_from_json);
            let batches = batches.collect::<Result<Vec<_>>>()?;
            after = batches.last().map(|batch| batch.id.clone());
            // There is no tag: only time and size can fit, which proves nothing.
            search.add(&batches, |batch| {
                let age_ms = batch.created_at_s.saturating_mul(1000).saturating_sub(probe.sent_at_ms);
                let in_time = (-CLOCK_SLACK_MS..=CREATED_AFTER_MS).contains(&age_ms);
                (in_time && batch.requests == Some(probe.requests as u64)).then_some(false)
            });
            if after.is_none() || page["has_more"] != true {
                break;
            }
        }
        Ok(search.found)
    }

    async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        let request = self.http.request(Method::GET, &Self::batch_path(id)?);
        Ok(self.http.json(request, wire::batch_from_json).await?.value.status())
    }

    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>> {
        // Not by `results_url`: it leads past a gateway, and the key would go wherever it points.
        let request = self.http.request(Method::GET, &format!("{}/results", Self::batch_path(id)?));
        self.http.lines(request, line).await
    }

    async fn cancel_batch(&self, id: &str) -> Result<()> {
        let request = self.http.request(Method::POST, &format!("{}/cancel", Self::batch_path(id)?));
        self.http.json(request, |_| Ok(())).await.map(|reply| reply.value)
    }
}

fn line(text: &str) -> BatchLine {
    line_of(text, wire::line_from_json)
}
