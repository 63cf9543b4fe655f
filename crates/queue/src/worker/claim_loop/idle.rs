//! A worker that has nothing to do. Where its store hears of changes on a runtime of its own, the claim waits there for the next one:
//! it goes out as soon as the notice comes, without the way from thread to thread and back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::Claimed;
use crate::store::{ClaimRequest, Store};

use super::calls::{self, Answer};
use super::{ClaimLoop, LOOK_GAP, changed_after};

/// A claim that waits for a change.
pub(super) struct Waiting {
    /// Dropped, it ends the wait. A claim that has begun goes on.
    stop: oneshot::Sender<()>,
    /// The change that it has seen last.
    seen: Arc<AtomicU64>,
}

impl ClaimLoop {
    /// Lets a claim wait, if there is nothing else to do and the store is one that it can wait with.
    pub(super) fn wait_with_claim(&mut self) -> Option<Waiting> {
        let is_idle = self.in_use == 0 && self.settling.is_empty() && !self.calls.any();
        if !is_idle || !self.may_claim() {
            return None;
        }
        let store = Arc::clone(self.identity.services.queue.store());
        let runtime = store.runtime()?;
        let request = self.request(self.now());
        let limit = request.limit;
        let (stop, stopped) = oneshot::channel();
        let seen = Arc::new(AtomicU64::new(*self.changes.borrow()));
        let wait = Wait {
            changes: self.changes.clone(),
            after: self.looked_at + LOOK_GAP,
            stopped,
            seen: Arc::clone(&seen),
            clock: Arc::clone(self.identity.services.queue.clock()),
        };
        self.calls.claim_later(limit, claim_on_change(runtime, store, request, wait));
        Some(Waiting { stop, seen })
    }

    /// The claim's answer: nothing, if something else came up before it had begun. What has changed since is a reason to look.
    pub(super) async fn end_wait(&mut self, answer: Option<Answer>, waiting: Waiting) -> Answer {
        let Waiting { stop, seen } = waiting;
        drop(stop);
        let answer = match answer {
            Some(answer) => answer,
            None => self.calls.answer().await,
        };
        self.looked_at = Instant::now();
        self.look |= *self.changes.borrow_and_update() != seen.load(Ordering::Relaxed);
        answer
    }
}

/// What a claim waits for.
struct Wait {
    changes: watch::Receiver<u64>,
    after: Instant,
    stopped: oneshot::Receiver<()>,
    seen: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

async fn claim_on_change(
    runtime: Handle,
    store: Arc<dyn Store>,
    mut request: ClaimRequest,
    mut wait: Wait,
) -> Result<Vec<Claimed>> {
    let claiming = runtime.spawn(async move {
        tokio::select! {
            biased;
            _ = wait.stopped => return Ok(Vec::new()),
            () = changed_after(&mut wait.changes, wait.after) => {}
        }
        wait.seen.store(*wait.changes.borrow_and_update(), Ordering::Relaxed);
        request.now = wait.clock.now();
        calls::claim(store, request).await
    });
    claiming.await.unwrap_or_else(|_| Err(Error::Unavailable("the store was closed".to_owned())))
}
