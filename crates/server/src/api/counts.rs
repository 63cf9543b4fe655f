//! Numbers of jobs by state.

use axum::Json as Answer;
use axum::extract::State as Shared;
use longhaul_queue::State;
use longhaul_queue::store::Count;
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiResult;
use super::page::Listed;
use crate::ctx::Ctx;

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

/// Jobs of one queue and kind in one state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Count)]
pub(super) struct CountOut {
    /// In this queue.
    queue: String,
    /// Of this kind.
    kind: String,
    /// In this state.
    #[schema(value_type = String)]
    state: State,
    /// Number of jobs.
    jobs: u64,
}

/// Counts jobs by queue, kind and state; those of which there are none are left out.
#[utoipa::path(get, path = "/api/v1/counts", tag = "jobs", responses((status = 200, body = Listed<CountOut>)))]
pub(super) async fn count_jobs(Shared(ctx): Shared<Ctx>) -> ApiResult<Answer<Listed<CountOut>>> {
    let shown = |Count { queue, kind, state, jobs }| CountOut { queue, kind, state, jobs };
    Ok(Answer(Listed::whole(ctx.queue().store().counts().await?.into_iter().map(shown).collect())))
}
