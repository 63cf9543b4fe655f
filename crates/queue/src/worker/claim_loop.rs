//! The claim loop. Each turn takes every run that has ended, settles those and claims for the free slots; then it waits for
//! an answer, or another reason for the next turn. Both calls go out together where they can, so that a store with group
//! commit puts them into one transaction, and neither waits for the other's answer: a server works on the next while handlers run.
//!
//! A claim never overtakes a result. What a settlement makes ready (the job itself that continues, children, follow-ups) may be
//! more urgent than what waits, so a claim goes out only behind the results of every run that has ended, and the store lets it
//! see what they make ready ([`crate::EngineStore::claim`]). Only the store knows which settlements those are.
//!
//! A worker never claims a job that it cannot start at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::error;

use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::executor::{self, Ended, EndedSender};
use crate::handler::Handler;
use crate::job::Claimed;
use crate::limits::CLAIM_MAX;
use crate::live_run::{LiveRun, LiveRuns};
use crate::shutdown::{Level, Shutdown};
use crate::store::ClaimRequest;

use super::Identity;
use super::batch_builder::{Batch, Gathering};
use super::options::{QueueShare, WorkerReport, queue_order};
use super::settling::Settling;

mod calls;
mod idle;
mod leaving;
mod suspicion;

use calls::{Answer, Calls};
use leaving::Phase;
use suspicion::Suspicion;

/// Its name when the store does not answer.
const WHO: &str = "worker";
/// Least time between two looks for work that only a change in the store suggests.
const LOOK_GAP: Duration = Duration::from_millis(2);
/// Settles under way at once. The second lets a claim go out while the first is still on its way; more bring nothing, since
/// there is one claim at a time.
const SETTLES_MAX: usize = 2;
/// Ended runs taken from the channel at once.
const TAKE_MAX: usize = 4096;
/// A longer poll time is none; it must leave room for the jitter.
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);

struct ClaimLoop {
    identity: Arc<Identity>,
    runs: Arc<LiveRuns>,
    concurrency: watch::Receiver<usize>,
    queues: watch::Receiver<Vec<QueueShare>>,
    shutdown: Shutdown,
    phase: Phase,
    changes: watch::Receiver<u64>,
    looked_at: Instant,
    /// There may be jobs to claim.
    look: bool,
    ended: UnboundedReceiver<Ended>,
    ended_sender: EndedSender,
    taken: Vec<Ended>,
    settling: Settling,
    calls: Calls,
    gathering: Gathering,
    /// Slots in use: runs that have not ended.
    in_use: usize,
    suspects: usize,
    backoff: Backoff,
    /// The store could not be reached: leave it alone until then.
    pause_until: Option<Instant>,
    /// The store could not be reached and has taken no results since.
    recovering: bool,
    /// The last claim failed.
    claims_fail: bool,
    fatal: Option<crate::Error>,
    suspicion: Suspicion,
}

/// Serves until the shutdown asks for the end.
pub(super) async fn run(
    identity: Arc<Identity>,
    runs: Arc<LiveRuns>,
    (concurrency, queues): (watch::Receiver<usize>, watch::Receiver<Vec<QueueShare>>),
    shutdown: Shutdown,
) -> Result<WorkerReport> {
    let (ended_sender, ended) = mpsc::unbounded_channel();
    let claim_loop = ClaimLoop {
        settling: Settling::new(Arc::clone(&runs)),
        changes: identity.services.engine.store().watch(),
        identity,
        runs,
        concurrency,
        queues,
        shutdown,
        phase: Phase::Serving,
        looked_at: Instant::now(),
        look: true,
        ended,
        ended_sender,
        taken: Vec::new(),
        calls: Calls::default(),
        gathering: Gathering::default(),
        in_use: 0,
        suspects: 0,
        backoff: Backoff::new(),
        pause_until: None,
        recovering: false,
        claims_fail: false,
        fatal: None,
        suspicion: Suspicion::default(),
    };
    claim_loop.run().await
}

impl ClaimLoop {
    async fn run(mut self) -> Result<WorkerReport> {
        loop {
            self.advance_phase();
            self.turn();
            if self.is_over().await {
                break;
            }
            self.wait().await;
            self.take_ended().await;
            self.follow_suspicion().await;
        }
        match self.fatal {
            Some(error) => Err(error),
            None => Ok(self.settling.report),
        }
    }

    /// Settles and claims, in this order.
    fn turn(&mut self) {
        let now = self.now();
        if self.pause_until.is_some_and(|until| until <= Instant::now()) {
            self.pause_until = None;
        }
        let store = Arc::clone(self.identity.services.engine.store());
        let claims = self.wants_claim();
        if self.may_settle(claims) {
            let results = self.settling.take();
            self.calls.settle(&store, results, now);
        }
        if claims && self.settling.is_empty() {
            let request = self.claim_request(now);
            self.calls.claim(&store, request);
        }
        self.start_batches(now);
    }

    /// Results are gathered while a settle is under way, unless a claim waits for them to be sent.
    fn may_settle(&self, claims: bool) -> bool {
        let settles_max = if claims { SETTLES_MAX } else { 1 };
        self.pause_until.is_none() && !self.settling.is_empty() && self.calls.settles() < settles_max
    }

    /// Whether to claim for the free slots: there may be something to claim.
    fn wants_claim(&self) -> bool {
        let settles_now = !self.settling.is_empty() && self.calls.settles() == 0;
        self.may_claim() && (self.look || settles_now)
    }

    /// Whether there is a slot to claim for, whatever there may be to claim.
    fn may_claim(&self) -> bool {
        // Results that the store did not take go first: more work would only add to them.
        let results_first = self.recovering && (!self.settling.is_empty() || self.calls.settles() > 0);
        let serving = self.phase == Phase::Serving && self.pause_until.is_none();
        serving && !results_first && !self.calls.claims() && self.free_slots() > 0
    }

    /// Takes what the store has answered.
    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Settled(results, settled) => {
                let settled = self.settling.answered(results, settled);
                self.recovering &= settled.is_err();
                self.judge(settled);
            }
            Answer::Claimed(limit, claimed) => {
                // A full answer means that there may be more; a short one that there is not, until something changes.
                self.look |= claimed.as_ref().map_or(true, |claimed| claimed.len() == limit);
                if claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()) {
                    self.suspicion.counted_but_not_handed_out(false);
                }
                let claimed = claimed.map(|claimed| self.start(claimed));
                self.claims_fail = claimed.is_err();
                self.judge(claimed);
            }
        }
    }

    /// A claim that is made now.
    fn claim_request(&mut self, now: Timestamp) -> ClaimRequest {
        self.changes.mark_unchanged();
        self.looked_at = Instant::now();
        self.look = false;
        self.request(now)
    }

    /// A claim for the free slots.
    fn request(&self, now: Timestamp) -> ClaimRequest {
        let identity = &self.identity;
        ClaimRequest {
            queues: queue_order(&self.queues.borrow(), fastrand::f64),
            kinds: identity.kinds.clone(),
            worker: identity.id.clone(),
            limit: self.free_slots().min(CLAIM_MAX),
            suspects_max: identity.options.suspects_max.saturating_sub(self.suspects),
            lease_for: identity.options.lease,
            now,
        }
    }

    /// Starts what was claimed; jobs of batch kinds are gathered first, except suspects, which run alone.
    fn start(&mut self, claimed: Vec<Claimed>) {
        let identity = Arc::clone(&self.identity);
        let now = self.now();
        let mut runs = Vec::with_capacity(claimed.len());
        let mut singles = Vec::with_capacity(claimed.len());
        let mut batches = Vec::new();
        for claimed in claimed {
            let Some(registered) = identity.registry.find(&claimed.job.kind) else {
                // The claim asked for known kinds only; an unknown one is left to the rescuer.
                error!(job_id = %claimed.job.id, kind = claimed.job.kind, "the store handed out an unknown kind");
                continue;
            };
            let is_suspect = claimed.job.spent.crashes > 0;
            self.in_use += 1;
            self.suspects += usize::from(is_suspect);
            let policy = registered.policy.with(&claimed.job.options);
            let new_run = |claimed, group| {
                Arc::new(LiveRun::new(claimed, policy, group, Arc::clone(&identity.services)))
            };
            match &registered.handler {
                Handler::One(handler) => {
                    let run = new_run(claimed, Arc::default());
                    runs.push(Arc::clone(&run));
                    singles.push((run, handler));
                }
                Handler::Batch(_, handler) if is_suspect => {
                    let run = new_run(claimed, Arc::default());
                    runs.push(Arc::clone(&run));
                    batches.push((vec![run], Arc::clone(handler)));
                }
                Handler::Batch(options, handler) => {
                    let group = self.gathering.group(&claimed.job.kind, (*options, handler), now);
                    let run = new_run(claimed, group);
                    runs.push(Arc::clone(&run));
                    batches.extend(self.gathering.add(run).map(|batch| (batch.runs, batch.handler)));
                }
            }
        }
        // Before any of them can end: the end takes it out again.
        self.runs.insert(&runs);
        for (run, handler) in singles {
            run.begin(now);
            tokio::spawn(executor::run_one(run, Arc::clone(handler), self.ended_sender.clone()));
        }
        for (runs, handler) in batches {
            self.start_batch(runs, handler);
        }
    }

    /// Starts the batches that have waited long enough, or that nobody can join any more.
    fn start_batches(&mut self, now: Timestamp) {
        let all = self.phase != Phase::Serving || self.free_slots() == 0;
        for Batch { runs, handler, .. } in self.gathering.take_due(now, all) {
            self.start_batch(runs, handler);
        }
    }

    fn start_batch(&self, runs: Vec<Arc<LiveRun>>, handler: crate::handler::BatchHandler) {
        let now = self.now();
        runs.iter().for_each(|run| run.begin(now));
        tokio::spawn(executor::run_batch(runs, handler, self.ended_sender.clone()));
    }

    /// After an answer: go on, or leave the store alone for a while, or give up on an error that time does not heal.
    fn judge(&mut self, answer: Result<()>) {
        let outages = self.identity.services.engine.outages();
        match answer {
            // The other call has failed, and not succeeded since.
            Ok(()) if self.pause_until.is_some() || self.claims_fail => {}
            Ok(()) => {
                self.backoff.reset();
                outages.answered(WHO);
            }
            Err(error) if error.is_transient() => {
                outages.failed(WHO, &error);
                // Two calls that fail together are one failure.
                if self.pause_until.is_none() {
                    self.pause_until = Some(Instant::now() + self.backoff.next_wait());
                }
                self.recovering = true;
            }
            Err(error) => {
                error!(%error, "claiming failed for good, the worker drains");
                self.fatal = Some(error);
            }
        }
    }

    /// Takes every run that has ended, with those that end while this task steps back: one settlement for many.
    async fn take_ended(&mut self) {
        if !self.taken.is_empty() {
            tokio::task::yield_now().await;
        }
        while let Ok(ended) = self.ended.try_recv() {
            self.taken.push(ended);
        }
        for ended in self.taken.drain(..) {
            self.in_use -= 1;
            self.suspects -= usize::from(ended.run.is_suspect());
            self.settling.add(ended);
        }
    }

    /// Waits for a reason for the next turn.
    async fn wait(&mut self) {
        let next_level = if self.phase == Phase::Serving { Level::Drain } else { Level::Stop };
        let can_rise = matches!(self.phase, Phase::Serving | Phase::Draining(_)) && !self.calls.claims();
        let waiting = self.wait_with_claim();
        let can_claim = self.may_claim();
        let clock = Arc::clone(self.identity.services.engine.clock());
        let wake_at = self.wake_at();
        let (real_deadline, look_after) = (self.real_deadline(), self.looked_at + LOOK_GAP);
        let (shutdown, changes) = (&self.shutdown, &mut self.changes);
        let answer = tokio::select! {
            biased;
            answer = self.calls.answer() => Some(answer),
            () = shutdown.reached(next_level), if can_rise => None,
            _ = self.ended.recv_many(&mut self.taken, TAKE_MAX) => None,
            Ok(()) = self.concurrency.changed() => { self.look = true; None }
            Ok(()) = self.queues.changed() => { self.look = true; None }
            () = changed_after(changes, look_after), if can_claim => { self.look = true; None }
            () = clock.sleep_until(wake_at) => { self.look = true; None }
            () = tokio::time::sleep_until(real_deadline.unwrap_or_else(Instant::now)), if real_deadline.is_some() => None,
        };
        let answer = match (answer, waiting) {
            (answer, None) => answer,
            (answer, Some(waiting)) => self.end_wait(answer, waiting).await,
        };
        if let Some(answer) = answer {
            self.answered(answer);
        }
    }

    /// By the clock: the next poll, the end of a drain's grace, a batch that has waited long enough.
    fn wake_at(&self) -> Timestamp {
        let poll = self.identity.options.poll.min(POLL_MAX).mul_f64(0.75 + 0.5 * fastrand::f64());
        let poll_at = self.now() + poll;
        let drain_at = if let Phase::Draining(until) = self.phase { until } else { poll_at };
        poll_at.min(drain_at).min(self.gathering.next_at().unwrap_or(poll_at))
    }

    /// In real time: the end of a pause, or of the patience with what is still running.
    fn real_deadline(&self) -> Option<Instant> {
        let phase_end = match self.phase {
            Phase::Releasing(until) => Some(until),
            Phase::Leaving(until) => Some(until).filter(|_| !self.calls.any()),
            Phase::Serving | Phase::Draining(_) => None,
        };
        [self.pause_until, phase_end].into_iter().flatten().min()
    }

    fn free_slots(&self) -> usize {
        self.concurrency.borrow().saturating_sub(self.in_use)
    }

    fn now(&self) -> Timestamp {
        self.identity.services.engine.clock().now()
    }
}

/// Returns once something has changed, but not before `after`: a busy store changes all the time.
async fn changed_after(changes: &mut watch::Receiver<u64>, after: Instant) {
    if after > Instant::now() {
        tokio::time::sleep_until(after).await;
    }
    if changes.changed().await.is_err() {
        // The store tells nothing any more; polling still finds everything.
        std::future::pending::<()>().await;
    }
}
