//! Settle: every row of the transition table for running jobs, with what is written beside the state.

use crate::job::{NewJob, Retention};
use crate::limits::RUNS_KEPT_MAX;
use crate::state::{Event, JobError, Outcome, Reason, RunOutcome, Spent, State};
use crate::store::{CancelReply, ClaimRequest, QueueChange, SettleItem, Settled};
use crate::testing::Bench;
use crate::testing::bench::{
    again, done, give_up, id, invalid, job, json, park, retry_later, secs, with_fence,
};

pub(super) async fn done_succeeds_with_its_result(bench: &Bench) {
    bench.add([job(1)]).await;
    assert_eq!(bench.run(1, retry_later(Reason::Failure)).await, State::Scheduled);
    bench.pass(secs(1));
    bench.promote().await;
    assert_eq!(bench.run(1, done(r#"{"ok":true}"#)).await, State::Succeeded);
    let detail = bench.detail(1).await;
    assert_eq!((detail.result, detail.job.error), (Some(json(r#"{"ok":true}"#)), None));
    assert_eq!((detail.job.finished_at, detail.job.lease_until), (Some(bench.now()), None));
    let outcomes: Vec<RunOutcome> = detail.runs.iter().map(|run| run.outcome).collect();
    assert_eq!(outcomes, [RunOutcome::Retry, RunOutcome::Done]);
}

pub(super) async fn continue_is_ready_again_or_later_and_costs_nothing(bench: &Bench) {
    bench.add([job(1).max_attempts(1)]).await;
    assert_eq!(bench.run(1, again(secs(0), "1")).await, State::Ready);
    assert_eq!(bench.run(1, again(secs(5), "2")).await, State::Scheduled);
    let detail = bench.detail(1).await;
    assert_eq!((detail.job.run_at, detail.data), (bench.now() + secs(5), Some(json("2"))));
    assert_eq!(detail.job.spent, Spent { continues: 2, ..Spent::default() });
    assert_eq!(detail.job.lease_until, None);
}

pub(super) async fn retries_are_spent_one_by_one(bench: &Bench) {
    bench.add([job(1)]).await;
    for attempt in 1..=2 {
        assert_eq!(bench.run(1, retry_later(Reason::Failure)).await, State::Scheduled);
        let found = bench.detail(1).await.job;
        assert_eq!((found.spent.attempt, found.run_at), (attempt, bench.now() + secs(1)));
        bench.pass(secs(1));
        bench.promote().await;
    }
    assert_eq!(bench.run(1, retry_later(Reason::Failure)).await, State::Failed);
    let found = bench.detail(1).await.job;
    assert_eq!((found.spent.attempt, found.finished_at), (3, Some(bench.now())));
    assert_eq!(found.error, Some(JobError::new(Reason::Failure, "bad answer")));
}

/// A 429 must not burn attempts.
pub(super) async fn a_throttle_waits_as_told_and_costs_no_attempt(bench: &Bench) {
    bench.add([job(1).max_attempts(1)]).await;
    let error = JobError::new(Reason::Throttle, "429");
    let throttled = Event::Outcome(Outcome::Retry { error, after: Some(secs(30)), data: Some(json("5")) });
    assert_eq!(bench.run(1, throttled).await, State::Scheduled);
    let detail = bench.detail(1).await;
    assert_eq!((detail.job.spent.attempt, detail.job.spent.throttles), (0, 1));
    assert_eq!((detail.job.run_at, detail.data), (bench.now() + secs(30), Some(json("5"))));
}

pub(super) async fn fail_ends_it_at_once(bench: &Bench) {
    bench.add([job(1)]).await;
    assert_eq!(bench.run(1, give_up()).await, State::Failed);
    assert_eq!(bench.detail(1).await.result, None);
}

pub(super) async fn a_release_is_ready_again_and_costs_nothing(bench: &Bench) {
    bench.add([job(1)]).await;
    let before = bench.detail(1).await.job;
    bench.pass(secs(5));
    assert_eq!(bench.run(1, Event::Release).await, State::Ready);
    let after = bench.detail(1).await.job;
    assert_eq!((after.spent, after.run_at, after.error), (before.spent, before.run_at, None));
}

pub(super) async fn the_worker_ends_a_cancelled_run(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    assert_eq!(bench.cancel(1).await, CancelReply::Requested);
    assert_eq!(bench.settle(&claimed, Event::Cancel).await, Settled::Applied(State::Cancelled));
    assert_eq!(bench.reason(1).await, Some(Reason::Cancelled));
}

pub(super) async fn done_wins_over_a_cancel_request(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    bench.cancel(1).await;
    assert_eq!(
        bench.settle_with(&claimed, done("1"), vec![job(2)]).await,
        Settled::Applied(State::Succeeded)
    );
    assert!(!bench.detail(1).await.job.cancel_requested);
    bench.expect(&[(2, State::Ready)]).await;
}

pub(super) async fn anything_but_an_end_becomes_cancelled_on_request(bench: &Bench) {
    let answers = [again(secs(0), "1"), park("k"), retry_later(Reason::Failure), Event::Release];
    for (number, answer) in (1..).zip(answers) {
        bench.add([job(number)]).await;
        let claimed = bench.start(number).await;
        bench.cancel(number).await;
        let settled = bench.settle_with(&claimed, answer, vec![job(number + 100)]).await;
        assert_eq!(settled, Settled::Applied(State::Cancelled));
        let found = bench.detail(number).await.job;
        assert_eq!((found.park, found.cancel_requested), (None, false));
        assert!(bench.find(number + 100).await.is_none(), "a cancelled job's follow-ups are dropped");
    }
}

pub(super) async fn each_item_is_answered_for_itself(bench: &Bench) {
    bench.add((1..=4).map(job)).await;
    let claimed = bench.claim(4).await;
    bench.settle(&claimed[1], done("1")).await;
    let items = vec![
        bench.item(&claimed[0], done("1"), Vec::new()),
        bench.item(&claimed[1], done("2"), Vec::new()),
        bench.item(&claimed[2], done("3"), vec![job(9).after(id(99))]),
        bench.item(&claimed[3], give_up(), vec![job(10)]),
    ];
    let settled = bench.store.settle(items, bench.now()).await.expect("settle answers");
    assert_eq!(settled[..2], [Settled::Applied(State::Succeeded), Settled::LostLease]);
    assert!(matches!(settled[2], Settled::Refused(_)));
    assert_eq!(settled[3], Settled::Applied(State::Failed));
    bench.expect(&[(1, State::Succeeded), (3, State::Running), (4, State::Failed), (10, State::Ready)]).await;
}

pub(super) async fn refused_follow_ups_leave_the_lease_as_it_was(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let claimed = bench.start(1).await;
    let before = bench.snapshot().await;
    let other_content = NewJob { payload: json("0"), ..job(2) };
    for bad in [vec![job(3), job(4).after(id(99))], vec![job(3), other_content]] {
        match bench.settle_with(&claimed, done("1"), bad).await {
            Settled::Refused(error) => drop(invalid::<()>(Err(error))),
            other => panic!("expected a refusal, got {other:?}"),
        }
        assert_eq!(bench.snapshot().await, before);
    }
    assert_eq!(
        bench.settle_with(&claimed, done("1"), vec![job(3)]).await,
        Settled::Applied(State::Succeeded)
    );
    bench.expect(&[(3, State::Ready)]).await;
}

pub(super) async fn a_follow_up_may_wait_for_the_job_that_enqueued_it(bench: &Bench) {
    bench.add([job(1).retention(Retention::DeleteOnSuccess)]).await;
    let claimed = bench.start(1).await;
    bench.settle_with(&claimed, done("7"), vec![job(2).after(id(1))]).await;
    assert!(bench.find(1).await.is_none());
    let child = bench.start(2).await;
    assert_eq!(child.parents[0].result, Some(json("7")));
}

pub(super) async fn a_settlement_names_usage_in_the_history(bench: &Bench) {
    bench.add([job(1)]).await;
    let claimed = bench.start(1).await;
    let mut item = bench.item(&claimed, done("1"), Vec::new());
    item.settlement.usage = Some(json(r#"{"tokens":3}"#));
    bench.pass(secs(2));
    bench.store.settle(vec![item], bench.now()).await.expect("settle answers");
    let run = bench.detail(1).await.runs.remove(0);
    assert_eq!((run.usage, run.fence), (Some(json(r#"{"tokens":3}"#)), 1));
    assert_eq!((run.started_at, run.ended_at), (bench.now() - secs(2), bench.now()));
}

pub(super) async fn the_history_keeps_the_newest_runs(bench: &Bench) {
    bench.add([job(1)]).await;
    for _ in 0..RUNS_KEPT_MAX + 2 {
        bench.run(1, again(secs(0), "1")).await;
    }
    let fences: Vec<u64> = bench.detail(1).await.runs.iter().map(|run| run.fence).collect();
    assert_eq!(
        (fences.len(), fences[0], fences[RUNS_KEPT_MAX - 1]),
        (RUNS_KEPT_MAX, 3, RUNS_KEPT_MAX as u64 + 2)
    );
}

pub(super) async fn delete_on_success_leaves_no_row(bench: &Bench) {
    bench
        .add([job(1).retention(Retention::DeleteOnSuccess), job(2).retention(Retention::DeleteOnSuccess)])
        .await;
    assert_eq!(bench.run(1, done("1")).await, State::Succeeded);
    assert_eq!(bench.run(2, give_up()).await, State::Failed);
    assert!(bench.find(1).await.is_none());
    assert!(bench.find(2).await.is_some());
}

pub(super) async fn each_goes_or_stays_by_its_own_rule_when_many_end_at_once(bench: &Bench) {
    let (gone, keep) = (Retention::DeleteOnSuccess, Retention::Keep { succeeded: secs(9), failed: secs(9) });
    let change =
        QueueChange { name: "brief".to_owned(), retention: Some(Some(gone)), ..QueueChange::default() };
    bench.store.set_queue(change).await.expect("set_queue answers");
    // Again and again: a store may go by what it saw last.
    for round in [0, 10, 20, 30] {
        let own = |number: u64| job(round + number).retention(gone);
        bench
            .add([
                job(round + 1),
                own(2),
                own(3).tag("kept"),
                own(4).process("p"),
                job(round + 5).process("p"),
                job(round + 6).queue("brief"),
                job(round + 7).queue("brief").retention(keep),
                job(round + 8).retention(keep),
                own(9),
            ])
            .await;
        let queues = vec!["default".to_owned(), "brief".to_owned()];
        let mut claimed = bench.claim_with(ClaimRequest { queues, limit: 9, ..bench.request() }).await;
        claimed.sort_by_key(|claimed| claimed.job.seq);
        let settle = |items| bench.store.settle(items, bench.now());
        let (of_process, others): (Vec<_>, Vec<_>) =
            claimed.iter().partition(|claimed| claimed.job.process_id.is_some());
        for (together, apart) in [(&others, &of_process), (&of_process, &others)] {
            let stale = bench.item(apart[0], done("1"), Vec::new());
            let stale = SettleItem { lease: with_fence(&stale.lease, 9), ..stale };
            let (mut items, mut expected) = (vec![stale], vec![Settled::LostLease]);
            for claimed in together {
                let fails = claimed.job.id == id(round + 9);
                let event = if fails { give_up() } else { done("1") };
                items.push(bench.item(claimed, event, Vec::new()));
                expected.push(Settled::Applied(if fails { State::Failed } else { State::Succeeded }));
            }
            assert_eq!(settle(items).await.expect("settle answers"), expected);
        }
        for number in 1..=9 {
            let stays = bench.find(round + number).await.is_some();
            assert_eq!(stays, [1, 5, 7, 8, 9].contains(&number), "job {}", round + number);
        }
        // An id that is gone may be used again.
        bench.add([own(2)]).await;
        assert_eq!(bench.run(round + 2, done("2")).await, State::Succeeded);
    }
}
