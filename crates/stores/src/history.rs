//! Past runs as they are told. A plain success is written nowhere but in the job's row, which tells all there is of it.

use longhaul_queue::job::Run;
use longhaul_queue::limits::RUNS_KEPT_MAX;
use longhaul_queue::state::RunOutcome;
use longhaul_queue::{State, Timestamp, WorkerId};

/// What a job's row tells of its newest run.
pub(crate) struct Newest<'a> {
    pub(crate) state: State,
    pub(crate) fence: u64,
    pub(crate) worker: Option<&'a str>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
}

/// The runs that were written down, and the plain success that was not.
pub(crate) fn with_newest(mut runs: Vec<Run>, newest: &Newest<'_>) -> Vec<Run> {
    if let (State::Succeeded, Some(worker), Some(started_at), Some(ended_at)) =
        (newest.state, newest.worker, newest.started_at, newest.finished_at)
    {
        // A job that a signal ended has its last run in the history already.
        if runs.last().is_none_or(|run| run.fence < newest.fence) {
            let (fence, worker, outcome) = (newest.fence, WorkerId::from(worker), RunOutcome::Done);
            runs.push(Run { fence, worker, started_at, ended_at, outcome, error: None, usage: None });
        }
    }
    let surplus = runs.len().saturating_sub(RUNS_KEPT_MAX);
    runs.drain(..surplus);
    runs
}
