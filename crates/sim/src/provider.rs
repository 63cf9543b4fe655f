//! The simulator as a provider in process: what a client would see of it, without a wire.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream;
use serde_json::Map;

use super::batches::{Batch, Door, NewBatch, OPENAI_BYTES_MAX, OPENAI_INPUTS_MAX, OPENAI_REQUESTS_MAX};
use super::sim_core::{EMBED_INPUTS_MAX, Run, SimCore, Trouble, bad_request};
use longhaul_llm::error::{Error, Result};
use longhaul_llm::provider::{
    BatchCaps, BatchInput, BatchLine, BatchProbe, BatchStatus, Caps, EmbedCaps, FoundBatch, ModelInfo,
    Provider, Reply, ResultStream,
};
use longhaul_llm::types::{Answer, ChatRequest, Delta, EmbedRequest, Embeddings};

/// Bytes of text in one piece of a stream: about what a token is.
const PIECE_BYTES: usize = 4;

/// A simulator behind the provider's trait.
#[derive(Debug, Clone)]
pub struct SimProvider {
    core: Arc<SimCore>,
    key: Option<String>,
}

impl SimProvider {
    /// A client of a simulator.
    pub fn new(core: Arc<SimCore>) -> Self {
        Self { core, key: None }
    }

    /// With a key, for [`super::SimOptions::require_key`].
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The simulator, for its books and knobs.
    pub fn core(&self) -> &Arc<SimCore> {
        &self.core
    }

    fn enter(&self) -> Result<()> {
        self.core.authorize(self.key.as_deref())
    }

    fn status(&self, batch: &Batch) -> BatchStatus {
        let view = self.core.view_batch(batch);
        BatchStatus {
            id: batch.id.clone(),
            state: view.state,
            completed: Some(view.completed),
            failed: Some(view.failed),
            error: view.error.map(|(code, message)| format!("{code}: {message}")),
        }
    }
}

#[async_trait]
impl Provider for SimProvider {
    fn caps(&self) -> Caps {
        Caps {
            dialect: "sim",
            schema: true,
            embeddings: true,
            token_inputs: true,
            // A local engine has no batch API.
            batches: self.core.options().slots.is_none().then(|| BatchCaps {
                requests_max: OPENAI_REQUESTS_MAX,
                bytes_max: OPENAI_BYTES_MAX,
                tagged: true,
                window: self.core.options().batch.window(),
                embeddings: Some(EmbedCaps {
                    inputs_max: OPENAI_INPUTS_MAX,
                    inputs_each_max: EMBED_INPUTS_MAX,
                }),
            }),
            simulated: true,
        }
    }

    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>> {
        self.enter()?;
        let Run { answer, rate, .. } = self.core.complete(request).await.map_err(Trouble::into_error)?;
        Ok(Reply { value: answer, rate })
    }

    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>> {
        self.enter()?;
        let (run, cut_off) = match self.core.begin(request).await {
            Ok(run) => (run, false),
            Err(Trouble::CutOff(run)) => (*run, true),
            Err(trouble) => return Err(trouble.into_error()),
        };
        let rate = run.rate.clone();
        let pieces = Pieces { core: Arc::clone(&self.core), run, sent: 0, cut_off, ended: false };
        Ok(Reply { value: Box::pin(stream::unfold(pieces, Pieces::next)), rate })
    }

    async fn embed(&self, request: &EmbedRequest) -> Result<Reply<Embeddings>> {
        self.enter()?;
        let (value, rate) = self.core.embed(request).await.map_err(Trouble::into_error)?;
        Ok(Reply { value, rate })
    }

    async fn models(&self) -> Result<Vec<ModelInfo>> {
        self.enter()?;
        let models = self.core.options().models.iter();
        Ok(models.map(|id| ModelInfo { id: id.clone(), owner: Some("sim".to_owned()) }).collect())
    }

    async fn upload_batch(&self, _input: &BatchInput) -> Result<Option<String>> {
        Ok(None)
    }

    async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus> {
        self.enter()?;
        let new = NewBatch {
            door: Door::Native,
            items: input.items.clone(),
            refused: HashMap::new(),
            invalid: None,
            display_name: Some(input.tag.clone()),
            metadata: Map::new(),
            input_file: file.map(str::to_owned),
        };
        let batch = self.core.create_batch(new).map_err(Trouble::into_error)?;
        Ok(self.status(&batch))
    }

    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>> {
        self.enter()?;
        let batches = self.core.list_batches(Door::Native).into_iter();
        let tagged = batches.filter(|batch| batch.given.display_name.as_deref() == Some(&probe.tag));
        Ok(tagged.map(|batch| FoundBatch { status: self.status(&batch), certain: true }).collect())
    }

    async fn poll_batch(&self, id: &str) -> Result<BatchStatus> {
        self.enter()?;
        let batch = self.core.poll_batch(Door::Native, id).map_err(Trouble::into_error)?;
        Ok(self.status(&batch))
    }

    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>> {
        self.enter()?;
        let batch = self.core.batch(Door::Native, id)?;
        let lines = self.core.batch_lines(&batch).ok_or_else(|| no_results(id))?;
        Ok(Box::pin(stream::iter(lines.map(Ok))))
    }

    async fn cancel_batch(&self, id: &str) -> Result<()> {
        self.enter()?;
        self.core.cancel_batch(&*self.core.batch(Door::Native, id)?);
        Ok(())
    }
}

fn no_results(id: &str) -> Error {
    bad_request(format!("batch {id} has no results"))
}

/// An answer that is being told.
struct Pieces {
    core: Arc<SimCore>,
    run: Run,
    sent: usize,
    cut_off: bool,
    ended: bool,
}

impl Pieces {
    async fn next(mut self) -> Option<(Result<Delta>, Self)> {
        if self.ended {
            return None;
        }
        let text = &self.run.answer.text;
        let stops_at = if self.cut_off { text.len() / 2 } else { text.len() };
        if self.sent < stops_at {
            self.core.wait(self.run.per_token).await;
            let end = text.ceil_char_boundary((self.sent + PIECE_BYTES).min(text.len()));
            let piece = text[self.sent..end].to_owned();
            self.sent = end;
            return Some((Ok(Delta::Text(piece)), self));
        }
        self.ended = true;
        if self.cut_off {
            let error =
                Error::new(longhaul_llm::error::Class::Network, "the stream broke off").maybe_billed();
            return Some((Err(error), self));
        }
        self.core.delivered();
        let answer = self.run.answer.clone();
        Some((Ok(Delta::End(answer)), self))
    }
}
