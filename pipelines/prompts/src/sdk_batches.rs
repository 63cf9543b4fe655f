//! Batches of SDKs: what OpenAI's and Anthropic's clients hand in as a file of requests. A batch is a job of kind [`KIND`]: it reads its
//! input file, submits a run, and parks until the run has ended, its window has passed or somebody cancels it. So a batch survives
//! whatever a job survives, and there is no other record of it. Whose a batch is stands in its payload; who may see it is decided
//! where callers are known.
//!
//! **Steps**, in [`life`]: check the file line by line (`validating`; a wrong one ends the batch as `failed`, with the lines), submit
//! (`in_progress`), wait, and tell what became of it. What a batch answers is read from the run's own results at any time
//! ([`output`]), also while it goes on; no output file is ever written.

use std::sync::Arc;

use longhaul_llm::provider::BatchState;
use longhaul_llm::{Catalog, Llm, Usage};
use longhaul_pipeline::webhooks::Endpoints;
use longhaul_pipeline::{RunId, Uploads};
use longhaul_queue::{JobId, Queue, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::plan::Strategy;
use crate::{ABOUT, Prompts};

mod batch;
mod create;
pub mod input;
mod life;
pub mod output;

pub use batch::{Batch, Newer};
pub use create::NewBatch;
pub use input::LineFault;
pub use life::WAKE_KIND;

/// The kind of a batch.
pub const KIND: &str = "api.batch";
/// The queue of batches.
pub const QUEUE: &str = "batches";

/// A store or a file that cannot be read now can be later.
const ATTEMPTS_MAX: u32 = 20;

/// All batches, and what their handlers need. Cheap to clone.
#[derive(Clone)]
pub struct SdkBatches {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    /// One batch is created at a time, so that a repeated creation finds the first.
    creating: tokio::sync::Mutex<()>,
}

/// What batches are made of.
pub struct Parts {
    /// Runs of prompts.
    pub prompts: Prompts,
    /// Their input files.
    pub uploads: Uploads,
    /// What names of models mean.
    pub catalog: Catalog,
    /// Who is told of their ends.
    pub endpoints: Arc<Endpoints>,
    /// How their requests are sent.
    pub strategy: Strategy,
}

impl SdkBatches {
    /// The batches of these parts.
    pub fn new(parts: Parts) -> Self {
        Self { inner: Arc::new(Inner { parts, creating: tokio::sync::Mutex::default() }) }
    }

    /// How their requests are sent.
    pub fn strategy(&self) -> Strategy {
        self.inner.parts.strategy
    }

    fn parts(&self) -> &Parts {
        &self.inner.parts
    }

    fn queue(&self) -> &Queue {
        self.inner.parts.prompts.queue()
    }

    fn llm(&self) -> &Llm {
        self.inner.parts.prompts.llm()
    }

    fn now(&self) -> Timestamp {
        self.queue().clock().now()
    }
}

/// The run of a batch.
pub fn run_of(id: JobId) -> RunId {
    RunId::of_job(&ABOUT, id)
}

/// Whose form a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Form {
    /// The label by which batches of a form are listed.
    pub fn tag(self) -> &'static str {
        match self {
            Self::OpenAi => "batch.openai",
            Self::Anthropic => "batch.anthropic",
        }
    }

    /// How the names of its batches begin.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::OpenAi => "batch_",
            Self::Anthropic => "msgbatch_",
        }
    }

    /// The label by which those of one token are listed.
    fn tag_of(self, owner: &str) -> String {
        format!("{}/{owner}", self.tag())
    }
}

/// What a batch is given. Written once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchPayload {
    /// Whose form.
    pub form: Form,
    /// What is asked of the model, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// The uploaded file with a request a line.
    pub input_file: String,
    /// What the client sent, by which a repeated creation is known: the file it names, or a digest of its requests.
    pub fingerprint: String,
    /// The window as the client wrote it.
    pub window: String,
    /// When the window has passed.
    pub expires_at: Timestamp,
    /// The client's own pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The name of the token that created it; none where none was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What a batch remembers between its steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// How many requests it has, once they are stored.
    pub total: Option<u64>,
    /// The model that most of them name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// When they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_progress_at: Option<Timestamp>,
    /// When it was asked to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelling_at: Option<Timestamp>,
    /// When its window passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired_at: Option<Timestamp>,
}

/// What became of a batch: the result of its job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// As what it ended.
    pub state: BatchState,
    /// Lines that could not be read; then nothing was run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<LineFault>,
    /// How its requests ended.
    pub counts: Counts,
    /// What the answers used.
    pub usage: Usage,
    /// Bytes of the lines with an answer, and of those without.
    pub bytes: (u64, u64),
    /// What it remembered.
    pub kept: Kept,
}

/// How the requests of a batch stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// All.
    pub total: u64,
    /// Answered.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Ended without having been run.
    pub not_run: u64,
}

/// What a parked batch is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    /// Its run has ended.
    Ended,
    /// Somebody wants it to end.
    Cancel,
}

/// What a parked batch waits for.
fn key_of(id: JobId) -> String {
    format!("{KIND}/{id}")
}
