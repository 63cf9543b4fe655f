//! One run of one job on this worker: what its context, the executor and the heartbeat share. It knows how a run can
//! be stopped and when its time is up; what the stop means for the job is the executor's to say.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::heartbeat::Alarm;
use crate::job::{Claimed, Job, JobId, Lease, ParentResult, Wake};
use crate::json::Json;
use crate::notes::{Flusher, Notes};
use crate::state::{Policy, Spent};

/// Why a run is stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stop {
    /// Somebody wanted the job to end, and its grace time is over.
    Cancelled = 1,
    /// The job is somebody else's now.
    LostLease = 2,
    /// It ran for too long.
    RunLimit = 3,
    /// It was silent for too long.
    IdleLimit = 4,
    /// The worker ends and gives it back.
    Release = 5,
}

impl Stop {
    fn from_u8(number: u8) -> Option<Self> {
        [Self::Cancelled, Self::LostLease, Self::RunLimit, Self::IdleLimit, Self::Release]
            .into_iter()
            .find(|stop| *stop as u8 == number)
    }
}

/// What the runs of a worker have in common.
pub(crate) struct Services {
    pub(crate) engine: Engine,
    pub(crate) flusher: Flusher,
    pub(crate) alarm: Alarm,
    pub(crate) cancel_grace: Duration,
}

/// The runs that one handler call answers for: one, or the members of a batch. They stop together.
#[derive(Default)]
pub(crate) struct Group {
    members: AtomicUsize,
    stop: AtomicU8,
    stopped: Notify,
}

impl Group {
    /// Returns once the call is to be dropped.
    pub(crate) async fn stopped(&self) {
        while self.stop.load(Ordering::Acquire) == 0 {
            self.stopped.notified().await;
        }
    }

    fn stop(&self, why: Stop) {
        // The first reason stands.
        let _ = self.stop.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire);
        self.stopped.notify_one();
    }
}

/// Not begun yet: a member of a batch that is still gathered.
const NOT_BEGUN: i64 = i64::MAX;
const NO_CANCEL: i64 = i64::MAX;

/// One run of one job.
pub(crate) struct LiveRun {
    pub(crate) job: Job,
    pub(crate) lease: Lease,
    pub(crate) payload: Json,
    pub(crate) parents: Vec<ParentResult>,
    pub(crate) wake: Option<Wake>,
    pub(crate) policy: Policy,
    pub(crate) services: Arc<Services>,
    pub(crate) notes: Notes,
    group: Arc<Group>,
    own_stop: AtomicU8,
    told: AtomicBool,
    draining: AtomicBool,
    telling: Notify,
    ended: AtomicBool,
    begun_at: AtomicI64,
    active_at: AtomicI64,
    cancel_by: AtomicI64,
}

impl LiveRun {
    pub(crate) fn new(claimed: Claimed, policy: Policy, group: Arc<Group>, services: Arc<Services>) -> Self {
        group.members.fetch_add(1, Ordering::AcqRel);
        Self {
            job: claimed.job,
            lease: claimed.lease,
            payload: claimed.payload,
            parents: claimed.parents,
            wake: claimed.wake,
            policy,
            services,
            notes: Notes::new(claimed.data),
            group,
            own_stop: AtomicU8::new(0),
            told: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            telling: Notify::new(),
            ended: AtomicBool::new(false),
            begun_at: AtomicI64::new(NOT_BEGUN),
            active_at: AtomicI64::new(0),
            cancel_by: AtomicI64::new(NO_CANCEL),
        }
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// A job whose worker died: it may have killed it.
    pub(crate) fn is_suspect(&self) -> bool {
        self.job.spent.crashes > 0
    }

    /// The budgets to settle with: durable progress has cleared the crashes in the store, so it does here.
    pub(crate) fn spent(&self) -> Spent {
        let spent = self.job.spent;
        if self.notes.has_saved() { Spent { crashes: 0, ..spent } } else { spent }
    }

    /// The handler is about to be called: its time counts from now.
    pub(crate) fn begin(&self, now: Timestamp) {
        self.active_at.store(now.as_millis(), Ordering::Release);
        self.begun_at.store(now.as_millis(), Ordering::Release);
        let idle_limit = self.policy.idle_limit.unwrap_or(Duration::MAX);
        self.services.alarm.set(now + self.policy.run_limit.min(idle_limit));
    }

    /// A sign of life from the handler.
    pub(crate) fn touch(&self, now: Timestamp) {
        self.active_at.fetch_max(now.as_millis(), Ordering::AcqRel);
    }

    /// Whoever gets true here reports the end of the run; nobody else may.
    pub(crate) fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::AcqRel)
    }

    /// Somebody wants the job to end: its handler is told, and stopped when the grace time is over.
    pub(crate) fn request_cancel(&self, now: Timestamp) {
        let by = now + self.services.cancel_grace;
        let first =
            self.cancel_by.compare_exchange(NO_CANCEL, by.as_millis(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            self.tell();
            self.services.alarm.set(by);
        }
    }

    /// The worker takes no more jobs and soon ends: the handler is told, so that it can keep what it has.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Release);
        self.tell();
    }

    /// Whether the worker drains.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Stops the run. A batch goes on without a member that was cancelled or lost; the other reasons end all of it.
    pub(crate) fn stop(&self, why: Stop) {
        match why {
            Stop::Cancelled | Stop::LostLease => {
                let first =
                    self.own_stop.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if first && self.group.members.fetch_sub(1, Ordering::AcqRel) == 1 {
                    self.group.stop(why);
                }
            }
            Stop::RunLimit | Stop::IdleLimit | Stop::Release => self.group.stop(why),
        }
        self.tell();
    }

    /// Why the run was stopped, if it was.
    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        let own = Stop::from_u8(self.own_stop.load(Ordering::Acquire));
        own.or_else(|| Stop::from_u8(self.group.stop.load(Ordering::Acquire)))
    }

    /// Whether the handler should end.
    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// Whether the handler should end whatever becomes of the worker: by a cancel, or since the run is over.
    pub(crate) fn is_cancel_requested(&self) -> bool {
        self.cancel_by.load(Ordering::Acquire) != NO_CANCEL || self.stop_reason().is_some()
    }

    /// Returns once `reason` holds; it is looked at whenever the handler is told something.
    pub(crate) async fn told(&self, reason: fn(&Self) -> bool) {
        loop {
            // Made before the reason is looked at, so that a telling in between is not missed.
            let telling = self.telling.notified();
            if reason(self) {
                return;
            }
            telling.await;
        }
    }

    fn tell(&self) {
        self.told.store(true, Ordering::Release);
        self.telling.notify_waiters();
    }

    /// Whether the lease is to be renewed. Not past the run limit, so that a hung handler loses its job; but a run
    /// that has ended waits for its settlement and keeps it.
    pub(crate) fn is_renewable(&self, now: Timestamp) -> bool {
        self.ended.load(Ordering::Acquire)
            || self.begun_at().is_none_or(|begun| now < begun + self.policy.run_limit)
    }

    /// Stops the run if its time is up; otherwise says when to look again.
    pub(crate) fn enforce_limits(&self, now: Timestamp) -> Option<Timestamp> {
        if self.ended.load(Ordering::Acquire) || self.stop_reason().is_some() {
            return None;
        }
        let begun = self.begun_at()?;
        let active = Timestamp::from_millis(self.active_at.load(Ordering::Acquire));
        let cancel_by = self.cancel_by.load(Ordering::Acquire);
        let limits = [
            (Some(begun + self.policy.run_limit), Stop::RunLimit),
            (self.policy.idle_limit.map(|limit| active + limit), Stop::IdleLimit),
            ((cancel_by != NO_CANCEL).then_some(Timestamp::from_millis(cancel_by)), Stop::Cancelled),
        ];
        let (at, why) =
            limits.into_iter().filter_map(|(at, why)| Some((at?, why))).min_by_key(|(at, _)| *at)?;
        if now < at {
            return Some(at);
        }
        self.stop(why);
        None
    }

    fn begun_at(&self) -> Option<Timestamp> {
        let begun = self.begun_at.load(Ordering::Acquire);
        (begun != NOT_BEGUN).then_some(Timestamp::from_millis(begun))
    }
}

/// All runs whose lease this worker holds, until they are settled. By fence too: a job that was lost can come back
/// while its old run still blocks a thread.
#[derive(Default)]
pub(crate) struct LiveRuns {
    runs: Mutex<HashMap<(JobId, u64), Arc<LiveRun>>>,
}

impl LiveRuns {
    pub(crate) fn insert(&self, runs: &[Arc<LiveRun>]) {
        self.lock().extend(runs.iter().map(|run| ((run.lease.job_id, run.lease.fence), Arc::clone(run))));
    }

    pub(crate) fn remove<'a>(&self, leases: impl Iterator<Item = &'a Lease>) {
        let mut runs = self.lock();
        for lease in leases {
            runs.remove(&(lease.job_id, lease.fence));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<LiveRun>> {
        self.lock().values().cloned().collect()
    }

    /// Stops what ran out of time; the next moment when one may.
    pub(crate) fn enforce_limits(&self, now: Timestamp) -> Option<Timestamp> {
        self.lock().values().filter_map(|run| run.enforce_limits(now)).min()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(JobId, u64), Arc<LiveRun>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
