//! What a person may change of a job between its enqueue and its end.

use serde::Serialize;

use super::{JobId, JobOptions};
use crate::error::{Error, Result};
use crate::json::Json;
use crate::state::State;

/// A change of a stored job; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobChange {
    /// Lower runs first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// A name for people; an empty one takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The input of the next run, which begins without a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
}

impl JobChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses to change a job that runs or has succeeded, and a payload that a run has worked with: its checkpoint, and what it
    /// has done outside, belong to that one. Only who has given up on them, with an end, may change it.
    pub fn check(&self, id: JobId, state: State, has_run: bool) -> Result<()> {
        if matches!(state, State::Running | State::Succeeded) {
            return Err(Error::wrong_state(id, state, "changed"));
        }
        if self.payload.is_some() && has_run && !state.is_terminal() {
            return Err(Error::invalid(format!(
                "job {id} is {state} and has run with its payload: cancel it, change it, then retry it"
            )));
        }
        Ok(())
    }

    /// A job's options after it.
    pub fn of_options(&self, options: JobOptions) -> JobOptions {
        match &self.title {
            None => options,
            Some(title) => {
                JobOptions { title: Some(title.clone()).filter(|title| !title.is_empty()), ..options }
            }
        }
    }
}
