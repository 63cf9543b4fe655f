//! The life of batches on paused time: states, progress, expiry, cancel, and results that are not as they should be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::TryStreamExt;

use super::{ask, provider, with_faults};
use crate::{BatchOptions, Faults, SimOptions, SimProvider, answer_key};
use longhaul_llm::error::Class;
use longhaul_llm::provider::{
    BatchInput, BatchItem, BatchLine, BatchProbe, BatchState, LineOutcome, Provider,
};

fn input(count: usize) -> BatchInput {
    let item = |number| BatchItem {
        custom_id: format!("line-{number}"),
        request: ask(&format!("request {number}")).into(),
    };
    BatchInput { tag: "chunk-1".to_owned(), items: (0..count).map(item).collect() }
}

fn sim(batch: BatchOptions) -> SimProvider {
    provider(SimOptions { batch, ..SimOptions::default() })
}

/// In the time of a real provider.
async fn hours(hours: f64) {
    tokio::time::advance(Duration::from_secs_f64(hours * 3.6)).await;
}

async fn lines(sim: &SimProvider, id: &str) -> Vec<BatchLine> {
    sim.batch_results(id).await.expect("the batch has ended").try_collect().await.expect("lines")
}

fn names(lines: &[BatchLine]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.custom_id.as_deref()).collect()
}

#[tokio::test(start_paused = true)]
async fn batch_goes_through_its_states_and_answers_every_line() {
    let sim =
        sim(BatchOptions { queue_s: 3600.0, run_s: 7200.0, finalize_s: 3600.0, ..BatchOptions::default() });
    let created = sim.create_batch(&input(100), None).await.expect("created");
    assert_eq!(created.state, BatchState::Queued);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let status = sim.poll_batch(&created.id).await.expect("told");
        seen.push((status.state, status.completed));
        hours(1.0).await;
    }
    let expected = [
        (BatchState::Queued, Some(0)),
        (BatchState::Running, Some(0)),
        (BatchState::Running, Some(50)),
        (BatchState::Finalizing, Some(100)),
        (BatchState::Completed, Some(100)),
    ];
    assert_eq!(seen, expected);
    let lines = lines(&sim, &created.id).await;
    assert_eq!(names(&lines).into_iter().collect::<BTreeSet<_>>().len(), 100);
    assert_ne!(names(&lines)[..3], ["line-0", "line-1", "line-2"], "results come in another order");
    for line in &lines {
        let number = line.custom_id.as_deref().and_then(|id| id.strip_prefix("line-")).expect("ours");
        let LineOutcome::Answered(answer) = &line.outcome else { panic!("{line:?}") };
        assert_eq!(answer.text, answer_key(1, &ask(&format!("request {number}"))));
    }
    let stats = sim.core().stats();
    assert_eq!((stats.batches_created, stats.lines_executed, stats.paid_twice), (1, 100, 0));
}

#[tokio::test(start_paused = true)]
async fn results_are_not_there_before_the_end() {
    let sim = sim(BatchOptions::default());
    let id = sim.create_batch(&input(3), None).await.expect("created").id;
    assert!(sim.batch_results(&id).await.is_err());
    assert_eq!(sim.poll_batch("simbatch_0").await.expect_err("unknown").status, Some(404));
}

#[tokio::test(start_paused = true)]
async fn expired_batch_keeps_the_part_that_was_done() {
    let sim = sim(BatchOptions { expire_after: Some(0.4), ..BatchOptions::default() });
    let id = sim.create_batch(&input(100), None).await.expect("created").id;
    hours(23.9).await;
    assert_eq!(sim.poll_batch(&id).await.expect("told").state, BatchState::Running);
    hours(0.2).await;
    let status = sim.poll_batch(&id).await.expect("told");
    assert_eq!(status.state, BatchState::Expired);
    let lines = lines(&sim, &id).await;
    let answered = lines.iter().filter(|line| matches!(line.outcome, LineOutcome::Answered(_))).count();
    let not_run = lines.iter().filter(|line| matches!(line.outcome, LineOutcome::NotRun)).count();
    assert!((39..=40).contains(&answered), "{answered}");
    assert_eq!((answered + not_run, status.completed), (100, Some(answered as u64)));
    assert_eq!(sim.core().stats().lines_executed, answered as u64);
}

#[tokio::test(start_paused = true)]
async fn cancel_keeps_the_finished_part() {
    let sim = sim(BatchOptions { queue_s: 0.0, run_s: 36_000.0, ..BatchOptions::default() });
    let id = sim.create_batch(&input(100), None).await.expect("created").id;
    hours(3.0).await;
    sim.cancel_batch(&id).await.expect("asked");
    assert_eq!(sim.poll_batch(&id).await.expect("told").state, BatchState::Cancelling);
    hours(1.0).await;
    let status = sim.poll_batch(&id).await.expect("told");
    assert_eq!((status.state, status.completed), (BatchState::Cancelled, Some(30)));
    let lines = lines(&sim, &id).await;
    assert_eq!(lines.iter().filter(|line| matches!(line.outcome, LineOutcome::NotRun)).count(), 70);
    sim.cancel_batch(&id).await.expect("a second time changes nothing");
    assert_eq!(sim.poll_batch(&id).await.expect("told").state, BatchState::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn lines_can_be_missing_duplicated_and_unknown() {
    let options =
        BatchOptions { lines_missing: 2, lines_duplicated: 3, lines_unknown: 1, ..BatchOptions::default() };
    let sim = sim(options);
    let id = sim.create_batch(&input(20), None).await.expect("created").id;
    hours(24.0).await;
    let lines = lines(&sim, &id).await;
    let mut counts = BTreeMap::new();
    for name in names(&lines) {
        *counts.entry(name).or_insert(0) += 1;
    }
    assert_eq!(counts.remove("unknown-0"), Some(1));
    assert_eq!(counts.len(), 18);
    assert_eq!(counts.values().filter(|count| **count == 2).count(), 3);
    assert_eq!(sim.core().stats().lines_executed, 20);
}

#[tokio::test(start_paused = true)]
async fn lines_fail_and_are_spoilt_at_their_rates() {
    let batch = BatchOptions { rate_line_failed: 0.2, ..BatchOptions::default() };
    let options = SimOptions { batch, ..with_faults(Faults { rate_truncated: 0.3, ..Faults::default() }) };
    let sim = provider(options);
    let id = sim.create_batch(&input(500), None).await.expect("created").id;
    hours(24.0).await;
    let status = sim.poll_batch(&id).await.expect("told");
    let failed = status.failed.expect("told");
    assert!((70..=130).contains(&failed), "{failed}");
    let lines = lines(&sim, &id).await;
    let errors = lines.iter().filter(|line| matches!(line.outcome, LineOutcome::Failed(_))).count();
    assert_eq!(errors as u64, failed);
    let stats = sim.core().stats();
    assert_eq!(stats.lines_executed + stats.lines_failed, 500);
    assert!((80..=160).contains(&stats.faults["truncated"]), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn lost_creation_leaves_a_batch_that_can_be_found() {
    let sim = sim(BatchOptions { rate_create_lost: 1.0, ..BatchOptions::default() });
    let error = sim.create_batch(&input(5), None).await.expect_err("the response is lost");
    assert_eq!((error.class, error.maybe_billed), (Class::Network, true));
    let probe = |tag: &str| BatchProbe { tag: tag.to_owned(), file: None, sent_at_ms: 0, requests: 5 };
    assert!(sim.find_batches(&probe("chunk-2")).await.expect("told").is_empty());
    let found = sim.find_batches(&probe("chunk-1")).await.expect("told");
    assert!(found.len() == 1 && found[0].certain);
    hours(24.0).await;
    assert_eq!(lines(&sim, &found[0].status.id).await.len(), 5);
    assert_eq!(sim.core().stats().batches_created, 1);
}

#[tokio::test(start_paused = true)]
async fn validation_fails_on_request_and_over_the_quota() {
    let failing =
        sim(BatchOptions { fail_validation: Some("token_limit_exceeded".into()), ..BatchOptions::default() });
    let id = failing.create_batch(&input(5), None).await.expect("created").id;
    hours(1.0).await;
    let status = failing.poll_batch(&id).await.expect("told");
    assert_eq!(status.state, BatchState::Failed);
    assert!(status.error.is_some_and(|error| error.starts_with("token_limit_exceeded: ")));
    let full = sim(BatchOptions { enqueued_tokens_max: Some(20), ..BatchOptions::default() });
    let state = async |id: &str| full.poll_batch(id).await.expect("told").state;
    let first = full.create_batch(&input(6), None).await.expect("created").id;
    let second = full.create_batch(&input(6), None).await.expect("created").id;
    hours(24.0).await;
    assert_eq!((state(&first).await, state(&second).await), (BatchState::Completed, BatchState::Failed));
    let third = full.create_batch(&input(6), None).await.expect("created").id;
    hours(24.0).await;
    assert_eq!(state(&third).await, BatchState::Completed, "the first has made room");
}

#[tokio::test(start_paused = true)]
async fn polls_can_fail_for_a_while() {
    let sim = sim(BatchOptions { rate_poll_5xx: 0.5, ..BatchOptions::default() });
    let id = sim.create_batch(&input(5), None).await.expect("created").id;
    let mut failed = 0;
    for _ in 0..100 {
        failed += usize::from(sim.poll_batch(&id).await.is_err());
    }
    assert!((30..=70).contains(&failed), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused() {
    let sim = sim(BatchOptions::default());
    let mut twice = input(2);
    twice.items[1].custom_id = "line-0".to_owned();
    let mut nameless = input(1);
    nameless.items[0].custom_id = String::new();
    for input in [input(0), twice, nameless] {
        let error = sim.create_batch(&input, None).await.expect_err("refused");
        assert_eq!(error.class, Class::BadRequest);
    }
    assert_eq!(sim.core().stats().batches_created, 0);
}

#[tokio::test(start_paused = true)]
async fn results_stay_as_they_were_booked_when_rates_change() {
    let sim = sim(BatchOptions::default());
    let id = sim.create_batch(&input(20), None).await.expect("created").id;
    hours(24.0).await;
    let texts = async || -> Vec<String> {
        let text = |line: BatchLine| match line.outcome {
            LineOutcome::Answered(answer) => answer.text,
            other => panic!("{other:?}"),
        };
        lines(&sim, &id).await.into_iter().map(text).collect()
    };
    let before = texts().await;
    sim.core().set_faults(Faults { rate_truncated: 1.0, ..Faults::default() });
    assert_eq!(texts().await, before);
}
