//! The handle on an open file: the way to its writer and to its readers.
//!
//! Commands queue to a writer thread, which commits together what is queued. Nothing waits for more commands to come: a lone command
//! commits at once, a crowd shares one commit (and one fsync). Short commands that need no fsync do not go through the thread, but
//! commit on the thread of the first of them ([`GroupCommit`]): waking the writer, and being woken, would cost twice what the commit
//! of one does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;
use tokio::sync::{Semaphore, watch};

use crate::command::{Answer, Ask, Command, command, command_once};
use crate::committer::Committer;
use crate::connection::{self, Durability, FileOptions};
use crate::error::{FileError, FileResult};
use crate::group_commit::{GroupCommit, Part};
use crate::inbox::QUEUE_MAX;
use crate::readers::Readers;
use crate::session::{Session, WriteOptions};
use crate::writer::Core;

/// Rounds in which a caller commits for others that arrived meanwhile, before it leaves them to the thread.
const LEAD_ROUNDS_MAX: usize = 8;

/// An open file. Cheap to clone. What is queued is written, and the file closed, when the last clone is dropped.
pub struct SqliteFile<S: Session> {
    handle: Arc<Handle<S>>,
}

impl<S: Session> Clone for SqliteFile<S> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

/// Waits for the threads when the last handle is dropped, so that a program that ends leaves a file at rest.
struct Handle<S: Session> {
    core: Arc<Core<S>>,
    places: Arc<Semaphore>,
    durability: Durability,
    group_commit: GroupCommit<S>,
}

impl<S: Session> Drop for Handle<S> {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl<S: Session> SqliteFile<S> {
    /// Opens a file and brings its schema up to date.
    pub fn open(path: &Path, options: &FileOptions, session: S) -> FileResult<Self> {
        let readers = Readers::new(path.to_owned(), options.readers_kept_max);
        connection::open_writer(path, options)
            .and_then(|connection| Self::start(connection, options, session, Some(readers)))
            .map_err(|error| error.at(path))
    }

    /// A database in memory, gone with the last handle. Reads wait for the writer, because it has the only connection.
    pub fn in_memory(options: &FileOptions, session: S) -> FileResult<Self> {
        Self::start(connection::open_in_memory(options)?, options, session, None)
    }

    fn start(
        connection: Connection,
        options: &FileOptions,
        session: S,
        readers: Option<Readers>,
    ) -> FileResult<Self> {
        let changed = Arc::new(watch::Sender::new(0));
        let committer = Committer::new(connection, session, options.durability, Arc::clone(&changed))?;
        let handle = Handle {
            core: Arc::new(Core::new(committer, changed, readers, options.gather_wait)),
            places: Arc::new(Semaphore::new(QUEUE_MAX)),
            durability: options.durability,
            group_commit: GroupCommit::new(),
        };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Where it is; `None` in memory.
    pub fn path(&self) -> Option<&Path> {
        self.handle.core.readers.as_ref().map(Readers::path)
    }

    /// What a commit promises.
    pub fn durability(&self) -> Durability {
        self.handle.durability
    }

    /// Changes after a commit of this process that others should look at, and after any commit of another process.
    pub fn watch(&self) -> watch::Receiver<u64> {
        let watch = self.handle.core.changed.subscribe();
        // An idle file listens for other processes only while it is watched.
        self.handle.core.wake();
        watch
    }

    /// Says that the session has deferred rows which no command will take along.
    pub fn wake(&self) {
        self.handle.core.wake();
    }

    /// Runs `work` in a transaction and answers after its commit. Once handed in, it runs even if the caller goes away.
    pub async fn write<T: Send + 'static>(
        &self,
        options: WriteOptions,
        work: impl FnOnce(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        self.send(command_once(options.into(), work)).await
    }

    /// Like `write`, but `work` runs again, alone, when its transaction was undone and other commands may be the reason.
    pub async fn write_repeatable<T: Send + 'static>(
        &self,
        options: WriteOptions,
        work: impl FnMut(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        self.send(command(Ask { is_repeatable: true, ..options.into() }, work)).await
    }

    /// Like `write`, but first asks `probe`, which answers without taking the write lock when there is nothing to do.
    pub async fn write_unless<T: Send + 'static>(
        &self,
        options: WriteOptions,
        probe: impl Fn(&Connection) -> Result<Option<T>, S::Error> + Send + 'static,
        work: impl FnOnce(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        self.send(command_once(Ask { probe: Some(Box::new(probe)), ..options.into() }, work)).await
    }

    /// Like `write`, but together with other such calls on one caller's thread when the connection is free and the commit need
    /// not reach the disk. For short work.
    pub async fn write_here<T: Send + 'static>(
        &self,
        options: WriteOptions,
        work: impl FnOnce(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        let (command, answer) = command_once(options.into(), work);
        let part = match self.handle.durability {
            Durability::Relaxed => self.handle.group_commit.join(command),
            // Waiting for the disk belongs on the writer's thread, not on a caller's.
            Durability::Fsync => Part::Leave(command),
        };
        match part {
            Part::Lead { crowded } => Lead { file: self, leads: true }.commit(crowded).await,
            Part::Follow => {}
            Part::Leave(command) => return self.send((command, answer)).await,
        }
        answer.await.unwrap_or_else(|_| Err(reply::<S>(FileError::stopped())))
    }

    /// Writes the deferred rows, for a reader that must see this process's own.
    pub async fn flush_deferred(&self) -> Result<(), S::Reply> {
        let options = WriteOptions { writes_deferred: true, volatile: true, ..WriteOptions::default() };
        self.write(options, |_| Ok(())).await
    }

    /// Runs a read beside the writer, on a blocking thread. All of its statements see one state.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        if self.path().is_none() {
            return self.write(WriteOptions::default(), |tx| work(S::connection(tx))).await;
        }
        self.with_reader(|connection| {
            let snapshot = connection.unchecked_transaction().map_err(FileError::from)?;
            let value = work(&snapshot)?;
            snapshot.finish().map_err(FileError::from)?;
            Ok(value)
        })
        .await
    }

    /// Like `read`, but outside of a transaction, and not in memory.
    pub(crate) async fn with_reader<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, S::Error> + Send + 'static,
    ) -> Result<T, S::Reply> {
        // The handle goes along: the file must not be closed before its readers.
        let file = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let in_memory = || FileError::invalid("a database in memory has no second connection");
            let readers = file.handle.core.readers.as_ref().ok_or_else(in_memory)?;
            let connection = readers.take()?;
            let value = work(&connection)?;
            readers.keep(connection);
            Ok(value)
        });
        let cut_off = |error| FileError::unavailable(format!("a read was cut off: {error}")).into();
        read.await.unwrap_or_else(|error| Err(cut_off(error))).map_err(S::Reply::from)
    }

    async fn send<T>(&self, (command, answer): (Box<dyn Command<S>>, Answer<S, T>)) -> Result<T, S::Reply> {
        let place = if command.options().urgent {
            None
        } else {
            let place = Arc::clone(&self.handle.places).acquire_owned().await;
            Some(place.map_err(|_| reply::<S>(FileError::stopped()))?)
        };
        self.handle.core.hand_in((command, place)).map_err(|(_, error)| reply::<S>(error))?;
        answer.await.unwrap_or_else(|_| Err(reply::<S>(FileError::stopped())))
    }

    /// Commits on this thread, or hands over to the writer's.
    fn commit_here(&self, group: Vec<Box<dyn Command<S>>>) {
        let core = &self.handle.core;
        // Only a free connection is taken: waiting for it belongs on the writer's thread, not on a caller's.
        let refused = match core.committer.try_lock() {
            Ok(mut committer) if !committer.log_is_full() && !core.thread_waits.load(Ordering::Relaxed) => {
                let refused = committer.commit_now(group).err();
                if committer.wants_checkpoint() {
                    core.checkpoint_soon();
                }
                // Deferred rows are written by the thread, a moment later.
                if committer.has_deferred() {
                    core.wake();
                }
                refused
            }
            Ok(_) | Err(_) => Some(group),
        };
        if let Some(group) = refused {
            self.hand_over(group);
        }
    }

    /// Gives commands to the thread without waiting for a place in its queue.
    fn hand_over(&self, group: Vec<Box<dyn Command<S>>>) {
        for command in group {
            let place = Arc::clone(&self.handle.places).try_acquire_owned().ok();
            if let Err((command, error)) = self.handle.core.hand_in((command, place)) {
                command.reply(Err(error.into()));
            }
        }
    }
}

/// Commits for those that have gathered. If it is dropped on the way, because its own caller has gone, the thread commits them.
struct Lead<'a, S: Session> {
    file: &'a SqliteFile<S>,
    leads: bool,
}

impl<S: Session> Lead<'_, S> {
    async fn commit(mut self, mut crowded: bool) {
        for _ in 0..LEAD_ROUNDS_MAX {
            if crowded {
                tokio::task::yield_now().await;
            }
            self.file.commit_here(self.file.handle.group_commit.take());
            self.leads = self.file.handle.group_commit.has_more();
            if !self.leads {
                break;
            }
            crowded = true;
        }
    }
}

impl<S: Session> Drop for Lead<'_, S> {
    fn drop(&mut self) {
        if self.leads {
            self.file.hand_over(self.file.handle.group_commit.end());
        }
    }
}

fn reply<S: Session>(error: FileError) -> S::Reply {
    S::Error::from(error).into()
}
