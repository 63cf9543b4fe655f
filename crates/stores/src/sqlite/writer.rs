//! The way to the writing connection. Commands queue to a writer thread, which commits together what is queued.
//! Nothing waits for more commands to come: a lone command commits at once, a crowd shares one commit (and one fsync).
//! The thread is there while there is something to do; a store at rest has none ([`thread`]).
//!
//! Enqueues that need no fsync do not go through the thread, but gather and commit on the thread of the first of them
//! ([`Gathering`]): waking the writer, and being woken, would cost twice what the commit of one does.

mod inbox;
mod thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use longhaul_queue::{Clock, Error, Result};
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot, watch};

use super::Durability;
use super::checkpointer::Checkpointer;
use super::committer::{Command, Committer, Treatment};
use super::db::Readers;
use super::error::{DbError, DbResult};
use super::gathering::{Gathering, Part};
use super::tx::Tx;
use super::workers::Workers;
use inbox::{Inbox, Refusal};

/// Commands that may wait for the writer; callers beyond wait, in the order they came, to hand theirs in.
const QUEUE_MAX: usize = 4_096;
/// How often a caller commits for others who came while it did, before it leaves them to the thread.
const LEAD_ROUNDS_MAX: usize = 8;

type Probe<T> = Box<dyn Fn(&Connection) -> DbResult<Option<T>> + Send>;

struct Call<T, F> {
    treatment: Treatment,
    probe: Option<Probe<T>>,
    work: Option<F>,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnOnce(&mut Tx<'_>) -> DbResult<T> + Send> Command for Call<T, F> {
    fn treatment(&self) -> Treatment {
        self.treatment
    }

    fn probe(&mut self, connection: &Connection) -> bool {
        // A probe that fails says nothing; the transaction will meet the error and report it.
        self.value = self.probe.as_ref().and_then(|probe| probe(connection).ok().flatten());
        self.value.is_some()
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> DbResult<()> {
        if let Some(work) = self.work.take() {
            self.value = Some(work(tx)?);
        }
        Ok(())
    }

    fn reply(self: Box<Self>, outcome: Result<()>) {
        let missing = || Err(Error::Corrupt("the writer lost a command".to_owned()));
        let call = *self;
        let answer = outcome.and_then(|()| call.value.map_or_else(missing, Ok));
        // The caller may have gone away; its work stands.
        let _ = call.reply.send(answer);
    }
}

/// A handle on the writer. What is queued is written, and the connection closed, when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    handle: Arc<Handle>,
}

/// What the handles share with the threads.
pub(super) struct Core {
    committer: Mutex<Committer>,
    pub(super) checkpointer: Checkpointer,
    inbox: Inbox,
    /// The thread that was started last.
    thread: Mutex<Option<JoinHandle<()>>>,
    changed: Arc<watch::Sender<u64>>,
    /// The version of the file when it was last compared; see [`Committer::foreign_version`].
    foreign_version: Mutex<Option<i64>>,
    /// The thread waits for the connection: callers must not take it again and again before its eyes.
    thread_waits: AtomicBool,
    workers: Arc<Workers>,
    readers: Readers,
    /// The write-ahead log: a write by another process is a write to this.
    log: PathBuf,
}

impl Core {
    /// A panic while the lock was held leaves a transaction that the next one ends first.
    pub(super) fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the threads when the last handle goes, so that a program that ends leaves a file at rest.
struct Handle {
    core: Arc<Core>,
    places: Arc<Semaphore>,
    durability: Durability,
    gathering: Gathering,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.end();
    }
}

/// What a writer needs of the file that it writes.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) durability: Durability,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) workers: Arc<Workers>,
    pub(super) readers: Readers,
}

/// Who leads those that have gathered. One that is dropped on the way, because its own caller has gone, commits all the same.
struct Lead<'a> {
    writer: &'a Writer,
    leads: bool,
}

impl Lead<'_> {
    async fn commit(mut self, mut crowded: bool) {
        for _ in 0..LEAD_ROUNDS_MAX {
            if crowded {
                tokio::task::yield_now().await;
            }
            self.writer.commit_here(self.writer.handle.gathering.take());
            self.leads = self.writer.handle.gathering.has_more();
            if !self.leads {
                break;
            }
            crowded = true;
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.leads {
            self.writer.hand_over(self.writer.handle.gathering.end());
        }
    }
}

impl Writer {
    pub(super) fn new(opened: Opened) -> Result<Self> {
        let Opened { connection, path, durability, clock, workers, readers } = opened;
        let changed = Arc::new(watch::Sender::new(0));
        let committer =
            Committer::new(connection, durability, clock, Arc::clone(&changed)).map_err(DbError::from)?;
        let mut log = path.clone().into_os_string();
        log.push("-wal");
        let core = Core {
            foreign_version: Mutex::new(committer.foreign_version()),
            committer: Mutex::new(committer),
            checkpointer: Checkpointer::new(path),
            inbox: Inbox::default(),
            thread: Mutex::default(),
            changed,
            thread_waits: AtomicBool::new(false),
            workers,
            readers,
            log: log.into(),
        };
        let places = Arc::new(Semaphore::new(QUEUE_MAX));
        let handle = Handle { core: Arc::new(core), places, durability, gathering: Gathering::default() };
        Ok(Self { handle: Arc::new(handle) })
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        let watch = self.handle.core.changed.subscribe();
        // An idle store listens for other processes only while it is watched.
        self.handle.core.wake();
        watch
    }

    /// Runs `work` in a transaction and answers after its commit.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        treatment: Treatment,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (command, answer) = call(treatment, None, work);
        self.send(command).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Like `write`, but together with other such calls on one caller's thread when the connection is free and the commit
    /// need not reach the disk. For short work.
    pub(super) async fn write_here<T: Send + 'static>(
        &self,
        treatment: Treatment,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (command, answer) = call(treatment, None, work);
        let part = match self.handle.durability {
            Durability::Relaxed => self.handle.gathering.join(command),
            // Waiting for the disk belongs on the writer's thread, not on a caller's.
            Durability::Fsync => Part::Leave(command),
        };
        match part {
            Part::Lead { crowded } => Lead { writer: self, leads: true }.commit(crowded).await,
            Part::Follow => {}
            Part::Leave(command) => self.send(command).await?,
        }
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Like `write`, but first asks `probe`, which answers without taking the write lock when there is nothing to do.
    pub(super) async fn write_unless<T: Send + 'static>(
        &self,
        treatment: Treatment,
        probe: impl Fn(&Connection) -> DbResult<Option<T>> + Send + 'static,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (command, answer) = call(treatment, Some(Box::new(probe)), work);
        self.send(command).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Writes the events that wait, for a reader of this process that must not miss its own.
    pub(super) async fn flush_events(&self) -> Result<()> {
        self.write(Treatment { writes_events: true, volatile: true, ..Treatment::default() }, |_| Ok(()))
            .await
    }

    /// Commits on this thread, or hands over to the writer's.
    fn commit_here(&self, group: Vec<Box<dyn Command>>) {
        let core = &self.handle.core;
        // Only a free connection is taken: waiting for it belongs on the writer's thread, not on a caller's.
        let refused = match core.committer.try_lock() {
            Ok(mut committer) if !committer.log_is_full() && !core.thread_waits.load(Ordering::Relaxed) => {
                let refused = committer.commit_now(group).err();
                if committer.wants_checkpoint() {
                    core.checkpoint_soon();
                }
                // Events that wait are written by the thread, a moment later.
                if !committer.news.is_empty() {
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

    /// Gives commands to the thread without waiting for a place in its line.
    fn hand_over(&self, group: Vec<Box<dyn Command>>) {
        for command in group {
            let place = Arc::clone(&self.handle.places).try_acquire_owned().ok();
            if let Err((command, refusal)) = self.handle.core.hand_in((command, place)) {
                command.reply(Err(refused(refusal)));
            }
        }
    }

    async fn send(&self, command: Box<dyn Command>) -> Result<()> {
        let place = if command.treatment().urgent {
            None
        } else {
            Some(Arc::clone(&self.handle.places).acquire_owned().await.map_err(|_| gone())?)
        };
        self.handle.core.hand_in((command, place)).map_err(|(_, refusal)| refused(refusal))
    }
}

fn call<T: Send + 'static>(
    treatment: Treatment,
    probe: Option<Probe<T>>,
    work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
) -> (Box<dyn Command>, oneshot::Receiver<Result<T>>) {
    let (reply, answer) = oneshot::channel();
    (Box::new(Call { treatment, probe, work: Some(work), value: None, reply }), answer)
}

fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Full => Error::Unavailable("thousands of writes are waiting; try again".to_owned()),
        Refusal::NoThread(error) => Error::Unavailable(format!("the writer thread cannot start: {error}")),
        Refusal::Closed => gone(),
    }
}

/// Nothing brings the writer back, so a retry is pointless.
fn gone() -> Error {
    Error::Corrupt("the database writer has stopped; restart the program".to_owned())
}
