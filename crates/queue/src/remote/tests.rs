//! The table of remote ends: each row a job, what its worker says, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::job::JobOptions;
use crate::memory::MemoryStore;
use crate::retry::RetryPolicy;
use crate::state::{Park, State};
use crate::store::{ClaimRequest, Settled};
use crate::{Claimed, Store as _};

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

#[tokio::test]
async fn remote_ends_are_judged_by_the_one_table() {
    let once = || JobOptions { max_attempts: Some(1), ..JobOptions::default() };
    let fixed = || JobOptions {
        retry: Some(RetryPolicy::fixed(Duration::from_secs(5)).without_jitter()),
        ..JobOptions::default()
    };
    let delayed = || JobOptions { delay: Some(Duration::from_secs(3)), ..JobOptions::default() };
    let park = |key: &str| Park { key: key.to_owned(), until: None, on_timeout: Default::default() };
    let long = json(&format!("{:?}", "x".repeat(30)));
    // The wait in seconds, where there is one, and whether follow-ups are kept.
    let rows = [
        ("done", once(), outcome(Outcome::Done(json("1"))), State::Succeeded, None, true),
        ("a result too long", once(), outcome(Outcome::Done(long.clone())), State::Failed, None, true),
        ("a retry", fixed(), retry(Reason::Failure, None), State::Scheduled, Some(5), false),
        (
            "a retry with a time",
            fixed(),
            retry(Reason::Failure, Some(Duration::from_secs(9))),
            State::Scheduled,
            Some(9),
            false,
        ),
        ("the last retry", once(), retry(Reason::Failure, None), State::Failed, None, false),
        (
            "a throttle costs no attempt",
            once(),
            retry(Reason::Throttle, Some(Duration::from_secs(2))),
            State::Scheduled,
            Some(2),
            false,
        ),
        (
            "failed for good",
            fixed(),
            outcome(Outcome::Fail(JobError::new(Reason::Failure, "no"))),
            State::Failed,
            None,
            true,
        ),
        (
            "goes on at once",
            fixed(),
            outcome(Outcome::Continue { after: None, data: None }),
            State::Ready,
            None,
            true,
        ),
        (
            "goes on by its own delay",
            delayed(),
            outcome(Outcome::Continue { after: None, data: None }),
            State::Scheduled,
            Some(3),
            true,
        ),
        (
            "data too long",
            fixed(),
            outcome(Outcome::Continue { after: None, data: Some(long) }),
            State::Failed,
            None,
            true,
        ),
        ("parks", fixed(), outcome(Outcome::Park { park: park("k"), data: None }), State::Parked, None, true),
        (
            "parks for nothing",
            fixed(),
            outcome(Outcome::Park { park: park(""), data: None }),
            State::Failed,
            None,
            true,
        ),
        ("released", once(), Event::Release, State::Ready, None, false),
        ("cancelled", once(), Event::Cancel, State::Cancelled, None, false),
    ];
    for (name, options, event, state, wait, keeps) in rows {
        let store = MemoryStore::new();
        let claimed = claimed(&store, options).await;
        let follow_ups = vec![NewJob::new("next", Json::null())];
        let ended = Ended { lease: claimed.lease.clone(), event, follow_ups, usage: None };
        let item = settle(&claimed.job, ended, &LIMITS, NOW, 0.0).expect(name);
        assert_eq!(item.settlement.state, state, "{name}");
        let waits = item.settlement.run_at.filter(|at| *at > NOW).map(|at| at.since(NOW).as_secs());
        assert_eq!(waits, wait, "{name}");
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
