//! The only way to write: commands queue to one thread, which runs what is queued in one transaction and replies after
//! its commit. Each command runs in a savepoint of its own, so one that fails undoes only itself. Some failures, such as a
//! full disk or a damaged page, undo the whole transaction: then each command is run once more, alone.
//!
//! In a crowd the thread waits a moment for more company. A call to a model takes a hundred times as long, and a commit
//! costs nearly as much for one command as for twenty. A lone command is committed at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::debug;

use super::error::{FileError, FileErrorKind, FileResult};
use super::events::{Counts, Events};
use crate::ledger::Sheet;

/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 512;
/// Commands that may wait for the writer; callers beyond wait, in the order they came, to hand theirs in.
const QUEUE_MAX: usize = 4_096;
/// How long the thread waits for company after a group of several.
const GATHER_WAIT: Duration = Duration::from_millis(2);
/// Counted events are written at least so often, also when nothing else is.
const EVENTS_EVERY: Duration = Duration::from_secs(1);

/// A transaction under way.
pub(crate) struct Tx<'c> {
    pub(crate) connection: &'c Connection,
    /// Changes of the ledger's sums, written once for the whole group. A command adds to it last of all, when nothing of
    /// its own can fail any more: a rollback to its savepoint does not reach it.
    pub(crate) sheet: Sheet,
}

/// A unit of work.
trait Command: Send {
    fn run(&mut self, tx: &mut Tx<'_>) -> FileResult<()>;
    fn reply(self: Box<Self>, outcome: FileResult<()>);
}

struct Call<T, F> {
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<FileResult<T>>,
}

impl<T: Send, F: FnMut(&mut Tx<'_>) -> FileResult<T> + Send> Command for Call<T, F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> FileResult<()> {
        self.value = None;
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn reply(self: Box<Self>, outcome: FileResult<()>) {
        let Self { value, reply, .. } = *self;
        // The caller may have gone away; its work stands.
        let _ = reply.send(outcome.and_then(|()| value.ok_or_else(FileError::stopped)));
    }
}

/// A command with its place in the line.
type Queued = (Box<dyn Command>, OwnedSemaphorePermit);

/// The way to the thread. The thread ends, after what is queued, when this is dropped.
pub(super) struct Writer {
    commands: Option<SyncSender<Queued>>,
    thread: Option<JoinHandle<()>>,
    places: Arc<Semaphore>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It has told its panic on stderr, if it had one.
            let _ = thread.join();
        }
    }
}

impl Writer {
    pub(super) fn spawn(connection: Connection, events: Arc<Events>) -> FileResult<Self> {
        let (commands, inbox) = sync_channel(QUEUE_MAX);
        let thread = WriterThread { connection, inbox, events };
        let thread = std::thread::Builder::new()
            .name("longhaul-llm-writer".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| {
                FileError::new(FileErrorKind::Unavailable, format!("its writer cannot start: {error}"))
            })?;
        let places = Arc::new(Semaphore::new(QUEUE_MAX));
        Ok(Self { commands: Some(commands), thread: Some(thread), places })
    }

    /// Runs `work` in a transaction and answers after its commit. Once handed in, it is done even if the caller goes away.
    /// It may run twice, when the first transaction was undone.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Tx<'_>) -> FileResult<T> + Send + 'static,
    ) -> FileResult<T> {
        let (reply, answer) = oneshot::channel();
        let command: Box<dyn Command> = Box::new(Call { work, value: None, reply });
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_closed| FileError::stopped())?;
        let commands = self.commands.as_ref().ok_or_else(FileError::stopped)?;
        match commands.try_send((command, place)) {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(FileError::stopped())),
            // A place in the line is a place in the channel.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => Err(FileError::stopped()),
        }
    }
}

struct WriterThread {
    connection: Connection,
    inbox: Receiver<Queued>,
    events: Arc<Events>,
}

impl WriterThread {
    fn run(self) {
        let mut crowded = false;
        while let Some(group) = self.next_group(crowded) {
            crowded = group.len() > 1;
            self.commit_group(group);
        }
        self.commit_group(Vec::new());
        debug!("the llm file's writer ends");
    }

    /// What is queued now; empty when nothing came for a while; `None` when no handle is left.
    fn next_group(&self, crowded: bool) -> Option<Vec<Queued>> {
        let first = match self.inbox.recv_timeout(EVENTS_EVERY) {
            Ok(command) => command,
            Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        if crowded {
            std::thread::sleep(GATHER_WAIT);
        }
        let mut group = vec![first];
        group.extend(self.inbox.try_iter().take(GROUP_MAX - 1));
        Some(group)
    }

    fn commit_group(&self, group: Vec<Queued>) {
        if group.is_empty() && self.events.is_empty() {
            return;
        }
        let (mut commands, places): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let events = self.events.take();
        let mut outcomes = Vec::with_capacity(commands.len());
        let committed = self.commit(&mut commands, &events, &mut outcomes);
        if committed.is_err() {
            self.events.put_back(events);
        }
        // A command that failed on its own keeps its own reason.
        let undecided = std::iter::repeat_with(|| Ok(()));
        let several = commands.len() > 1;
        for (mut command, outcome) in commands.into_iter().zip(outcomes.into_iter().chain(undecided)) {
            let outcome = match (outcome, &committed) {
                (Ok(()), Err(error)) if several && may_spare_others(error) => self.commit_alone(&mut command),
                (outcome, committed) => outcome.and_then(|()| committed.clone()),
            };
            command.reply(outcome);
        }
        drop(places);
    }

    fn commit_alone(&self, command: &mut Box<dyn Command>) -> FileResult<()> {
        let mut outcomes = Vec::with_capacity(1);
        let committed = self.commit(std::slice::from_mut(command), &Counts::default(), &mut outcomes);
        outcomes.pop().unwrap_or(Ok(())).and(committed)
    }

    /// Runs commands in one transaction, which is ended in any case.
    fn commit(
        &self,
        commands: &mut [Box<dyn Command>],
        events: &Counts,
        outcomes: &mut Vec<FileResult<()>>,
    ) -> FileResult<()> {
        let committed = self.try_commit(commands, events, outcomes);
        if let Err(error) = &committed {
            debug!(%error, commands = commands.len(), "a group was not committed");
            // A full disk ends the transaction by itself.
            if !self.connection.is_autocommit() {
                let _ = self.execute("ROLLBACK");
            }
        }
        committed
    }

    fn try_commit(
        &self,
        commands: &mut [Box<dyn Command>],
        events: &Counts,
        outcomes: &mut Vec<FileResult<()>>,
    ) -> FileResult<()> {
        // Takes the write lock at once: a transaction that began as a reader could not wait for it.
        self.execute("BEGIN IMMEDIATE")?;
        let mut tx = Tx { connection: &self.connection, sheet: Sheet::default() };
        for command in commands {
            self.execute("SAVEPOINT command")?;
            match run_guarded(command.as_mut(), &mut tx) {
                Ok(()) => outcomes.push(Ok(())),
                // A full disk, for one, undoes the whole transaction: then it is everybody's error.
                Err(error) if self.connection.is_autocommit() => return Err(error),
                Err(error) => {
                    self.execute("ROLLBACK TO command")?;
                    tx.sheet.distrust_names();
                    outcomes.push(Err(error));
                }
            }
            self.execute("RELEASE command")?;
        }
        for ((scope, event), count) in events {
            tx.sheet.count(&self.connection, scope, *event, *count)?;
        }
        tx.sheet.write(&self.connection)?;
        self.execute("COMMIT")
    }

    fn execute(&self, sql: &str) -> FileResult<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

/// Whether what undid a transaction may have been one command's doing: a large value on a full disk, a damaged page that
/// only one of them reads.
fn may_spare_others(error: &FileError) -> bool {
    match error.kind {
        FileErrorKind::DiskFull | FileErrorKind::Corrupt | FileErrorKind::Unavailable => true,
        // These waited long already, or are as true for each.
        FileErrorKind::Busy
        | FileErrorKind::ReadOnly
        | FileErrorKind::Newer
        | FileErrorKind::Invalid
        | FileErrorKind::Stopped => false,
    }
}

/// A command that panics must not take the writer with it.
fn run_guarded(command: &mut dyn Command, tx: &mut Tx<'_>) -> FileResult<()> {
    catch_unwind(AssertUnwindSafe(|| command.run(tx)))
        .unwrap_or_else(|_| Err(FileError::invalid("a command panicked; nothing of it is written")))
}
