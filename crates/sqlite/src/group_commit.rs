//! Group commit on a caller's thread: callers that arrive together commit together, on the thread of the first of them.
//!
//! The first leads: it lets the tasks run that are ready beside it, which add their commands, and then commits them all. Nobody
//! waits for a timer or for another thread. A lone caller, whose task was also the last one here, commits at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::command::Command;
use crate::session::Session;

/// Commands that gather at most: bounds how long their commit keeps a thread of the runtime. With one job each that is half a
/// millisecond or so, with ten each a few.
const GATHERED_MAX: usize = 64;

/// What a caller is to do.
pub(crate) enum Part<S> {
    /// Lead: commit what has gathered. In a crowd others arrive at once and should be let in first.
    Lead { crowded: bool },
    /// Wait: another leads.
    Follow,
    /// Too many have gathered: take the command elsewhere.
    Leave(Box<dyn Command<S>>),
}

/// Commands that are not committed yet, and whether a caller leads them.
pub(crate) struct GroupCommit<S> {
    state: Mutex<State<S>>,
}

struct State<S> {
    commands: Vec<Box<dyn Command<S>>>,
    led: bool,
    /// The task of the last command; a caller outside of tasks has none.
    last_task: Option<tokio::task::Id>,
}

impl<S: Session> GroupCommit<S> {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { commands: Vec::new(), led: false, last_task: None }) }
    }

    pub(crate) fn join(&self, command: Box<dyn Command<S>>) -> Part<S> {
        let task = tokio::task::try_id();
        let mut state = self.state();
        if state.commands.len() >= GATHERED_MAX {
            return Part::Leave(command);
        }
        let crowded = std::mem::replace(&mut state.last_task, task) != task;
        state.commands.push(command);
        if std::mem::replace(&mut state.led, true) { Part::Follow } else { Part::Lead { crowded } }
    }

    /// Hands out what has gathered. The caller still leads.
    pub(crate) fn take(&self) -> Vec<Box<dyn Command<S>>> {
        std::mem::take(&mut self.state().commands)
    }

    /// Whether more have arrived since; if not, nobody leads any more.
    pub(crate) fn has_more(&self) -> bool {
        let mut state = self.state();
        state.led = !state.commands.is_empty();
        state.led
    }

    /// Hands out what is left; the next one leads.
    pub(crate) fn end(&self) -> Vec<Box<dyn Command<S>>> {
        let mut state = self.state();
        state.led = false;
        std::mem::take(&mut state.commands)
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
