//! Postgres's errors, turned into what the caller can do.

use longhaul_queue::Error;
use tokio_postgres::error::SqlState;

/// What a piece of work on the database ended with.
#[derive(Debug, thiserror::Error)]
pub(super) enum DbError {
    /// Postgres refused, or cannot be reached.
    #[error(transparent)]
    Sql(#[from] tokio_postgres::Error),
    /// The queue's own rules refused.
    #[error(transparent)]
    Queue(#[from] Error),
    /// The work touches what others may touch at the same time: it must be done again with nobody else about.
    #[error("this needs the store for itself")]
    Alone,
}

/// A result of work on the database.
pub(super) type DbResult<T> = Result<T, DbError>;

/// A stored value that this version cannot read.
pub(super) fn corrupt(what: &str, error: impl std::fmt::Display) -> DbError {
    DbError::Queue(Error::Corrupt(format!("{what} in the database cannot be read: {error}")))
}

/// Whether the same transaction may succeed when it is run again at once.
pub(super) fn is_collision(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
}

/// Whether the connection, not the statement, is at fault.
pub(super) fn is_connection_lost(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        // Without a code it never came from the server: the socket broke, or was found closed.
        None => error.is_closed() || is_io(error),
        Some(code) => {
            matches!(
                *code,
                SqlState::ADMIN_SHUTDOWN
                    | SqlState::CRASH_SHUTDOWN
                    | SqlState::CANNOT_CONNECT_NOW
                    | SqlState::IDLE_SESSION_TIMEOUT
                    | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
            ) || code.code().starts_with("08")
        }
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(<dyn std::error::Error>::is::<std::io::Error>)
}

/// What a caller may do about it.
pub(super) fn from_sql(error: &tokio_postgres::Error) -> Error {
    let Some(code) = error.code() else {
        return if is_connection_lost(error) {
            Error::Unavailable(format!("the connection to Postgres broke: {}", told(error)))
        } else {
            Error::Corrupt(format!("unexpected answer from Postgres: {}", told(error)))
        };
    };
    if is_connection_lost(error) {
        return Error::Unavailable(format!("Postgres is going down or starting: {}", told(error)));
    }
    if is_collision(error) {
        return Error::Unavailable(format!("others changed the same rows again and again: {}", told(error)));
    }
    match *code {
        SqlState::LOCK_NOT_AVAILABLE => Error::Unavailable(format!(
            "somebody holds a lock in Postgres for too long ({}); look for an open transaction in pg_stat_activity",
            told(error)
        )),
        SqlState::QUERY_CANCELED => {
            Error::Unavailable(format!("Postgres cancelled the statement: {}", told(error)))
        }
        SqlState::READ_ONLY_SQL_TRANSACTION => Error::Unavailable(
            "this Postgres server only reads: it is a standby; connect to the primary".to_owned(),
        ),
        SqlState::INSUFFICIENT_PRIVILEGE
        | SqlState::INVALID_PASSWORD
        | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => Error::Denied(format!(
            "Postgres refuses: {}; check the store URL and the role's rights",
            told(error)
        )),
        SqlState::INVALID_CATALOG_NAME => {
            Error::Denied(format!("Postgres refuses: {}; create it, or correct the store URL", told(error)))
        }
        SqlState::CHARACTER_NOT_IN_REPERTOIRE | SqlState::UNTRANSLATABLE_CHARACTER => {
            Error::invalid(format!("a text has a character that Postgres does not store: {}", told(error)))
        }
        // Disk full, out of memory, too many connections; and what the operating system does not take.
        _ if code.code().starts_with("53") || code.code().starts_with("58") => {
            Error::Unavailable(format!("Postgres cannot take it: {}; nothing was written", told(error)))
        }
        _ => Error::Corrupt(format!("unexpected error from Postgres: {} ({})", told(error), code.code())),
    }
}

/// The server's own words, where there are any.
pub(super) fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(answer) => answer.message().to_owned(),
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

impl From<DbError> for Error {
    fn from(error: DbError) -> Self {
        match error {
            DbError::Queue(error) => error,
            DbError::Sql(error) => from_sql(&error),
            DbError::Alone => Self::Unavailable("the store is busy; try again".to_owned()),
        }
    }
}
