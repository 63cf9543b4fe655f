//! Changes of jobs that wait, or have not come through.

use crate::error::{Error, Result};
use crate::job::{JobChange, JobId};
use crate::state::{Reason, State};
use crate::store::InsertOutcome;
use crate::testing::Bench;
use crate::testing::bench::{again, done, give_up, id, invalid, job, json, park, retry_later, secs};

fn payload(text: &str) -> JobChange {
    JobChange { payload: Some(json(text)), ..JobChange::default() }
}

fn title(text: &str) -> JobChange {
    JobChange { title: Some(text.to_owned()), ..JobChange::default() }
}

fn priority(priority: i32) -> JobChange {
    JobChange { priority: Some(priority), ..JobChange::default() }
}

async fn edit(bench: &Bench, number: u64, change: JobChange) -> Result<State> {
    bench.store.edit(id(number), change, bench.now()).await
}

pub(super) async fn a_change_touches_what_it_names_and_nothing_else(bench: &Bench) {
    let long = format!("\"{}\"", "long ".repeat(5_000));
    bench.add([job(1).tag("red").run_at(bench.now() + secs(5))]).await;
    let before = bench.detail(1).await;
    for (number, text) in [(1, long.as_str()), (2, "2"), (3, &long)] {
        assert_eq!(edit(bench, 1, payload(text)).await, Ok(State::Scheduled));
        assert_eq!(edit(bench, 1, title(&format!("take {number}"))).await, Ok(State::Scheduled));
        assert_eq!(edit(bench, 1, priority(number)).await, Ok(State::Scheduled));
        let mut after = bench.detail(1).await;
        let changed = (after.job.priority, after.job.options.title.take(), after.payload.clone());
        assert_eq!(changed, (number, Some(format!("take {number}")), json(text)));
        after.job.priority = before.job.priority;
        after.payload = before.payload.clone();
        assert_eq!(after, before);
    }
    edit(bench, 1, title("")).await.expect("a title can be taken away");
    assert_eq!(bench.detail(1).await.job.options, before.job.options);
    bench.pass(secs(5));
    bench.promote().await;
    assert_eq!(bench.start(1).await.payload, json(&long));
}

pub(super) async fn a_new_priority_moves_a_job_in_the_line(bench: &Bench) {
    // Neighbours of one submission, which a store may keep as one.
    bench.add((1..=6).map(job)).await;
    for (number, change) in [(4, -1), (2, 1), (6, -2), (6, 0), (1, 3), (1, -3)] {
        assert_eq!(edit(bench, number, priority(change)).await, Ok(State::Ready));
    }
    let order: Vec<JobId> = bench.claim(9).await.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(order, [1, 4, 3, 5, 6, 2].map(id));
}

pub(super) async fn a_job_that_runs_or_has_succeeded_cannot_be_changed(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    for change in [payload("2"), title("new"), priority(7)] {
        assert!(invalid(edit(bench, 1, change).await).contains("is running and cannot be changed"));
    }
    let found = bench.detail(1).await;
    assert_eq!((found.job.priority, found.job.options.title), (0, None));
    bench.settle(&claimed, done("1")).await;
    assert!(invalid(edit(bench, 1, title("new")).await).contains("is succeeded"));
    let missing = edit(bench, 9, title("new")).await;
    assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
}

/// What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
pub(super) async fn the_payload_of_a_job_that_has_run_changes_only_after_its_end(bench: &Bench) {
    let ends = [again(secs(0), "7"), again(secs(5), "7"), park("p"), retry_later(Reason::Failure)];
    for (number, end) in (1..).zip(ends) {
        bench.add([job(number).priority(-1)]).await;
        let state = bench.run(number, end).await;
        assert!(invalid(edit(bench, number, payload("2")).await).contains("has run with its payload"));
        assert_eq!(edit(bench, number, title("new")).await, Ok(state));
        bench.cancel(number).await;
        assert_eq!(edit(bench, number, payload("2")).await, Ok(State::Cancelled));
        assert_eq!(bench.retry(number).await, Ok(State::Ready));
        let claimed = bench.start(number).await;
        assert_eq!((claimed.payload.clone(), claimed.data.clone()), (json("2"), None));
        bench.settle(&claimed, done("1")).await;
    }
}

pub(super) async fn a_failed_job_runs_again_with_another_payload(bench: &Bench) {
    bench.add([job(1), job(2).after(id(1))]).await;
    bench.run(1, again(secs(0), "7")).await;
    bench.run(1, give_up()).await;
    // Without a new payload the checkpoint is good.
    edit(bench, 1, title("second try")).await.expect("a failed job can be changed");
    assert_eq!(bench.detail(1).await.data, Some(json("7")));
    assert_eq!(edit(bench, 1, payload("2")).await, Ok(State::Failed));
    assert_eq!(bench.retry(1).await, Ok(State::Ready));
    let claimed = bench.start(1).await;
    assert_eq!((claimed.payload.clone(), claimed.data.clone()), (json("2"), None));
    bench.settle(&claimed, done("1")).await;
    bench.expect(&[(1, State::Succeeded), (2, State::Ready)]).await;
}

pub(super) async fn an_enqueue_is_compared_with_what_was_changed(bench: &Bench) {
    for change in [payload("2"), title("new"), priority(7)] {
        bench.add([job(1), job(2).after(id(1))]).await;
        for number in [1, 2] {
            edit(bench, number, change.clone()).await.expect("a waiting job can be changed");
        }
        let asked = [job(1), job(2).after(id(1))];
        assert!(bench.refuses(asked.clone()).await.contains("other content"));
        let now_asked = asked.map(|mut job| {
            job.priority = change.priority.unwrap_or(job.priority);
            job.options = change.of_options(job.options);
            job.payload = change.payload.clone().unwrap_or(job.payload);
            job
        });
        let again = bench.add(now_asked).await;
        assert!(again.iter().all(|job| job.how == InsertOutcome::Duplicate), "{again:?}");
        bench.cancel(1).await;
        bench.delete(&[1, 2]).await;
        bench.delete(&[1, 2]).await;
    }
}
