//! Numbers of jobs by state.

use longhaul_queue::State;
use serde::Serialize;
use utoipa::ToSchema;

/// Jobs by state.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct Counts {
    /// Wait for other jobs.
    blocked: u64,
    /// Wait for a time.
    scheduled: u64,
    /// Wait for a worker.
    ready: u64,
    /// Under way.
    running: u64,
    /// Wait for a signal.
    parked: u64,
    /// Ended with a result.
    succeeded: u64,
    /// Ended without.
    failed: u64,
    /// Ended on request, by expiry or with their parent.
    cancelled: u64,
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
