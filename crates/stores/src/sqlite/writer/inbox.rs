//! Commands on their way to the writer thread, and whether there is one. One lock holds both, so that no command is left behind
//! by a thread that ends just then.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::super::committer::Command;
use super::QUEUE_MAX;

/// Commands that share one commit at most: bounds how long a reply waits for its neighbours.
const GROUP_MAX: usize = 256;
/// Room beyond the queue for commands that must not wait in it: lease renewals and worker heartbeats.
const URGENT_MAX: usize = 64;

/// A command with its place in the line.
pub(super) type Queued = (Box<dyn Command>, Option<OwnedSemaphorePermit>);

/// Why a command was not taken.
pub(super) enum Refusal {
    /// Too many wait.
    Full,
    /// The system gives us no thread.
    NoThread(io::Error),
    /// The store is closed.
    Closed,
}

/// What the thread is to do.
pub(super) enum Next {
    /// Commit these together.
    Commands(Vec<Queued>),
    /// Nothing came for a while.
    Nothing,
    /// End: no handle is left, and no command.
    Close,
}

#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Queued>,
    /// A thread takes what comes.
    attended: bool,
    closed: bool,
}

impl Inbox {
    /// Takes a command. True if there is no thread: the caller starts one.
    pub(super) fn put(&self, queued: Queued) -> Result<bool, (Queued, Refusal)> {
        let mut state = self.state();
        if state.closed {
            return Err((queued, Refusal::Closed));
        }
        if state.commands.len() >= QUEUE_MAX + URGENT_MAX {
            return Err((queued, Refusal::Full));
        }
        state.commands.push_back(queued);
        let attended = std::mem::replace(&mut state.attended, true);
        drop(state);
        if attended {
            self.arrived.notify_one();
        }
        Ok(!attended)
    }

    /// Asks for a look although there is no command. True when the caller is to start a thread. One that is there looks around
    /// by itself, so it is left alone.
    pub(super) fn wake(&self) -> bool {
        let mut state = self.state();
        !state.closed && !std::mem::replace(&mut state.attended, true)
    }

    /// What to do next, after a wait of at most this long.
    pub(super) fn next(&self, wait: Duration) -> Next {
        let mut state = self.state();
        if state.commands.is_empty() && !state.closed {
            let waited = self.arrived.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match state.commands.len() {
            0 if state.closed => Next::Close,
            0 => Next::Nothing,
            waiting => Next::Commands(state.commands.drain(..waiting.min(GROUP_MAX)).collect()),
        }
    }

    /// The thread wants to end. False when something has come meanwhile.
    pub(super) fn rest(&self) -> bool {
        let mut state = self.state();
        state.attended = !state.commands.is_empty() || state.closed;
        !state.attended
    }

    /// No thread could be started: gives back what waits.
    pub(super) fn unattended(&self) -> Vec<Queued> {
        let mut state = self.state();
        state.attended = false;
        state.commands.drain(..).collect()
    }

    /// Takes no more commands.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.arrived.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
