//! Claim: order, filters, limits, and what the worker gets in hand.

use crate::job::{NewJob, OnFailure, WorkerId};
use crate::state::{Event, Reason, State};
use crate::store::{ClaimRequest, QueueChange, Settled, Signal};
use crate::testing::Bench;
use crate::testing::bench::{LEASE_FOR, again, done, id, job, json, park, secs};

pub(super) async fn a_claim_makes_a_job_running_under_a_lease(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.pass(secs(1));
    let claimed = bench.start(1).await;
    let until = bench.now() + LEASE_FOR;
    assert_eq!((claimed.job.state, claimed.job.fence), (State::Running, 1));
    assert_eq!(
        (claimed.job.worker.clone(), claimed.job.lease_until),
        (Some(WorkerId::new("w1")), Some(until))
    );
    assert_eq!(claimed.job.started_at, Some(bench.now()));
    assert_eq!((claimed.lease.job_id, claimed.lease.seq, claimed.lease.fence), (id(1), 1, 1));
    assert_eq!((claimed.lease.worker.as_str(), claimed.lease.until), ("w1", until));
    assert_eq!(bench.detail(1).await.job, claimed.job);
    assert_eq!((claimed.payload, claimed.data, claimed.wake), (json(r#"{"n":1}"#), None, None));
}

pub(super) async fn a_job_is_handed_out_once(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.start(1).await;
    assert!(bench.claim(10).await.is_empty());
}

pub(super) async fn the_order_is_priority_then_time_then_submission(bench: &Bench) {
    let now = bench.now();
    let jobs = [
        job(1).run_at(now),
        job(2).run_at(now - secs(1)),
        job(3).priority(-1),
        job(4).priority(1).run_at(now - secs(9)),
        job(5).run_at(now),
    ];
    bench.add(jobs).await;
    let order = bench.claim_ids(ClaimRequest { limit: 9, ..bench.request() }).await;
    assert_eq!(order, [3, 2, 1, 5, 4].map(id));
}

pub(super) async fn queues_come_in_the_order_given(bench: &Bench) {
    bench
        .add([job(1).queue("a").priority(-5), job(2).queue("b"), job(3).queue("c"), job(4).queue("b")])
        .await;
    let queues = vec!["b".to_owned(), "a".to_owned(), "none".to_owned()];
    let order = bench.claim_ids(ClaimRequest { queues, limit: 9, ..bench.request() }).await;
    assert_eq!(order, [2, 4, 1].map(id));
}

pub(super) async fn only_the_kinds_asked_for_are_handed_out(bench: &Bench) {
    let of = |number, kind: &str| NewJob { kind: kind.to_owned(), ..job(number) };
    bench.add([of(1, "a"), of(2, "b"), of(3, "c"), of(4, "b")]).await;
    let kinds = Some(vec!["b".to_owned(), "c".to_owned()]);
    let order = bench.claim_ids(ClaimRequest { kinds, limit: 2, ..bench.request() }).await;
    assert_eq!(order, [2, 3].map(id));
    let none = ClaimRequest { kinds: Some(Vec::new()), limit: 9, ..bench.request() };
    assert!(bench.claim_with(none).await.is_empty());
}

pub(super) async fn a_claim_takes_no_more_than_its_limit(bench: &Bench) {
    bench.add((1..=5).map(job)).await;
    assert_eq!(bench.claim(0).await.len(), 0);
    assert_eq!(bench.claim(2).await.len(), 2);
    assert_eq!(bench.claim(9).await.len(), 3);
}

pub(super) async fn one_claim_takes_at_most_a_thousand(bench: &Bench) {
    bench.add((1..=1_005).map(job)).await;
    assert_eq!(bench.claim(5_000).await.len(), 1_000);
}

pub(super) async fn a_paused_queue_hands_out_nothing(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let running = bench.start(1).await;
    let pause =
        |paused| QueueChange { name: "default".to_owned(), paused: Some(paused), ..QueueChange::default() };
    bench.store.set_queue(pause(true)).await.expect("set_queue answers");
    assert!(bench.claim(9).await.is_empty());
    bench.settle(&running, done("1")).await;
    bench.expect(&[(1, State::Succeeded)]).await;
    bench.store.set_queue(pause(false)).await.expect("set_queue answers");
    bench.start(2).await;
}

pub(super) async fn a_queues_limit_holds_over_all_workers(bench: &Bench) {
    bench.add((1..=4).map(job)).await;
    bench.add([job(5).queue("other")]).await;
    let limit =
        |max| QueueChange { name: "default".to_owned(), max_running: Some(max), ..QueueChange::default() };
    bench.store.set_queue(limit(Some(2))).await.expect("set_queue answers");
    let first = bench.start(1).await;
    let queues = vec!["default".to_owned(), "other".to_owned()];
    let both = ClaimRequest { queues, worker: WorkerId::new("w2"), limit: 9, ..bench.request() };
    assert_eq!(bench.claim_ids(both).await, [2, 5].map(id));
    bench.settle(&first, done("1")).await;
    assert_eq!(bench.claim(9).await.len(), 1);
    bench.store.set_queue(limit(None)).await.expect("set_queue answers");
    assert_eq!(bench.claim(9).await.len(), 1);
}

pub(super) async fn a_job_past_its_expiry_is_cancelled_instead_of_handed_out(bench: &Bench) {
    let expires_at = Some(bench.now() + secs(5));
    bench
        .add([NewJob { expires_at, ..job(1) }, job(2).after(id(1)), NewJob { expires_at, ..job(3) }, job(4)])
        .await;
    bench.start(1).await;
    bench.pass(secs(5));
    bench.start(4).await;
    // A running job does not expire.
    bench.expect(&[(1, State::Running), (2, State::Blocked), (3, State::Cancelled)]).await;
    assert_eq!(bench.reason(3).await, Some(Reason::Expired));
}

pub(super) async fn no_more_suspects_than_asked_for_are_handed_out(bench: &Bench) {
    bench.add((1..=3).map(job)).await;
    assert_eq!(bench.claim(9).await.len(), 3);
    bench.pass(LEASE_FOR);
    bench.rescue().await;
    bench.add([job(4)]).await;
    bench.pass(secs(1));
    bench.promote().await;
    let claim = |suspects_max| ClaimRequest { limit: 9, suspects_max, ..bench.request() };
    assert_eq!(bench.claim_ids(claim(0)).await, [4].map(id));
    assert_eq!(bench.claim_with(claim(1)).await.len(), 1);
    assert_eq!(bench.claim_with(claim(5)).await.len(), 2);
}

pub(super) async fn a_kind_named_twice_is_served_once(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let kinds = Some(vec!["work".to_owned(), "work".to_owned()]);
    let claimed = bench.claim_with(ClaimRequest { kinds, limit: 9, ..bench.request() }).await;
    let fences: Vec<_> = claimed.iter().map(|claimed| (claimed.job.id, claimed.lease.fence)).collect();
    assert_eq!(fences, [(id(1), 1), (id(2), 1)]);
}

pub(super) async fn what_has_expired_hides_nobody(bench: &Bench) {
    let expiring = |number| NewJob { expires_at: Some(bench.now() + LEASE_FOR + secs(2)), ..job(number) };
    let later: Vec<NewJob> = (11..=15).map(expiring).collect();
    bench.add([expiring(1), job(2)]).await;
    bench.claim(2).await;
    bench.pass(LEASE_FOR);
    bench.rescue().await;
    bench.pass(secs(1));
    bench.promote().await;
    bench.add(later.into_iter().chain([job(16), job(17)])).await;
    bench.pass(secs(1));
    let request = ClaimRequest { limit: 2, suspects_max: 1, ..bench.request() };
    // The first has run before, so its expiry binds it no more.
    assert_eq!(bench.claim_ids(request).await, [1, 16].map(id));
    for number in [11, 12, 13, 14, 15] {
        assert_eq!(bench.reason(number).await, Some(Reason::Expired));
    }
}

pub(super) async fn what_an_expiry_releases_waits_for_the_next_claim(bench: &Bench) {
    let expiring = NewJob { expires_at: Some(bench.now() + secs(1)), ..job(1) };
    bench.add([expiring, job(2).after_with(id(1), OnFailure::Run)]).await;
    bench.pass(secs(1));
    assert!(bench.claim(9).await.is_empty());
    bench.start(2).await;
}

pub(super) async fn the_fence_rises_with_each_claim_and_never_falls(bench: &Bench) {
    bench.add([job(1)]).await;
    for fence in 1..=3 {
        let claimed = bench.start(1).await;
        assert_eq!(claimed.lease.fence, fence);
        bench.settle(&claimed, Event::Release).await;
    }
    bench.cancel(1).await;
    bench.retry(1).await.expect("a cancelled job can be retried");
    bench.clock.set(bench.now() - secs(3_600));
    assert_eq!(bench.start(1).await.lease.fence, 4);
}

pub(super) async fn a_checkpoint_comes_with_the_next_claim(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, again(secs(0), r#"{"page":7}"#)).await;
    assert_eq!(bench.start(1).await.data, Some(json(r#"{"page":7}"#)));
}

/// Settles the urgent job 1 and claims without waiting for the answer; the claim must hand out `number`, and not one of the jobs
/// that wait beside it.
async fn settle_and_claim(bench: &Bench, event: Event, follow_ups: Vec<NewJob>, number: u64) {
    let claimed = bench.start(1).await;
    let item = bench.item(&claimed, event, follow_ups);
    let settle = bench.store.settle(vec![item], bench.now());
    let (settled, claimed) = tokio::join!(biased; settle, bench.store.claim(bench.request()));
    assert!(matches!(settled.as_deref(), Ok([Settled::Applied(_)])), "{settled:?}");
    let claimed = claimed.expect("claim answers").pop().expect("a job is ready");
    assert_eq!(claimed.job.id, id(number), "the claim has overtaken the settlement");
}

fn urgent(number: u64) -> NewJob {
    job(number).priority(-1)
}

pub(super) async fn a_claim_behind_a_settle_sees_the_job_that_continues(bench: &Bench) {
    bench.add([urgent(1), job(2)]).await;
    settle_and_claim(bench, again(secs(0), "1"), Vec::new(), 1).await;
}

pub(super) async fn a_claim_behind_a_settle_sees_the_child_it_releases(bench: &Bench) {
    bench.add([urgent(1), job(2), urgent(3).after(id(1))]).await;
    settle_and_claim(bench, done("1"), Vec::new(), 3).await;
}

pub(super) async fn a_claim_behind_a_settle_sees_its_follow_ups(bench: &Bench) {
    bench.add([urgent(1), job(2)]).await;
    settle_and_claim(bench, done("1"), vec![urgent(3)], 3).await;
}

pub(super) async fn a_claim_behind_a_settle_sees_a_park_whose_signal_was_there(bench: &Bench) {
    bench.add([urgent(1), job(2)]).await;
    bench.signal("p", Signal::Resume(json("1"))).await;
    settle_and_claim(bench, park("p"), Vec::new(), 1).await;
}
