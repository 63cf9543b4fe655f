//! A worker that has nothing to do. Where its store hears of changes on a thread of its own, the claim waits there for the next one:
//! it goes out as soon as the notice comes, without two hops between threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::Claimed;
use crate::store::{ClaimRequest, EngineStore};

use super::calls::{self, Answer};
use super::{ClaimLoop, LOOK_GAP, changed_after};

/// A claim that waits for a change.
pub(super) struct Waiting {
    /// Dropped, it ends the wait. A claim that has begun goes on.
    stop: oneshot::Sender<()>,
    progress: Arc<Progress>,
}

/// How far it is.
struct Progress {
    /// The change that it has seen last.
    seen: AtomicU64,
    /// The store was asked.
    asked: AtomicBool,
}

impl ClaimLoop {
    /// Lets a claim wait, if there is nothing else to do and the store is one that it can wait with.
    pub(super) fn wait_with_claim(&mut self) -> Option<Waiting> {
        let is_idle = self.in_use == 0 && self.settling.is_empty() && !self.calls.any();
        if !is_idle || !self.may_claim() {
            return None;
        }
        let store = Arc::clone(self.identity.services.engine.store());
        // One job, should this worker's own runtime be too busy to start it; an answer of one is followed by a claim for all slots.
        let request = ClaimRequest { limit: 1, ..self.request(self.now()) };
        let ((stop, stopped), (answer, answered)) = (oneshot::channel(), oneshot::channel());
        let seen = AtomicU64::new(*self.changes.borrow());
        let progress = Arc::new(Progress { seen, asked: AtomicBool::new(false) });
        let wait = Wait {
            changes: self.changes.clone(),
            after: self.looked_at + LOOK_GAP,
            stopped,
            progress: Arc::clone(&progress),
            clock: Arc::clone(self.identity.services.engine.clock()),
        };
        let limit = request.limit;
        let task = claim_on_change(Arc::clone(&store), request, wait, answer);
        if store.spawn_on_listener(Box::pin(task)).is_some() {
            return None;
        }
        let closed = |_| Err(Error::Unavailable("the store was closed".to_owned()));
        self.calls.claim_later(limit, async move { answered.await.unwrap_or_else(closed) });
        Some(Waiting { stop, progress })
    }

    /// The claim's answer; `None` if something else came up before it had begun. What has changed since is a reason to look.
    pub(super) async fn end_wait(&mut self, answer: Option<Answer>, waiting: Waiting) -> Option<Answer> {
        let Waiting { stop, progress } = waiting;
        drop(stop);
        let answer = match answer {
            Some(answer) => answer,
            None => self.calls.answer().await,
        };
        self.look |= *self.changes.borrow_and_update() != progress.seen.load(Ordering::Relaxed);
        let failed = matches!(answer, Answer::Claimed(_, Err(_)));
        if !failed && !progress.asked.load(Ordering::Relaxed) {
            return None;
        }
        self.looked_at = Instant::now();
        Some(answer)
    }
}

/// What a claim waits for.
struct Wait {
    changes: watch::Receiver<u64>,
    after: Instant,
    stopped: oneshot::Receiver<()>,
    progress: Arc<Progress>,
    clock: Arc<dyn Clock>,
}

/// Claims after the next change; answers nothing if the wait was ended before.
async fn claim_on_change(
    store: Arc<dyn EngineStore>,
    mut request: ClaimRequest,
    mut wait: Wait,
    answer: oneshot::Sender<Result<Vec<Claimed>>>,
) {
    let claimed = tokio::select! {
        biased;
        _ = wait.stopped => Ok(Vec::new()),
        () = changed_after(&mut wait.changes, wait.after) => {
            wait.progress.seen.store(*wait.changes.borrow_and_update(), Ordering::Relaxed);
            wait.progress.asked.store(true, Ordering::Relaxed);
            request.now = wait.clock.now();
            calls::claim(store, request).await
        }
    };
    // Nobody takes the answer of a worker that was dropped meanwhile: what it has claimed is rescued.
    let _ = answer.send(claimed);
}
