//! The table of remote ends: each row a job, what its worker says, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::job::JobOptions;
use crate::memory::MemoryStore;
use crate::retry::RetryPolicy;
use crate::state::{OnTimeout, Park, State};
use crate::store::{ClaimRequest, Settled};
use crate::{Claimed, EngineStore as _, Store as _};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LIMITS: Limits = Limits { value_bytes_max: 20 };

async fn claimed(store: &MemoryStore, options: JobOptions) -> Claimed {
    let queue = Queue::new(Arc::new(MemoryStore::new()));
    let jobs =
        queue.prepare(vec![NewJob { options, ..NewJob::new("job", Json::null()) }]).expect("a valid job");
    store.insert(jobs, NOW).await.expect("stored");
    let request = ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: "elsewhere".into(),
        limit: 1,
        suspects_max: 1,
        lease_for: Duration::from_secs(30),
        now: NOW,
    };
    store.claim(request).await.expect("claimed").pop().expect("a job")
}

fn outcome(outcome: Outcome) -> Event {
    Event::Outcome(outcome)
}

fn retry(reason: Reason, after: Option<Duration>) -> Event {
    outcome(Outcome::Retry { error: JobError::new(reason, "no"), after, data: None })
}

fn json(text: &str) -> Json {
    Json::parse(text).expect("JSON")
}

/// What a worker says, and what becomes of the job.
struct Row {
    name: &'static str,
    options: JobOptions,
    event: Event,
    state: State,
    /// The wait, where there is one.
    wait_s: Option<u64>,
    /// Whether follow-ups are stored.
    keeps: bool,
}

impl Row {
    fn new(name: &'static str, options: JobOptions, event: Event, state: State) -> Self {
        Self { name, options, event, state, wait_s: None, keeps: true }
    }

    fn wait(self, seconds: u64) -> Self {
        Self { wait_s: Some(seconds), ..self }
    }

    fn repeats(self) -> Self {
        Self { keeps: false, ..self }
    }
}

fn once() -> JobOptions {
    JobOptions { max_attempts: Some(1), ..JobOptions::default() }
}

fn fixed() -> JobOptions {
    let retry = RetryPolicy::fixed(Duration::from_secs(5)).without_jitter();
    JobOptions { retry: Some(retry), delay: Some(Duration::from_secs(3)), ..JobOptions::default() }
}

fn rows() -> Vec<Row> {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let park = |key: &str| {
        let park = Park { key: key.to_owned(), until: None, on_timeout: OnTimeout::Resume };
        outcome(Outcome::Park { park, data: None })
    };
    let go_on = |after, data| outcome(Outcome::Continue { after, data });
    let give_up = outcome(Outcome::Fail(JobError::new(Reason::Failure, "no")));
    let done = |result: &Json| outcome(Outcome::Done(result.clone()));
    let long = json(&format!("{:?}", "x".repeat(30)));
    let throttle = retry(Reason::Throttle, seconds(2));
    vec![
        Row::new("done", once(), done(&json("1")), State::Succeeded),
        Row::new("a result too long", once(), done(&long), State::Failed),
        Row::new("a retry", fixed(), retry(Reason::Failure, None), State::Scheduled).wait(5).repeats(),
        Row::new("a retry with a time", fixed(), retry(Reason::Failure, seconds(9)), State::Scheduled)
            .wait(9)
            .repeats(),
        Row::new("the last retry", once(), retry(Reason::Failure, None), State::Failed).repeats(),
        Row::new("a throttle costs no attempt", once(), throttle, State::Scheduled).wait(2).repeats(),
        Row::new("failed for good", fixed(), give_up, State::Failed),
        Row::new("goes on at once", once(), go_on(None, None), State::Ready),
        Row::new("goes on by its own delay", fixed(), go_on(None, None), State::Scheduled).wait(3),
        Row::new("data too long", fixed(), go_on(None, Some(long)), State::Failed),
        Row::new("parks", fixed(), park("k"), State::Parked),
        Row::new("parks for nothing", fixed(), park(""), State::Failed),
        Row::new("released", once(), Event::Release, State::Ready).repeats(),
        Row::new("cancelled", once(), Event::Cancel, State::Cancelled).repeats(),
    ]
}

#[tokio::test]
async fn remote_ends_are_judged_by_the_one_table() {
    for Row { name, options, event, state, wait_s, keeps } in rows() {
        let store = MemoryStore::new();
        let claimed = claimed(&store, options).await;
        let follow_ups = vec![NewJob::new("next", Json::null())];
        let ended = Ended { lease: claimed.lease.clone(), event, follow_ups, usage: None };
        let item = settle(&claimed.job, ended, &LIMITS, NOW, 0.0).expect(name);
        assert_eq!(item.settlement.state, state, "{name}");
        let waits = item.settlement.run_at.filter(|at| *at > NOW).map(|at| at.since(NOW).as_secs());
        assert_eq!(waits, wait_s, "{name}");
        assert_eq!(item.follow_ups.len(), usize::from(keeps), "{name}");
        for follow_up in &item.follow_ups {
            assert_eq!(follow_up.options.parent_id, Some(claimed.job.id), "{name}");
        }
        let stale = SettleItem { lease: Lease { fence: 0, ..item.lease.clone() }, ..item.clone() };
        let settled = store.settle(vec![stale], NOW).await.expect("an answer");
        assert_eq!(settled, [Settled::LostLease], "{name}");
        let settled = store.settle(vec![item], NOW).await.expect("an answer");
        assert_eq!(settled, [Settled::Applied(state)], "{name}");
    }
}

#[tokio::test]
async fn follow_ups_that_cannot_be_stored_are_refused() {
    let store = MemoryStore::new();
    let claimed = claimed(&store, JobOptions::default()).await;
    let event = outcome(Outcome::Done(Json::null()));
    let follow_ups = vec![NewJob::new("", Json::null())];
    let ended = Ended { lease: claimed.lease.clone(), event, follow_ups, usage: None };
    assert!(settle(&claimed.job, ended, &LIMITS, NOW, 0.0).is_err());
}

#[tokio::test]
async fn a_run_past_its_limit_is_retried_as_if_it_had_said_so() {
    let store = MemoryStore::new();
    let limit = Duration::from_secs(10);
    let claimed = claimed(&store, JobOptions { run_limit: Some(limit), ..JobOptions::default() }).await;
    assert_eq!(over_its_time(&claimed.job, NOW + limit / 2), None);
    let event = over_its_time(&claimed.job, NOW + limit).expect("its time is over");
    let ended = Ended { lease: claimed.lease.clone(), event, follow_ups: Vec::new(), usage: None };
    let item = settle(&claimed.job, ended, &LIMITS, NOW + limit, 0.0).expect("settled");
    assert_eq!(item.settlement.state, State::Scheduled);
    assert_eq!(item.settlement.error.map(|error| error.reason), Some(Reason::RunLimit));
}
