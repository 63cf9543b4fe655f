//! A batch as a provider shows it, in one form for all of them: the clients read it, the simulator and a server write it.

use serde_json::{Map, Value};

use crate::provider::{BatchLine, BatchState, BatchStatus};

/// The key of OpenAI's `metadata` under which our tag stands.
pub const TAG_KEY: &str = "longhaul";

/// What a provider tells of a batch. Times are seconds since the epoch.
#[derive(Debug, Clone)]
pub struct BatchObject {
    /// The provider's name for it.
    pub id: String,
    /// Its state.
    pub state: BatchState,
    /// What is asked of the model: `/v1/chat/completions`.
    pub endpoint: String,
    /// The model, where told.
    pub model: Option<String>,
    /// When it was created.
    pub created_at_s: i64,
    /// When it expires.
    pub expires_at_s: Option<i64>,
    /// When it was asked to end.
    pub cancel_at_s: Option<i64>,
    /// When it ended.
    pub ended_at_s: Option<i64>,
    /// How many requests it has.
    pub requests: Option<u64>,
    /// How its requests fare; absent where nothing is told.
    pub counts: Option<BatchCounts>,
    /// The file of its input.
    pub input_file: Option<String>,
    /// The file of its answers.
    pub output_file: Option<String>,
    /// The file of its errors.
    pub error_file: Option<String>,
    /// Results that came with the object itself, in Gemini's dialect.
    pub inline: Option<Vec<BatchLine>>,
    /// Why it failed as a whole, as `code: message`.
    pub error: Option<String>,
    /// Pairs that the creator gave, in OpenAI's dialect.
    pub metadata: Map<String, Value>,
    /// The name that the creator gave, in Gemini's dialect.
    pub display_name: Option<String>,
}

/// How the requests of a batch fare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Answered.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Never run: the batch was asked to end.
    pub cancelled: u64,
    /// Never run: time was up.
    pub expired: u64,
}

impl BatchObject {
    /// A batch that was just created.
    pub fn new(id: impl Into<String>, created_at_s: i64) -> Self {
        Self {
            id: id.into(),
            state: BatchState::Queued,
            endpoint: "/v1/chat/completions".to_owned(),
            model: None,
            created_at_s,
            expires_at_s: None,
            cancel_at_s: None,
            ended_at_s: None,
            requests: None,
            counts: None,
            input_file: None,
            output_file: None,
            error_file: None,
            inline: None,
            error: None,
            metadata: Map::new(),
            display_name: None,
        }
    }

    /// The tag that its creator gave it.
    pub fn tag(&self) -> Option<&str> {
        self.display_name.as_deref().or_else(|| self.metadata.get(TAG_KEY)?.as_str())
    }

    /// What a caller needs of it.
    pub fn status(&self) -> BatchStatus {
        BatchStatus {
            id: self.id.clone(),
            state: self.state,
            completed: self.counts.map(|counts| counts.completed),
            failed: self.counts.map(|counts| counts.failed),
            error: self.error.clone(),
        }
    }
}

/// What a written result says beside its outcome.
#[derive(Debug, Clone, Copy)]
pub struct LineContext<'a> {
    /// Names the call that the line was.
    pub request_id: &'a str,
    /// When its answer was made, in seconds since the epoch.
    pub created_s: i64,
    /// Whether a request that never ran was cancelled; otherwise it expired.
    pub cancelled: bool,
}
