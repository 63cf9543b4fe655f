//! What a piece of work on the database ends with, turned into what the caller can do.

use longhaul_queue::Error;
use longhaul_sqlite::{CommandError, FileError, FileErrorKind};
use rusqlite::ErrorCode;

/// What a piece of work on the database ended with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DbError {
    /// The file, or SQLite, refused.
    #[error(transparent)]
    File(#[from] FileError),
    /// The queue's own rules refused.
    #[error(transparent)]
    Queue(#[from] Error),
    /// The caller's work refused; nothing of it is written.
    #[error("{0}")]
    Caller(String),
}

/// A result of work on the database.
pub type DbResult<T> = Result<T, DbError>;

impl DbError {
    /// For a caller's transaction that must not be written.
    pub fn caller(text: impl std::fmt::Display) -> Self {
        Self::Caller(text.to_string())
    }
}

impl CommandError for DbError {
    fn file_error(&self) -> Option<&FileError> {
        match self {
            Self::File(error) => Some(error),
            Self::Queue(_) | Self::Caller(_) => None,
        }
    }
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        Self::File(error.into())
    }
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Queue(error) => error,
            DbError::Caller(text) => Self::Invalid(text),
            DbError::File(error) => from_file(&error),
        }
    }
}

fn from_file(error: &FileError) -> Error {
    let text = error.to_string();
    match error.kind {
        FileErrorKind::Busy
        | FileErrorKind::DiskFull
        | FileErrorKind::ReadOnly
        | FileErrorKind::Unavailable => Error::Unavailable(text),
        FileErrorKind::Newer | FileErrorKind::Invalid => Error::Invalid(text),
        FileErrorKind::Corrupt => Error::Corrupt(format!("{text}; restore a backup with `longhaul restore`")),
        FileErrorKind::Statement | FileErrorKind::Stopped => Error::Corrupt(text),
    }
}

/// A stored value that this version cannot read.
pub(super) fn corrupt(what: &str, error: impl std::fmt::Display) -> DbError {
    DbError::Queue(Error::Corrupt(format!("{what} in the database cannot be read: {error}")))
}

/// Whether the file itself is not sound.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// The error of a caller's own statements: what SQLite refuses there, such as a broken constraint, is the caller's to
/// mend and neither damage nor a bug of ours.
pub(super) fn of_caller(error: DbError) -> DbError {
    match error {
        DbError::File(error) if error.kind == FileErrorKind::Statement => DbError::Caller(error.message),
        other @ (DbError::File(_) | DbError::Queue(_) | DbError::Caller(_)) => other,
    }
}
