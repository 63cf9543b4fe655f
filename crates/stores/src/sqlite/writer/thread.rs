//! The writer thread. It commits what is queued, writes the events that wait, and notices what other processes write. A while after the
//! last of these it ends: a program may hold hundreds of stores, and those at rest cost neither a thread nor a wake-up. The next command
//! starts another, and so does a write by another process ([`foreign`]).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::debug;

use super::super::foreign;
use super::super::news::WRITTEN_EVERY;
use super::inbox::{Next, Queued, Refusal};
use super::{Command, Core};

/// How often the thread checks for writes by other processes: while busy, and while idle.
const FOREIGN_WRITES_EVERY: Duration = Duration::from_millis(1);
const FOREIGN_WRITES_EVERY_IDLE: Duration = Duration::from_millis(4);
/// After this long without activity the thread ends, or polls less often where nothing reports writes.
const IDLE_AFTER: Duration = Duration::from_secs(2);

impl Core {
    /// Queues a command for the thread, and starts one where there is none.
    pub(super) fn hand_in(self: &Arc<Self>, queued: Queued) -> Result<(), (Box<dyn Command>, Refusal)> {
        match self.inbox.put(queued) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.start();
                Ok(())
            }
            Err(((command, _), refusal)) => Err((command, refusal)),
        }
    }

    /// Has the thread look around, where there is something besides commands to be seen.
    pub(in super::super) fn wake(self: &Arc<Self>) {
        if self.inbox.wake() {
            self.start();
        }
    }

    fn start(self: &Arc<Self>) {
        let core = Arc::clone(self);
        let thread = std::thread::Builder::new().name("longhaul-writer".to_owned());
        match thread.spawn(move || core.run()) {
            Ok(thread) => self.keep(thread),
            Err(error) => {
                let kind = error.kind();
                for (command, _place) in self.inbox.unattended() {
                    command.reply(Err(super::refused(Refusal::NoThread(kind.into()))));
                }
            }
        }
    }

    fn keep(&self, thread: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Ends the threads, after what is queued.
    pub(super) fn end(self: &Arc<Self>) {
        self.inbox.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may go with a command, on the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            // It has told its panic on stderr, if it had one.
            let _ = thread.join();
        }
        self.checkpointer.end();
        // Only a connection that may write can fold the log into the file and remove it, so these go before it.
        self.readers.close();
        let mut committer = self.committer();
        committer.write_news();
        // No handle is left, so no worker can claim any more.
        self.workers.leave(committer.connection());
    }

    fn run(self: &Arc<Self>) {
        let (mut looked_at, mut busy_at) = (Instant::now(), Instant::now());
        let mut changes = *self.changed.borrow();
        loop {
            let idle = busy_at.elapsed() > IDLE_AFTER;
            let group = match self.inbox.next(self.patience(idle)) {
                Next::Commands(group) => group,
                Next::Nothing => Vec::new(),
                Next::Close => break,
            };
            if !group.is_empty() {
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

    /// How long to wait for a command. Watchers want to hear of other processes' writes at once; events may wait a little.
    fn patience(&self, idle: bool) -> Duration {
        match (self.changed.receiver_count() == 0, idle) {
            (true, _) => WRITTEN_EVERY,
            (false, false) => FOREIGN_WRITES_EVERY,
            (false, true) => FOREIGN_WRITES_EVERY_IDLE,
        }
    }

    /// Commits a group and does what has become due with it. True when nothing is left to write.
    fn attend(self: &Arc<Self>, group: Vec<Queued>) -> bool {
        self.thread_waits.store(!group.is_empty(), Ordering::Relaxed);
        let mut committer = self.committer();
        self.thread_waits.store(false, Ordering::Relaxed);
        if !group.is_empty() {
            let (commands, places): (Vec<_>, Vec<_>) = group.into_iter().unzip();
            committer.commit_group(commands);
            drop(places);
        }
        if committer.news.is_due() {
            committer.write_news();
        }
        if committer.wants_checkpoint() {
            self.checkpoint_soon();
        }
        if committer.log_is_full() {
            self.checkpointer.catch_up(&committer);
        }
        committer.news.is_empty()
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
        let watched = self.changed.receiver_count() > 0;
        if watched && !foreign::wake_on_write(&self.log, Arc::downgrade(self)) {
            // Nothing would tell of other processes' writes: the thread goes on asking.
            return false;
        }
        // What was written before anybody listened has gone unheard.
        if watched && self.compare_version() {
            return false;
        }
        self.readers.close();
        self.committer().release_memory();
        if !self.inbox.rest() {
            return false;
        }
        // Who began to watch in between found a thread, and went on.
        let missed = !watched && self.changed.receiver_count() > 0;
        !(missed && self.inbox.wake())
    }
}
