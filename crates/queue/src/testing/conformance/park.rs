//! Park and unpark: signals early, late, repeated or never.

use crate::job::Wake;
use crate::limits::SIGNAL_KEPT;
use crate::state::{Event, JobError, OnTimeout, Reason, RunOutcome, State};
use crate::store::{Signal, UnparkTarget};
use crate::testing::Bench;
use crate::testing::bench::{LEASE_FOR, again, give_up, id, job, json, park, park_until, secs};

fn resume(value: &str) -> Signal {
    Signal::Resume(json(value))
}

fn failure() -> JobError {
    JobError::new(Reason::Failure, "the batch expired")
}

pub(super) async fn park_waits_without_a_lease_and_costs_nothing(bench: &Bench) {
    bench.add([job(1)]).await;
    let until = bench.now() + secs(500);
    assert_eq!(bench.run(1, park_until("k", Some(until), OnTimeout::Fail)).await, State::Parked);
    let detail = bench.detail(1).await;
    assert_eq!((detail.job.spent.parks, detail.job.spent.attempt, detail.job.lease_until), (1, 0, None));
    let park = detail.job.park.expect("it is parked");
    assert_eq!((park.key.as_str(), park.until, park.on_timeout), ("k", Some(until), OnTimeout::Fail));
    assert_eq!((detail.job.run_at, detail.runs[0].outcome), (until, RunOutcome::Park));
    assert!(bench.claim(1).await.is_empty());
}

pub(super) async fn resume_runs_it_again_with_the_value(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    bench.pass(secs(5));
    let unparked = bench.signal("k", resume("7")).await;
    assert_eq!((unparked.jobs, unparked.kept), (vec![id(1)], false));
    let found = bench.detail(1).await.job;
    assert_eq!((found.state, found.park, found.run_at), (State::Ready, None, bench.now()));
    assert_eq!(bench.start(1).await.wake, Some(Wake::Signal(json("7"))));
}

pub(super) async fn a_crash_keeps_the_value_and_an_answer_drops_it(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    bench.signal("k", resume("7")).await;
    bench.start(1).await;
    bench.crash().await;
    bench.pass(secs(1));
    bench.promote().await;
    let claimed = bench.start(1).await;
    assert_eq!(claimed.wake, Some(Wake::Signal(json("7"))));
    bench.settle(&claimed, Event::Release).await;
    let claimed = bench.start(1).await;
    assert_eq!(claimed.wake, Some(Wake::Signal(json("7"))), "a release keeps it too");
    bench.settle(&claimed, again(secs(0), "1")).await;
    assert_eq!(bench.start(1).await.wake, None);
}

pub(super) async fn a_value_goes_with_the_end_of_its_job(bench: &Bench) {
    let mut fragile = job(1);
    fragile.options.max_crashes = Some(1);
    bench.add([fragile]).await;
    bench.run(1, park("k")).await;
    bench.signal("k", resume("7")).await;
    bench.start(1).await;
    bench.crash().await;
    assert_eq!(bench.retry(1).await, Ok(State::Ready));
    assert_eq!(bench.start(1).await.wake, None);
}

pub(super) async fn a_job_named_twice_is_woken_once(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    let error = JobError::new(Reason::Failure, "by signal");
    let unparked = bench.unpark(UnparkTarget::Ids(vec![id(1), id(1)]), Signal::Retry(error)).await;
    assert_eq!(unparked.jobs, [id(1)]);
    assert_eq!(bench.detail(1).await.job.spent.attempt, 1);
}

pub(super) async fn a_signal_may_end_the_job(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    bench.run(1, park("k")).await;
    bench.signal("k", Signal::Done(json("9"))).await;
    bench.expect(&[(1, State::Succeeded), (2, State::Ready)]).await;
    let detail = bench.detail(1).await;
    assert_eq!((detail.result, detail.job.park, detail.runs.len()), (Some(json("9")), None, 1));
}

pub(super) async fn a_signal_may_count_a_failure(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    bench.signal("k", Signal::Retry(failure())).await;
    let found = bench.detail(1).await.job;
    assert_eq!(
        (found.state, found.spent.attempt, found.run_at),
        (State::Scheduled, 1, bench.now() + secs(1))
    );
    assert_eq!((found.error, found.park), (Some(failure()), None));
}

pub(super) async fn a_signal_may_fail_the_job(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    bench.run(1, park("k")).await;
    bench.signal("k", Signal::Fail(failure())).await;
    bench.expect(&[(1, State::Failed), (2, State::Cancelled)]).await;
}

pub(super) async fn a_signal_before_the_park_is_kept_for_it(bench: &Bench) {
    bench.add([job(1)]).await;
    let unparked = bench.signal("k", resume("7")).await;
    assert_eq!((unparked.jobs, unparked.kept), (vec![], true));
    bench.pass(secs(5));
    assert_eq!(bench.run(1, park("k")).await, State::Ready);
    assert_eq!(bench.detail(1).await.job.run_at, bench.now());
    let claimed = bench.start(1).await;
    assert_eq!((claimed.wake, claimed.job.spent.parks), (Some(Wake::Signal(json("7"))), 1));
}

pub(super) async fn a_final_signal_before_the_park_ends_the_job(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.signal("done", Signal::Done(json("9"))).await;
    bench.signal("fail", Signal::Fail(failure())).await;
    assert_eq!(bench.run(1, park("done")).await, State::Succeeded);
    assert_eq!(bench.run(2, park("fail")).await, State::Failed);
    let detail = bench.detail(1).await;
    assert_eq!((detail.result, detail.job.park, detail.runs.len()), (Some(json("9")), None, 1));
}

pub(super) async fn the_first_signal_counts(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.signal("k", resume("1")).await;
    let repeated = bench.signal("k", resume("2")).await;
    assert_eq!((repeated.jobs, repeated.kept), (vec![], false));
    bench.run(1, park("k")).await;
    assert_eq!(bench.start(1).await.wake, Some(Wake::Signal(json("1"))));
}

pub(super) async fn a_signal_is_forgotten_after_its_time(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.signal("k", resume("1")).await;
    bench.pass(SIGNAL_KEPT);
    assert_eq!(bench.run(1, park("k")).await, State::Parked);
    assert_eq!(bench.signal("k", resume("2")).await.jobs, [id(1)]);
    assert_eq!(bench.start(1).await.wake, Some(Wake::Signal(json("2"))));
}

pub(super) async fn one_signal_wakes_all_that_wait_for_it(bench: &Bench) {
    bench.add([job(1), job(2), job(3)]).await;
    bench.run(1, park("k")).await;
    bench.run(2, park("other")).await;
    bench.run(3, park("k")).await;
    assert_eq!(bench.signal("k", resume("1")).await.jobs, [id(1), id(3)]);
    bench.expect(&[(1, State::Ready), (2, State::Parked), (3, State::Ready)]).await;
}

pub(super) async fn unpark_by_id_ignores_what_is_not_parked(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.run(1, park("k")).await;
    let unparked = bench.unpark(UnparkTarget::Ids(vec![id(2), id(1), id(9)]), resume("5")).await;
    assert_eq!((unparked.jobs, unparked.kept), (vec![id(1)], false));
    bench.expect(&[(1, State::Ready), (2, State::Ready)]).await;
    // No signal was stored: the next park on the key waits.
    bench.cancel(2).await;
    bench.run(1, park("k")).await;
    bench.expect(&[(1, State::Parked)]).await;
}

pub(super) async fn unpark_of_waiting_jobs_looks_at_the_key_too(bench: &Bench) {
    bench.add([job(1), job(2), job(3)]).await;
    bench.run(1, park("k")).await;
    bench.run(2, park("other")).await;
    let waiting = || UnparkTarget::Waiting { key: "k".to_owned(), ids: vec![id(3), id(2), id(1), id(1)] };
    let unparked = bench.unpark(waiting(), resume("5")).await;
    assert_eq!((unparked.jobs, unparked.kept), (vec![id(1)], false));
    // Told again, it is not told: it waits for nothing now, and nothing was kept for its next wait.
    assert_eq!(bench.unpark(waiting(), resume("6")).await.jobs, []);
    assert_eq!(bench.start(1).await.wake, Some(Wake::Signal(json("5"))));
    bench.run(3, park("k")).await;
    bench.expect(&[(2, State::Parked), (3, State::Parked)]).await;
}

pub(super) async fn a_park_past_its_time_resumes_by_default(bench: &Bench) {
    bench.add([job(1)]).await;
    let until = bench.now() + secs(60);
    bench.run(1, park_until("k", Some(until), OnTimeout::Resume)).await;
    assert_eq!(bench.promote().await.next_at, Some(until));
    bench.pass(secs(60));
    assert_eq!(bench.promote().await.changed, 1);
    assert_eq!(bench.start(1).await.wake, Some(Wake::TimedOut));
}

pub(super) async fn a_park_past_its_time_fails_or_retries_if_it_says_so(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let until = Some(bench.now() + secs(60));
    bench.run(1, park_until("a", until, OnTimeout::Retry)).await;
    bench.run(2, park_until("b", until, OnTimeout::Fail)).await;
    bench.pass(secs(60));
    bench.promote().await;
    bench.expect(&[(1, State::Scheduled), (2, State::Failed)]).await;
    assert_eq!(bench.detail(1).await.job.run_at, bench.now() + secs(1));
    for (number, key) in [(1, "a"), (2, "b")] {
        let found = bench.detail(number).await.job;
        assert_eq!((found.error, found.spent.attempt), (Some(JobError::park_timeout(key)), 1));
    }
}

pub(super) async fn a_park_without_end_waits_for_ever(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    bench.pass(LEASE_FOR * 1_000_000);
    assert_eq!((bench.promote().await.changed, bench.rescue().await.changed), (0, 0));
    bench.expect(&[(1, State::Parked)]).await;
}

pub(super) async fn a_cancelled_park_takes_no_signal(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    bench.cancel(1).await;
    assert!(bench.signal("k", resume("1")).await.kept);
    bench.expect(&[(1, State::Cancelled)]).await;
}

pub(super) async fn a_parked_job_cannot_be_deleted(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, park("k")).await;
    assert_eq!(bench.delete(&[1]).await.refused.len(), 1);
    bench.signal("k", resume("1")).await;
    bench.run(1, give_up()).await;
    assert_eq!(bench.delete(&[1]).await.deleted, 1);
}
