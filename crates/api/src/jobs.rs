//! Lists of jobs, and many jobs in one call.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::job_in::JobIn;

/// Which jobs, in what order.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobsQuery {
    /// In any of these states; repeated, or with commas.
    pub state: Option<String>,
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
    /// `newest` (default) or `oldest` first.
    #[param(inline)]
    pub order: Option<Order>,
    /// At most this many items, 1 to 1000; default 100.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub cursor: Option<String>,
}

/// Which end of a list comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The newest.
    #[default]
    Newest,
    /// The oldest.
    Oldest,
}

/// Jobs to store: one, or many that may depend on each other.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Submission {
    /// One.
    One(Box<JobIn>),
    /// Many, all or none.
    Many(ManyJobs),
}

/// Many jobs, stored all or none.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ManyJobs {
    /// In submission order. At most 50 000.
    pub jobs: Vec<JobIn>,
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// Answer only when it has ended, or after this time: `30s`, at most `5m`.
    pub wait: Option<String>,
}
