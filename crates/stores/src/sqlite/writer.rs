//! The way to the writing connection. Commands queue to a writer thread, which commits together what is queued.
//! Nothing waits for more commands to come: a lone command commits at once, a crowd shares one commit (and one fsync).
//!
//! A lone enqueue that needs no fsync does not go through the thread: waking it, and being woken, would cost twice
//! what the commit does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_queue::{Clock, Error, Result};
use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tracing::debug;

use super::Durability;
use super::checkpointer::Checkpointer;
use super::committer::{Command, Committer, Treatment};
use super::error::{DbError, DbResult};
use super::news::WRITTEN_EVERY;
use super::tx::Tx;

/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 256;
/// Commands that may wait for the writer; callers beyond wait, in the order they came, to hand theirs in.
const QUEUE_MAX: usize = 4_096;
/// Room beyond that for what must not stand in that line: lease renewals and signs of life.
const URGENT_MAX: usize = 64;
/// How often the writer asks whether another process has written: while things happen, and while nothing does.
const FOREIGN_WRITES_EVERY: Duration = Duration::from_millis(1);
const FOREIGN_WRITES_EVERY_IDLE: Duration = Duration::from_millis(4);
/// Nothing has changed for so long: idle.
const IDLE_AFTER: Duration = Duration::from_secs(2);

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

/// A handle on the writer. The thread ends, after what is queued, when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    committer: Arc<Mutex<Committer>>,
    thread: Arc<ThreadHandle>,
    checkpointer: Arc<Checkpointer>,
    places: Arc<Semaphore>,
    changed: Arc<watch::Sender<u64>>,
    durability: Durability,
    /// Calls of `write_here` under way.
    turns: Arc<AtomicUsize>,
}

/// A call of `write_here` under way.
struct Turn<'a> {
    turns: &'a AtomicUsize,
    is_only_one: bool,
}

impl<'a> Turn<'a> {
    fn take(turns: &'a AtomicUsize) -> Self {
        Self { turns, is_only_one: turns.fetch_add(1, Ordering::Relaxed) == 0 }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits for the thread when the last handle goes, so that a program that ends leaves a file at rest.
struct ThreadHandle {
    commands: Option<SyncSender<Queued>>,
    thread: Option<JoinHandle<()>>,
}

/// A command with its place in the line.
type Queued = (Box<dyn Command>, Option<OwnedSemaphorePermit>);

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It has told its panic on stderr, if it had one.
            let _ = thread.join();
        }
    }
}

impl Writer {
    pub(super) fn spawn(
        connection: Connection,
        for_checkpoints: Connection,
        durability: Durability,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let changed = Arc::new(watch::Sender::new(0));
        let committer =
            Committer::new(connection, durability, clock, Arc::clone(&changed)).map_err(DbError::from)?;
        let committer = Arc::new(Mutex::new(committer));
        let checkpointer = Arc::new(Checkpointer::spawn(for_checkpoints, Arc::clone(&committer))?);
        let (commands, inbox) = sync_channel(QUEUE_MAX + URGENT_MAX);
        let thread = WriterThread {
            committer: Arc::clone(&committer),
            checkpointer: Arc::clone(&checkpointer),
            inbox,
            changed: Arc::clone(&changed),
        };
        let thread = std::thread::Builder::new()
            .name("longhaul-writer".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| Error::Unavailable(format!("the writer thread cannot start: {error}")))?;
        let thread = ThreadHandle { commands: Some(commands), thread: Some(thread) };
        let places = Arc::new(Semaphore::new(QUEUE_MAX));
        Ok(Self {
            committer,
            thread: Arc::new(thread),
            checkpointer,
            places,
            changed,
            durability,
            turns: Arc::default(),
        })
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
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

    /// Like `write`, but on the caller's own thread when the connection is free and the commit need not reach the
    /// disk. For short work.
    pub(super) async fn write_here<T: Send + 'static>(
        &self,
        treatment: Treatment,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (command, answer) = call(treatment, None, work);
        let turn = Turn::take(&self.turns);
        // In a crowd the queue is faster: there one commit serves all.
        let queued = if turn.is_only_one { self.commit_here(command) } else { Some(command) };
        if let Some(command) = queued {
            self.send(command).await?;
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

    /// Gives the command back when it must go through the thread.
    fn commit_here(&self, command: Box<dyn Command>) -> Option<Box<dyn Command>> {
        if self.durability == Durability::Fsync {
            return Some(command);
        }
        // Only a free connection is taken: waiting for it belongs on the writer's thread, not on a caller's.
        let Ok(mut committer) = self.committer.try_lock() else { return Some(command) };
        if committer.log_is_full() {
            return Some(command);
        }
        let refused = committer.commit_now(command).err();
        if committer.wants_checkpoint() {
            self.checkpointer.wake();
        }
        refused
    }

    async fn send(&self, command: Box<dyn Command>) -> Result<()> {
        let Some(commands) = &self.thread.commands else { return Err(gone()) };
        let place = if command.treatment().urgent {
            None
        } else {
            Some(Arc::clone(&self.places).acquire_owned().await.map_err(|_| gone())?)
        };
        match commands.try_send((command, place)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                Err(Error::Unavailable("thousands of writes are waiting; try again".to_owned()))
            }
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
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

/// Nothing brings the thread back, so nobody should try again.
fn gone() -> Error {
    Error::Corrupt("the database writer has stopped; restart the program".to_owned())
}

struct WriterThread {
    committer: Arc<Mutex<Committer>>,
    checkpointer: Arc<Checkpointer>,
    inbox: Receiver<Queued>,
    changed: Arc<watch::Sender<u64>>,
}

impl WriterThread {
    fn run(self) {
        let mut foreign_version = self.committer().foreign_version();
        let (mut looked_at, mut changed_at) = (Instant::now(), Instant::now());
        let mut changes = *self.changed.borrow();
        while let Some(group) = self.next_group(changed_at.elapsed() > IDLE_AFTER) {
            let mut committer = self.committer();
            if !group.is_empty() {
                let (commands, places): (Vec<_>, Vec<_>) = group.into_iter().unzip();
                committer.commit_group(commands);
                drop(places);
            }
            if committer.news.is_due() {
                committer.write_news();
            }
            if committer.wants_checkpoint() {
                self.checkpointer.wake();
            }
            if committer.log_is_full() {
                self.checkpointer.catch_up(&committer);
            }
            if looked_at.elapsed() >= FOREIGN_WRITES_EVERY {
                looked_at = Instant::now();
                let version = committer.foreign_version();
                if version != foreign_version {
                    foreign_version = version;
                    self.changed.send_modify(|count| *count += 1);
                }
                let changes_before = std::mem::replace(&mut changes, *self.changed.borrow());
                if changes != changes_before {
                    changed_at = looked_at;
                }
            }
        }
        self.committer().write_news();
        debug!("writer thread ends");
    }

    /// A panic while the lock was held leaves a transaction that the next one ends first.
    fn committer(&self) -> MutexGuard<'_, Committer> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is queued now; empty when nothing came for a while; `None` when no handle is left.
    fn next_group(&self, idle: bool) -> Option<Vec<Queued>> {
        // Somebody wants to know of other processes' writes at once; events may wait a little.
        let wait = match (self.changed.receiver_count() == 0, idle) {
            (true, _) => WRITTEN_EVERY,
            (false, false) => FOREIGN_WRITES_EVERY,
            (false, true) => FOREIGN_WRITES_EVERY_IDLE,
        };
        let first = match self.inbox.recv_timeout(wait) {
            Ok(command) => command,
            Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let mut group = vec![first];
        group.extend(self.inbox.try_iter().take(GROUP_MAX - 1));
        Some(group)
    }
}
