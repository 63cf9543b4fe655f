//! The one seam to models. A provider sends one call and classes its answer; it neither waits, retries, counts nor
//! caches. What it cannot do is a field of [`Caps`].

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use serde::{Deserialize, Serialize};

use crate::error::{Class, Error, Result};
use crate::types::{
    Answer, ChatRequest, Delta, Dialect, EmbedInput, EmbedRequest, Embeddings, Endpoint, Request,
};
use crate::wire::translated;

/// A boxed stream of results.
pub type ResultStream<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// Models behind one address and key.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// What it is and can do.
    fn caps(&self) -> Caps;

    /// One answer.
    async fn complete(&self, request: &ChatRequest) -> Result<Reply<Answer>>;

    /// One answer, piece by piece; ends with [`Delta::End`].
    async fn stream(&self, request: &ChatRequest) -> Result<Reply<ResultStream<Delta>>>;

    /// Vectors of texts.
    async fn embed(&self, request: &EmbedRequest) -> Result<Reply<Embeddings>>;

    /// The models on offer.
    async fn models(&self) -> Result<Vec<ModelInfo>>;

    /// Uploads a batch's input where the provider wants it as a file; its name there. `None`: the input goes with
    /// [`Provider::create_batch`].
    async fn upload_batch(&self, input: &BatchInput) -> Result<Option<String>>;

    /// Creates a batch. No provider makes this repeatable: an error with `maybe_billed` means that it may exist.
    async fn create_batch(&self, input: &BatchInput, file: Option<&str>) -> Result<BatchStatus>;

    /// Recent batches that may be the one looked for, by tag or file where the provider keeps them, otherwise by time
    /// and size; see [`FoundBatch::certain`].
    async fn find_batches(&self, probe: &BatchProbe) -> Result<Vec<FoundBatch>>;

    /// Where a batch stands.
    async fn poll_batch(&self, id: &str) -> Result<BatchStatus>;

    /// All lines of an ended batch, in any order: answers and errors, also those of an expired or cancelled one.
    async fn batch_results(&self, id: &str) -> Result<ResultStream<BatchLine>>;

    /// Asks a batch to end.
    async fn cancel_batch(&self, id: &str) -> Result<()>;
}

/// What a provider is and can do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Caps {
    /// Its dialect: `openai`, `anthropic`, `gemini`, `sim`.
    pub dialect: &'static str,
    /// Whether it can be asked for JSON of a schema.
    pub schema: bool,
    /// Whether it embeds texts.
    pub embeddings: bool,
    /// Whether texts may be given as the numbers of their tokens.
    pub token_inputs: bool,
    /// Its batch API, if it has one.
    pub batches: Option<BatchCaps>,
    /// Whether its answers are made up.
    pub simulated: bool,
}

/// What a batch API takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BatchCaps {
    /// Most requests in a batch.
    pub requests_max: usize,
    /// Most bytes of input.
    pub bytes_max: usize,
    /// Whether a batch carries our tag, so that a lost one can be found for certain.
    pub tagged: bool,
    /// Within what time it answers.
    pub window: Duration,
    /// What it takes of texts to embed, if it does.
    pub embeddings: Option<EmbedCaps>,
}

/// What a batch API takes of texts to embed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EmbedCaps {
    /// Most texts in a batch, all of its requests together.
    pub inputs_max: usize,
    /// Most texts in one request.
    pub inputs_each_max: usize,
}

impl Caps {
    /// Its batch API, if it has one for this.
    pub fn batches_of(&self, endpoint: Endpoint) -> Option<&BatchCaps> {
        self.batches.as_ref().filter(|batches| endpoint == Endpoint::Chat || batches.embeddings.is_some())
    }

    /// Whether a request may ask for several answers.
    pub fn gives_choices(&self) -> bool {
        self.dialect == "openai"
    }

    /// Refuses what cannot be asked here at all.
    pub fn check_endpoint(&self, endpoint: Endpoint) -> Result<()> {
        if endpoint == Endpoint::Embeddings && !self.embeddings {
            return Err(no_embeddings(self.dialect));
        }
        Ok(())
    }

    /// Refuses what cannot be asked here, alone or in a batch.
    pub fn check(&self, request: &Request, in_batch: bool) -> Result<()> {
        self.check_endpoint(request.endpoint())?;
        // Left out it would be answered once; passed on to another dialect it would be paid for and not told.
        let told = request.as_chat().is_none_or(|chat| chat.dialect == Dialect::OpenAi);
        if request.choices() > 1 && !(told && self.gives_choices()) {
            let text = format!(
                "n: expected 1, because {} gives one answer per request; send the request several times for more",
                self.dialect
            );
            return Err(Error::new(Class::BadRequest, text).with_status(400));
        }
        let EmbedRequest { inputs, .. } = match (request, Dialect::named(self.dialect)) {
            (Request::Embed(request), _) => request,
            (Request::Chat(request), Some(dialect)) => return translated(request, dialect).map(|_| ()),
            (Request::Chat(_), None) => return Ok(()),
        };
        let refused = |text: String| Err(Error::new(Class::BadRequest, text));
        if inputs.is_empty() {
            return refused("input: there is nothing to embed".to_owned());
        }
        if !self.token_inputs && inputs.iter().any(|input| matches!(input, EmbedInput::Tokens(_))) {
            return refused(format!("{} embeds texts, not tokens", self.dialect));
        }
        let batches = self.batches.as_ref().and_then(|batches| batches.embeddings).filter(|_| in_batch);
        match batches {
            Some(EmbedCaps { inputs_each_max, .. }) if inputs.len() > inputs_each_max => refused(format!(
                "{} takes at most {inputs_each_max} texts in a request of a batch, not {}; send them one by one, or as \
                 requests of their own",
                self.dialect,
                inputs.len()
            )),
            _ => Ok(()),
        }
    }
}

/// The error of a provider that embeds nothing.
pub(crate) fn no_embeddings(dialect: &str) -> Error {
    Error::new(Class::BadRequest, format!("{dialect} offers no embeddings; choose another profile for them"))
}

/// An answer with what its headers told.
#[derive(Debug)]
pub struct Reply<T> {
    /// The answer.
    pub value: T,
    /// What was told of limits.
    pub rate: RateSignals,
}

impl<T> Reply<T> {
    /// An answer without headers.
    pub fn new(value: T) -> Self {
        Self { value, rate: RateSignals::default() }
    }
}

/// What a provider tells of its limits with an answer. They describe the moment when the call was admitted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RateSignals {
    /// Requests.
    pub requests: Option<RateWindow>,
    /// Tokens of all kinds.
    pub tokens: Option<RateWindow>,
    /// Input tokens, where they are counted on their own.
    pub input_tokens: Option<RateWindow>,
    /// Output tokens, where they are counted on their own.
    pub output_tokens: Option<RateWindow>,
}

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateWindow {
    /// Allowed a minute.
    pub limit: Option<u64>,
    /// Left of it.
    pub remaining: Option<u64>,
    /// Until all of it is back.
    pub reset_after: Option<Duration>,
}

/// A model on offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelInfo {
    /// Its name in requests.
    pub id: String,
    /// Who made it, where told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// The input of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchInput {
    /// Ours, unique: the batch carries it where the provider keeps tags.
    pub tag: String,
    /// The requests, to one model and of one kind.
    pub items: Vec<BatchItem>,
}

impl BatchInput {
    /// What all of its requests ask for, and of which model. A batch needs at least one.
    pub fn first(&self) -> Result<&Request> {
        let empty = || Error::new(Class::BadRequest, "a batch needs at least one request");
        Ok(&self.items.first().ok_or_else(empty)?.request)
    }
}

/// One request of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchItem {
    /// Ours: 1 to 64 of `[A-Za-z0-9_-]`, unique in the batch.
    pub custom_id: String,
    /// The request; all of a batch ask for the same.
    pub request: Request,
}

/// What is known of a batch whose creation was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchProbe {
    /// The tag it was given.
    pub tag: String,
    /// The file it was made from.
    pub file: Option<String>,
    /// When it was sent, in milliseconds since the epoch.
    pub sent_at_ms: i64,
    /// How many requests it has.
    pub requests: usize,
}

/// A batch that may be the one looked for.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundBatch {
    /// The batch.
    pub status: BatchStatus,
    /// Whether tag or file prove it; otherwise only time and size fit.
    pub certain: bool,
}

/// Where a batch stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchStatus {
    /// The provider's name for it.
    pub id: String,
    /// Its state.
    pub state: BatchState,
    /// Requests that have an answer, where told.
    pub completed: Option<u64>,
    /// Requests that failed, where told.
    pub failed: Option<u64>,
    /// Why it failed as a whole.
    pub error: Option<String>,
}

/// The states of a batch, for all providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// Accepted, or being checked.
    Queued,
    /// Under way.
    Running,
    /// All requests are done, results are being written.
    Finalizing,
    /// Ended; lines tell how each request fared.
    Completed,
    /// Refused as a whole; nothing was run.
    Failed,
    /// The window passed; what was done by then has results.
    Expired,
    /// Asked to end.
    Cancelling,
    /// Ended on request; what was done by then has results.
    Cancelled,
}

impl BatchState {
    /// Whether it has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Expired | Self::Cancelled)
    }
}

/// How one request of a batch fared.
#[derive(Debug, Clone)]
pub struct BatchLine {
    /// As it came back; a provider may lose it.
    pub custom_id: Option<String>,
    /// What became of it.
    pub outcome: LineOutcome,
}

/// What became of one request of a batch.
#[derive(Debug, Clone)]
pub enum LineOutcome {
    /// Answered.
    Answered(Box<Answer>),
    /// Run and failed.
    Failed(Box<Error>),
    /// Never run: the batch expired or was cancelled first. Nothing was charged.
    NotRun,
}
