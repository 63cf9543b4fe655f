//! Results and consume: read in submission order, store, then delete exactly what was read.

use crate::job::NewJob;
use crate::state::{Reason, State};
use crate::store::Page;
use crate::testing::Bench;
use crate::testing::bench::{done, give_up, id, job, json, park};

async fn page(bench: &Bench, after: i64, limit: usize) -> (Vec<i64>, Option<i64>) {
    let Page { items, next, .. } =
        bench.store.results("p".into(), after, limit).await.expect("results answers");
    (items.iter().map(|result| result.seq).collect(), next)
}

pub(super) async fn results_come_in_submission_order(bench: &Bench) {
    bench.add([job(1).process("p").priority(9), job(2).process("p"), job(3).process("p"), job(4)]).await;
    bench.run(2, done("2")).await;
    bench.run(3, give_up()).await;
    bench.run(4, done("4")).await;
    bench.run(1, done("1")).await;
    let results = bench.store.results("p".into(), 0, 10).await.expect("results answers").items;
    let found: Vec<_> =
        results.iter().map(|result| (result.id, result.state, result.result.clone())).collect();
    let expected = [
        (id(1), State::Succeeded, Some(json("1"))),
        (id(2), State::Succeeded, Some(json("2"))),
        (id(3), State::Failed, None),
    ];
    assert_eq!(found, expected);
    assert_eq!(results[2].error.as_ref().map(|error| error.reason), Some(Reason::Failure));
    assert_eq!(results[0].kind, "work");
}

pub(super) async fn a_page_knows_whether_there_is_another(bench: &Bench) {
    bench.add((1..=5).map(|number| job(number).process("p"))).await;
    for number in 1..=4 {
        bench.run(number, done("1")).await;
    }
    assert_eq!(page(bench, 0, 2).await, (vec![1, 2], Some(2)));
    assert_eq!(page(bench, 2, 2).await, (vec![3, 4], None));
    assert_eq!(page(bench, 4, 2).await, (vec![], None));
    assert_eq!(page(bench, 0, 0).await, (vec![1], Some(1)));
}

pub(super) async fn helpers_and_unfinished_jobs_are_no_results(bench: &Bench) {
    bench
        .add([NewJob { helper: true, ..job(1).process("p") }, job(2).process("p"), job(3).process("p")])
        .await;
    bench.run(1, done("1")).await;
    bench.run(2, park("k")).await;
    assert_eq!(page(bench, 0, 9).await, (vec![], None));
}

pub(super) async fn consume_deletes_exactly_what_it_names(bench: &Bench) {
    bench.add((1..=3).map(|number| job(number).process("p"))).await;
    for number in 1..=3 {
        bench.run(number, done("1")).await;
    }
    assert_eq!(bench.delete(&[1, 3]).await.deleted, 2);
    assert_eq!(page(bench, 0, 9).await, (vec![2], None));
    assert!(bench.find(1).await.is_none());
}

pub(super) async fn consume_again_is_a_no_op(bench: &Bench) {
    bench.add([job(1).process("p")]).await;
    bench.run(1, done("1")).await;
    assert_eq!(bench.delete(&[1, 1]).await.deleted, 1);
    let again = bench.delete(&[1, 77]).await;
    assert_eq!((again.deleted, again.refused), (0, vec![]));
}

pub(super) async fn unfinished_jobs_are_refused_and_listed(bench: &Bench) {
    bench.add([job(1), job(2), job(3).after(id(1))]).await;
    bench.start(1).await;
    bench.run(2, done("2")).await;
    let deleted = bench.delete(&[1, 2, 3]).await;
    assert_eq!(deleted.deleted, 1);
    let refused: Vec<String> = deleted.refused.iter().map(|(_, error)| error.to_string()).collect();
    let expected = [
        format!("job {} is running and cannot be deleted", id(1)),
        format!("job {} is blocked and cannot be deleted", id(3)),
    ];
    assert_eq!(refused, expected);
}

/// Finished rows must not pile up: consumed means gone, in every list and count.
pub(super) async fn a_consumed_job_leaves_only_its_place_in_the_ledger(bench: &Bench) {
    bench.add([job(1).process("p").tag("t")]).await;
    bench.run(1, done("1")).await;
    bench.delete(&[1]).await;
    let ledger = bench.store.ledger().await.expect("ledger answers");
    assert_eq!((ledger.len(), ledger[0].jobs, ledger[0].state), (1, 1, State::Succeeded));
    assert_eq!(bench.store.counts().await.expect("counts answers"), []);
    assert_eq!(bench.store.queues().await.expect("queues answers"), []);
    assert_eq!(bench.snapshot().await.lines().count(), 1, "only the ledger's line is left");
    bench.add([job(1).process("p")]).await;
    assert_eq!(bench.detail(1).await.job.seq, 2, "a consumed id may be used again");
}
