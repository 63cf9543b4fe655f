//! How a worker ends: it drains, gives back what is still running, and leaves once every result is stored.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::clock::Timestamp;
use crate::executor::{self, Ended};
use crate::live_run::Stop;
use crate::shutdown::Level;
use crate::state::{Event, State};
use crate::store::Count;

use super::ClaimLoop;

/// How long stopped handlers may take to let go, in real time. One that blocks its thread never does.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// How long the last results may wait for a store that cannot be reached, in real time.
const LAST_SETTLE_WAIT: Duration = Duration::from_secs(5);
/// How far the worker is on its way out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// Claims no more; running jobs may end until then.
    Draining(Timestamp),
    /// Running jobs have been stopped and are given back.
    Releasing(Instant),
    /// Only results are left.
    Leaving(Instant),
}

impl ClaimLoop {
    /// Goes on to the next phase when it is time. A claim that is under way is answered first: what it brings is started.
    pub(super) fn advance_phase(&mut self) {
        let ends = self.shutdown.level() >= Level::Drain || self.fatal.is_some();
        if self.phase == Phase::Serving && ends && !self.calls.claims() {
            debug!(in_use = self.in_use, "worker drains");
            self.phase = Phase::Draining(self.now() + self.identity.options.drain_grace);
            self.runs.all().iter().for_each(|run| run.begin_drain());
        }
        if let Phase::Draining(until) = self.phase
            && (self.shutdown.level() == Level::Stop || self.now() >= until)
        {
            self.runs.all().iter().for_each(|run| run.stop(Stop::Release));
            self.phase = Phase::Releasing(Instant::now() + RELEASE_WAIT);
        }
        if let Phase::Releasing(until) = self.phase
            && Instant::now() >= until
        {
            self.abandon();
            self.phase = Phase::Leaving(Instant::now() + LAST_SETTLE_WAIT);
        }
    }

    /// Gives back the jobs of handlers that do not let go. Whatever they answer later is nobody's any more.
    fn abandon(&mut self) {
        for run in self.runs.all() {
            if run.end() {
                warn!(job_id = %run.job.id, kind = run.job.kind, "handler does not end, its job is given back");
                let item = executor::settle_with(&run, Event::Release, Vec::new());
                self.in_use -= 1;
                self.suspects -= usize::from(run.is_suspect());
                self.settling.add(Ended { run, item: Some(item) });
            }
        }
    }

    /// Whether the worker may end.
    pub(super) async fn is_over(&mut self) -> bool {
        let nothing_held = self.in_use == 0 && self.settling.is_empty() && !self.calls.any();
        match self.phase {
            Phase::Serving => {
                let idle = nothing_held && !self.look && self.identity.options.until_empty;
                if idle && self.nothing_left().await {
                    return true;
                }
                false
            }
            Phase::Draining(_) | Phase::Releasing(_) => nothing_held,
            Phase::Leaving(until) => {
                let too_late = Instant::now() >= until && !self.calls.any();
                if !nothing_held && too_late {
                    let results = self.settling.give_up();
                    error!(results, "the store cannot be reached, the last outcomes are dropped");
                }
                nothing_held || too_late
            }
        }
    }

    /// Whether no job is left that this worker could move. `&mut` because calls under way cannot be shared by threads.
    async fn nothing_left(&mut self) -> bool {
        let store = self.identity.services.engine.store();
        let (Ok(counts), Ok(queues)) = tokio::join!(store.counts(), store.queues()) else { return false };
        let is_paused = |name: &str| queues.iter().any(|queue| queue.name == name && queue.settings.paused);
        let served = |name: &str| self.queues.borrow().iter().any(|share| share.name == name);
        let known = |kind: &String| self.identity.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        let left = |state: State, queue: &str| match state {
            State::Ready | State::Scheduled => !is_paused(queue),
            State::Running => true,
            State::Blocked | State::Parked | State::Succeeded | State::Failed | State::Cancelled => false,
        };
        let ours = |count: &&Count| count.jobs > 0 && served(&count.queue) && known(&count.kind);
        let is_limited =
            |name: &str| queues.iter().any(|queue| queue.name == name && queue.settings.is_limited());
        let is_free = |count: &Count| {
            count.state == State::Ready && !is_paused(&count.queue) && !is_limited(&count.queue)
        };
        let missing = counts.iter().filter(ours).any(is_free);
        let left = counts.iter().filter(ours).any(|count| left(count.state, &count.queue));
        self.suspicion.counted_but_not_handed_out(missing);
        !left
    }
}
