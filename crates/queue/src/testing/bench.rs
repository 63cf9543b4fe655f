//! A store and a clock on the bench, with the moves that cases are made of. Jobs go by small numbers; every move
//! panics when the store does not answer.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, ManualClock, Timestamp};
use crate::error::{Error, Result};
use crate::job::{Claimed, JobDetail, JobId, Lease, NewJob, WorkerId};
use crate::json::Json;
use crate::limits::SWEEP_MAX;
use crate::retry::RetryPolicy;
use crate::state::{Event, JobError, OnTimeout, Outcome, Park, Policy, Reason, State, settle};
use crate::store::{
    CancelReply, ClaimRequest, Deleted, EngineStore, Enqueued, RetryRequest, SettleItem, Settled, Signal,
    Swept, UnparkRequest, UnparkTarget, Unparked,
};

/// The time at which every bench begins.
pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// The lease time of a bench's claims.
pub const LEASE_FOR: Duration = Duration::from_secs(60);

/// A store to be tested, with a clock that moves when told.
pub struct Bench {
    /// The store.
    pub store: Arc<dyn EngineStore>,
    /// The clock.
    pub clock: Arc<ManualClock>,
    _guard: Box<dyn Any + Send + Sync>,
}

/// The id of job `number`.
pub fn id(number: u64) -> JobId {
    JobId::generate(START, u128::from(number) << 56)
}

/// Job `number` of kind `work` in the default queue; retries wait one second, without jitter.
pub fn job(number: u64) -> NewJob {
    NewJob::new("work", json(&format!(r#"{{"n":{number}}}"#)))
        .id(id(number))
        .retry(RetryPolicy::fixed(Duration::from_secs(1)).without_jitter())
}

/// JSON text.
pub fn json(text: &str) -> Json {
    Json::parse(text).expect("a case writes valid JSON")
}

/// So many seconds.
pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// So many days.
pub const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 3600)
}

/// The handler is done.
pub fn done(result: &str) -> Event {
    Event::Outcome(Outcome::Done(json(result)))
}

/// The handler wants to go on.
pub fn again(after: Duration, data: &str) -> Event {
    Event::Outcome(Outcome::Continue { after: Some(after), data: Some(json(data)) })
}

/// The handler waits for a signal, for ever.
pub fn park(key: &str) -> Event {
    park_until(key, None, OnTimeout::Resume)
}

/// The handler waits for a signal, for a time.
pub fn park_until(key: &str, until: Option<Timestamp>, on_timeout: OnTimeout) -> Event {
    Event::Outcome(Outcome::Park { park: Park { key: key.to_owned(), until, on_timeout }, data: None })
}

/// The handler failed this time.
pub fn retry_later(reason: Reason) -> Event {
    Event::Outcome(Outcome::Retry { error: JobError::new(reason, "bad answer"), after: None, data: None })
}

/// The handler failed for good.
pub fn give_up() -> Event {
    Event::Outcome(Outcome::Fail(JobError::new(Reason::Failure, "cannot work")))
}

/// The text of a refusal.
pub fn invalid<T: std::fmt::Debug>(reply: Result<T>) -> String {
    match reply {
        Err(Error::Invalid(text)) => text,
        other => panic!("expected Invalid, got {other:?}"),
    }
}

impl Bench {
    /// A bench with an empty store.
    pub fn new(store: Arc<dyn EngineStore>) -> Self {
        Self { store, clock: Arc::new(ManualClock::new(START)), _guard: Box::new(()) }
    }

    /// Uses the clock that the store was opened with.
    pub fn timed_by(mut self, clock: Arc<ManualClock>) -> Self {
        self.clock = clock;
        self
    }

    /// Keeps something, such as a temporary directory, as long as the bench lives.
    pub fn keeping(mut self, guard: impl Any + Send + Sync) -> Self {
        self._guard = Box::new(guard);
        self
    }

    /// The time on the clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Enqueues jobs.
    pub async fn add(&self, jobs: impl IntoIterator<Item = NewJob>) -> Vec<Enqueued> {
        self.try_add(jobs).await.expect("the insert is accepted")
    }

    /// Enqueues one job.
    pub async fn add_one(&self, job: NewJob) -> Enqueued {
        self.add([job]).await[0]
    }

    /// Enqueues jobs that may be refused.
    pub async fn try_add(&self, jobs: impl IntoIterator<Item = NewJob>) -> Result<Vec<Enqueued>> {
        self.store.insert(jobs.into_iter().collect(), self.now()).await
    }

    /// Enqueues jobs that must be refused without a trace, and returns the reason.
    pub async fn refuses(&self, jobs: impl IntoIterator<Item = NewJob>) -> String {
        let before = self.snapshot().await;
        let text = invalid(self.try_add(jobs).await);
        assert_eq!(self.snapshot().await, before, "a refused insert left a trace");
        text
    }

    /// A claim of one job of any kind from the default queue.
    pub fn request(&self) -> ClaimRequest {
        ClaimRequest {
            queues: vec!["default".to_owned()],
            kinds: None,
            worker: WorkerId::new("w1"),
            limit: 1,
            suspects_max: usize::MAX,
            lease_for: LEASE_FOR,
            now: self.now(),
        }
    }

    /// Claims up to `limit` jobs from the default queue.
    pub async fn claim(&self, limit: usize) -> Vec<Claimed> {
        self.claim_with(ClaimRequest { limit, ..self.request() }).await
    }

    /// Claims as asked.
    pub async fn claim_with(&self, request: ClaimRequest) -> Vec<Claimed> {
        self.store.claim(request).await.expect("claim answers")
    }

    /// The ids that a claim hands out.
    pub async fn claim_ids(&self, request: ClaimRequest) -> Vec<JobId> {
        self.claim_with(request).await.iter().map(|claimed| claimed.job.id).collect()
    }

    /// Claims the next job, which must be `number`.
    pub async fn start(&self, number: u64) -> Claimed {
        let claimed = self.claim(1).await.pop().expect("a job is ready");
        assert_eq!(claimed.job.id, id(number), "the claim hands out another job");
        claimed
    }

    /// Settles a claimed job by its own policy.
    pub async fn settle(&self, claimed: &Claimed, event: Event) -> Settled {
        self.settle_with(claimed, event, Vec::new()).await
    }

    /// Settles a claimed job and enqueues what its handler left.
    pub async fn settle_with(&self, claimed: &Claimed, event: Event, follow_ups: Vec<NewJob>) -> Settled {
        let item = self.item(claimed, event, follow_ups);
        self.store.settle(vec![item], self.now()).await.expect("settle answers").remove(0)
    }

    /// What [`Bench::settle_with`] sends.
    pub fn item(&self, claimed: &Claimed, event: Event, follow_ups: Vec<NewJob>) -> SettleItem {
        let policy = Policy::default().with(&claimed.job.options);
        let settlement = settle(event, claimed.job.spent, &policy, self.now(), 0.5);
        SettleItem { lease: claimed.lease.clone(), settlement, follow_ups }
    }

    /// Claims the next job, which must be `number`, and settles it.
    pub async fn run(&self, number: u64, event: Event) -> State {
        let claimed = self.start(number).await;
        match self.settle(&claimed, event).await {
            Settled::Applied(state) => state,
            other => panic!("the settlement of job {number} was not applied: {other:?}"),
        }
    }

    /// Everything known of job `number`.
    pub async fn detail(&self, number: u64) -> JobDetail {
        self.find(number).await.expect("the job exists")
    }

    /// Job `number`, if it exists.
    pub async fn find(&self, number: u64) -> Option<JobDetail> {
        self.store.get(vec![id(number)]).await.expect("get answers").pop()
    }

    /// Where job `number` stands.
    pub async fn state(&self, number: u64) -> State {
        self.detail(number).await.job.state
    }

    /// Checks where jobs stand.
    pub async fn expect(&self, expected: &[(u64, State)]) {
        let mut found = Vec::new();
        for (number, _) in expected {
            found.push((*number, self.state(*number).await));
        }
        assert_eq!(found, expected);
    }

    /// Why job `number` failed or was cancelled.
    pub async fn reason(&self, number: u64) -> Option<Reason> {
        self.detail(number).await.job.error.map(|error| error.reason)
    }

    /// Cancels job `number`.
    pub async fn cancel(&self, number: u64) -> CancelReply {
        self.store.cancel(vec![id(number)], self.now()).await.expect("cancel answers").remove(0)
    }

    /// Puts job `number` back with its data.
    pub async fn retry(&self, number: u64) -> Result<State> {
        let request = RetryRequest { ids: vec![id(number)], keep_data: true, now: self.now() };
        self.store.retry(request).await.expect("retry answers").remove(0)
    }

    /// Deletes jobs.
    pub async fn delete(&self, numbers: &[u64]) -> Deleted {
        self.store.delete(numbers.iter().copied().map(id).collect()).await.expect("delete answers")
    }

    /// Sends a signal to a key.
    pub async fn signal(&self, key: &str, signal: Signal) -> Unparked {
        self.unpark(UnparkTarget::Key(key.to_owned()), signal).await
    }

    /// Sends a signal.
    pub async fn unpark(&self, target: UnparkTarget, signal: Signal) -> Unparked {
        let request = UnparkRequest { target, signal, now: self.now(), jitter: 0.5 };
        self.store.unpark(request).await.expect("unpark answers")
    }

    /// Moves what is due.
    pub async fn promote(&self) -> Swept {
        self.store.promote_due(self.now(), SWEEP_MAX).await.expect("promote answers")
    }

    /// Takes expired leases away.
    pub async fn rescue(&self) -> Swept {
        self.store.rescue_expired(self.now(), SWEEP_MAX).await.expect("rescue answers")
    }

    /// Lets `claimed`'s worker die: its lease passes and is taken away.
    pub async fn crash(&self) {
        self.pass(LEASE_FOR);
        assert_eq!(self.rescue().await.changed, 1, "one lease has expired");
    }

    /// Deletes what retention no longer keeps.
    pub async fn prune(&self) -> Swept {
        self.store.prune(self.now(), SWEEP_MAX).await.expect("prune answers")
    }

    /// The whole state as text.
    pub async fn snapshot(&self) -> String {
        super::snapshot(self.store.as_ref()).await
    }
}

/// The same lease with another fence.
pub fn with_fence(lease: &Lease, fence: u64) -> Lease {
    Lease { fence, ..lease.clone() }
}
