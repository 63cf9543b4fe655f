//! How a command ends: the documented exit codes, and an error that carries one together with a hint.

use std::fmt;
use std::process::ExitCode;

use longhaul_lab::Refusal;
use longhaul_llm::file::FileError;
use longhaul_llm::{Class, Error as LlmError};
use longhaul_pipeline::Error as RunError;
use longhaul_queue::Error as QueueError;
use longhaul_sheets::Error as SheetError;
use longhaul_sheets::places::SinkError;

/// The documented exit codes. Scripts rely on them; the numbers never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// All went well.
    Ok = 0,
    /// The command failed.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Finished, but some jobs failed or were cancelled.
    JobsFailed = 3,
    /// Nothing matched: no such job, process, queue or schedule.
    NothingMatched = 4,
    /// A setting or a credential is wrong.
    Config = 5,
    /// The store, the file beside it or the server cannot be reached or written; or nothing was ever reached at a provider's address.
    Unreachable = 6,
    /// A limit on spending would be exceeded.
    Budget = 7,
    /// `doctor` found problems.
    Problems = 8,
    /// A wait ran out of time.
    TimedOut = 124,
    /// Interrupted by Ctrl-C.
    Interrupted = 130,
}

/// For `--help` and the manual page.
pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0 ok · 1 failure · 2 usage · 3 finished but some jobs failed · 4 nothing matched · 5 auth or configuration
  6 store, server or provider unreachable · 7 budget would be exceeded · 8 doctor found problems · 124 wait timed out · 130 interrupted";

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// A failure for people: what happened, and what to run or change next.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    text: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure with its exit code.
    pub(crate) fn new(code: Code, text: impl fmt::Display) -> Self {
        Self { code, text: text.to_string(), hint: None }
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// The reader of our output has gone away: not an error, just a reason to stop.
#[derive(Debug)]
pub(crate) struct PipeClosed;

impl fmt::Display for PipeClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of the output has gone away")
    }
}

impl std::error::Error for PipeClosed {}

/// Whether the reader of our output has gone away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(<dyn std::error::Error>::is::<PipeClosed>)
}

/// The exit code of an error, from the first cause that knows one.
pub(crate) fn code_of(error: &anyhow::Error) -> Code {
    for cause in error.chain() {
        if cause.is::<PipeClosed>() {
            return Code::Ok;
        }
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return match refusal {
                Refusal::Usage { .. } => Code::Usage,
                Refusal::NotInstalled { .. } => Code::Config,
            };
        }
        if let Some(error) = cause.downcast_ref::<SheetError>() {
            return of_sheet(error);
        }
        if let Some(error) = cause.downcast_ref::<RunError>() {
            return of_run(error);
        }
        if let Some(error) = cause.downcast_ref::<SinkError>() {
            return of_sink(error);
        }
        if let Some(error) = cause.downcast_ref::<LlmError>() {
            return of_llm(error);
        }
        if let Some(error) = cause.downcast_ref::<FileError>() {
            return if error.is_transient() { Code::Unreachable } else { Code::Failure };
        }
        if let Some(error) = cause.downcast_ref::<QueueError>() {
            return of_queue(error);
        }
    }
    Code::Failure
}

const fn of_sheet(error: &SheetError) -> Code {
    match error {
        // These are told as they are, so a cause of theirs is none of the chain's.
        SheetError::Queue(error) => of_queue(error),
        SheetError::Llm(error) => of_llm(error),
        SheetError::NoRun(_) => Code::NothingMatched,
        SheetError::Invalid(_) => Code::Usage,
        SheetError::Table(_) => Code::Failure,
        SheetError::Sink(error) => of_sink(error),
    }
}

const fn of_run(error: &RunError) -> Code {
    match error {
        RunError::Queue(error) => of_queue(error),
        RunError::Llm(error) => of_llm(error),
        RunError::NoRun(_) => Code::NothingMatched,
        RunError::Invalid(_) => Code::Usage,
        RunError::Place(_) => Code::Failure,
    }
}

const fn of_sink(error: &SinkError) -> Code {
    match error {
        SinkError::Outage { .. } => Code::Unreachable,
        SinkError::Refused(_) => Code::Config,
    }
}

const fn of_llm(error: &LlmError) -> Code {
    match error.class {
        Class::Auth | Class::Quota => Code::Config,
        Class::Budget => Code::Budget,
        Class::Unreachable | Class::Network | Class::Overloaded | Class::Throttled => Code::Unreachable,
        Class::BadRequest => Code::Usage,
        Class::ContextTooLong
        | Class::Truncated
        | Class::Refused
        | Class::BadShape
        | Class::CacheMiss
        | Class::Stopped => Code::Failure,
    }
}

const fn of_queue(error: &QueueError) -> Code {
    match error {
        QueueError::Unavailable(_) => Code::Unreachable,
        QueueError::NotFound(_) => Code::NothingMatched,
        QueueError::Denied(_) => Code::Config,
        QueueError::Invalid(_) | QueueError::LostLease(_) | QueueError::Corrupt(_) => Code::Failure,
    }
}

/// The store's part of a cause; what is told as it is hides it from the chain.
fn queue_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a QueueError> {
    match cause.downcast_ref::<SheetError>() {
        Some(SheetError::Queue(error)) => Some(error),
        _ => cause.downcast_ref::<QueueError>(),
    }
}

/// Whether the store could not be reached or written.
pub(crate) fn is_outage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(queue_error(cause), Some(QueueError::Unavailable(_))))
}

/// What to do about an error, from the first cause that knows.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    for cause in error.chain() {
        if let Some(hint) = cause.downcast_ref::<Failure>().and_then(|failure| failure.hint.clone()) {
            return Some(hint);
        }
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return refusal.hint();
        }
        if cause.downcast_ref::<FileError>().is_some_and(FileError::is_transient) {
            return Some("or keep that file in another place, which the setting llm.file names".to_owned());
        }
        match queue_error(cause) {
            Some(QueueError::Unavailable(_)) => {
                // Whether it helps to try again is in the error itself.
                return Some("check it with longhaul doctor".to_owned());
            }
            Some(QueueError::NotFound(text)) if text.contains("no process") => {
                return Some("list what there is: longhaul process ls".to_owned());
            }
            Some(QueueError::NotFound(_)) => return Some("list what there is: longhaul jobs ls".to_owned()),
            Some(QueueError::Corrupt(_)) => {
                return Some(
                    "check it with longhaul doctor; a backup comes back with longhaul restore FILE"
                        .to_owned(),
                );
            }
            Some(QueueError::Invalid(_) | QueueError::Denied(_) | QueueError::LostLease(_)) | None => {}
        }
    }
    None
}
