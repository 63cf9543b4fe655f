//! The writer thread. It commits what is queued, writes deferred rows, and notices what other processes write. A while after the
//! last of these it ends: a program may hold hundreds of files, and those at rest cost neither a thread nor a wake-up. The next
//! command starts another, and so does a write by another process ([`foreign_writes`]).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::debug;

use crate::checkpointer::Checkpointer;
use crate::command::Command;
use crate::committer::Committer;
use crate::error::FileError;
use crate::foreign_writes::{self, Wake};
use crate::inbox::{Inbox, Next, Queued};
use crate::readers::Readers;
use crate::session::Session;

/// How often the thread checks for writes by other processes: while busy, and while idle.
const FOREIGN_WRITES_EVERY: Duration = Duration::from_millis(1);
const FOREIGN_WRITES_EVERY_IDLE: Duration = Duration::from_millis(4);
/// After this long without activity the thread ends, or polls less often where nothing reports writes.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// What the handles of a file share with its threads.
pub(crate) struct Core<S: Session> {
    pub(crate) committer: Mutex<Committer<S>>,
    pub(crate) checkpointer: Checkpointer,
    /// None for a database in memory.
    pub(crate) readers: Option<Readers>,
    pub(crate) changed: Arc<watch::Sender<u64>>,
    /// The thread waits for the connection: callers must not keep taking it first.
    pub(crate) thread_waits: AtomicBool,
    inbox: Inbox<S>,
    /// The thread that was started last.
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The version of the file when it was last compared; see [`Committer::foreign_version`].
    foreign_version: Mutex<Option<i64>>,
    gather_wait: Duration,
}

impl<S: Session> Core<S> {
    pub(crate) fn new(
        committer: Committer<S>,
        changed: Arc<watch::Sender<u64>>,
        readers: Option<Readers>,
        gather_wait: Duration,
    ) -> Self {
        Self {
            foreign_version: Mutex::new(committer.foreign_version()),
            committer: Mutex::new(committer),
            checkpointer: Checkpointer::default(),
            readers,
            changed,
            thread_waits: AtomicBool::new(false),
            inbox: Inbox::new(),
            thread: Mutex::default(),
            gather_wait,
        }
    }

    /// A panic while the lock was held leaves a transaction that the next one ends first.
    pub(crate) fn committer(&self) -> MutexGuard<'_, Committer<S>> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command for the thread, and starts one where there is none.
    pub(crate) fn hand_in(
        self: &Arc<Self>,
        queued: Queued<S>,
    ) -> Result<(), (Box<dyn Command<S>>, FileError)> {
        if self.inbox.put(queued)? {
            self.start();
        }
        Ok(())
    }

    /// Has the thread look for work other than commands.
    pub(crate) fn wake(self: &Arc<Self>) {
        if self.inbox.wake() {
            self.start();
        }
    }

    fn start(self: &Arc<Self>) {
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name("longhaul-writer".to_owned());
        match thread.spawn(move || core.run()) {
            Ok(thread) => *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread),
            Err(error) => {
                let error = FileError::unavailable(format!("the writer thread cannot start: {error}"));
                for (command, _place) in self.inbox.unattended() {
                    command.reply(Err(error.clone().into()));
                }
            }
        }
    }

    /// Ends the threads once what is queued is written.
    pub(crate) fn end(&self) {
        self.inbox.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may go with a command, on the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // If it panicked, that was printed to stderr.
            let _ = thread.join();
        }
        self.checkpointer.end();
        // Only a connection that may write can fold the log into the file and remove it, so these go before it.
        self.close_readers();
        self.committer().close();
    }

    fn run(self: &Arc<Self>) {
        let (mut looked_at, mut busy_at) = (Instant::now(), Instant::now());
        let mut changes = *self.changed.borrow();
        let mut crowded = false;
        loop {
            let idle = busy_at.elapsed() > IDLE_AFTER;
            let mut group = match self.inbox.next(self.patience(idle)) {
                Next::Commands(group) => group,
                Next::Nothing => Vec::new(),
                Next::Close => break,
            };
            if !group.is_empty() {
                if crowded && !self.gather_wait.is_zero() {
                    std::thread::sleep(self.gather_wait);
                    self.inbox.fill(&mut group);
                }
                crowded = group.len() > 1;
                busy_at = Instant::now();
            }
            let at_rest = self.attend(group);
            if looked_at.elapsed() >= FOREIGN_WRITES_EVERY {
                looked_at = Instant::now();
                self.compare_version();
                let changes_before = std::mem::replace(&mut changes, *self.changed.borrow());
                if changes != changes_before {
                    busy_at = looked_at;
                }
            }
            if idle && at_rest && busy_at.elapsed() > IDLE_AFTER && self.rest() {
                break;
            }
        }
        debug!("writer thread ends");
    }

    /// How long to wait for a command. Watchers want to hear of other processes' writes at once; deferred rows may wait a little.
    fn patience(&self, idle: bool) -> Duration {
        match (self.changed.receiver_count() == 0, idle) {
            (true, _) => S::DEFERRED_EVERY,
            (false, false) => FOREIGN_WRITES_EVERY,
            (false, true) => FOREIGN_WRITES_EVERY_IDLE,
        }
    }

    /// Commits a group and does what has become due with it. True when nothing is left to write.
    fn attend(self: &Arc<Self>, group: Vec<Queued<S>>) -> bool {
        self.thread_waits.store(!group.is_empty(), Ordering::Relaxed);
        let mut committer = self.committer();
        self.thread_waits.store(false, Ordering::Relaxed);
        if !group.is_empty() {
            let (commands, places): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            committer.commit_group(commands);
            drop(places);
        }
        if committer.deferred_is_due() {
            committer.write_deferred();
        }
        if committer.wants_checkpoint() {
            self.checkpoint_soon();
        }
        if committer.log_is_full() {
            self.checkpointer.catch_up(&committer);
        }
        !committer.has_deferred()
    }

    /// Notifies watchers if another process has written. True if one has.
    fn compare_version(&self) -> bool {
        let version = self.committer().foreign_version();
        let mut known = self.foreign_version.lock().unwrap_or_else(PoisonError::into_inner);
        let written = std::mem::replace(&mut *known, version) != version;
        drop(known);
        if written {
            self.changed.send_modify(|count| *count += 1);
        }
        written
    }

    /// Ends the thread, unless it is still needed.
    fn rest(self: &Arc<Self>) -> bool {
        if self.changed.receiver_count() > 0 {
            let log = self.readers.as_ref().map(|readers| {
                let mut log = readers.path().as_os_str().to_owned();
                log.push("-wal");
                PathBuf::from(log)
            });
            let core: Weak<Self> = Arc::downgrade(self);
            if !log.is_some_and(|log| foreign_writes::wake_on_write(&log, core)) {
                // Nothing would tell of other processes' writes: the thread goes on asking.
                return false;
            }
            // What was written before the log was watched has gone unnoticed.
            if self.compare_version() {
                return false;
            }
        }
        self.close_readers();
        self.committer().release_memory();
        self.inbox.rest()
    }

    fn close_readers(&self) {
        if let Some(readers) = &self.readers {
            readers.close();
        }
    }
}

impl<S: Session> Wake for Core<S> {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}
