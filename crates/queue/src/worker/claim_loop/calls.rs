//! Calls to the store that have not been answered: some settles and at most one claim.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;
use tracing::debug;

use crate::clock::Timestamp;
use crate::error::Result;
use crate::job::Claimed;
use crate::logs::{self, SLICE};
use crate::store::{ClaimRequest, EngineStore, SettleItem, Settled};

use super::super::settling::Unsettled;

/// What is under way.
#[derive(Default)]
pub(super) struct Calls {
    /// In the order of their sending.
    settles: Vec<(Vec<Unsettled>, Call<Settled>)>,
    /// For how many jobs it asks, and its answer to be.
    claim: Option<(usize, Call<Claimed>)>,
}

type Call<T> = Pin<Box<dyn Future<Output = Result<Vec<T>>> + Send>>;

/// What the store has said, and to what.
pub(super) enum Answer {
    /// To these results.
    Settled(Vec<Unsettled>, Result<Vec<Settled>>),
    /// To a request for so many.
    Claimed(usize, Result<Vec<Claimed>>),
}

impl Calls {
    pub(super) fn settle(&mut self, store: &Arc<dyn EngineStore>, results: Vec<Unsettled>, now: Timestamp) {
        // Copies go out, since a call that fails may be repeated.
        let items = results.iter().map(|(_, item)| item.clone()).collect();
        self.settles.push((results, Box::pin(settle(Arc::clone(store), items, now))));
    }

    pub(super) fn claim(&mut self, store: &Arc<dyn EngineStore>, request: ClaimRequest) {
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

    pub(super) fn settles(&self) -> usize {
        self.settles.len()
    }

    pub(super) fn claims(&self) -> bool {
        self.claim.is_some()
    }

    pub(super) fn any(&self) -> bool {
        self.settles() > 0 || self.claims()
    }

    /// The next answer; never, when nothing is under way. May be dropped and called again.
    ///
    /// A call begins when it is first polled, so settles come before the claim here: a store hands out by an order that includes
    /// what the settles that began before have made ready.
    pub(super) async fn answer(&mut self) -> Answer {
        poll_fn(|context| {
            for index in 0..self.settles.len() {
                if let Poll::Ready(answer) = self.settles[index].1.as_mut().poll(context) {
                    let (results, _) = self.settles.remove(index);
                    return Poll::Ready(Answer::Settled(results, answer));
                }
            }
            let Some((limit, claim)) = &mut self.claim else { return Poll::Pending };
            let answer = claim.as_mut().poll(context).map(|answer| Answer::Claimed(*limit, answer));
            if answer.is_ready() {
                self.claim = None;
            }
            answer
        })
        .await
    }
}

async fn settle(store: Arc<dyn EngineStore>, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
    let (count, started) = (items.len(), Instant::now());
    let job_id = logs::only(&items, |item| Some(item.lease.job_id));
    debug!(slice = SLICE, count, job_id, "ENTER settle");
    let settled = store.settle(items, now).await;
    let (ok, elapsed_us) = (settled.is_ok(), started.elapsed().as_micros());
    debug!(slice = SLICE, count, job_id, ok, elapsed_us, "EXIT settle");
    settled
}

/// Asks the store.
pub(super) async fn claim(store: Arc<dyn EngineStore>, request: ClaimRequest) -> Result<Vec<Claimed>> {
    let (limit, started) = (request.limit, Instant::now());
    debug!(slice = SLICE, worker = %request.worker, limit, "ENTER claim");
    let claimed = store.claim(request).await;
    let count = claimed.as_ref().map_or(0, Vec::len);
    let job_id = claimed.as_ref().ok().and_then(|jobs| logs::only(jobs, |claimed| Some(claimed.job.id)));
    let (ok, elapsed_us) = (claimed.is_ok(), started.elapsed().as_micros());
    debug!(slice = SLICE, limit, count, job_id, ok, elapsed_us, "EXIT claim");
    claimed
}
