//! SQLite's errors, turned into what the caller can do.

use longhaul_queue::Error;
use rusqlite::ErrorCode;

/// What a piece of work on the database ended with.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    /// SQLite refused.
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
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

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Queue(error) => error,
            DbError::Caller(text) => Self::Invalid(text),
            DbError::Sql(error) => from_sql(&error),
        }
    }
}

/// A stored value that this version cannot read.
pub(super) fn corrupt(what: &str, error: impl std::fmt::Display) -> DbError {
    DbError::Queue(Error::Corrupt(format!("{what} in the database cannot be read: {error}")))
}

/// Whether somebody else holds the file.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether the file itself is not sound.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// The error of a caller's own statements: what SQLite refuses there, such as a broken constraint, is the caller's to
/// mend and neither damage nor a bug of ours.
pub(super) fn of_caller(error: DbError) -> DbError {
    match error {
        DbError::Sql(error) if matches!(from_sql(&error), Error::Corrupt(_)) && !is_damage(&error) => {
            DbError::caller(error)
        }
        other @ (DbError::Sql(_) | DbError::Queue(_) | DbError::Caller(_)) => other,
    }
}

fn from_sql(error: &rusqlite::Error) -> Error {
    let Some(code) = error.sqlite_error_code() else {
        return Error::Corrupt(format!("unexpected answer from SQLite: {error}"));
    };
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::Unavailable(
            "another process held the database for too long; nothing was written, try again".to_owned(),
        ),
        ErrorCode::DiskFull => {
            Error::Unavailable("the disk is full; nothing was written, free some space and try again".to_owned())
        }
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
            Error::Unavailable(
                "the database is read-only; nothing was written, check the permissions of the file and its folder"
                    .to_owned(),
            )
        }
        ErrorCode::CannotOpen => Error::Unavailable(format!("the database cannot be opened: {error}")),
        ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory | ErrorCode::FileLockingProtocolFailed => {
            Error::Unavailable(format!("the disk does not take it: {error}; nothing was written"))
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Error::Corrupt(format!(
            "the file is not a sound Longhaul database ({error}); restore a backup with `longhaul restore`"
        )),
        _ => Error::Corrupt(format!("unexpected error from SQLite: {error}")),
    }
}
