//! Numbers of jobs by state.

use longhaul_queue::State;
use longhaul_queue::store::Count;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Jobs by state.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Wait for other jobs.
    pub blocked: u64,
    /// Wait for a time.
    pub scheduled: u64,
    /// Wait for a worker.
    pub ready: u64,
    /// Under way.
    pub running: u64,
    /// Wait for a signal.
    pub parked: u64,
    /// Ended with a result.
    pub succeeded: u64,
    /// Ended without.
    pub failed: u64,
    /// Ended on request, by expiry or with their parent.
    pub cancelled: u64,
}

impl From<[u64; 8]> for Counts {
    fn from(counts: [u64; 8]) -> Self {
        let of = |state: State| counts[state as usize];
        Self {
            blocked: of(State::Blocked),
            scheduled: of(State::Scheduled),
            ready: of(State::Ready),
            running: of(State::Running),
            parked: of(State::Parked),
            succeeded: of(State::Succeeded),
            failed: of(State::Failed),
            cancelled: of(State::Cancelled),
        }
    }
}

impl From<Counts> for [u64; 8] {
    fn from(counts: Counts) -> Self {
        State::ALL.map(|state| match state {
            State::Blocked => counts.blocked,
            State::Scheduled => counts.scheduled,
            State::Ready => counts.ready,
            State::Running => counts.running,
            State::Parked => counts.parked,
            State::Succeeded => counts.succeeded,
            State::Failed => counts.failed,
            State::Cancelled => counts.cancelled,
        })
    }
}

/// Jobs of one queue and kind in one state.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Count)]
pub struct CountOut {
    /// In this queue.
    pub queue: String,
    /// Of this kind.
    pub kind: String,
    /// In this state.
    #[schema(value_type = String)]
    pub state: State,
    /// Number of jobs.
    pub jobs: u64,
}

same_fields!(CountOut, Count, { queue, kind, state, jobs });
