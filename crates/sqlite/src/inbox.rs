//! Commands on their way to the writer thread, and whether there is one. One lock holds both, so that no command is left behind
//! by a thread that ends just then.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::command::Command;
use crate::error::FileError;
use crate::session::Session;

/// Commands that may wait for the writer; callers beyond wait, in the order they came, to hand theirs in.
pub(crate) const QUEUE_MAX: usize = 4_096;
/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 256;
/// Room beyond the queue for commands that must not wait in it: lease renewals and worker heartbeats.
const URGENT_MAX: usize = 64;

/// A command with its place in the queue.
pub(crate) type Queued<S> = (Box<dyn Command<S>>, Option<OwnedSemaphorePermit>);

/// What the thread is to do.
pub(crate) enum Next<S> {
    /// Commit these together.
    Commands(Vec<Queued<S>>),
    /// Nothing came for a while.
    Nothing,
    /// End: no handle is left, and no command.
    Close,
}

pub(crate) struct Inbox<S> {
    state: Mutex<State<S>>,
    arrived: Condvar,
}

struct State<S> {
    commands: VecDeque<Queued<S>>,
    /// A thread serves this queue.
    attended: bool,
    /// There is work other than commands that the thread has not looked for yet.
    woken: bool,
    closed: bool,
}

impl<S: Session> Inbox<S> {
    pub(crate) fn new() -> Self {
        let state = State { commands: VecDeque::new(), attended: false, woken: false, closed: false };
        Self { state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Takes a command, or gives it back. True if there is no thread: the caller starts one.
    pub(crate) fn put(&self, queued: Queued<S>) -> Result<bool, (Box<dyn Command<S>>, FileError)> {
        let mut state = self.state();
        if state.closed {
            return Err((queued.0, FileError::stopped()));
        }
        if state.commands.len() >= QUEUE_MAX + URGENT_MAX {
            let full = FileError::unavailable("thousands of writes are waiting; try again");
            return Err((queued.0, full));
        }
        state.commands.push_back(queued);
        let attended = std::mem::replace(&mut state.attended, true);
        drop(state);
        if attended {
            self.arrived.notify_one();
        }
        Ok(!attended)
    }

    /// Asks the thread to look for other work. True if there is no thread: the caller starts one. A running thread looks by itself
    /// before long, so it is not interrupted; but it does not end before it has looked.
    pub(crate) fn wake(&self) -> bool {
        let mut state = self.state();
        state.woken = true;
        !state.closed && !std::mem::replace(&mut state.attended, true)
    }

    /// What to do next, after a wait of at most this long.
    pub(crate) fn next(&self, wait: Duration) -> Next<S> {
        let mut state = self.state();
        if state.commands.is_empty() && !state.closed {
            let waited = self.arrived.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.woken = false;
        match state.commands.len() {
            0 if state.closed => Next::Close,
            0 => Next::Nothing,
            waiting => Next::Commands(state.commands.drain(..waiting.min(GROUP_MAX)).collect()),
        }
    }

    /// More commands for a group that has room.
    pub(crate) fn fill(&self, group: &mut Vec<Queued<S>>) {
        let mut state = self.state();
        let more = state.commands.len().min(GROUP_MAX.saturating_sub(group.len()));
        group.extend(state.commands.drain(..more));
    }

    /// The thread wants to end. False when something has come meanwhile.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        state.attended = !state.commands.is_empty() || state.woken || state.closed;
        !state.attended
    }

    /// No thread could be started: gives back what waits.
    pub(crate) fn unattended(&self) -> Vec<Queued<S>> {
        let mut state = self.state();
        state.attended = false;
        state.commands.drain(..).collect()
    }

    /// Takes no more commands.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.arrived.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
