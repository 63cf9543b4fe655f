//! The writer thread: owns the only writing connection of this process, and commits together what is queued.
//!
//! Each command runs in a savepoint of its own, so one that fails undoes only itself. Nothing waits for more
//! commands to come: a lone command commits at once, a crowd shares one commit (and one fsync).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use longhaul_queue::{Clock, Error, Result};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};
use tracing::{debug, warn};

use super::Durability;
use super::error::{DbError, DbResult};
use super::news::{News, Story, WRITTEN_EVERY};
use super::tx::Tx;

/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 256;
/// Commands that may wait for the writer; callers beyond wait to hand theirs in.
const QUEUE_MAX: usize = 4_096;
/// Waking a thread costs about as much as a commit without fsync, and a lone caller pays it twice: once for the writer,
/// once for itself. So the writer looks for the next command, and a prompt caller for its answer, for this long before
/// they sleep.
const SPIN: Duration = Duration::from_micros(60);
/// How often an idle writer asks whether another process has written.
const FOREIGN_WRITES_EVERY: Duration = Duration::from_millis(1);

/// How a command wants to be treated.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Treatment {
    /// Needs no fsync of its own. For claims and signs of life: a power cut that loses one also ended its holder.
    pub(super) volatile: bool,
    /// Reads the maintained counters, so what the group has changed so far must be in the tables.
    pub(super) reads_counts: bool,
    /// Takes the events that wait along.
    pub(super) writes_events: bool,
    /// The caller waits for this alone, so a short spin is worth it; see [`SPIN`].
    pub(super) prompt: bool,
}

type Probe<T> = Box<dyn Fn(&Connection) -> DbResult<Option<T>> + Send>;

/// A unit of work for the writer.
trait Command: Send {
    fn treatment(&self) -> Treatment;
    /// Tries to answer without a transaction; true when it did.
    fn probe(&mut self, connection: &Connection) -> bool;
    fn run(&mut self, tx: &mut Tx<'_>) -> DbResult<()>;
    /// Answers the caller, after the commit.
    fn reply(self: Box<Self>, outcome: Result<()>);
}

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

/// The handle on the writer thread. The thread ends, after what is queued, when the last handle is dropped.
#[derive(Clone)]
pub(super) struct Writer {
    thread: Arc<ThreadHandle>,
    changed: Arc<watch::Sender<u64>>,
    /// Prompt callers that wait for an answer.
    waiting: Arc<AtomicUsize>,
}

/// Waits for the thread when the last handle goes, so that a program that ends leaves a file at rest.
struct ThreadHandle {
    commands: Option<SyncSender<Box<dyn Command>>>,
    thread: Option<JoinHandle<()>>,
}

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
        durability: Durability,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let (commands, inbox) = sync_channel(QUEUE_MAX);
        let changed = Arc::new(watch::Sender::new(0));
        let thread = WriterThread {
            connection,
            inbox,
            durability,
            clock,
            changed: Arc::clone(&changed),
            full_sync: None,
            next: None,
            news: News::new(),
        };
        let thread = std::thread::Builder::new()
            .name("longhaul-writer".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| Error::Unavailable(format!("the writer thread cannot start: {error}")))?;
        let thread = ThreadHandle { commands: Some(commands), thread: Some(thread) };
        Ok(Self { thread: Arc::new(thread), changed, waiting: Arc::new(AtomicUsize::new(0)) })
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
        self.send(treatment, None, work).await
    }

    /// Writes the events that wait, for a reader of this process that must not miss its own.
    pub(super) async fn flush_events(&self) -> Result<()> {
        self.write(Treatment { writes_events: true, volatile: true, ..Treatment::default() }, |_| Ok(()))
            .await
    }

    /// Like `write`, but first asks `probe`, which answers without taking the write lock when there is nothing to do.
    pub(super) async fn write_unless<T: Send + 'static>(
        &self,
        treatment: Treatment,
        probe: impl Fn(&Connection) -> DbResult<Option<T>> + Send + 'static,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        self.send(treatment, Some(Box::new(probe)), work).await
    }

    async fn send<T: Send + 'static>(
        &self,
        treatment: Treatment,
        probe: Option<Probe<T>>,
        work: impl FnOnce(&mut Tx<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, mut answer) = oneshot::channel();
        let mut command: Box<dyn Command> =
            Box::new(Call { treatment, probe, work: Some(work), value: None, reply });
        loop {
            let Some(commands) = &self.thread.commands else { return Err(gone()) };
            command = match commands.try_send(command) {
                Ok(()) => break,
                Err(TrySendError::Full(command)) => command,
                Err(TrySendError::Disconnected(_)) => return Err(gone()),
            };
            // Thousands of commands are waiting: let them through before adding to them.
            tokio::task::yield_now().await;
        }
        // Only while nobody else waits: in a crowd the core has better things to do.
        if treatment.prompt && self.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            let until = Instant::now() + SPIN;
            while Instant::now() < until {
                match answer.try_recv() {
                    Ok(value) => {
                        self.waiting.fetch_sub(1, Ordering::Relaxed);
                        return value;
                    }
                    Err(oneshot::error::TryRecvError::Empty) => std::hint::spin_loop(),
                    Err(oneshot::error::TryRecvError::Closed) => break,
                }
            }
        }
        let value = answer.await.unwrap_or_else(|_| Err(gone()));
        if treatment.prompt {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        value
    }
}

/// A caller's work may panic; the writer must not go with it.
fn run_guarded(command: &mut dyn Command, tx: &mut Tx<'_>) -> DbResult<()> {
    catch_unwind(AssertUnwindSafe(|| command.run(tx))).unwrap_or_else(|_| {
        Err(DbError::caller("the work of a transaction panicked; nothing of it is stored"))
    })
}

fn gone() -> Error {
    Error::Unavailable("the database writer has stopped".to_owned())
}

/// What a commit did.
struct Committed {
    /// Whether others should look, and what has changed.
    outcome: (bool, Option<Story>),
    /// The events that waited went with it.
    with_news: bool,
}

struct WriterThread {
    connection: Connection,
    inbox: Receiver<Box<dyn Command>>,
    durability: Durability,
    clock: Arc<dyn Clock>,
    changed: Arc<watch::Sender<u64>>,
    full_sync: Option<bool>,
    /// Found while spinning.
    next: Option<Box<dyn Command>>,
    news: News,
}

impl WriterThread {
    fn run(mut self) {
        let mut foreign_version = self.foreign_version();
        let mut looked_at = Instant::now();
        loop {
            match self.next_group() {
                Some(group) if group.is_empty() => {
                    if self.news.is_due() {
                        self.write_news();
                    }
                }
                Some(group) => {
                    self.commit_group(group);
                    self.spin();
                }
                None => break,
            }
            // Other processes' commits show as a change of data_version; our own do not.
            if looked_at.elapsed() >= FOREIGN_WRITES_EVERY {
                looked_at = Instant::now();
                let version = self.foreign_version();
                if version != foreign_version {
                    foreign_version = version;
                    self.changed.send_modify(|count| *count += 1);
                }
            }
        }
        self.write_news();
        debug!("writer thread ends");
    }

    /// Writes events that no other commit took along.
    fn write_news(&mut self) {
        if self.news.is_empty() {
            return;
        }
        let mut write = || -> Result<()> {
            self.set_full_sync(false)?;
            self.execute("BEGIN IMMEDIATE")?;
            let written = self.news.write(&self.connection).map_err(Error::from);
            self.execute(if written.is_ok() { "COMMIT" } else { "ROLLBACK" }).and(written)
        };
        if let Err(error) = write() {
            debug!(%error, "events were not written");
            return;
        }
        self.news.written();
        // Whoever looked when the change was made may have missed its event.
        self.changed.send_modify(|count| *count += 1);
    }

    /// Waits a moment for the next command without sleeping.
    fn spin(&mut self) {
        let until = Instant::now() + SPIN;
        while self.next.is_none() && Instant::now() < until {
            self.next = self.inbox.try_recv().ok();
            std::hint::spin_loop();
        }
    }

    fn foreign_version(&self) -> Option<i64> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version").ok()?;
        statement.query_row([], |row| row.get(0)).ok()
    }

    /// What is queued now; empty when nothing came for a while; `None` when no handle is left.
    fn next_group(&mut self) -> Option<Vec<Box<dyn Command>>> {
        let first = if let Some(command) = self.next.take() {
            command
        } else if self.changed.receiver_count() == 0 && self.news.is_empty() {
            self.inbox.recv().ok()?
        } else {
            // Somebody wants to know of other processes' writes, or events wait to be written.
            let wait = if self.changed.receiver_count() == 0 { WRITTEN_EVERY } else { FOREIGN_WRITES_EVERY };
            match self.inbox.recv_timeout(wait) {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        };
        let mut group = vec![first];
        group.extend(self.inbox.try_iter().take(GROUP_MAX - 1));
        Some(group)
    }

    fn commit_group(&mut self, group: Vec<Box<dyn Command>>) {
        let (answered, mut group): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|mut command| (command.probe(&self.connection), command))
            .partition(|(done, _)| *done);
        for (_, command) in answered {
            command.reply(Ok(()));
        }
        if group.is_empty() {
            return;
        }
        let mut outcomes = Vec::with_capacity(group.len());
        let committed = self.transaction(&mut group, &mut outcomes);
        if let Err(error @ (Error::Unavailable(_) | Error::Corrupt(_))) = &committed {
            warn!(error = %error, commands = group.len(), "a group of commands was not committed");
        }
        let changed = match &committed {
            Ok(Committed { outcome: (changed, story), with_news }) => {
                if *with_news {
                    self.news.written();
                }
                if let Some(story) = story {
                    self.news.add(story.clone());
                }
                *changed
            }
            Err(_) => false,
        };
        for ((_, command), outcome) in
            group.into_iter().zip(outcomes.into_iter().chain(std::iter::repeat(Ok(()))))
        {
            command.reply(match &committed {
                Ok(_) => outcome,
                // A command that failed on its own keeps its own reason.
                Err(error) => outcome.and_then(|()| Err(error.clone())),
            });
        }
        if changed {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Runs the group and commits it. An error means that nothing of it is stored.
    fn transaction(
        &mut self,
        group: &mut [(bool, Box<dyn Command>)],
        outcomes: &mut Vec<Result<()>>,
    ) -> Result<Committed> {
        let volatile = group.iter().all(|(_, command)| command.treatment().volatile);
        self.set_full_sync(self.durability == Durability::Fsync && !volatile)?;
        self.execute("BEGIN IMMEDIATE")?;
        match self.run_group(group, outcomes) {
            Ok(committed) => Ok(committed),
            Err(error) => {
                // A full disk ends the transaction by itself.
                if !self.connection.is_autocommit() {
                    self.execute("ROLLBACK")?;
                }
                Err(error.into())
            }
        }
    }

    fn run_group(
        &self,
        group: &mut [(bool, Box<dyn Command>)],
        outcomes: &mut Vec<Result<()>>,
    ) -> DbResult<Committed> {
        let mut tx = Tx::new(&self.connection, self.clock.now());
        // A lone command needs no savepoint: its failure is the transaction's.
        let alone = group.len() == 1;
        for (_, command) in group.iter_mut() {
            if command.treatment().reads_counts {
                tx.flush_counts()?;
            }
            if !alone {
                tx.run("SAVEPOINT command", [])?;
            }
            let outcome = run_guarded(command.as_mut(), &mut tx);
            if alone {
                outcome?;
                tx.keep_changes(true);
                break;
            }
            match outcome {
                Ok(()) => outcomes.push(Ok(())),
                // A full disk, for one, undoes the whole transaction: then it is everybody's error.
                Err(error) if self.connection.is_autocommit() => return Err(error),
                Err(error) => {
                    tx.run("ROLLBACK TO command", [])?;
                    outcomes.push(Err(error.into()));
                }
            }
            tx.run("RELEASE command", [])?;
            tx.keep_changes(outcomes.last().is_some_and(Result::is_ok));
        }
        tx.finish()?;
        let asked = group.iter().any(|(_, command)| command.treatment().writes_events);
        let with_news = self.news.is_due() || asked;
        if with_news {
            self.news.write(&self.connection)?;
        }
        tx.run("COMMIT", [])?;
        Ok(Committed { outcome: tx.outcome(), with_news })
    }

    fn set_full_sync(&mut self, full: bool) -> Result<()> {
        if self.full_sync == Some(full) {
            return Ok(());
        }
        self.execute(if full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" })?;
        self.full_sync = Some(full);
        Ok(())
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let executed = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute([]));
        executed.map(|_| ()).map_err(|error| DbError::from(error).into())
    }
}
