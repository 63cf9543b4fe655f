//! What can go wrong with a file, classified by what the caller can do.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Shorthand.
pub type FileResult<T> = Result<T, FileError>;

/// The file did not take or give something. Nothing of the command is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", prefix(.path))]
pub struct FileError {
    /// What to do about it.
    pub kind: FileErrorKind,
    /// The file, where the error is about opening it or its owner names it.
    pub path: Option<PathBuf>,
    /// What happened, and a hint.
    pub message: String,
}

/// What to do about a [`FileError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileErrorKind {
    /// Another process holds the write lock: try again.
    Busy,
    /// The disk is full: free some space, then try again.
    DiskFull,
    /// The file or its folder cannot be written.
    ReadOnly,
    /// The system does not open, read or write it: try again.
    Unavailable,
    /// It is damaged, or not a file of ours.
    Corrupt,
    /// A newer program wrote it.
    Newer,
    /// What was asked is wrong.
    Invalid,
    /// A statement failed for a reason of its own, such as a constraint: a bug of whoever wrote the statement.
    Statement,
    /// The writer is gone: only a restart helps.
    Stopped,
}

fn prefix(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display()))
}

impl FileError {
    /// An error that names no file.
    pub fn new(kind: FileErrorKind, message: impl Into<String>) -> Self {
        Self { kind, path: None, message: message.into() }
    }

    /// What was asked is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Invalid, message)
    }

    /// The file holds something that cannot be read.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Corrupt, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Unavailable, message)
    }

    pub(crate) fn read_only() -> Self {
        let message = "the database is read-only; nothing was written, check the permissions of the file and its folder";
        Self::new(FileErrorKind::ReadOnly, message)
    }

    /// The writer is gone, and nothing brings it back.
    pub(crate) fn stopped() -> Self {
        Self::new(FileErrorKind::Stopped, "the database writer has stopped; restart the program")
    }

    /// Names the file, unless it is named already.
    pub fn at(mut self, path: &Path) -> Self {
        self.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Whether the same command may succeed later, without a restart.
    pub fn is_transient(&self) -> bool {
        match self.kind {
            FileErrorKind::Busy
            | FileErrorKind::DiskFull
            | FileErrorKind::ReadOnly
            | FileErrorKind::Unavailable => true,
            FileErrorKind::Corrupt
            | FileErrorKind::Newer
            | FileErrorKind::Invalid
            | FileErrorKind::Statement
            | FileErrorKind::Stopped => false,
        }
    }

    /// Whether one command of a group may have caused what undid all of it: a large value on a full disk, a damaged page that
    /// only one of them reads.
    pub(crate) fn may_spare_others(&self) -> bool {
        use FileErrorKind::{Corrupt, DiskFull, Statement, Unavailable};
        // The others have waited long already, or hold for each command alike.
        matches!(self.kind, DiskFull | Corrupt | Unavailable | Statement)
    }
}

impl From<rusqlite::Error> for FileError {
    fn from(error: rusqlite::Error) -> Self {
        let Some(code) = error.sqlite_error_code() else {
            let message = format!("unexpected answer from SQLite: {error}");
            return Self::new(FileErrorKind::Statement, message);
        };
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::new(
                FileErrorKind::Busy,
                "another process held the database for too long; nothing was written, try again",
            ),
            ErrorCode::DiskFull => Self::new(
                FileErrorKind::DiskFull,
                "the disk is full; nothing was written, free some space and try again",
            ),
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied => Self::read_only(),
            ErrorCode::CannotOpen => Self::unavailable(format!("the database cannot be opened: {error}")),
            ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory | ErrorCode::FileLockingProtocolFailed => {
                Self::unavailable(format!("the disk refused it: {error}; nothing was written"))
            }
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                Self::corrupt(format!("the file is not a sound Longhaul database ({error})"))
            }
            _ => Self::new(FileErrorKind::Statement, format!("SQLite refused a statement: {error}")),
        }
    }
}
