//! Lease: who may write a running job. A late writer changes nothing and is told.

use crate::error::Error;
use crate::job::{LogLine, Progress, WorkerId};
use crate::limits::LOG_LINES_MAX;
use crate::state::{Event, Reason, RunOutcome, State};
use crate::store::{ClaimRequest, ExtendRequest, Renewal, Save, Settled};
use crate::testing::Bench;
use crate::testing::bench::{LEASE_FOR, again, done, id, job, json, secs, with_fence};

fn data(text: &str) -> Save {
    Save { data: Some(json(text)), ..Save::default() }
}

async fn extend(bench: &Bench, leases: Vec<crate::job::Lease>) -> Vec<Renewal> {
    let request = ExtendRequest { leases, lease_for: LEASE_FOR, now: bench.now() };
    bench.store.extend(request).await.expect("extend answers")
}

pub(super) async fn a_renewal_reaches_as_far_as_a_claim(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let claimed = bench.claim(2).await;
    bench.pass(secs(20));
    let renewals = extend(bench, claimed.iter().map(|claimed| claimed.lease.clone()).collect()).await;
    let until = bench.now() + LEASE_FOR;
    assert_eq!(renewals, [Renewal::Extended { until, cancel_requested: false }; 2]);
    assert_eq!(bench.detail(1).await.job.lease_until, Some(until));
}

/// A job longer than its lease must not run twice.
pub(super) async fn a_renewed_job_is_not_rescued_however_long_it_runs(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    for _ in 0..50 {
        bench.pass(secs(20));
        extend(bench, vec![claimed.lease.clone()]).await;
        assert_eq!(bench.rescue().await.changed, 0);
    }
    assert!(bench.claim(1).await.is_empty());
    assert_eq!(bench.settle(&claimed, done("1")).await, Settled::Applied(State::Succeeded));
}

pub(super) async fn a_lease_past_its_time_but_not_rescued_still_holds(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let claimed = bench.claim(2).await;
    bench.pass(secs(3_600));
    assert!(matches!(extend(bench, vec![claimed[0].lease.clone()]).await[0], Renewal::Extended { .. }));
    assert_eq!(bench.settle(&claimed[1], done("1")).await, Settled::Applied(State::Succeeded));
}

pub(super) async fn a_rescued_lease_is_lost_for_every_write(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    bench.crash().await;
    assert_lost(bench, &claimed).await;
}

pub(super) async fn late_settle_after_rescue_changes_nothing(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    let late = bench.start(1).await;
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    let other = ClaimRequest { worker: WorkerId::new("w2"), ..bench.request() };
    let current = bench.claim_with(other).await.remove(0);
    assert_lost(bench, &late).await;
    assert_eq!(bench.settle(&current, done("2")).await, Settled::Applied(State::Succeeded));
    assert_lost(bench, &late).await;
    assert_lost(bench, &current).await;
    assert_eq!(bench.detail(1).await.result, Some(json("2")));
}

/// A worker that comes back under the same name must not pass for its former self.
pub(super) async fn the_same_worker_name_does_not_revive_an_old_lease(bench: &Bench) {
    bench.add([job(1)]).await;
    let before = bench.start(1).await;
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    bench.start(1).await;
    assert_lost(bench, &before).await;
}

pub(super) async fn a_fence_from_the_future_is_lost(bench: &Bench) {
    bench.add([job(1)]).await;
    let mut claimed = bench.start(1).await;
    claimed.lease = with_fence(&claimed.lease, 7);
    assert_lost(bench, &claimed).await;
}

pub(super) async fn a_job_that_is_gone_is_a_lost_lease(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    bench.settle(&claimed, done("1")).await;
    bench.delete(&[1]).await;
    assert_lost(bench, &claimed).await;
}

async fn assert_lost(bench: &Bench, claimed: &crate::job::Claimed) {
    let before = bench.snapshot().await;
    assert_eq!(extend(bench, vec![claimed.lease.clone()]).await, [Renewal::Lost]);
    let saved = bench.store.save(claimed.lease.clone(), data("666"), bench.now()).await;
    assert_eq!(saved, Err(Error::LostLease(claimed.job.id)));
    let follow_ups = vec![job(666)];
    assert_eq!(bench.settle_with(claimed, done("666"), follow_ups).await, Settled::LostLease);
    assert_eq!(bench.settle(claimed, Event::Release).await, Settled::LostLease);
    assert_eq!(bench.snapshot().await, before, "a stale lease changed something");
}

/// A crash is visible in the history and costs no attempt.
pub(super) async fn a_crash_counts_apart_from_failures(bench: &Bench) {
    bench.add([job(1).max_attempts(1)]).await;
    bench.start(1).await;
    bench.crash().await;
    let detail = bench.detail(1).await;
    assert_eq!(
        (detail.job.state, detail.job.spent.crashes, detail.job.spent.attempt),
        (State::Scheduled, 1, 0)
    );
    assert_eq!(detail.job.run_at, bench.now() + secs(1));
    assert_eq!((detail.job.lease_until, detail.job.worker), (None, Some(WorkerId::new("w1"))));
    assert_eq!(detail.runs.len(), 1);
    let run = &detail.runs[0];
    assert_eq!((run.fence, run.outcome, run.ended_at), (1, RunOutcome::Crash, bench.now()));
    assert_eq!(run.error.as_ref().map(|error| error.reason), Some(Reason::Crash));
}

pub(super) async fn three_crashes_in_a_row_are_poison(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    for _ in 0..2 {
        bench.start(1).await;
        bench.crash().await;
        bench.pass(secs(4));
        bench.promote().await;
    }
    bench.start(1).await;
    bench.crash().await;
    bench.expect(&[(1, State::Failed), (2, State::Cancelled)]).await;
    assert_eq!(bench.reason(1).await, Some(Reason::Poison));
    assert_eq!(bench.detail(1).await.job.finished_at, Some(bench.now()));
}

pub(super) async fn new_data_sets_crashes_back(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.start(1).await;
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    let claimed = bench.start(1).await;
    assert_eq!(claimed.job.spent.crashes, 1);
    let save = |save| bench.store.save(claimed.lease.clone(), save, bench.now());
    save(Save::default()).await.expect("the lease holds");
    assert_eq!(bench.detail(1).await.job.spent.crashes, 1);
    save(data("1")).await.expect("the lease holds");
    assert_eq!(bench.detail(1).await.job.spent.crashes, 0);
}

pub(super) async fn the_same_data_again_is_no_progress(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, again(secs(0), "1")).await;
    bench.start(1).await;
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    let claimed = bench.start(1).await;
    bench.store.save(claimed.lease, data("1"), bench.now()).await.expect("the lease holds");
    assert_eq!(bench.detail(1).await.job.spent.crashes, 1);
}

pub(super) async fn data_survives_a_crash(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    bench.store.save(claimed.lease, data(r#"{"batch":"b-1"}"#), bench.now()).await.expect("the lease holds");
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    assert_eq!(bench.start(1).await.data, Some(json(r#"{"batch":"b-1"}"#)));
}

pub(super) async fn progress_and_log_are_kept_up_to_their_bound(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    let line = |number: usize| LogLine { at: bench.now(), text: format!("line {number}") };
    let progress = |done| Progress { done, total: Some(9), message: None, at: bench.now() };
    for (done, lines) in [(1, 0..3), (2, 3..LOG_LINES_MAX + 2)] {
        let save = Save { data: None, progress: Some(progress(done)), log: lines.map(line).collect() };
        bench.store.save(claimed.lease.clone(), save, bench.now()).await.expect("the lease holds");
    }
    let detail = bench.detail(1).await;
    assert_eq!((detail.progress, detail.data), (Some(progress(2)), None));
    assert_eq!(
        (detail.log.len(), &detail.log[0], detail.log.last()),
        (LOG_LINES_MAX, &line(2), Some(&line(LOG_LINES_MAX + 1)))
    );
}

pub(super) async fn rescue_takes_the_oldest_leases_first_and_says_when_to_come_back(bench: &Bench) {
    bench.add([job(1), job(2), job(3)]).await;
    for number in 1..=3 {
        bench.start(number).await;
        bench.pass(secs(10));
    }
    let swept = bench.rescue().await;
    assert_eq!((swept.changed, swept.next_at), (0, Some(bench.now() + secs(30))));
    bench.pass(secs(40));
    let now = bench.now();
    let swept = bench.store.rescue_expired(now, 1).await.expect("rescue answers");
    assert_eq!(swept.changed, 1);
    assert!(swept.next_at.is_some_and(|at| at <= now));
    bench.expect(&[(1, State::Scheduled), (2, State::Running), (3, State::Running)]).await;
}
