//! Unique keys: scope, policies, windows, and keys that outlive their job.

use std::time::Duration;

use crate::job::{NewJob, Unique, UniquePolicy, Window};
use crate::retry::RetryPolicy;
use crate::state::{Reason, State};
use crate::store::{Enqueued, InsertOutcome};
use crate::testing::Bench;
use crate::testing::bench::{again, days, done, give_up, id, invalid, job, json, park, retry_later, secs};

fn unique(number: u64, policy: UniquePolicy, window: Option<Window>) -> NewJob {
    job(number).unique(Unique { key: "k".to_owned(), window, policy })
}

fn skip(number: u64) -> NewJob {
    unique(number, UniquePolicy::Skip, None)
}

fn debounce(number: u64, wait: u64, cap: u64) -> NewJob {
    unique(number, UniquePolicy::Debounce { wait: secs(wait), cap: secs(cap) }, None)
}

fn said(enqueued: Enqueued) -> (crate::JobId, InsertOutcome) {
    (enqueued.id, enqueued.how)
}

pub(super) async fn a_second_job_with_the_key_is_skipped(bench: &Bench) {
    bench.add([skip(1)]).await;
    let second = bench.add_one(NewJob { payload: json("2"), ..skip(2) }).await;
    assert_eq!(
        (second.id, second.seq, second.state, second.how),
        (id(1), 1, State::Ready, InsertOutcome::Skipped)
    );
    assert!(bench.find(2).await.is_none());
    bench.start(1).await;
    assert_eq!(bench.add_one(skip(3)).await.state, State::Running);
}

pub(super) async fn the_scope_is_queue_and_kind(bench: &Bench) {
    bench.add([skip(1)]).await;
    let other_kind = NewJob { kind: "other".to_owned(), ..skip(2) };
    let other_key = job(3).unique(Unique::key("k2"));
    let hows: Vec<InsertOutcome> =
        bench.add([other_kind, skip(4).queue("q"), other_key]).await.iter().map(|j| j.how).collect();
    assert_eq!(hows, [InsertOutcome::Inserted; 3]);
}

pub(super) async fn within_one_submission_the_second_sees_the_first(bench: &Bench) {
    let replies = bench.add([skip(1), skip(2), job(3)]).await;
    assert_eq!(
        [said(replies[0]), said(replies[1])],
        [(id(1), InsertOutcome::Inserted), (id(1), InsertOutcome::Skipped)]
    );
    assert_eq!((replies[2].seq, replies[2].how), (2, InsertOutcome::Inserted));
}

pub(super) async fn an_ended_job_frees_its_key(bench: &Bench) {
    bench.add([skip(1)]).await;
    bench.run(1, done("1")).await;
    assert_eq!(bench.add_one(skip(2)).await.how, InsertOutcome::Inserted);
    bench.run(2, give_up()).await;
    assert_eq!(bench.add_one(skip(3)).await.how, InsertOutcome::Inserted);
    bench.cancel(3).await;
    assert_eq!(bench.add_one(skip(4)).await.how, InsertOutcome::Inserted);
}

pub(super) async fn replace_gives_a_waiting_job_the_new_payload(bench: &Bench) {
    let replace = |number: u64| NewJob {
        payload: json(&number.to_string()),
        ..unique(number, UniquePolicy::Replace, None)
    };
    bench.add([replace(1)]).await;
    assert_eq!(said(bench.add_one(replace(2)).await), (id(1), InsertOutcome::Replaced));
    let claimed = bench.start(1).await;
    assert_eq!(claimed.payload, json("2"));
    assert_eq!(said(bench.add_one(replace(3)).await), (id(1), InsertOutcome::Skipped));
}

/// What a run has left behind (its checkpoint, what it has done outside) belongs to the payload that it was given.
pub(super) async fn replace_leaves_a_job_alone_that_has_run(bench: &Bench) {
    let ends =
        [again(secs(0), r#"{"page":7}"#), again(secs(5), "1"), park("p"), retry_later(Reason::Failure)];
    for (number, end) in (1..).zip(ends) {
        let keyed = |id: u64, payload: &str| NewJob {
            payload: json(payload),
            ..job(id).unique(Unique { key: number.to_string(), window: None, policy: UniquePolicy::Replace })
        };
        bench.add([keyed(number, "1").priority(-1)]).await;
        bench.run(number, end).await;
        assert_eq!(said(bench.add_one(keyed(100 + number, "2")).await), (id(number), InsertOutcome::Skipped));
        assert_eq!(bench.detail(number).await.payload, json("1"));
        bench.cancel(number).await;
    }
}

pub(super) async fn replace_leaves_a_retried_job_alone(bench: &Bench) {
    let replace = |number: u64| NewJob {
        payload: json(&number.to_string()),
        ..unique(number, UniquePolicy::Replace, None)
    };
    bench.add([replace(1)]).await;
    bench.run(1, give_up()).await;
    bench.retry(1).await.expect("a failed job can be retried");
    assert_eq!(said(bench.add_one(replace(2)).await), (id(1), InsertOutcome::Skipped));
    assert_eq!(bench.start(1).await.payload, json("1"));
}

pub(super) async fn replace_gives_a_payload_of_any_size(bench: &Bench) {
    let long = format!("\"{}\"", "long ".repeat(5_000));
    let replace = |number: u64, payload: &str| NewJob {
        payload: json(payload),
        ..unique(number, UniquePolicy::Replace, None).tag("red")
    };
    bench.add([replace(1, "1")]).await;
    let options = bench.detail(1).await.job.options;
    for (number, payload) in [(2, long.as_str()), (3, "3"), (4, &long)] {
        assert_eq!(said(bench.add_one(replace(number, payload)).await), (id(1), InsertOutcome::Replaced));
        let detail = bench.detail(1).await;
        assert_eq!((detail.payload, &detail.job.options), (json(payload), &options));
    }
    assert_eq!(bench.start(1).await.payload, json(&long));
}

pub(super) async fn debounce_pushes_the_start_back_up_to_its_cap(bench: &Bench) {
    let start = bench.now();
    bench.add([debounce(1, 10, 25)]).await;
    let pushed = bench.add_one(debounce(2, 10, 25)).await;
    assert_eq!((pushed.id, pushed.how, pushed.state), (id(1), InsertOutcome::Debounced, State::Scheduled));
    for (passed, run_at) in [(10, 20), (5, 25), (5, 25)] {
        bench.pass(secs(passed));
        bench.add([debounce(3, 10, 25)]).await;
        assert_eq!(bench.detail(1).await.job.run_at, start + secs(run_at));
    }
    bench.pass(secs(10));
    assert_eq!(bench.add_one(debounce(4, 10, 25)).await.state, State::Ready);
    bench.start(1).await;
    assert_eq!(said(bench.add_one(debounce(5, 10, 25)).await), (id(1), InsertOutcome::Skipped));
}

pub(super) async fn debounce_leaves_a_blocked_job_blocked(bench: &Bench) {
    bench.add([job(1), debounce(2, 10, 99).after(id(1))]).await;
    assert_eq!(bench.add_one(debounce(3, 10, 99)).await.state, State::Blocked);
    bench.run(1, done("1")).await;
    bench.expect(&[(2, State::Scheduled)]).await;
}

pub(super) async fn debounce_never_pulls_a_retry_forward(bench: &Bench) {
    let slow = RetryPolicy::fixed(secs(60)).without_jitter();
    bench.add([debounce(1, 10, 25).retry(slow)]).await;
    bench.run(1, retry_later(Reason::Throttle)).await;
    bench.pass(secs(30));
    bench.add_one(debounce(2, 10, 25)).await;
    let found = bench.detail(1).await.job;
    assert_eq!((found.state, found.run_at), (State::Scheduled, bench.now() + secs(30)));
}

pub(super) async fn a_window_after_enqueue_outlives_the_job(bench: &Bench) {
    let windowed = |number| unique(number, UniquePolicy::Replace, Some(Window::Enqueue { length: secs(60) }));
    bench.add([windowed(1)]).await;
    bench.run(1, give_up()).await;
    bench.delete(&[1]).await;
    bench.pass(secs(59));
    let second = bench.add_one(windowed(2)).await;
    assert_eq!((said(second), second.seq, second.state), ((id(1), InsertOutcome::Skipped), 1, State::Failed));
    bench.pass(secs(1));
    assert_eq!(bench.add_one(windowed(3)).await.how, InsertOutcome::Inserted);
}

pub(super) async fn a_window_after_success_is_a_cooldown(bench: &Bench) {
    let windowed = |number| unique(number, UniquePolicy::Skip, Some(Window::Success { length: days(1) }));
    bench.add([windowed(1)]).await;
    bench.run(1, give_up()).await;
    assert_eq!(bench.add_one(windowed(2)).await.how, InsertOutcome::Inserted, "a failure starts no cooldown");
    bench.pass(secs(60));
    bench.run(2, done("2")).await;
    bench.pass(days(1) - secs(1));
    assert_eq!(said(bench.add_one(windowed(3)).await), (id(2), InsertOutcome::Skipped));
    bench.pass(secs(1));
    assert_eq!(bench.add_one(windowed(4)).await.how, InsertOutcome::Inserted);
}

pub(super) async fn a_window_survives_pruning(bench: &Bench) {
    let window = Some(Window::Enqueue { length: days(30) });
    bench.add([unique(1, UniquePolicy::Skip, window)]).await;
    bench.run(1, done("1")).await;
    bench.pass(days(8));
    bench.prune().await;
    assert!(bench.find(1).await.is_none());
    assert_eq!(bench.add_one(skip(2)).await.how, InsertOutcome::Skipped);
    bench.pass(days(22) + Duration::from_millis(1));
    bench.prune().await;
    assert_eq!(bench.add_one(skip(3)).await.how, InsertOutcome::Inserted);
}

pub(super) async fn a_retry_is_refused_while_another_job_has_the_key(bench: &Bench) {
    bench.add([skip(1)]).await;
    bench.run(1, give_up()).await;
    bench.add([skip(2)]).await;
    let text = invalid(bench.retry(1).await);
    assert!(text.contains(&id(2).to_string()), "{text}");
    bench.run(2, done("2")).await;
    assert_eq!(bench.retry(1).await, Ok(State::Ready));
    assert_eq!(said(bench.add_one(skip(3)).await), (id(1), InsertOutcome::Skipped));
}

pub(super) async fn a_child_of_a_skipped_job_is_refused(bench: &Bench) {
    bench.add([skip(1)]).await;
    let text = bench.refuses([skip(2), job(3).after(id(2))]).await;
    assert!(text.contains(&id(2).to_string()), "{text}");
}

pub(super) async fn a_reply_tells_where_a_later_member_put_the_job(bench: &Bench) {
    let replies = bench.add([skip(1), debounce(2, 5, 60)]).await;
    let states: Vec<_> = replies.iter().map(|reply| (reply.id, reply.state, reply.how)).collect();
    assert_eq!(
        states,
        [
            (id(1), State::Scheduled, InsertOutcome::Inserted),
            (id(1), State::Scheduled, InsertOutcome::Debounced)
        ]
    );
}
