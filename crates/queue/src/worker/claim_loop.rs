//! The claim loop. Each turn takes every run that has ended, settles those and claims for the free slots in one go, so
//! that a store with group commit puts both into one transaction; then it waits for a reason for the next turn.
//!
//! A worker never claims a job that it cannot start at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, error, warn};

use crate::backoff::Backoff;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::executor::{self, Ended, EndedSender};
use crate::handler::Handler;
use crate::job::Claimed;
use crate::limits::CLAIM_MAX;
use crate::live_run::{Group, LiveRun, LiveRuns, Stop};
use crate::shutdown::{Level, Shutdown};
use crate::state::{Event, State};
use crate::store::{ClaimRequest, SettleItem, Settled, Store};

use super::Identity;
use super::gathering::{Batch, Gathering};
use super::options::WorkerReport;
use super::settling::Settling;

/// Least time between two looks for work that only a change in the store suggests.
const LOOK_GAP: Duration = Duration::from_millis(2);
/// How long stopped handlers may take to let go, in real time. One that blocks its thread never does.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
/// How long the last results may wait for a store that cannot be reached, in real time.
const LAST_SETTLE_WAIT: Duration = Duration::from_secs(5);
/// Ended runs taken from the channel at once.
const TAKE_MAX: usize = 4096;

/// How far the worker is on its way out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Claims no more; running jobs may end until then.
    Draining(Timestamp),
    /// Running jobs have been stopped and are given back.
    Releasing(Instant),
    /// Only results are left.
    Leaving(Instant),
}

struct ClaimLoop {
    identity: Arc<Identity>,
    runs: Arc<LiveRuns>,
    concurrency: watch::Receiver<usize>,
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
    gathering: Gathering,
    /// Slots in use: runs that have not ended.
    in_use: usize,
    suspects: usize,
    backoff: Backoff,
    /// The store could not be reached: leave it alone until then.
    pause_until: Option<Instant>,
    fatal: Option<crate::Error>,
}

/// Serves until the shutdown asks for the end.
pub(super) async fn run(
    identity: Arc<Identity>,
    runs: Arc<LiveRuns>,
    concurrency: watch::Receiver<usize>,
    shutdown: Shutdown,
) -> Result<WorkerReport> {
    let (ended_sender, ended) = mpsc::unbounded_channel();
    let claim_loop = ClaimLoop {
        settling: Settling::new(Arc::clone(&runs)),
        changes: identity.services.queue.store().watch(),
        identity,
        runs,
        concurrency,
        shutdown,
        phase: Phase::Serving,
        looked_at: Instant::now(),
        look: true,
        ended,
        ended_sender,
        taken: Vec::new(),
        gathering: Gathering::default(),
        in_use: 0,
        suspects: 0,
        backoff: Backoff::new(),
        pause_until: None,
        fatal: None,
    };
    claim_loop.run().await
}

impl ClaimLoop {
    async fn run(mut self) -> Result<WorkerReport> {
        loop {
            self.advance_phase();
            self.turn().await;
            if self.is_over().await {
                break;
            }
            self.wait().await;
            self.take_ended().await;
        }
        match self.fatal {
            Some(error) => Err(error),
            None => Ok(self.settling.report),
        }
    }

    /// Settles and claims in one go.
    async fn turn(&mut self) {
        let now = self.now();
        if self.pause_until.is_none_or(|until| until <= Instant::now()) {
            let items = self.settling.items();
            let request = self.claim_request(!items.is_empty(), now);
            if items.is_empty() && request.is_none() {
                return self.start_batches(now);
            }
            self.pause_until = None;
            let (settled_count, claim_limit) =
                (items.len(), request.as_ref().map_or(0, |request| request.limit));
            let store = Arc::clone(self.identity.services.queue.store());
            let (settled, claimed) = tokio::join!(settle(&*store, items, now), claim(&*store, request));
            let settled = self.settling.answered(settled_count, settled);
            let claimed = claimed.map(|claimed| {
                // A full answer means that there may be more; a short one that there is not, until something changes.
                self.look = claim_limit == 0 && self.look || claim_limit > 0 && claimed.len() == claim_limit;
                self.start(claimed);
            });
            self.judge(settled.and(claimed));
        }
        self.start_batches(now);
    }

    /// Claims for the free slots, if there may be something and the store took the last results.
    fn claim_request(&mut self, settles: bool, now: Timestamp) -> Option<ClaimRequest> {
        let limit = self.free_slots().min(CLAIM_MAX);
        let may_claim = self.phase == Phase::Serving && limit > 0 && (self.look || settles);
        // Results that the store did not take are held first: more work would only add to them.
        let holds_old_results = self.pause_until.is_some() && settles;
        if !may_claim || holds_old_results {
            return None;
        }
        self.changes.mark_unchanged();
        self.looked_at = Instant::now();
        let identity = &self.identity;
        Some(ClaimRequest {
            queues: identity.options.queue_order(fastrand::f64),
            kinds: identity.kinds.clone(),
            worker: identity.id.clone(),
            limit,
            suspects_max: 1_usize.saturating_sub(self.suspects),
            lease_for: identity.options.lease,
            now,
        })
    }

    /// Starts what was claimed; jobs of batch kinds are gathered first, except suspects, which run alone.
    fn start(&mut self, claimed: Vec<Claimed>) {
        let identity = Arc::clone(&self.identity);
        let now = self.now();
        let mut runs = Vec::with_capacity(claimed.len());
        let mut starts = Vec::with_capacity(claimed.len());
        for claimed in claimed {
            let Some(registered) = identity.registry.find(&claimed.job.kind) else {
                // The claim asked for known kinds only; an unknown one waits for a worker that knows it.
                error!(job_id = %claimed.job.id, kind = claimed.job.kind, "the store handed out an unknown kind");
                continue;
            };
            let suspect = claimed.job.spent.crashes > 0;
            let group: Arc<Group> = match &registered.handler {
                Handler::Batch(options, handler) if !suspect => {
                    self.gathering.group(&claimed.job.kind, *options, handler, now)
                }
                Handler::Batch(..) | Handler::One(_) => Arc::default(),
            };
            let policy = registered.policy.with(&claimed.job.options);
            let run = Arc::new(LiveRun::new(claimed, policy, group, Arc::clone(&identity.services)));
            self.in_use += 1;
            self.suspects += usize::from(suspect);
            runs.push(Arc::clone(&run));
            starts.push((run, &registered.handler));
        }
        // Before any of them can end: the end takes it out again.
        self.runs.insert(&runs);
        for (run, handler) in starts {
            match handler {
                Handler::One(handler) => {
                    run.begin(now);
                    tokio::spawn(executor::run_one(run, Arc::clone(handler), self.ended_sender.clone()));
                }
                Handler::Batch(_, handler) if run.is_suspect() => {
                    self.start_batch(vec![run], Arc::clone(handler))
                }
                Handler::Batch(..) => {
                    if let Some(Batch { runs, handler, .. }) = self.gathering.add(run) {
                        self.start_batch(runs, handler);
                    }
                }
            }
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
        match answer {
            Ok(()) => self.backoff.reset(),
            Err(error) if error.is_transient() => {
                let wait = self.backoff.next_wait();
                warn!(%error, wait_ms = wait.as_millis(), "the store cannot be reached, trying again");
                self.pause_until = Some(Instant::now() + wait);
            }
            Err(error) => {
                error!(%error, "claiming failed for good, the worker drains");
                self.fatal = Some(error);
                self.shutdown.drain();
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

    fn advance_phase(&mut self) {
        if self.phase == Phase::Serving && self.shutdown.level() >= Level::Drain {
            debug!(in_use = self.in_use, "worker drains");
            self.phase = Phase::Draining(self.now() + self.identity.options.drain_grace);
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

    async fn is_over(&mut self) -> bool {
        let nothing_held = self.in_use == 0 && self.settling.is_empty();
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
                if !nothing_held && Instant::now() >= until {
                    error!("the store cannot be reached, the last outcomes are dropped");
                }
                nothing_held || Instant::now() >= until
            }
        }
    }

    /// Whether no job is left that this worker could move.
    async fn nothing_left(&self) -> bool {
        let store = self.identity.services.queue.store();
        let (Ok(counts), Ok(queues)) = tokio::join!(store.counts(), store.queues()) else { return false };
        let is_paused = |name: &str| queues.iter().any(|queue| queue.name == name && queue.paused);
        let served = |name: &str| self.identity.options.queues.iter().any(|share| share.name == name);
        let known = |kind: &String| self.identity.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        let left = |state: State, queue: &str| match state {
            State::Ready | State::Scheduled => !is_paused(queue),
            State::Running => true,
            State::Blocked | State::Parked | State::Succeeded | State::Failed | State::Cancelled => false,
        };
        !counts.iter().any(|count| {
            count.jobs > 0 && served(&count.queue) && known(&count.kind) && left(count.state, &count.queue)
        })
    }

    /// Waits for a reason for the next turn.
    async fn wait(&mut self) {
        let pausing = self.pause_until.is_some();
        let can_claim = self.phase == Phase::Serving && self.free_slots() > 0 && !pausing;
        if can_claim && self.look || !self.settling.is_empty() && !pausing {
            return tokio::task::yield_now().await;
        }
        let next_level = if self.phase == Phase::Serving { Level::Drain } else { Level::Stop };
        let can_rise = matches!(self.phase, Phase::Serving | Phase::Draining(_));
        let clock = Arc::clone(self.identity.services.queue.clock());
        let wake_at = self.wake_at();
        let (real_deadline, look_after) = (self.real_deadline(), self.looked_at + LOOK_GAP);
        let (shutdown, changes) = (&self.shutdown, &mut self.changes);
        tokio::select! {
            biased;
            () = shutdown.reached(next_level), if can_rise => {}
            _ = self.ended.recv_many(&mut self.taken, TAKE_MAX) => {}
            Ok(()) = self.concurrency.changed() => self.look = true,
            () = changed_after(changes, look_after), if can_claim => self.look = true,
            () = clock.sleep_until(wake_at) => self.look = true,
            () = tokio::time::sleep_until(real_deadline.unwrap_or_else(Instant::now)), if real_deadline.is_some() => {}
        }
    }

    /// By the clock: the next poll, the end of a drain's grace, a batch that has waited long enough.
    fn wake_at(&self) -> Timestamp {
        let poll = self.identity.options.poll.mul_f64(0.75 + 0.5 * fastrand::f64());
        let poll_at = self.now() + poll;
        let drain_at = if let Phase::Draining(until) = self.phase { until } else { poll_at };
        poll_at.min(drain_at).min(self.gathering.next_at().unwrap_or(poll_at))
    }

    /// In real time: the end of a pause, or of the patience with what is still running.
    fn real_deadline(&self) -> Option<Instant> {
        let phase_end = match self.phase {
            Phase::Releasing(until) | Phase::Leaving(until) => Some(until),
            Phase::Serving | Phase::Draining(_) => None,
        };
        [self.pause_until, phase_end].into_iter().flatten().min()
    }

    fn free_slots(&self) -> usize {
        self.concurrency.borrow().saturating_sub(self.in_use)
    }

    fn now(&self) -> Timestamp {
        self.identity.services.queue.clock().now()
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

async fn settle(store: &dyn Store, items: Vec<SettleItem>, now: Timestamp) -> Result<Vec<Settled>> {
    if items.is_empty() { Ok(Vec::new()) } else { store.settle(items, now).await }
}

async fn claim(store: &dyn Store, request: Option<ClaimRequest>) -> Result<Vec<Claimed>> {
    let Some(request) = request else { return Ok(Vec::new()) };
    let limit = request.limit;
    debug!(limit, "ENTER claim");
    let claimed = store.claim(request).await?;
    debug!(limit, count = claimed.len(), "EXIT claim");
    Ok(claimed)
}
