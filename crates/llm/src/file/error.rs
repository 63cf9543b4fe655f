//! What can go wrong with the file, by what its user can do.

use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Shorthand.
pub type FileResult<T> = Result<T, FileError>;

/// The file did not take or give something. Nothing of the command is written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}{message}", place(.path))]
pub struct FileError {
    /// What to do about it.
    pub kind: FileErrorKind,
    /// Which file; none for one in memory.
    pub path: Option<PathBuf>,
    /// What happened, and a hint.
    pub message: String,
}

/// What to do about a [`FileError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileErrorKind {
    /// Another process holds the file: try again.
    Busy,
    /// The disk is full: free some space, then try again.
    DiskFull,
    /// The file or its folder may not be written.
    ReadOnly,
    /// It cannot be opened, read or written for another reason of the system's.
    Unavailable,
    /// It is damaged, or no file of ours.
    Corrupt,
    /// A newer program wrote it.
    Newer,
    /// What was asked is wrong.
    Invalid,
    /// Its writer is gone: only a restart helps.
    Stopped,
}

fn place(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display()))
}

impl FileError {
    pub(crate) fn new(kind: FileErrorKind, message: impl Into<String>) -> Self {
        Self { kind, path: None, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Invalid, message)
    }

    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::new(FileErrorKind::Corrupt, message)
    }

    pub(super) fn at(mut self, path: Option<&Path>) -> Self {
        self.path = self.path.or_else(|| path.map(Path::to_owned));
        self
    }

    /// The writer is gone, and nothing brings it back.
    pub(super) fn stopped() -> Self {
        Self::new(FileErrorKind::Stopped, "its writer has stopped; restart the program")
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
            | FileErrorKind::Stopped => false,
        }
    }
}

impl From<rusqlite::Error> for FileError {
    fn from(error: rusqlite::Error) -> Self {
        let Some(code) = error.sqlite_error_code() else {
            return Self::corrupt(format!("it holds something unexpected: {error}"));
        };
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                Self::new(FileErrorKind::Busy, "another process held it for too long; try again")
            }
            ErrorCode::DiskFull => {
                Self::new(FileErrorKind::DiskFull, "the disk is full; free some space and try again")
            }
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied => Self::new(
                FileErrorKind::ReadOnly,
                "it is read-only; check the permissions of the file and its folder",
            ),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::corrupt(format!(
                "it is damaged or no file of ours ({error}); move it away, and a new one is made: what was cached, learnt and \
                 spent is then unknown"
            )),
            _ => Self::new(FileErrorKind::Unavailable, format!("the disk does not take or give it: {error}")),
        }
    }
}
