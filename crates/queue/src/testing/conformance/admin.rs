//! What people do: cancel, retry, look at counts, queues and workers.

use crate::error::Error;
use crate::job::{NewJob, Retention, WorkerId};
use crate::limits::WORKER_KEPT;
use crate::state::{JobError, Reason, Spent, State};
use crate::store::{
    CancelReply, ClaimRequest, Count, ExtendRequest, QueueChange, Renewal, RetryRequest, Signal, WorkerInfo,
};
use crate::testing::Bench;
use crate::testing::bench::{LEASE_FOR, again, days, done, give_up, id, invalid, job, json, park, secs};

pub(super) async fn cancel_ends_every_waiting_job(bench: &Bench) {
    let later = bench.now() + secs(9);
    bench.add([job(1), job(2), job(3).run_at(later), job(4).after(id(3))]).await;
    bench.run(1, park("k")).await;
    let ids = [4, 3, 2, 1, 9].map(id).to_vec();
    let replies = bench.store.cancel(ids, bench.now()).await.expect("cancel answers");
    assert_eq!(replies[..4], [CancelReply::Cancelled; 4]);
    assert_eq!(replies[4], CancelReply::NotFound);
    for number in 1..=4 {
        let found = bench.detail(number).await.job;
        assert_eq!((found.state, found.finished_at), (State::Cancelled, Some(bench.now())));
        assert_eq!(found.error, Some(JobError::cancelled()));
        assert_eq!(bench.cancel(number).await, CancelReply::Ended(State::Cancelled));
    }
}

/// A running job can be told to end from anywhere.
pub(super) async fn cancel_asks_a_running_job_to_end(bench: &Bench) {
    bench.add([job(1), job(2)]).await;
    let claimed = bench.claim(2).await;
    assert_eq!(bench.cancel(1).await, CancelReply::Requested);
    assert_eq!(bench.cancel(1).await, CancelReply::Requested);
    bench.expect(&[(1, State::Running)]).await;
    let cancelling = |worker| bench.store.cancelling(WorkerId::new(worker));
    assert_eq!(cancelling("w1").await, Ok(vec![id(1)]));
    assert_eq!(cancelling("w2").await, Ok(vec![]));
    let leases = claimed.iter().map(|claimed| claimed.lease.clone()).collect();
    let request = ExtendRequest { leases, lease_for: LEASE_FOR, now: bench.now() };
    let until = bench.now() + LEASE_FOR;
    let expected = [true, false].map(|cancel_requested| Renewal::Extended { until, cancel_requested });
    assert_eq!(bench.store.extend(request).await.expect("extend answers"), expected);
}

pub(super) async fn a_cancelled_job_whose_worker_died_ends_at_the_rescue(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.start(1).await;
    bench.cancel(1).await;
    bench.crash().await;
    bench.expect(&[(1, State::Cancelled)]).await;
    assert_eq!(bench.reason(1).await, Some(Reason::Cancelled));
}

pub(super) async fn retry_puts_a_failed_job_back_with_fresh_budgets(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, again(secs(0), "5")).await;
    bench.run(1, give_up()).await;
    bench.pass(secs(9));
    assert_eq!(bench.retry(1).await, Ok(State::Ready));
    let detail = bench.detail(1).await;
    assert_eq!(detail.job.spent, Spent { continues: 1, ..Spent::default() });
    assert_eq!((detail.job.finished_at, detail.job.error, detail.result), (None, None, None));
    assert_eq!((detail.job.fence, detail.job.run_at, detail.runs.len()), (2, bench.now(), 2));
    assert_eq!(bench.start(1).await.data, Some(json("5")));
}

pub(super) async fn retry_drops_the_checkpoint_when_told(bench: &Bench) {
    bench.add([job(1)]).await;
    bench.run(1, again(secs(0), "5")).await;
    bench.run(1, give_up()).await;
    let request = RetryRequest { ids: vec![id(1)], keep_data: false, now: bench.now() };
    bench.store.retry(request).await.expect("retry answers").remove(0).expect("a failed job can be retried");
    assert_eq!(bench.start(1).await.data, None);
}

pub(super) async fn retry_refuses_every_other_state_by_name(bench: &Bench) {
    bench
        .add([job(1), job(2), job(3), job(4), job(5).after(id(4)), job(6).run_at(bench.now() + secs(9))])
        .await;
    bench.run(1, done("1")).await;
    bench.run(2, park("k")).await;
    bench.start(3).await;
    let states = [
        (1, State::Succeeded),
        (2, State::Parked),
        (3, State::Running),
        (4, State::Ready),
        (5, State::Blocked),
        (6, State::Scheduled),
    ];
    let before = bench.snapshot().await;
    for (number, state) in states {
        let text = invalid(bench.retry(number).await);
        assert_eq!(text, format!("job {} is {state} and cannot be retried", id(number)));
    }
    assert!(matches!(bench.retry(99).await, Err(Error::NotFound(_))));
    assert_eq!(bench.snapshot().await, before);
}

pub(super) async fn a_retried_job_that_had_expired_may_run(bench: &Bench) {
    bench.add([NewJob { expires_at: Some(bench.now() + secs(5)), ..job(1) }]).await;
    bench.pass(secs(5));
    bench.promote().await;
    assert_eq!(bench.reason(1).await, Some(Reason::Expired));
    assert_eq!(bench.retry(1).await, Ok(State::Ready));
    bench.promote().await;
    bench.start(1).await;
}

pub(super) async fn get_answers_in_the_order_asked(bench: &Bench) {
    bench.add((1..=3).map(job)).await;
    let found = bench.store.get([3, 9, 1].map(id).to_vec()).await.expect("get answers");
    assert_eq!(found.iter().map(|detail| detail.job.id).collect::<Vec<_>>(), [3, 1].map(id));
}

pub(super) async fn counts_follow_every_change(bench: &Bench) {
    bench.add([job(1), job(2), job(3).queue("q"), job(4).after(id(1))]).await;
    bench.run(1, give_up()).await;
    bench.start(2).await;
    let count =
        |queue: &str, state, jobs| Count { queue: queue.to_owned(), kind: "work".to_owned(), state, jobs };
    let mut counts = bench.store.counts().await.expect("counts answers");
    counts.sort();
    let expected = [
        count("default", State::Running, 1),
        count("default", State::Failed, 1),
        count("default", State::Cancelled, 1),
        count("q", State::Ready, 1),
    ];
    assert_eq!(counts, expected);
}

pub(super) async fn a_job_tells_when_its_state_last_changed(bench: &Bench) {
    let mut tick = 0;
    let mut pass = || {
        tick += 1;
        bench.pass(secs(tick));
        bench.now()
    };
    let updated = async |number: u64| bench.detail(number).await.job.updated_at;
    let start = bench.now();
    bench.add([job(1), job(2).after(id(1)), job(3).run_at(start + secs(2))]).await;
    assert_eq!([updated(1).await, updated(2).await, updated(3).await], [start; 3]);
    let claimed_at = pass();
    let claimed = bench.start(1).await;
    assert_eq!((claimed.job.updated_at, updated(1).await), (claimed_at, claimed_at));
    let parked_at = pass();
    bench.settle(&claimed, park("p")).await;
    assert_eq!(updated(1).await, parked_at);
    let woken_at = pass();
    bench.signal("p", Signal::Resume(json("1"))).await;
    bench.promote().await;
    assert_eq!([updated(1).await, updated(3).await], [woken_at; 2]);
    let failed_at = pass();
    bench.run(3, give_up()).await;
    assert_eq!(updated(3).await, failed_at);
    let retried_at = pass();
    bench.retry(3).await.expect("a failed job can be retried");
    assert_eq!(updated(3).await, retried_at);
    let ended_at = pass();
    bench.run(1, done("1")).await;
    assert_eq!([updated(1).await, updated(2).await], [ended_at; 2], "its end releases the child");
}

pub(super) async fn queues_show_settings_and_counts(bench: &Bench) {
    bench.add([job(1).queue("b"), job(2).queue("b")]).await;
    let retention = Retention::DeleteOnSuccess;
    let first = QueueChange { name: "a".to_owned(), paused: Some(true), ..QueueChange::default() };
    let second = QueueChange {
        name: "a".to_owned(),
        max_running: Some(Some(3)),
        retention: Some(Some(retention)),
        ..QueueChange::default()
    };
    bench.store.set_queue(first).await.expect("set_queue answers");
    bench.store.set_queue(second).await.expect("set_queue answers");
    let queues = bench.store.queues().await.expect("queues answers");
    assert_eq!(queues.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        (queues[0].settings.paused, queues[0].settings.max_running, queues[0].settings.retention),
        (true, Some(3), Some(retention))
    );
    assert_eq!((queues[0].counts, queues[1].counts[State::Ready as usize]), ([0; 8], 2));
    let lift = QueueChange { name: "a".to_owned(), max_running: Some(None), ..QueueChange::default() };
    bench.store.set_queue(lift).await.expect("set_queue answers");
    let queue = bench.store.queues().await.expect("queues answers").remove(0);
    assert_eq!(
        (queue.settings.paused, queue.settings.max_running, queue.settings.retention),
        (true, None, Some(retention))
    );
}

pub(super) async fn a_queue_with_neither_jobs_nor_settings_is_none(bench: &Bench) {
    for paused in [true, false] {
        let change = QueueChange { name: "a".to_owned(), paused: Some(paused), ..QueueChange::default() };
        bench.store.set_queue(change).await.expect("set_queue answers");
        let queues = bench.store.queues().await.expect("queues answers");
        assert_eq!(queues.len(), usize::from(paused));
    }
}

pub(super) async fn workers_are_listed_while_they_are_heard_of(bench: &Bench) {
    let worker = |name: &str| WorkerInfo {
        id: WorkerId::new(name),
        host: "host".to_owned(),
        pid: 7,
        version: "1".to_owned(),
        queues: vec!["default".to_owned()],
        kinds: None,
        concurrency: 4,
        running: 1,
        started_at: bench.now(),
        seen_at: bench.now(),
        gone: false,
    };
    for name in ["w2", "w1", "w3"] {
        bench.store.heartbeat(worker(name)).await.expect("heartbeat answers");
    }
    bench.store.heartbeat(WorkerInfo { gone: true, ..worker("w3") }).await.expect("heartbeat answers");
    let listed = bench.store.workers(bench.now()).await.expect("workers answers");
    assert_eq!(listed, [worker("w1"), worker("w2")]);
    bench.pass(WORKER_KEPT - secs(1));
    let busy = WorkerInfo { running: 3, ..worker("w1") };
    bench.store.heartbeat(busy.clone()).await.expect("heartbeat answers");
    bench.pass(secs(1));
    assert_eq!(bench.store.workers(bench.now()).await.expect("workers answers"), [busy]);
}

/// A claim's cost must not grow with what is finished, nor its answer change.
pub(super) async fn finished_jobs_do_not_get_in_the_way_of_claims(bench: &Bench) {
    bench.add((1..=500).map(job)).await;
    let first = bench.claim(499).await;
    let items = first.iter().map(|claimed| bench.item(claimed, done("1"), Vec::new())).collect();
    bench.store.settle(items, bench.now()).await.expect("settle answers");
    bench.pass(days(1) - secs(1));
    assert_eq!(bench.claim_ids(ClaimRequest { limit: 9, ..bench.request() }).await, [id(500)]);
}
