//! One error for the crate, grouped by what the caller can do about it.

use std::fmt;

/// What went wrong, by what can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or written right now: try again later.
    #[error("{0}")]
    Unavailable(String),
    /// Somebody else holds the job, or it has ended: stop working on it.
    #[error("the lease on job {0} is lost: it was taken over, cancelled or settled")]
    LostLease(crate::JobId),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// The request cannot be carried out as it is: tell the user.
    #[error("{0}")]
    Invalid(String),
    /// Who asks is not let in: a wrong user, password, certificate or token, or too few rights.
    #[error("{0}")]
    Denied(String),
    /// What is stored makes no sense: restore a backup, report a bug.
    #[error("{0}")]
    Corrupt(String),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(text: impl fmt::Display) -> Self {
        Self::Invalid(text.to_string())
    }

    /// An [`Error::NotFound`].
    pub fn not_found(text: impl fmt::Display) -> Self {
        Self::NotFound(text.to_string())
    }

    /// An [`Error::Invalid`] for a verb that a job's state does not allow, such as `retried`.
    pub fn wrong_state(id: crate::JobId, state: crate::State, verb: &str) -> Self {
        Self::Invalid(format!("job {id} is {state} and cannot be {verb}"))
    }

    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
