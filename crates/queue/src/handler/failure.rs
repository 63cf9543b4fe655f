//! What a handler may return, and how it becomes an [`Outcome`].

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::json::Json;
use crate::state::{JobError, Outcome, Reason};

/// Why a handler did not finish. Any error turns into one with `?`, its text with all its sources, to be retried; the
/// constructors say more. It is no [`std::error::Error`] itself, which is what makes the `?` possible.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    text: String,
    what_next: WhatNext,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WhatNext {
    Retry { after: Option<Duration> },
    Throttle { after: Option<Duration> },
    Fail,
}

impl Failure {
    /// Failed this time; the retry policy says when to try again.
    pub fn retry(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), what_next: WhatNext::Retry { after: None } }
    }

    /// Failed this time; try again after `after`.
    pub fn retry_after(text: impl fmt::Display, after: Duration) -> Self {
        Self { text: text.to_string(), what_next: WhatNext::Retry { after: Some(after) } }
    }

    /// Held off by a rate limit: costs no attempt. `after` is what the other side asked for, if it did.
    pub fn throttle(text: impl fmt::Display, after: Option<Duration>) -> Self {
        Self { text: text.to_string(), what_next: WhatNext::Throttle { after } }
    }

    /// Failed for good: trying again cannot help.
    pub fn fatal(text: impl fmt::Display) -> Self {
        Self { text: text.to_string(), what_next: WhatNext::Fail }
    }
}

impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Self {
        let error = |reason| JobError::new(reason, &failure.text);
        match failure.what_next {
            WhatNext::Retry { after } => Self::Retry { error: error(Reason::Failure), after, data: None },
            WhatNext::Throttle { after } => Self::Retry { error: error(Reason::Throttle), after, data: None },
            WhatNext::Fail => Self::Fail(error(Reason::Failure)),
        }
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(with_sources(&error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn with_sources(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many errors repeat their source in their own text; saying it twice helps nobody.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// What a handler may return: a value, an [`Outcome`], or either of them in a `Result`.
pub trait IntoOutcome {
    /// The answer to settle by.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl<E: Into<Failure>> IntoOutcome for Result<Outcome, E> {
    fn into_outcome(self) -> Outcome {
        self.unwrap_or_else(|error| error.into().into())
    }
}

impl<T: Serialize, E: Into<Failure>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => match Json::of(&value) {
                Ok(result) => Outcome::Done(result),
                Err(error) => Outcome::Fail(JobError::new(Reason::Failure, format!("result: {error}"))),
            },
            Err(error) => error.into().into(),
        }
    }
}
