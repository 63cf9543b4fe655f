//! What a request is refused with. One type for all families; each writes it in the form that its clients read.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;
use longhaul_llm::Class;
use longhaul_llm::catalog::NameError;
use longhaul_llm::wire::FieldError;
use longhaul_pipeline::Error as RunError;
use longhaul_pipeline::uploads::UploadError;
use longhaul_prompts::draft::Unfit;
use longhaul_queue::Error as QueueError;
use longhaul_sheets::places::SinkError;

/// The longest wait that a client is told: some give up at once when they are asked to wait longer than two minutes.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// The wait when the store cannot be reached.
const RETRY_STORE_AFTER: Duration = Duration::from_secs(2);
/// The wait when a provider is overloaded or cannot be reached, and has not said how long.
const RETRY_PROVIDER_AFTER: Duration = Duration::from_secs(2);
/// Fields by whose names the queue's refusals begin.
const FIELDS: [&str; 12] = [
    "kind",
    "queue",
    "payload",
    "process_id",
    "after_process",
    "depends_on",
    "tags",
    "title",
    "owner",
    "trace",
    "unique.key",
    "max_attempts",
];

/// Why a request cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The status.
    pub status: StatusCode,
    /// A word for programs, which never changes: `not_found`, `invalid`.
    pub code: &'static str,
    /// What is wrong and what to do about it, for people.
    pub detail: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Problem {
    /// A problem.
    pub fn new(status: StatusCode, code: &'static str, detail: impl fmt::Display) -> Self {
        Self { status, code, detail: detail.to_string(), field: None, retry_after: None }
    }

    /// The request is wrong.
    pub fn invalid(detail: impl fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", detail)
    }

    /// What the queue refuses could be read, and is not what it takes.
    pub fn unfit(error: QueueError) -> Self {
        match error {
            QueueError::Invalid(text) => {
                let field = text.split(' ').next().filter(|word| FIELDS.contains(word)).map(str::to_owned);
                Self { field, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text) }
            }
            error => error.into(),
        }
    }

    /// There is no such thing.
    pub fn not_found(detail: impl fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// It cannot be done now; the same request may succeed later.
    pub fn unavailable(detail: impl fmt::Display) -> Self {
        Self {
            retry_after: Some(RETRY_STORE_AFTER),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
        }
    }

    /// A fault of ours. The text goes to the log; the client is told where to look.
    pub fn internal(error: impl fmt::Display) -> Self {
        tracing::error!(%error, "a request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server failed; its log says why")
    }

    /// Names the field that is wrong.
    pub fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// When to try again, in whole seconds, as clients can bear it.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after.map(|wait| wait.min(RETRY_AFTER_MAX).as_secs_f64().ceil().max(1.0) as u64)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Unavailable(text) => Self::unavailable(text),
            // Not 409, which SDKs take for a reason to send the same again.
            QueueError::LostLease(_) => Self::new(StatusCode::GONE, "lost_lease", error),
            QueueError::NotFound(text) => Self::not_found(text),
            QueueError::Invalid(text) => Self::invalid(text),
            // What this server may do with its store is none of the client's business to mend.
            QueueError::Denied(text) | QueueError::Corrupt(text) => Self::internal(text),
        }
    }
}

impl From<UploadError> for Problem {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "file_too_large", error).at("file")
            }
            UploadError::Broken(_) => Self::invalid(error).at("file"),
            UploadError::Disk(_) => Self::unavailable(error),
        }
    }
}

impl From<NameError> for Problem {
    fn from(error: NameError) -> Self {
        let status = match error {
            NameError::Invalid { .. } => StatusCode::BAD_REQUEST,
            NameError::NoModel(_) => StatusCode::NOT_FOUND,
            NameError::NoProfile(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, error.code(), &error).at(error.field())
    }
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self { field: error.field, ..Self::invalid(error.text) }
    }
}

impl From<Unfit> for Problem {
    fn from(unfit: Unfit) -> Self {
        let problem = Self::from(unfit.error);
        match unfit.field {
            Some(field) => problem.at(field),
            None => problem,
        }
    }
}

impl From<longhaul_llm::Error> for Problem {
    fn from(error: longhaul_llm::Error) -> Self {
        let (status, code) = match error.class {
            Class::Throttled => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            Class::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            Class::Unreachable | Class::Network => (StatusCode::BAD_GATEWAY, "provider_unreachable"),
            Class::ContextTooLong => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            Class::BadRequest => (StatusCode::BAD_REQUEST, "invalid"),
            Class::Truncated | Class::Refused | Class::BadShape => {
                (StatusCode::UNPROCESSABLE_ENTITY, "unusable_answer")
            }
            // The provider's key is ours, not the client's: to the client this is our fault, which repeating does not mend.
            Class::Auth => (StatusCode::BAD_GATEWAY, "provider_key_refused"),
            Class::Quota => (StatusCode::TOO_MANY_REQUESTS, "insufficient_quota"),
            Class::Budget => (StatusCode::PAYMENT_REQUIRED, "budget_exceeded"),
            Class::CacheMiss => (StatusCode::NOT_FOUND, "not_cached"),
            Class::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "stopped"),
        };
        let status = match (error.class, error.status) {
            // The provider knows best which of its refusals of a request it was.
            (Class::BadRequest, Some(told @ 400..=499)) => StatusCode::from_u16(told).unwrap_or(status),
            _ => status,
        };
        let passes = match error.class {
            Class::Overloaded | Class::Unreachable => true,
            // What may have been paid for is not to be repeated unasked.
            Class::Network => !error.maybe_billed,
            _ => false,
        };
        let retry_after = error.retry_after.or(passes.then_some(RETRY_PROVIDER_AFTER));
        // Codecs write `messages[2].role: expected …`.
        let field = error.message.split_once(": expected ").map(|(field, _)| field.to_owned());
        let field = field.filter(|field| error.class == Class::BadRequest && !field.contains(' '));
        Self { retry_after, field, ..Self::new(status, code, error.message) }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Queue(error) => error.into(),
            RunError::Llm(error) => error.into(),
            RunError::NoRun(_) => Self::not_found(error),
            RunError::Invalid(text) => Self::invalid(text),
            RunError::Place(text) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unusable_place", text),
        }
    }
}

impl From<longhaul_sheets::Error> for Problem {
    fn from(error: longhaul_sheets::Error) -> Self {
        let unfit = |code, text: String| Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, text);
        match error {
            longhaul_sheets::Error::Queue(error) => error.into(),
            longhaul_sheets::Error::Llm(error) => error.into(),
            longhaul_sheets::Error::NoRun(_) => Self::not_found(error),
            longhaul_sheets::Error::Invalid(text) => unfit("invalid", text),
            longhaul_sheets::Error::Table(text) => unfit("unusable_table", text),
            longhaul_sheets::Error::Sink(SinkError::Refused(text)) => unfit("sheet_refused", text),
            longhaul_sheets::Error::Sink(SinkError::Outage { message, retry_after }) => {
                let problem = Self::unavailable(message);
                Self { retry_after: retry_after.or(problem.retry_after), ..problem }
            }
        }
    }
}
