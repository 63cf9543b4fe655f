//! How Longhaul writes a SQLite file.
//!
//! A process opens a file once, as a [`SqliteFile`]: one writing connection, a thread that commits together what is queued (group
//! commit, no timer), and read-only connections beside it. What the tables mean is the business of the file's owner, who describes
//! them by a [`Schema`] and takes part in every transaction through a [`Session`]. Several processes may share a file: whoever holds
//! the write lock for too long is named, other processes' writes are noticed, and [`process_lock`] tells which of them are alive.
//!
//! Reading order: `file` (the handle), `session` (what an owner provides), `connection` and `schema` (opening and migrations),
//! `writer` and `inbox` (the thread), `committer` (a transaction), `group_commit` (commits on a caller's thread), `checkpointer` (the
//! write-ahead log).

mod backup;
mod checkpointer;
#[cfg(feature = "testing")]
pub mod child;
mod command;
mod committer;
mod connection;
mod error;
mod file;
mod foreign_writes;
mod group_commit;
mod inbox;
mod lock_holder;
pub mod private;
pub mod process_lock;
mod readers;
mod schema;
mod session;
#[cfg(test)]
mod tests;
mod writer;

pub use connection::{Durability, FileOptions};
pub use error::{FileError, FileErrorKind, FileResult};
pub use file::SqliteFile;
pub use schema::Schema;
pub use session::{CommandError, Session, WriteOptions};
