//! Copies the write-ahead log into the database, on a thread and a connection of its own: most of that is waiting for
//! the disk, and SQLite lets others write meanwhile. Both exist for one pass, every 16 MB.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tracing::debug;

use crate::committer::Committer;
use crate::connection::open_checkpointer;
use crate::readers::Readers;
use crate::session::Session;
use crate::writer::Core;

/// The passes over one log, one at a time.
#[derive(Default)]
pub(crate) struct Checkpointer {
    /// Held while pages are copied beside the writers.
    copying: Mutex<()>,
    pass: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpointer {
    /// Copies all of the log while its writer waits: for a log that grows faster than the disk takes it.
    pub(crate) fn catch_up<S: Session>(&self, committer: &Committer<S>) {
        let _ended = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        committer.checkpoint();
    }

    /// Waits for the pass under way.
    pub(crate) fn end(&self) {
        let pass = self.pass.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(pass) = pass {
            // If it panicked, that was printed to stderr.
            let _ = pass.join();
        }
    }

    fn run<S: Session>(&self, path: &Path, core: &Core<S>) {
        let connection = match open_checkpointer(path) {
            Ok(connection) => connection,
            Err(error) => return debug!(%error, "no connection to checkpoint with"),
        };
        let held = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        // The first takes long; the second takes what was written meanwhile.
        checkpoint(&connection);
        checkpoint(&connection);
        drop(held);
        // The log is used from its start again only by a writer that finds all of it copied. So the rest, which is
        // little, is copied while nobody in this process writes.
        core.committer().checkpoint();
    }
}

impl<S: Session> Core<S> {
    /// Starts a pass unless one is under way. It waits for nothing.
    pub(crate) fn checkpoint_soon(self: &Arc<Self>) {
        let mut pass = self.checkpointer.pass.lock().unwrap_or_else(PoisonError::into_inner);
        if pass.as_ref().is_some_and(|pass| !pass.is_finished()) {
            return;
        }
        // Only a file has a log.
        let Some(path) = self.readers.as_ref().map(Readers::path).map(Path::to_owned) else { return };
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name("longhaul-checkpointer".to_owned());
        match thread.spawn(move || core.checkpointer.run(&path, &core)) {
            Ok(thread) => *pass = Some(thread),
            // The log grows on, and the writer copies it when it is full.
            Err(error) => debug!(%error, "no thread to checkpoint on"),
        }
    }
}

/// Copies the log as far as no reader needs it.
pub(crate) fn checkpoint(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        debug!(%error, "the write-ahead log was not checkpointed");
    }
}
