//! What the owner of a file provides: the type of its transactions, and the bookkeeping that goes along with a commit.

use std::time::Duration;

use rusqlite::Connection;

use crate::error::FileError;

/// The owner's part in every transaction of a [`SqliteFile`](crate::SqliteFile). It belongs to the writing connection.
///
/// A group of commands shares one [`Session::Tx`]: `begin`, then each command and `command_ended`, then `finish` before the commit
/// and `committed` after it.
pub trait Session: Send + 'static {
    /// What a command fails with.
    type Error: CommandError;
    /// What its caller is told.
    type Reply: From<Self::Error> + Send + 'static;
    /// A transaction under way, with what its commands have booked and not yet written.
    type Tx<'c>;
    /// What is known once the transaction is committed.
    type Committed;
    /// How long deferred rows (see [`Session::has_deferred`]) wait for a commit to go along with.
    const DEFERRED_EVERY: Duration;

    /// Starts a transaction; the write lock is held.
    fn begin<'c>(&self, connection: &'c Connection) -> Self::Tx<'c>;

    /// The connection of a transaction, for a read of a database in memory, which has no other.
    fn connection<'t>(tx: &'t Self::Tx<'_>) -> &'t Connection;

    /// Writes what the commands so far have booked, for one that reads it ([`WriteOptions::flush_first`]).
    fn flush(_tx: &mut Self::Tx<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Keeps what a command has booked, or discards it because its statements were rolled back.
    fn command_ended(tx: &mut Self::Tx<'_>, kept: bool);

    /// Writes all that is booked, and the deferred rows too if `deferred`.
    fn finish(&self, tx: Self::Tx<'_>, deferred: bool) -> Result<Self::Committed, Self::Error>;

    /// Learns that a transaction is committed, and says whether watchers should look.
    fn committed(&mut self, committed: Self::Committed) -> bool;

    /// Whether rows wait that need no commit of their own. A crash may lose them.
    fn has_deferred(&self) -> bool;

    /// The last handle is gone and all is written.
    fn close(&mut self, _connection: &Connection) {}
}

/// Why a command failed: the file did not take it, or its owner's rules refused it.
pub trait CommandError: From<FileError> + Clone + Send + 'static {
    /// The file's error, if it was the file.
    fn file_error(&self) -> Option<&FileError>;
}

impl CommandError for FileError {
    fn file_error(&self) -> Option<&FileError> {
        Some(self)
    }
}

/// What a command needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct WriteOptions {
    /// Needs no fsync of its own: a power cut may lose it.
    pub volatile: bool,
    /// Reads what earlier commands of its group have booked, so that is written first.
    pub flush_first: bool,
    /// Takes the deferred rows along.
    pub writes_deferred: bool,
    /// Skips the queue when thousands wait in it.
    pub urgent: bool,
}
