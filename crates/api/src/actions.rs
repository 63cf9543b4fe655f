//! One verb for all jobs that match a filter.

use longhaul_queue::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::yes;

/// What is done to each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// Put back those that failed, or were cancelled if the filter names that state.
    Retry,
    /// End those that have not ended.
    Cancel,
    /// Delete those that have ended, for good.
    Delete,
}

/// A verb and the jobs that it is for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionIn {
    /// The verb.
    pub action: Verb,
    /// Which jobs.
    #[serde(default)]
    pub filter: FilterIn,
    /// Needed when the filter is empty: all jobs are meant.
    #[serde(default)]
    pub all: bool,
    /// For `retry`: with their checkpoints (default), or from the start.
    #[serde(default = "yes")]
    pub keep_data: bool,
}

/// Which jobs; all given conditions must hold.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = Filter)]
pub struct FilterIn {
    /// In any of these states.
    #[schema(value_type = Vec<String>)]
    pub state: Vec<State>,
    /// In this queue.
    pub queue: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Of this process.
    pub process: Option<String>,
    /// With this tag.
    pub tag: Option<String>,
    /// Text in payload, title or error, or the start of an id.
    pub search: Option<String>,
}

/// How far an action is.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Action)]
pub struct ActionOut {
    /// Its name.
    pub id: String,
    /// What it does.
    pub action: Verb,
    /// Jobs that it has come to.
    pub matched_so_far: u64,
    /// Those that it changed; the others had changed by themselves meanwhile.
    pub changed: u64,
    /// It goes no further.
    pub done: bool,
    /// Somebody ended it early.
    pub aborted: bool,
    /// Why it ended early.
    pub error: Option<String>,
}
