//! Turns: fair keys, their limits, and ageing. The rules are those of [`crate::fairness`].

use std::time::Duration;

use crate::job::{JobId, NewJob};
use crate::state::State;
use crate::store::{ClaimRequest, QueueChange};
use crate::testing::Bench;
use crate::testing::bench::{LEASE_FOR, again, done, id, job, secs};

fn keyed(number: u64, key: &str) -> NewJob {
    job(number).fair_key(key)
}

/// `first..=last`, all of one key.
fn many(first: u64, last: u64, key: &str) -> Vec<NewJob> {
    (first..=last).map(|number| keyed(number, key)).collect()
}

async fn claim(bench: &Bench, limit: usize) -> Vec<JobId> {
    bench.claim_ids(ClaimRequest { limit, ..bench.request() }).await
}

fn ids(numbers: &[u64]) -> Vec<JobId> {
    numbers.iter().copied().map(id).collect()
}

async fn limit_keys(bench: &Bench, limit: Option<u32>) {
    let change = QueueChange {
        name: "default".to_owned(),
        max_running_per_key: Some(limit),
        ..QueueChange::default()
    };
    bench.store.set_queue(change).await.expect("set_queue answers");
}

async fn set_ageing(bench: &Bench, ageing: Option<Duration>) {
    let change = QueueChange { name: "default".to_owned(), ageing: Some(ageing), ..QueueChange::default() };
    bench.store.set_queue(change).await.expect("set_queue answers");
}

pub(super) async fn keys_take_turns_whatever_their_backlog(bench: &Bench) {
    bench.add(many(1, 300, "big")).await;
    bench.add(many(301, 303, "small")).await;
    assert_eq!(claim(bench, 8).await, ids(&[1, 301, 2, 302, 3, 303, 4, 5]));
}

pub(super) async fn turns_go_on_where_the_last_claim_ended(bench: &Bench) {
    bench.add(many(1, 4, "a")).await;
    bench.add(many(11, 14, "b")).await;
    bench.add(many(21, 24, "c")).await;
    let mut served = Vec::new();
    for limit in [1, 1, 2, 1, 1] {
        served.extend(claim(bench, limit).await);
    }
    assert_eq!(served, ids(&[1, 11, 21, 2, 12, 22]));
    assert_eq!(claim(bench, 0).await, []);
    assert_eq!(claim(bench, 1).await, ids(&[3]));
}

pub(super) async fn the_key_with_the_fewest_running_jobs_comes_first(bench: &Bench) {
    bench.add(many(1, 9, "large")).await;
    let first = bench.claim(4).await;
    assert_eq!(first.len(), 4);
    bench.add(many(11, 19, "small")).await;
    bench.add((21..=23).map(job)).await;
    // Four of the large one run: the others come first until they have as many.
    assert_eq!(claim(bench, 5).await, ids(&[11, 21, 12, 22, 13]));
    bench.settle(&first[0], done("1")).await;
    bench.settle(&first[1], done("1")).await;
    bench.settle(&first[2], done("1")).await;
    assert_eq!(claim(bench, 4).await, ids(&[5, 23, 6, 14]), "1 of large runs, 3 of small, 2 of none");
}

pub(super) async fn jobs_without_a_key_take_turns_as_one(bench: &Bench) {
    bench.add((1..=3).map(job)).await;
    bench.add(many(11, 13, "a")).await;
    bench.add(many(21, 22, "b")).await;
    assert_eq!(claim(bench, 4).await, ids(&[11, 21, 1, 12]));
    assert_eq!(claim(bench, 9).await, ids(&[22, 2, 13, 3]));
}

pub(super) async fn a_key_that_comes_late_waits_one_round(bench: &Bench) {
    bench.add(many(1, 5, "a")).await;
    bench.add(many(11, 15, "c")).await;
    assert_eq!(claim(bench, 3).await, ids(&[1, 11, 2]));
    bench.add([keyed(21, "b")]).await;
    assert_eq!(claim(bench, 3).await, ids(&[21, 12, 3]));
}

pub(super) async fn within_a_key_the_order_is_priority_then_time_then_submission(bench: &Bench) {
    let at = bench.now();
    bench.pass(secs(9));
    bench
        .add([
            keyed(1, "a").priority(1),
            keyed(2, "a"),
            keyed(3, "a").run_at(at),
            keyed(4, "b").priority(9),
            keyed(5, "a").priority(-1),
            keyed(6, "a"),
        ])
        .await;
    assert_eq!(claim(bench, 9).await, ids(&[5, 4, 3, 2, 6, 1]));
}

pub(super) async fn a_keys_limit_holds_over_all_workers(bench: &Bench) {
    limit_keys(bench, Some(2)).await;
    bench.add(many(1, 5, "a")).await;
    bench.add(many(11, 12, "b")).await;
    let first = bench.claim(9).await;
    assert_eq!(first.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), ids(&[1, 11, 2, 12]));
    let other = ClaimRequest { worker: "w2".into(), limit: 9, ..bench.request() };
    assert_eq!(bench.claim_ids(other.clone()).await, []);
    bench.settle(&first[0], done("1")).await;
    assert_eq!(bench.claim_ids(other.clone()).await, ids(&[3]));
    bench.settle(&first[2], again(Duration::ZERO, "1")).await;
    assert_eq!(bench.claim_ids(other.clone()).await, ids(&[2]), "the time of its enqueue counts");
    bench.pass(LEASE_FOR);
    bench.rescue().await;
    bench.pass(secs(9));
    bench.promote().await;
    assert_eq!(bench.claim(9).await.len(), 4, "what was rescued runs no more");
    let queue = bench.store.queues().await.expect("queues answers").remove(0);
    assert_eq!((queue.settings.max_running, queue.settings.max_running_per_key), (None, Some(2)));
}

pub(super) async fn a_key_at_its_limit_keeps_nobody_else_waiting(bench: &Bench) {
    limit_keys(bench, Some(1)).await;
    bench.add(many(1, 300, "a")).await;
    bench.add([keyed(301, "b"), keyed(302, "c")]).await;
    bench.add([job(303)]).await;
    assert_eq!(claim(bench, 9).await, ids(&[1, 301, 302, 303]));
    bench.add([keyed(304, "d")]).await;
    assert_eq!(claim(bench, 9).await, ids(&[304]));
}

pub(super) async fn jobs_without_a_key_have_no_key_limit(bench: &Bench) {
    limit_keys(bench, Some(0)).await;
    bench.add([job(1), job(2), keyed(3, "a")]).await;
    assert_eq!(claim(bench, 9).await, ids(&[1, 2]));
}

pub(super) async fn a_limit_that_is_raised_counts_at_once(bench: &Bench) {
    limit_keys(bench, Some(1)).await;
    bench.add(many(1, 4, "a")).await;
    assert_eq!(claim(bench, 9).await, ids(&[1]));
    limit_keys(bench, Some(3)).await;
    assert_eq!(claim(bench, 9).await, ids(&[2, 3]));
    limit_keys(bench, None).await;
    assert_eq!(claim(bench, 9).await, ids(&[4]));
}

pub(super) async fn turns_look_at_the_kinds_asked_for_only(bench: &Bench) {
    let other = |number, key: &str| NewJob { kind: "other".to_owned(), ..keyed(number, key) };
    bench.add([keyed(1, "a"), other(2, "b"), keyed(3, "c"), other(4, "a"), keyed(5, "a")]).await;
    let request =
        |kind: &str| ClaimRequest { kinds: Some(vec![kind.to_owned()]), limit: 2, ..bench.request() };
    assert_eq!(bench.claim_ids(request("work")).await, ids(&[1, 3]));
    assert_eq!(bench.claim_ids(request("other")).await, ids(&[2, 4]), "one of a runs, none of b");
    assert_eq!(bench.claim_ids(request("work")).await, ids(&[5]));
}

pub(super) async fn what_has_expired_costs_its_key_no_turn(bench: &Bench) {
    let expires_at = Some(bench.now() + secs(5));
    let expiring = |number, key: &str| NewJob { expires_at, ..keyed(number, key) };
    bench.add([expiring(1, "a"), expiring(2, "a"), keyed(3, "a"), expiring(4, "b"), keyed(5, "c")]).await;
    bench.pass(secs(5));
    assert_eq!(claim(bench, 9).await, ids(&[3, 5]));
    bench.expect(&[(1, State::Cancelled), (2, State::Cancelled), (4, State::Cancelled)]).await;
}

pub(super) async fn suspects_of_a_key_wait_without_holding_it(bench: &Bench) {
    bench.add([keyed(1, "a"), keyed(2, "b")]).await;
    assert_eq!(bench.claim(2).await.len(), 2);
    bench.pass(LEASE_FOR);
    assert_eq!(bench.rescue().await.changed, 2);
    bench.pass(secs(1));
    bench.promote().await;
    bench.add([keyed(3, "a"), keyed(4, "b")]).await;
    let request = |suspects_max| ClaimRequest { limit: 2, suspects_max, ..bench.request() };
    assert_eq!(bench.claim_ids(request(0)).await, ids(&[3, 4]));
    assert_eq!(bench.claim_ids(request(1)).await, ids(&[1]));
    assert_eq!(bench.claim_ids(request(1)).await, ids(&[2]));
}

pub(super) async fn a_job_that_comes_back_has_its_key_still(bench: &Bench) {
    limit_keys(bench, Some(1)).await;
    bench.add([keyed(1, "a"), keyed(2, "b").after(id(1)), keyed(3, "b"), keyed(4, "a")]).await;
    let first = bench.claim(9).await;
    assert_eq!(first.len(), 2);
    bench.settle(&first[0], again(secs(3), "1")).await;
    assert_eq!(claim(bench, 9).await, ids(&[4]), "the slot of its key is free while it waits");
    bench.pass(secs(3));
    bench.promote().await;
    assert_eq!(claim(bench, 9).await, [], "a runs 4");
    let detail = bench.detail(1).await;
    assert_eq!(detail.job.options.fair_key.as_deref(), Some("a"));
    bench.cancel(1).await;
    assert_eq!(bench.state(1).await, State::Cancelled);
    assert_eq!(bench.state(2).await, State::Cancelled);
}

pub(super) async fn with_ageing_a_long_wait_makes_up_for_priority(bench: &Bench) {
    set_ageing(bench, Some(secs(10))).await;
    bench.add([job(1).priority(3), job(2).priority(1)]).await;
    bench.pass(secs(15));
    bench.add([job(3), job(4).priority(2), job(5).priority(-1)]).await;
    // By run_at + priority × 10 s: job 5 at 5, job 2 at 10, job 3 at 15, job 1 at 30, job 4 at 35.
    assert_eq!(claim(bench, 2).await, ids(&[5, 2]));
    assert_eq!(claim(bench, 9).await, ids(&[3, 1, 4]));
    let queue = bench.store.queues().await.expect("queues answers").remove(0);
    assert_eq!(queue.settings.ageing, Some(secs(10)));
}

pub(super) async fn ageing_ranks_within_each_key(bench: &Bench) {
    set_ageing(bench, Some(secs(10))).await;
    bench.add([keyed(1, "a").priority(2), keyed(2, "b").priority(5)]).await;
    bench.pass(secs(25));
    bench.add([keyed(3, "a"), keyed(4, "b"), keyed(5, "a").priority(-1)]).await;
    assert_eq!(claim(bench, 9).await, ids(&[5, 4, 1, 2, 3]));
}

pub(super) async fn ageing_can_be_lifted(bench: &Bench) {
    set_ageing(bench, Some(secs(1))).await;
    bench.add([job(1).priority(1)]).await;
    bench.pass(secs(60));
    bench.add([job(2)]).await;
    set_ageing(bench, None).await;
    assert_eq!(claim(bench, 9).await, ids(&[2, 1]));
}
