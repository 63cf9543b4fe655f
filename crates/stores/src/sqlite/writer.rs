//! The way to the writing connection. Commands queue to a writer thread, which commits together what is queued.
//! Nothing waits for more commands to come: a lone command commits at once, a crowd shares one commit (and one fsync).
//!
//! Enqueues that need no fsync do not go through the thread, but gather and commit on the thread of the first of them
//! ([`Gathering`]): waking the writer, and being woken, would cost twice what the commit of one does.

use std::sync::atomic::{AtomicBool, Ordering};
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
use super::gathering::{Gathering, Part};
use super::news::WRITTEN_EVERY;
use super::tx::Tx;
use super::workers::Workers;

/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 256;
/// Commands that may wait for the writer; callers beyond wait, in the order they came, to hand theirs in.
const QUEUE_MAX: usize = 4_096;
/// Room beyond that for what must not stand in that line: lease renewals and signs of life.
const URGENT_MAX: usize = 64;
/// How often a caller commits for others who came while it did, before it leaves them to the thread.
const LEAD_ROUNDS_MAX: usize = 8;
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
    gathering: Arc<Gathering>,
    /// The thread waits for the connection: callers must not take it again and again before its eyes.
    thread_waits: Arc<AtomicBool>,
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
            self.writer.commit_here(self.writer.gathering.take());
            self.leads = self.writer.gathering.has_more();
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
            self.writer.hand_over(self.writer.gathering.end());
        }
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
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let changed = Arc::new(watch::Sender::new(0));
        let committer =
            Committer::new(connection, durability, clock, Arc::clone(&changed)).map_err(DbError::from)?;
        let committer = Arc::new(Mutex::new(committer));
        let checkpointer = Arc::new(Checkpointer::spawn(for_checkpoints, Arc::clone(&committer))?);
        let (commands, inbox) = sync_channel(QUEUE_MAX + URGENT_MAX);
        let waits = Arc::new(AtomicBool::new(false));
        let thread = WriterThread {
            waits: Arc::clone(&waits),
            committer: Arc::clone(&committer),
            checkpointer: Arc::clone(&checkpointer),
            inbox,
            changed: Arc::clone(&changed),
            workers,
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
            gathering: Arc::default(),
            thread_waits: waits,
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

    /// Like `write`, but together with other such calls on one caller's thread when the connection is free and the commit
    /// need not reach the disk. For short work.
    pub(super) async fn write_here<T: Send + 'static>(
        &self,
        treatment: Treatment,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (command, answer) = call(treatment, None, work);
        let part = match self.durability {
            Durability::Relaxed => self.gathering.join(command),
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
        // Only a free connection is taken: waiting for it belongs on the writer's thread, not on a caller's.
        let refused = match self.committer.try_lock() {
            Ok(mut committer) if !committer.log_is_full() && !self.thread_waits.load(Ordering::Relaxed) => {
                let refused = committer.commit_now(group).err();
                if committer.wants_checkpoint() {
                    self.checkpointer.wake();
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
            let place = Arc::clone(&self.places).try_acquire_owned().ok();
            let Some(commands) = &self.thread.commands else { return command.reply(Err(gone())) };
            match commands.try_send((command, place)) {
                Ok(()) => {}
                Err(TrySendError::Full((command, _))) => command.reply(Err(crowded_out())),
                Err(TrySendError::Disconnected((command, _))) => command.reply(Err(gone())),
            }
        }
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
            Err(TrySendError::Full(_)) => Err(crowded_out()),
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

fn crowded_out() -> Error {
    Error::Unavailable("thousands of writes are waiting; try again".to_owned())
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
    waits: Arc<AtomicBool>,
    workers: Arc<Workers>,
}

impl WriterThread {
    fn run(self) {
        let mut foreign_version = self.committer().foreign_version();
        let (mut looked_at, mut changed_at) = (Instant::now(), Instant::now());
        let mut changes = *self.changed.borrow();
        while let Some(group) = self.next_group(changed_at.elapsed() > IDLE_AFTER) {
            self.waits.store(!group.is_empty(), Ordering::Relaxed);
            let mut committer = self.committer();
            self.waits.store(false, Ordering::Relaxed);
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
        let mut committer = self.committer();
        committer.write_news();
        // No handle is left, so no worker can claim any more.
        self.workers.leave(committer.connection());
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
