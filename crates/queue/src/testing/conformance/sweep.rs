//! What time moves: promotion, expiry, retention. Times that jump back harm nothing.

use crate::job::{NewJob, OnFailure, Retention};
use crate::state::{JobError, OnTimeout, Reason, State};
use crate::store::{QueueChange, Signal};
use crate::testing::Bench;
use crate::testing::bench::{
    LEASE_FOR, again, days, done, give_up, id, invalid, job, json, park, park_until, secs,
};

pub(super) async fn a_due_job_becomes_ready(bench: &Bench) {
    let now = bench.now();
    bench.add([job(1).run_at(now + secs(5)), job(2).run_at(now + secs(6))]).await;
    let swept = bench.promote().await;
    assert_eq!((swept.changed, swept.next_at), (0, Some(now + secs(5))));
    bench.pass(secs(5));
    let swept = bench.promote().await;
    assert_eq!((swept.changed, swept.next_at), (1, Some(now + secs(6))));
    bench.expect(&[(1, State::Ready), (2, State::Scheduled)]).await;
    assert_eq!(bench.detail(1).await.job.run_at, now + secs(5));
}

pub(super) async fn a_scheduled_job_can_be_started_now(bench: &Bench) {
    let now = bench.now();
    bench.add([job(1).run_at(now + secs(60)), job(2)]).await;
    bench.pass(secs(5));
    assert_eq!(bench.store.run_now(id(1), bench.now()).await, Ok(State::Ready));
    assert_eq!(bench.detail(1).await.job.run_at, now + secs(5));
    assert_eq!(bench.promote().await.next_at, None, "nothing is left to wait for");
    assert!(invalid(bench.store.run_now(id(2), bench.now()).await).contains("is ready"));
    bench.start(2).await;
    bench.run(1, again(secs(60), "1")).await;
    bench.expect(&[(1, State::Scheduled)]).await;
    assert_eq!(bench.store.run_now(id(1), bench.now()).await, Ok(State::Ready));
    assert_eq!(bench.start(1).await.data, Some(json("1")));
    let missing = bench.store.run_now(id(9), bench.now()).await;
    assert!(matches!(missing, Err(crate::Error::NotFound(_))), "{missing:?}");
}

pub(super) async fn a_sweep_cut_by_its_limit_wants_to_come_back_at_once(bench: &Bench) {
    let now = bench.now();
    bench.add((1..=3).map(|number| job(number).run_at(now + secs(10 - number)))).await;
    bench.pass(secs(10));
    let swept = bench.store.promote_due(bench.now(), 2).await.expect("promote answers");
    assert_eq!(swept.changed, 2);
    assert!(swept.next_at.is_some_and(|at| at <= bench.now()));
    bench.expect(&[(1, State::Scheduled), (2, State::Ready), (3, State::Ready)]).await;
    assert_eq!(bench.promote().await.changed, 1);
    assert_eq!(bench.promote().await.next_at, None);
}

pub(super) async fn jobs_that_never_started_expire_in_every_waiting_state(bench: &Bench) {
    let expires_at = Some(bench.now() + secs(5));
    let expiring = |number| NewJob { expires_at, ..job(number) };
    let later = bench.now() + secs(3);
    bench
        .add([job(1), expiring(2), expiring(3).run_at(later), expiring(4).after(id(1)), job(5).after(id(4))])
        .await;
    bench.start(1).await;
    bench.run(2, park("k")).await;
    bench.add([expiring(6)]).await;
    bench.pass(secs(5));
    assert_eq!(bench.promote().await.changed, 3);
    for number in [3, 4, 6] {
        let found = bench.detail(number).await.job;
        assert_eq!((found.state, found.error), (State::Cancelled, Some(JobError::expired())));
    }
    bench.expect(&[(1, State::Running), (2, State::Parked), (5, State::Cancelled)]).await;
}

pub(super) async fn a_job_that_has_started_is_not_bound_to_its_expiry(bench: &Bench) {
    bench.add([NewJob { expires_at: Some(bench.now() + secs(5)), ..job(1) }]).await;
    bench.run(1, again(secs(60), "1")).await;
    bench.pass(secs(60));
    assert_eq!(bench.promote().await.changed, 1);
    assert_eq!(bench.start(1).await.data, Some(json("1")));
}

pub(super) async fn a_backlog_of_expired_jobs_keeps_no_claim_from_live_ones(bench: &Bench) {
    let expires_at = Some(bench.now() + secs(5));
    bench.add((1..=250).map(|number| NewJob { expires_at, ..job(number) })).await;
    bench.add([job(251)]).await;
    bench.pass(secs(5));
    // A claim cancels some on its way and may answer short, as long as it comes closer each time.
    for _ in 0..10 {
        if let Some(claimed) = bench.claim(1).await.pop() {
            assert_eq!(claimed.job.id, id(251));
            return;
        }
    }
    panic!("ten claims did not reach the live job");
}

pub(super) async fn a_running_job_does_not_expire(bench: &Bench) {
    bench.add([NewJob { expires_at: Some(bench.now() + secs(5)), ..job(1) }]).await;
    let claimed = bench.start(1).await;
    bench.pass(secs(9));
    assert_eq!(bench.promote().await.changed, 0);
    bench.settle(&claimed, done("1")).await;
    bench.expect(&[(1, State::Succeeded)]).await;
}

pub(super) async fn a_sweep_that_finds_nothing_changes_nothing(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.start(1).await;
    bench.run(2, park_until("k", Some(bench.now() + secs(9)), OnTimeout::Fail)).await;
    let before = bench.snapshot().await;
    assert_eq!(
        (bench.promote().await.changed, bench.rescue().await.changed, bench.prune().await.changed),
        (0, 0, 0)
    );
    assert_eq!(bench.snapshot().await, before);
}

pub(super) async fn a_clock_that_steps_back_harms_nothing(bench: &Bench) {
    bench.add([job(1), job(2).run_at(bench.now() + secs(5))]).await;
    bench.pass(secs(5));
    bench.promote().await;
    let claimed = bench.start(1).await;
    bench.clock.set(bench.now() - secs(7_200));
    assert_eq!((bench.promote().await.changed, bench.rescue().await.changed), (0, 0));
    assert_eq!(bench.add_one(job(3)).await.seq, 3);
    bench.settle(&claimed, done("1")).await;
    bench.expect(&[(1, State::Succeeded), (2, State::Ready), (3, State::Ready)]).await;
    assert_eq!(bench.detail(1).await.job.finished_at, Some(bench.now()));
}

pub(super) async fn ended_jobs_go_when_their_time_is_over(bench: &Bench) {
    bench.add((1..=3).map(job)).await;
    bench.run(1, done("1")).await;
    bench.run(2, give_up()).await;
    bench.cancel(3).await;
    let next_at = bench.prune().await.next_at;
    assert_eq!(next_at, Some(bench.now() + days(1)));
    bench.pass(days(1));
    assert_eq!(bench.prune().await.changed, 1);
    assert!(bench.find(1).await.is_none());
    bench.pass(days(6));
    assert_eq!(bench.prune().await.changed, 2);
    assert_eq!(bench.store.counts().await.expect("counts answers"), []);
}

pub(super) async fn a_job_of_a_process_waits_for_its_consumer(bench: &Bench) {
    let ttl = Retention::UntilConsumed { ttl: Some(days(2)) };
    bench.add([job(1).process("p"), job(2).process("p").retention(ttl)]).await;
    bench.run(1, done("1")).await;
    bench.run(2, done("2")).await;
    bench.pass(days(2));
    bench.prune().await;
    bench.pass(days(9_999));
    bench.prune().await;
    assert!(bench.find(1).await.is_some());
    assert!(bench.find(2).await.is_none());
}

pub(super) async fn a_jobs_own_retention_wins_over_its_queues(bench: &Bench) {
    let keep = |seconds| Retention::Keep { succeeded: secs(seconds), failed: secs(2 * seconds) };
    let change =
        QueueChange { name: "default".to_owned(), retention: Some(Some(keep(10))), ..QueueChange::default() };
    bench.store.set_queue(change).await.expect("set_queue answers");
    bench.add([job(1), job(2).retention(keep(20)), job(3).process("p"), job(4)]).await;
    for number in 1..=3 {
        bench.run(number, done("1")).await;
    }
    bench.run(4, give_up()).await;
    bench.pass(secs(10));
    assert_eq!(bench.prune().await.changed, 2);
    assert!(bench.find(1).await.is_none() && bench.find(3).await.is_none());
    bench.pass(secs(10));
    assert_eq!(bench.prune().await.changed, 2);
}

pub(super) async fn retention_never_takes_a_parent_that_holds_a_child(bench: &Bench) {
    bench.add([job(1), job(2).after_with(id(1), OnFailure::Hold)]).await;
    bench.run(1, give_up()).await;
    bench.pass(days(7));
    assert_eq!(bench.prune().await.next_at, Some(bench.now() + days(1)));
    assert!(bench.find(1).await.is_some());
    bench.store.unhold(id(2), bench.now()).await.expect("it is held");
    bench.pass(days(1));
    bench.prune().await;
    assert!(bench.find(1).await.is_none());
}

pub(super) async fn a_retried_job_is_not_pruned(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, give_up()).await;
    bench.retry(1).await.expect("a failed job can be retried");
    bench.pass(days(30));
    bench.prune().await;
    bench.expect(&[(1, State::Ready)]).await;
}

pub(super) async fn a_pruned_signal_is_forgotten(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.signal("k", Signal::Resume(json("1"))).await;
    bench.pass(days(7));
    bench.prune().await;
    assert!(bench.signal("k", Signal::Resume(json("2"))).await.kept);
}

/// Jobs left running by workers that died are found, all of them.
pub(super) async fn nothing_stays_running_after_its_worker_died(bench: &Bench) {
    bench.add((1..=20).map(job)).await;
    assert_eq!(bench.claim(20).await.len(), 20);
    bench.pass(LEASE_FOR);
    assert_eq!(bench.rescue().await.changed, 20);
    bench.pass(secs(1));
    assert_eq!(bench.promote().await.changed, 20);
    assert_eq!(bench.claim(20).await.len(), 20);
    assert_eq!(bench.reason(1).await, Some(Reason::Crash));
}
