//! Processes: groups of jobs of one caller, with results in submission order.

use longhaul_queue::job::JobResult;
use longhaul_queue::state::JobError;
use longhaul_queue::store::ProcessInfo;
use longhaul_queue::{JobId, Json, ProcessId, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::counts::Counts;

/// A process and how far it has come.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Process)]
pub struct ProcessOut {
    /// Its id.
    #[schema(value_type = String)]
    pub id: ProcessId,
    /// No more jobs are expected.
    pub sealed: bool,
    /// It is sealed and all of its jobs have ended.
    pub ended: bool,
    /// Total number of jobs, without helpers.
    pub total: u64,
    /// Jobs that have not ended, helpers left out.
    pub unfinished: u64,
    /// Its jobs by state, helpers left out.
    pub counts: Counts,
    /// Its helpers by state.
    pub helpers: Counts,
}

impl From<ProcessInfo> for ProcessOut {
    fn from(info: ProcessInfo) -> Self {
        Self {
            sealed: info.sealed,
            ended: info.sealed && info.unfinished() == 0,
            total: info.total(),
            unfinished: info.unfinished(),
            counts: info.counts.into(),
            helpers: info.helpers.into(),
            id: info.id,
        }
    }
}

impl From<ProcessOut> for ProcessInfo {
    fn from(process: ProcessOut) -> Self {
        let ProcessOut { id, sealed, counts, helpers, .. } = process;
        Self { id, sealed, counts: counts.into(), helpers: helpers.into() }
    }
}

/// How many jobs a verb changed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Number {
    /// Number of jobs.
    pub changed: u64,
}

/// An ended job of a process.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = JobResult)]
pub struct ResultOut {
    /// The job.
    #[schema(value_type = String, format = "uuid")]
    pub id: JobId,
    /// Its place in submission order.
    pub seq: i64,
    /// Its kind.
    pub kind: String,
    /// How it ended.
    #[schema(value_type = String)]
    pub state: State,
    /// Its result, when it succeeded.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// `reason` and `text`: why it did not.
    #[schema(value_type = Option<Object>)]
    pub error: Option<JobError>,
}

same_fields!(ResultOut, JobResult, { id, seq, kind, state, result, error });

/// A page of results.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Results {
    /// These, in submission order.
    pub items: Vec<ResultOut>,
    /// Send it as `cursor` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Jobs that have not ended. While there are any, what ends later may belong before what was read: read again from the start.
    pub unfinished: u64,
}

/// Which results.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ResultsQuery {
    /// At most this many items, 1 to 1000; default 100.
    pub limit: Option<usize>,
    /// `next` of the page before.
    pub cursor: Option<String>,
    /// Answer only when all jobs have ended, or after this time: `30s`, at most `5m`.
    pub wait: Option<String>,
    /// Return secrets unredacted, for programs that store results before they delete them here. Needs the scope
    /// `work`, which sees them in any case.
    #[serde(default)]
    pub secrets: bool,
}

/// What of a process was read and is to go.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumeIn {
    /// Results up to this place.
    pub up_to_seq: Option<i64>,
    /// Exactly these. They may go while others are unfinished.
    #[schema(value_type = Option<Vec<String>>)]
    pub ids: Option<Vec<JobId>>,
}
