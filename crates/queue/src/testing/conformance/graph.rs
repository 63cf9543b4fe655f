//! Dependencies: release, cascade, hold, revival, and results that outlive the parent.

use crate::job::{JobId, NewJob, OnFailure, ParentResult, Unique};
use crate::state::{JobError, Reason, State};
use crate::testing::Bench;
use crate::testing::bench::{done, give_up, id, invalid, job, json, park, secs};

use State::{Blocked, Cancelled, Failed, Ready, Scheduled, Succeeded};

fn brought(parent: u64, state: State, result: Option<&str>) -> ParentResult {
    // Failures of these cases are those of `give_up`.
    let error = (state == Failed).then(|| JobError::new(Reason::Failure, "cannot work"));
    ParentResult { job_id: id(parent), state, result: result.map(json), error }
}

pub(super) async fn the_last_parents_success_releases_the_child(bench: &Bench) {
    bench.add([job(1), job(2), job(3).after(id(2)).after(id(1))]).await;
    bench.run(1, done("1")).await;
    bench.expect(&[(3, Blocked)]).await;
    assert_eq!(bench.detail(3).await.job.waits_for, 1);
    bench.run(2, done("2")).await;
    bench.expect(&[(3, Ready)]).await;
    let parents = bench.start(3).await.parents;
    assert_eq!(parents, [brought(2, Succeeded, Some("2")), brought(1, Succeeded, Some("1"))]);
}

pub(super) async fn children_may_come_before_their_parents(bench: &Bench) {
    bench.add([job(3).after(id(2)), job(2).after(id(1)), job(1)]).await;
    bench.expect(&[(1, Ready), (2, Blocked), (3, Blocked)]).await;
    bench.run(1, done("1")).await;
    bench.run(2, done("2")).await;
    bench.start(3).await;
}

/// True graphs, not trees.
pub(super) async fn a_diamond_joins_once(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1)), job(3).after(id(1)), job(4).after(id(2)).after(id(3))]).await;
    bench.run(1, done("1")).await;
    bench.run(2, done("2")).await;
    bench.expect(&[(4, Blocked)]).await;
    bench.run(3, done("3")).await;
    bench.run(4, done("4")).await;
    assert!(bench.claim(9).await.is_empty());
}

pub(super) async fn a_released_child_still_waits_for_its_time(bench: &Bench) {
    let later = bench.now() + secs(60);
    bench.add([job(1), job(2).after(id(1)).run_at(later)]).await;
    bench.run(1, done("1")).await;
    bench.expect(&[(2, Scheduled)]).await;
    bench.pass(secs(60));
    bench.promote().await;
    bench.expect(&[(2, Ready)]).await;
}

pub(super) async fn a_parent_that_succeeded_before_is_no_wait(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, done("1")).await;
    assert_eq!(bench.add_one(job(2).after(id(1))).await.state, Ready);
    assert_eq!(bench.start(2).await.parents, [brought(1, Succeeded, Some("1"))]);
}

pub(super) async fn a_parent_that_failed_before_acts_by_its_edge(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, give_up()).await;
    let batch = [
        job(5).after(id(2)),
        job(2).after(id(1)),
        job(3).after_with(id(1), OnFailure::Run),
        job(4).after_with(id(1), OnFailure::Hold),
    ];
    let states: Vec<State> = bench.add(batch).await.iter().map(|job| job.state).collect();
    assert_eq!(states, [Cancelled, Cancelled, Ready, Blocked]);
    assert_eq!(bench.detail(2).await.job.error, Some(JobError::dependency(id(1), Failed)));
    assert_eq!(bench.detail(5).await.job.error, Some(JobError::dependency(id(2), Cancelled)));
    assert_eq!(bench.detail(5).await.job.finished_at, Some(bench.now()));
}

pub(super) async fn a_failed_parent_cancels_its_children_and_theirs(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1)), job(3).after(id(2)), job(4)]).await;
    bench.run(1, give_up()).await;
    bench.expect(&[(1, Failed), (2, Cancelled), (3, Cancelled), (4, Ready)]).await;
    assert_eq!(bench.detail(2).await.job.error, Some(JobError::dependency(id(1), Failed)));
    assert_eq!(bench.detail(3).await.job.error, Some(JobError::dependency(id(2), Cancelled)));
}

pub(super) async fn a_cancelled_parent_counts_as_failed(bench: &Bench) {
    let batch = [
        job(1),
        job(2).after(id(1)),
        job(3).after_with(id(1), OnFailure::Run),
        job(4).after_with(id(1), OnFailure::Hold),
    ];
    bench.add(batch).await;
    bench.cancel(1).await;
    bench.expect(&[(2, Cancelled), (3, Ready), (4, Blocked)]).await;
}

pub(super) async fn a_run_edge_is_satisfied_by_any_end(bench: &Bench) {
    bench.add([job(1), job(2).after_with(id(1), OnFailure::Run)]).await;
    bench.run(1, give_up()).await;
    assert_eq!(bench.start(2).await.parents, [brought(1, Failed, None)]);
}

pub(super) async fn a_child_learns_why_its_parent_ended_without_its_handler(bench: &Bench) {
    let hook = |number: u64, parent: u64| job(number).after_with(id(parent), OnFailure::Run);
    let expires_at = Some(bench.now() + secs(1));
    bench
        .add([job(1).max_crashes(1), NewJob { expires_at, ..job(2) }.queue("idle"), job(3).queue("idle")])
        .await;
    bench.add([job(4).after(id(3)), hook(11, 1), hook(12, 2), hook(13, 3), hook(14, 4)]).await;
    bench.start(1).await;
    bench.crash().await;
    bench.promote().await;
    bench.cancel(3).await;
    let mut reasons = Vec::new();
    for number in 11..=14 {
        let parent = bench.start(number).await.parents.remove(0);
        assert_eq!(parent.error, bench.detail(number - 10).await.job.error, "as the parent has it");
        reasons.push(parent.error.map(|error| error.reason));
    }
    let expected = [Reason::Poison, Reason::Expired, Reason::Cancelled, Reason::Dependency];
    assert_eq!(reasons, expected.map(Some));
}

pub(super) async fn a_late_child_learns_why_its_parent_failed(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, give_up()).await;
    bench.add([job(2).after_with(id(1), OnFailure::Run)]).await;
    bench.delete(&[1]).await;
    assert_eq!(bench.start(2).await.parents, [brought(1, Failed, None)]);
}

pub(super) async fn a_run_child_runs_again_after_the_parents_next_end(bench: &Bench) {
    bench.add([job(1), job(2).after_with(id(1), OnFailure::Run)]).await;
    bench.run(1, give_up()).await;
    bench.run(2, done("1")).await;
    bench.pass(secs(1));
    bench.retry(1).await.expect("a failed job can be retried");
    let child = bench.detail(2).await;
    assert_eq!((child.job.state, child.job.waits_for, child.result), (Blocked, 1, None));
    assert_eq!((child.depends_on[0].satisfied, child.depends_on[0].ended), (false, None));
    assert_eq!(child.runs.len(), 1, "what it did before is told: {:?}", child.runs);
    bench.run(1, give_up()).await;
    let claimed = bench.start(2).await;
    assert_eq!(claimed.parents, [brought(1, Failed, None)]);
    bench.settle(&claimed, give_up()).await;
    bench.retry(1).await.expect("a failed job can be retried");
    bench.run(1, done("3")).await;
    assert_eq!(bench.start(2).await.parents, [brought(1, Succeeded, Some("3"))]);
    assert_eq!(bench.detail(2).await.runs.len(), 2);
}

pub(super) async fn a_retried_parent_takes_back_only_what_has_not_begun(bench: &Bench) {
    let hook = |number: u64| job(number).after_with(id(1), OnFailure::Run);
    let urgent = [job(1).priority(-1), job(7).queue("idle")];
    bench.add(urgent.into_iter().chain([hook(2), hook(3), hook(4), hook(5), hook(6).after(id(7))])).await;
    bench.run(1, give_up()).await;
    bench.cancel(5).await;
    let running = bench.start(2).await;
    bench.run(3, park("p")).await;
    bench.retry(1).await.expect("a failed job can be retried");
    // What a person cancelled stays so.
    bench
        .expect(&[(2, State::Running), (3, State::Parked), (4, Blocked), (5, Cancelled), (6, Blocked)])
        .await;
    assert_eq!(bench.detail(6).await.job.waits_for, 2);
    bench.settle(&running, done("1")).await;
    bench.run(1, give_up()).await;
    bench.expect(&[(2, Succeeded), (3, State::Parked), (4, Ready), (5, Cancelled), (6, Blocked)]).await;
}

pub(super) async fn a_run_child_comes_back_with_its_own_unique_key(bench: &Bench) {
    let hook =
        |number: u64, key: &str| job(number).after_with(id(1), OnFailure::Run).unique(Unique::key(key));
    bench.add([job(1), hook(2, "a"), hook(3, "b")]).await;
    bench.run(1, give_up()).await;
    bench.run(2, done("1")).await;
    bench.retry(1).await.expect("a failed job can be retried");
    // One had freed its key, the other has it still.
    bench.expect(&[(2, Blocked), (3, Blocked)]).await;
    assert_eq!(bench.add_one(job(9).unique(Unique::key("a"))).await.id, id(2));
}

pub(super) async fn a_long_chain_falls_in_one_call(bench: &Bench) {
    let chain = (2..=300).map(|number| job(number).after(id(number - 1)));
    bench.add(std::iter::once(job(1)).chain(chain)).await;
    bench.cancel(1).await;
    bench.expect(&[(1, Cancelled), (150, Cancelled), (300, Cancelled)]).await;
}

pub(super) async fn a_held_child_waits_until_the_parent_is_retried(bench: &Bench) {
    bench.add([job(1), job(2).after_with(id(1), OnFailure::Hold)]).await;
    bench.run(1, give_up()).await;
    let parent = bench.detail(2).await.depends_on.remove(0);
    assert_eq!((parent.satisfied, parent.ended), (false, Some(Failed)));
    bench.retry(1).await.expect("a failed job can be retried");
    let parent = bench.detail(2).await.depends_on.remove(0);
    assert_eq!((parent.satisfied, parent.ended), (false, None));
    bench.run(1, done("1")).await;
    bench.expect(&[(2, Ready)]).await;
}

pub(super) async fn unhold_drops_the_edges_that_hold(bench: &Bench) {
    let hold = |job: NewJob, parent: JobId| job.after_with(parent, OnFailure::Hold);
    bench.add([job(1), job(2), hold(hold(job(3), id(1)), id(2))]).await;
    assert!(invalid(bench.store.unhold(id(3), bench.now()).await).contains("blocked"));
    bench.run(1, give_up()).await;
    assert_eq!(bench.store.unhold(id(3), bench.now()).await, Ok(Blocked));
    bench.run(2, give_up()).await;
    assert_eq!(bench.store.unhold(id(3), bench.now()).await, Ok(Ready));
    let parents = bench.start(3).await.parents;
    assert_eq!(parents, [brought(1, Failed, None), brought(2, Failed, None)]);
}

pub(super) async fn unhold_refuses_what_is_not_held(bench: &Bench) {
    bench.add([job(1)]).await;
    assert!(invalid(bench.store.unhold(id(1), bench.now()).await).contains("is ready"));
    let missing = bench.store.unhold(id(9), bench.now()).await;
    assert!(matches!(missing, Err(crate::Error::NotFound(_))), "{missing:?}");
}

pub(super) async fn a_parent_that_holds_a_child_cannot_be_deleted(bench: &Bench) {
    bench.add([job(1), job(2).after_with(id(1), OnFailure::Hold)]).await;
    bench.run(1, give_up()).await;
    let mut deleted = bench.delete(&[1]).await;
    assert_eq!((deleted.deleted, deleted.refused.len()), (0, 1));
    let text = invalid::<()>(Err(deleted.refused.remove(0).1));
    assert!(text.contains(&id(2).to_string()), "{text}");
    bench.cancel(2).await;
    assert_eq!(bench.delete(&[1]).await.deleted, 1);
}

pub(super) async fn retrying_a_parent_revives_the_children_it_cancelled(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1)), job(3).after(id(2)), job(4).after(id(1))]).await;
    bench.cancel(4).await;
    bench.run(1, give_up()).await;
    bench.expect(&[(2, Cancelled), (3, Cancelled)]).await;
    assert_eq!(bench.retry(1).await, Ok(Ready));
    // What a person cancelled stays so.
    bench.expect(&[(1, Ready), (2, Blocked), (3, Blocked), (4, Cancelled)]).await;
    let revived = bench.detail(2).await.job;
    assert_eq!((revived.finished_at, revived.error, revived.waits_for), (None, None, 1));
    bench.run(1, done("1")).await;
    bench.run(2, done("2")).await;
    assert_eq!(bench.start(3).await.parents, [brought(2, Succeeded, Some("2"))]);
}

pub(super) async fn a_child_of_two_failed_parents_comes_back_with_the_second(bench: &Bench) {
    bench.add([job(1), job(2), job(3).after(id(1)).after(id(2))]).await;
    bench.run(1, give_up()).await;
    bench.run(2, give_up()).await;
    bench.retry(1).await.expect("a failed job can be retried");
    bench.expect(&[(3, Cancelled)]).await;
    bench.retry(2).await.expect("a failed job can be retried");
    bench.expect(&[(3, Blocked)]).await;
    assert_eq!(bench.detail(3).await.job.waits_for, 2);
}

pub(super) async fn retrying_a_child_waits_for_unfinished_parents_only(bench: &Bench) {
    bench.add([job(1), job(2), job(3).after(id(1)).after(id(2))]).await;
    bench.run(1, give_up()).await;
    assert_eq!(bench.retry(3).await, Ok(Blocked));
    assert_eq!(bench.detail(3).await.job.waits_for, 1);
    bench.run(2, done("2")).await;
    assert_eq!(bench.start(3).await.parents, [brought(1, Failed, None), brought(2, Succeeded, Some("2"))]);
}

pub(super) async fn deleting_a_parent_never_starves_a_child(bench: &Bench) {
    bench.add([job(1), job(2), job(3).after(id(1)).after(id(2))]).await;
    bench.run(1, done(r#""precious""#)).await;
    assert_eq!(bench.delete(&[1]).await.deleted, 1);
    bench.run(2, done("2")).await;
    assert_eq!(bench.start(3).await.parents[0], brought(1, Succeeded, Some(r#""precious""#)));
}

pub(super) async fn a_child_that_ended_before_gets_no_second_end(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    bench.cancel(2).await;
    let error = bench.detail(2).await.job.error;
    bench.run(1, give_up()).await;
    let detail = bench.detail(2).await;
    assert_eq!((detail.job.state, detail.job.error), (Cancelled, error));
    assert_eq!(bench.reason(2).await, Some(Reason::Cancelled));
    assert_eq!(detail.depends_on[0].ended, Some(Failed));
}

pub(super) async fn a_child_that_fell_with_a_member_waits_for_no_older_parent(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    bench.run(1, done("1")).await;
    bench.run(2, give_up()).await;
    bench.add([job(3).after(id(2)), job(4).after(id(3)).after(id(1))]).await;
    bench.expect(&[(3, Cancelled), (4, Cancelled)]).await;
    bench.delete(&[1]).await;
    assert_eq!(bench.retry(3).await, Ok(Ready));
    bench.run(3, done("3")).await;
    assert_eq!(
        bench.start(4).await.parents,
        [brought(3, Succeeded, Some("3")), brought(1, Succeeded, Some("1"))]
    );
}

pub(super) async fn a_new_job_with_a_deleted_parents_id_is_not_the_parent(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    bench.run(1, give_up()).await;
    bench.delete(&[1]).await;
    bench.add([job(1)]).await;
    bench.run(1, done("1")).await;
    let detail = bench.detail(2).await;
    assert_eq!((detail.job.state, detail.job.waits_for), (Cancelled, 1));
    assert_eq!(detail.depends_on[0].ended, Some(Failed));
}
