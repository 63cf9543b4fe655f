//! Calls to the store that have not been answered: at most one settle and one claim.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::debug;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::job::Claimed;
use crate::logs::{self, SLICE};
use crate::store::{ClaimRequest, SettleItem, Settled, Store};

/// What is under way.
#[derive(Default)]
pub(super) struct Calls {
    settle: Option<Call<Settled>>,
    claim: Option<Call<Claimed>>,
}

/// How many jobs it is about, and its answer to be.
type Call<T> = (usize, Pin<Box<dyn Future<Output = Result<Vec<T>>> + Send>>);

/// What the store has said, and to how much.
pub(super) enum Answer {
    /// To so many items.
    Settled(usize, Result<Vec<Settled>>),
    /// To a request for so many.
    Claimed(usize, Result<Vec<Claimed>>),
}

impl Calls {
    pub(super) fn settle(&mut self, store: &Arc<dyn Store>, items: Vec<SettleItem>, now: Timestamp) {
        self.settle = Some((items.len(), Box::pin(settle(Arc::clone(store), items, now))));
    }

    pub(super) fn claim(&mut self, store: &Arc<dyn Store>, request: ClaimRequest) {
        self.claim = Some((request.limit, Box::pin(claim(Arc::clone(store), request))));
    }

    /// A claim for so many that somebody else makes, when it is time.
    pub(super) fn claim_later(
        &mut self,
        limit: usize,
        claiming: impl Future<Output = Result<Vec<Claimed>>> + Send + 'static,
    ) {
        self.claim = Some((limit, Box::pin(claiming)));
    }

    pub(super) fn settles(&self) -> bool {
        self.settle.is_some()
    }

    pub(super) fn claims(&self) -> bool {
        self.claim.is_some()
    }

    pub(super) fn any(&self) -> bool {
        self.settles() || self.claims()
    }

    /// The next answer; never, when nothing is under way. May be dropped and called again.
    pub(super) async fn answer(&mut self) -> Answer {
        let Self { settle, claim } = self;
        tokio::select! {
            biased;
            answer = next(settle) => Answer::Settled(answer.0, answer.1),
            answer = next(claim) => Answer::Claimed(answer.0, answer.1),
        }
    }
}

async fn next<T>(call: &mut Option<Call<T>>) -> (usize, Result<Vec<T>>) {
    let Some((count, answer)) = call else { return pending().await };
    let answered = (*count, answer.await);
    *call = None;
    answered
}

async fn settle(store: Arc<dyn Store>, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
    let (count, started) = (items.len(), Instant::now());
    let job_id = logs::only(&items, |item| Some(item.lease.job_id));
    debug!(slice = SLICE, count, job_id, "ENTER settle");
    let settled = store.settle(items, now).await;
    let (ok, elapsed_us) = (settled.is_ok(), started.elapsed().as_micros());
    debug!(slice = SLICE, count, job_id, ok, elapsed_us, "EXIT settle");
    settled
}

/// Asks the store.
pub(super) async fn claim(store: Arc<dyn Store>, request: ClaimRequest) -> Result<Vec<Claimed>> {
    let (limit, started) = (request.limit, Instant::now());
    debug!(slice = SLICE, worker = %request.worker, limit, "ENTER claim");
    let claimed = store.claim(request).await;
    let count = claimed.as_ref().map_or(0, Vec::len);
    let job_id = claimed.as_ref().ok().and_then(|jobs| logs::only(jobs, |claimed| Some(claimed.job.id)));
    let (ok, elapsed_us) = (claimed.is_ok(), started.elapsed().as_micros());
    debug!(slice = SLICE, limit, count, job_id, ok, elapsed_us, "EXIT claim");
    claimed
}
