//! Copies the write-ahead log into the database, on a thread and a connection of its own: most of that is waiting for
//! the disk, and SQLite lets others write meanwhile.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use longhaul_queue::{Error, Result};
use rusqlite::Connection;
use tracing::debug;

use super::committer::Committer;

/// A handle on the thread, which ends with it.
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    /// Held while pages are copied beside the writers.
    copying: Arc<Mutex<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn spawn(connection: Connection, committer: Arc<Mutex<Committer>>) -> Result<Self> {
        let (wake, woken) = sync_channel(1);
        let copying = Arc::new(Mutex::new(()));
        let held = Arc::clone(&copying);
        let thread = std::thread::Builder::new()
            .name("longhaul-checkpointer".to_owned())
            .spawn(move || run(&connection, &held, &committer, &woken))
            .map_err(|error| Error::Unavailable(format!("the checkpointer thread cannot start: {error}")))?;
        Ok(Self { wake: Some(wake), copying, thread: Some(thread) })
    }

    /// Asks for a checkpoint. It waits for nothing.
    pub(super) fn wake(&self) {
        // A full channel says that it was asked already.
        let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
    }

    /// Copies all of the log while its writer waits: for a log that grows faster than the disk takes it.
    pub(super) fn catch_up(&self, committer: &Committer) {
        let _ended = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        committer.checkpoint();
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            // It has told its panic on stderr, if it had one.
            let _ = thread.join();
        }
    }
}

fn run(connection: &Connection, copying: &Mutex<()>, committer: &Mutex<Committer>, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        let held = copying.lock().unwrap_or_else(PoisonError::into_inner);
        // The first takes long; the second takes what was written meanwhile.
        checkpoint(connection);
        checkpoint(connection);
        drop(held);
        // The log is used from its start again only by a writer that finds all of it copied. So the rest, which is
        // little, is copied while nobody in this process writes.
        let committer = committer.lock().unwrap_or_else(PoisonError::into_inner);
        committer.checkpoint();
        let _ = woken.try_recv();
    }
}

/// Copies the log as far as no reader needs it.
pub(super) fn checkpoint(connection: &Connection) {
    if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        debug!(%error, "the write-ahead log was not checkpointed");
    }
}
