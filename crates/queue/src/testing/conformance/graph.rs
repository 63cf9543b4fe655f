//! Dependencies: release, cascade, hold, revival, and results that outlive the parent.

use crate::job::{JobId, NewJob, OnFailure, ParentResult};
use crate::state::{JobError, Reason, State};
use crate::testing::Bench;
use crate::testing::bench::{done, give_up, id, invalid, job, json, secs};

use State::{Blocked, Cancelled, Failed, Ready, Scheduled, Succeeded};

fn brought(parent: u64, state: State, result: Option<&str>) -> ParentResult {
    ParentResult { job_id: id(parent), state, result: result.map(json) }
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
