//! Callers that come together commit together, on the thread of the first of them.
//!
//! The first leads: it lets the tasks run that are ready beside it, which add their commands, and then commits them all.
//! Nobody waits for a timer or for another thread. A lone caller, whose task was also the last one here, commits at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::committer::Command;

/// Commands that gather at most: bounds how long their commit keeps a thread of the runtime. With one job each that is half a
/// millisecond or so, with ten each a few.
const GATHERED_MAX: usize = 64;

/// What a caller is to do.
pub(super) enum Part {
    /// Lead: commit what has gathered. In a crowd others come at once and should be let in first.
    Lead { crowded: bool },
    /// Wait: another leads.
    Follow,
    /// Too many have gathered: take the command elsewhere.
    Leave(Box<dyn Command>),
}

/// Commands without a commit, and whether somebody will see to it.
#[derive(Default)]
pub(super) struct Gathering {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    commands: Vec<Box<dyn Command>>,
    led: bool,
    /// The task of the last command; a caller outside of tasks has none.
    last_task: Option<tokio::task::Id>,
}

impl Gathering {
    pub(super) fn join(&self, command: Box<dyn Command>) -> Part {
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
    pub(super) fn take(&self) -> Vec<Box<dyn Command>> {
        std::mem::take(&mut self.state().commands)
    }

    /// Whether more have come since; if not, nobody leads any more.
    pub(super) fn has_more(&self) -> bool {
        let mut state = self.state();
        state.led = !state.commands.is_empty();
        state.led
    }

    /// Hands out what is left; the next one leads.
    pub(super) fn end(&self) -> Vec<Box<dyn Command>> {
        let mut state = self.state();
        state.led = false;
        std::mem::take(&mut state.commands)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
