//! Batches that do not answer everything: expired, with lines that are missing, strange or failed, or refused as a whole.

use longhaul_pipeline::Hold;
use longhaul_pipeline::RunState;
use longhaul_pipeline::testing::{Halt, Point, Side};
use longhaul_prompts::batch::{BatchPayload, BatchTold, REFUSALS_MAX, ROUNDS_MAX, Refused, job_id};
use longhaul_prompts::{Mode, RunSettings, Submission, manage};
use longhaul_queue::{State, Timestamp};
use longhaul_sim::{BatchOptions, SimOptions};
use serde_json::json;

use crate::stage::{Stage, assert_right, prompts, settings};

fn sim(batch: BatchOptions) -> SimOptions {
    SimOptions { batch, ..SimOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn what_expired_is_sent_again_and_at_last_one_by_one() {
    let stage = Stage::new(sim(BatchOptions { expire_after: Some(0.5), ..BatchOptions::default() }));
    let (settings, requests) = (settings(Mode::Batch, "expires"), prompts(80));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert_eq!(stats.batches_created, u64::from(ROUNDS_MAX), "{stats:?}");
    // About half of the rest each time, and what is left of the third one by one.
    assert!((65..80).contains(&stats.lines_executed), "{stats:?}");
    assert_eq!((stats.lines_executed + stats.calls, stats.paid_twice), (80, 0), "{stats:?}");
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.answers, spent.open_calls, spent.unknown_calls), (80, 80, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_between_two_rounds_sends_the_rest_once() {
    for nth in [1, 2, 3] {
        let stage = Stage::new(sim(BatchOptions { expire_after: Some(0.5), ..BatchOptions::default() }));
        let (settings, requests) = (settings(Mode::Batch, "rounds"), prompts(20));
        let run = stage.submit(&settings, &requests).await;
        // Each harvest reads the results twice.
        stage.double.halt_at(Halt { point: Point::Results, nth: 2 * nth, side: Side::After });
        let worker = stage.work(&[&run]);
        stage.double.halted().await;
        stage.kill(worker).await;
        let worker = stage.work(&[&run]);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        let stats = stage.stats();
        assert_eq!((stats.batches_created, stats.paid_twice), (u64::from(ROUNDS_MAX), 0), "{stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lines_are_matched_by_id_and_nothing_is_made_up() {
    let batch =
        BatchOptions { lines_missing: 2, lines_duplicated: 3, lines_unknown: 4, ..BatchOptions::default() };
    let stage = Stage::new(sim(batch));
    let (settings, requests) = (settings(Mode::Batch, "odd lines"), prompts(30));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    let results = stage.results(&run).await;
    let errors: Vec<String> =
        results.iter().filter_map(|r| r.error.as_ref()).map(|e| e.text.clone()).collect();
    let count = |text: &str| errors.iter().filter(|error| error.contains(text)).count();
    assert_eq!((count("missing in batch result"), count("more than one result")), (2, 3), "{errors:?}");
    assert_eq!((results.len(), errors.len()), (30, 5));
    for (result, request) in results.iter().zip(&requests).filter(|(result, _)| result.result.is_some()) {
        assert_right(&result.result.as_ref().unwrap().to().unwrap(), &settings, request);
    }
    let progress = stage.progress(&run).await;
    assert_eq!((progress.status, progress.completed, progress.failed), (RunState::PartlyFailed, 25, 5));
    // Missing lines were run at the provider, but it said nothing of them; the doubled ones are paid for once.
    assert_eq!(stage.spent(&run).await.calls, 28);
}

#[tokio::test(start_paused = true)]
async fn lines_that_time_heals_are_asked_alone() {
    let stage = Stage::new(sim(BatchOptions { rate_line_failed: 0.3, ..BatchOptions::default() }));
    let (settings, requests) = (settings(Mode::Batch, "failed lines"), prompts(40));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert!(stats.lines_failed > 0);
    assert_eq!((stats.calls, stats.batches_created, stats.paid_twice), (stats.lines_failed, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refused_batch_fails_its_requests_with_the_reason() {
    let stage = Stage::new(sim(BatchOptions {
        fail_validation: Some("invalid_json_line".to_owned()),
        ..BatchOptions::default()
    }));
    let settings = settings(Mode::Batch, "refused");
    let run = stage.submit(&settings, &prompts(15)).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    let results = stage.results(&run).await;
    assert_eq!(results.len(), 15);
    for result in results {
        let error = result.error.expect("a reason").text;
        assert!(result.state == State::Failed && error.contains("invalid_json_line"), "{error}");
    }
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.open_calls, spent.unknown_calls), (0, 0, 0), "nothing was run");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_at_the_provider_is_waited_for() {
    // Enough for one of the two batches at a time.
    let batch = BatchOptions { enqueued_tokens_max: Some(200), time_scale: 0.3, ..BatchOptions::default() };
    let stage = Stage::new(sim(batch));
    let (first, second) = (settings(Mode::Batch, "first"), settings(Mode::Batch, "second"));
    let requests = prompts(20);
    let (one, two) = (stage.submit(&first, &requests).await, stage.submit(&second, &requests).await);
    let worker = stage.work(&[&one, &two]);
    stage.ended(&one).await;
    stage.ended(&two).await;
    worker.drain().await;
    stage.all_right(&one, &first, &requests).await;
    stage.all_right(&two, &second, &requests).await;
    let stats = stage.stats();
    assert!(stats.batches_created > 2, "one was refused at first: {stats:?}");
    assert_eq!(stats.lines_executed, 40);
    assert_eq!(stage.spent(&two).await.calls, 20);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_never_fits_is_held_with_its_reason_and_can_be_sent_one_by_one() {
    let batch = BatchOptions { enqueued_tokens_max: Some(10), ..BatchOptions::default() };
    let stage = Stage::new(sim(batch));
    let (settings, requests) = (settings(Mode::Batch, "too large"), prompts(20));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.until_calls(Point::Create, 2).await;
    let (detail, _) = manage::batches(&stage.pipeline, &run).await.unwrap().remove(0);
    let refused: Refused = detail.data.expect("its step").to().unwrap();
    assert!(refused.refusals >= 1 && refused.refused.is_some_and(|why| why.contains("token_limit_exceeded")));
    let held = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
    assert_eq!((held.held, held.is_over()), (Some(Hold::BatchLimit), true), "{held:?}");
    assert!(held.message.is_some_and(|message| message.contains("token_limit_exceeded")));
    assert_eq!(stage.stats().calls, 0, "one by one costs twice as much: nobody asked for that");
    // Somebody has it sent again, which helps as little.
    assert_eq!(stage.found(&run).await.resume().await.unwrap(), 1);
    let more = || stage.double.calls(Point::Create) > REFUSALS_MAX.into();
    stage.until_progress(&run, |progress| more() && progress.status == RunState::Held).await;
    assert_eq!(manage::resolve(&stage.pipeline, &run, BatchTold::Alone).await.unwrap(), 1);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert_eq!((stats.batches_created, stats.calls), (2 * u64::from(REFUSALS_MAX), 20), "{stats:?}");
    let refused = manage::refused_batches(&stage.pipeline, &run).await.unwrap();
    let reason = refused[0].0.job.error.as_ref().expect("a reason").text.clone();
    assert!(reason.contains("one by one") && reason.contains("token_limit_exceeded"), "{reason}");
    let (progress, spent) = (stage.progress(&run).await, stage.spent(&run).await);
    assert_eq!((progress.status, spent.calls, spent.open_calls), (RunState::Completed, 20, 0));
    stage.found(&run).await.remove().await.unwrap();
    assert!(stage.store.process(run.process()).await.unwrap().is_none(), "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_wrong_in_itself_fails_alone() {
    let stage = Stage::new(SimOptions::default());
    let settings = settings(Mode::Batch, "one wrong");
    let mut requests = prompts(6);
    requests[2].body = json!({ "messages": "none" });
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    let results = stage.results(&run).await;
    let failed: Vec<usize> = (0..6).filter(|index| results[*index].state == State::Failed).collect();
    assert_eq!(failed, [2], "{results:?}");
    assert_eq!(stage.stats().lines_executed, 5);
}

#[tokio::test(start_paused = true)]
async fn at_its_deadline_a_batch_is_ended_and_the_rest_goes_one_by_one() {
    let batch = BatchOptions { time_scale: 1.0, run_s: 80_000.0, ..BatchOptions::default() };
    let stage = Stage::new(sim(batch));
    let start = stage.pipeline.queue().clock().now();
    let switch_at = Some(start + std::time::Duration::from_secs(40_000));
    let settings = RunSettings { switch_at, ..settings(Mode::Batch, "deadline") };
    let requests = prompts(50);
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert_eq!((stats.batches_created, stage.double.calls(Point::Cancel)), (1, 1), "{stats:?}");
    assert!(stats.lines_executed > 0 && stats.calls > 0, "{stats:?}");
    assert_eq!((stats.lines_executed + stats.calls, stats.paid_twice), (50, 0), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_deadline_has_passed_is_not_sent() {
    let stage = Stage::new(SimOptions::default());
    let settings =
        RunSettings { switch_at: Some(Timestamp::from_millis(1)), ..settings(Mode::Batch, "too late") };
    let requests = prompts(5);
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    assert_eq!((stage.stats().batches_created, stage.stats().calls), (0, 5));
    let first =
        BatchPayload { run: run.to_string(), chunk: 0, round: 0, part: 0, members: Vec::new(), mixed: false };
    assert!(stage.store.get(vec![job_id(&run, &first)]).await.unwrap().is_empty(), "it is done");
}

/// The first chunk's batch is over and deleted, its requests ask alone, and only then does the submission go on.
#[tokio::test(start_paused = true)]
async fn a_submission_that_goes_on_revives_no_batch_that_is_over() {
    let stage = Stage::new(sim(BatchOptions { rate_line_failed: 1.0, ..BatchOptions::default() }));
    stage.double.limit_batches(5);
    let (settings, requests) = (settings(Mode::Batch, "goes on"), prompts(12));
    let mut halfway = Submission::begin(&stage.pipeline, settings.clone()).await.unwrap();
    let run = halfway.id().clone();
    for request in &requests[..6] {
        halfway.push(request.clone()).await.unwrap();
    }
    drop(halfway);
    stage.double.halt_at(Halt { point: Point::Complete, nth: 3, side: Side::Before });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.until(&run, |info| info.counts[5] == 4 && info.helpers[2..5].iter().sum::<u64>() == 0).await;
    stage.submit(&settings, &requests).await;
    stage.until_calls(Point::Create, 3).await;
    stage.double.go_on();
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert_eq!((stats.batches_created, stats.lines_failed, stats.executed), (3, 12, 12), "{stats:?}");
}
