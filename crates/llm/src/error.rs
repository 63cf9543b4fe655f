//! What can go wrong with a call, by what must be done about it. The HTTP status is kept.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::file::FileError;
use crate::ledger::LedgerError;
use crate::provider::RateSignals;
use crate::types::Answer;

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call that brought no usable answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{class}{}: {message}", status_text(.status))]
pub struct Error {
    /// What to do about it.
    pub class: Class,
    /// The HTTP status, if one came.
    pub status: Option<u16>,
    /// The provider's own code, such as `rate_limit_exceeded`.
    pub code: Option<String>,
    /// What the provider or the network said. Never holds a key.
    pub message: String,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
    /// What the answer told of limits.
    pub rate: Box<RateSignals>,
    /// The answer that was paid for but cannot be used: truncated, refused, of the wrong shape.
    pub answer: Option<Box<Answer>>,
    /// Whether the provider may have charged for the call although no answer came.
    pub maybe_billed: bool,
    /// The call failed in an outage, which is not its own fault: how long until one call finds out whether it is over.
    pub outage: Option<Duration>,
}

impl Error {
    /// An error of a class.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self {
            class,
            status: None,
            code: None,
            message: message.into(),
            retry_after: None,
            rate: Box::default(),
            answer: None,
            maybe_billed: false,
            outage: None,
        }
    }

    /// Adds the HTTP status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds the paid answer.
    pub fn with_answer(mut self, answer: Answer) -> Self {
        self.answer = Some(Box::new(answer));
        self
    }

    /// Says that the call may have been charged.
    pub fn maybe_billed(mut self) -> Self {
        self.maybe_billed = true;
        self
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::new(Class::Network, format!("the file that keeps what was spent: {error}"))
    }
}

impl From<LedgerError> for Error {
    fn from(error: LedgerError) -> Self {
        let class = match &error {
            LedgerError::OverBudget(_) | LedgerError::Unpriced { .. } => Class::Budget,
            LedgerError::NotReserved(_) | LedgerError::Closed(_) | LedgerError::File(_) => Class::Network,
        };
        Self::new(class, error.to_string())
    }
}

fn status_text(status: &Option<u16>) -> String {
    status.map_or_else(String::new, |status| format!(" (HTTP {status})"))
}

/// What must be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// 429: the route waits as told; costs no attempt.
    Throttled,
    /// 500, 502, 503, 504, 529: this call waits and tries again.
    Overloaded,
    /// No connection: refused, no such name, TLS, time-out. Nothing was sent, so it is never the request's fault: waits.
    Unreachable,
    /// No answer after the call was sent: a reset, a time-out, an invalid answer. Tries again.
    Network,
    /// The input does not fit into the model: another model, or failure.
    ContextTooLong,
    /// The answer was cut off at `max_tokens`: flagged, never mended silently.
    Truncated,
    /// The model or its provider declined.
    Refused,
    /// An answer of the wrong shape: a repair turn.
    BadShape,
    /// The request itself is wrong: fails for good.
    BadRequest,
    /// The key is missing, wrong or not allowed this: stops the run.
    Auth,
    /// The account is out of money or of its daily quota: stops the run.
    Quota,
    /// The call might exceed a limit that the user set on spending: stops the run. Nothing was sent.
    Budget,
    /// Only cached answers were allowed, and there is none. Nothing was sent.
    CacheMiss,
    /// The caller gave up before anything was sent.
    Stopped,
}

impl Class {
    /// Every class, for tables.
    pub const ALL: [Self; 14] = [
        Self::Throttled,
        Self::Overloaded,
        Self::Unreachable,
        Self::Network,
        Self::ContextTooLong,
        Self::Truncated,
        Self::Refused,
        Self::BadShape,
        Self::BadRequest,
        Self::Auth,
        Self::Quota,
        Self::Budget,
        Self::CacheMiss,
        Self::Stopped,
    ];

    /// Whether the provider gave no answer at all: if no call gets one, that is an outage.
    pub const fn is_no_answer(self) -> bool {
        matches!(self, Self::Overloaded | Self::Unreachable | Self::Network)
    }

    /// Its name in output and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::Network => "network",
            Self::ContextTooLong => "context_too_long",
            Self::Truncated => "truncated",
            Self::Refused => "refused",
            Self::BadShape => "bad_shape",
            Self::BadRequest => "bad_request",
            Self::Auth => "auth",
            Self::Quota => "quota",
            Self::Budget => "budget",
            Self::CacheMiss => "cache_miss",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
