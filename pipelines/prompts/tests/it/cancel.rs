//! Runs that somebody ends early: what is answered is kept, what is not is cancelled, and nothing is left hanging.

use longhaul_llm::{Class, Error};
use longhaul_pipeline::Hold;
use longhaul_pipeline::RunState;
use longhaul_pipeline::testing::{Halt, Point, Side};
use longhaul_prompts::{Mode, RunId, manage};
use longhaul_queue::State;
use longhaul_sim::{BatchOptions, SimOptions};

use crate::stage::{Stage, assert_right, prompts, settings};

/// How many requests of a run were answered, and were cancelled; there is nothing else.
async fn kept_and_cancelled(stage: &Stage, run: &RunId) -> (u64, u64) {
    let progress = stage.progress(run).await;
    assert_eq!((progress.failed, progress.running, progress.parked), (0, 0, 0), "{progress:?}");
    assert_eq!(progress.ended(), progress.total, "{progress:?}");
    (progress.completed, progress.cancelled)
}

fn slow_batch() -> SimOptions {
    let batch = BatchOptions { time_scale: 1.0, run_s: 40_000.0, ..BatchOptions::default() };
    SimOptions { batch, ..SimOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_keeps_what_was_answered_and_waits_for_what_was_sent() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Sync, "cancelled"), prompts(200));
    let run = stage.submit(&settings, &requests).await;
    stage.double.halt_at(Halt { point: Point::Complete, nth: 50, side: Side::After });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.double.go_on();
    stage.ended(&run).await;
    worker.drain().await;
    let (kept, cancelled) = kept_and_cancelled(&stage, &run).await;
    assert_eq!(kept, stage.stats().executed, "what was sent is paid for, so it is kept");
    assert!(kept >= 40 && cancelled >= 100, "{kept} {cancelled}");
    assert_eq!(stage.progress(&run).await.status, RunState::Cancelled);
    for (result, request) in stage.results(&run).await.iter().zip(&requests) {
        if let Some(value) = &result.result {
            assert_right(&value.to().unwrap(), &settings, request);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_batch_is_ended_at_the_provider_and_its_answers_are_kept() {
    let stage = Stage::new(slow_batch());
    let (settings, requests) = (settings(Mode::Batch, "cancelled"), prompts(100));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    // Some hours, so that a part is done.
    stage.until_batch_completed(20).await;
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.ended(&run).await;
    worker.drain().await;
    let (kept, cancelled) = kept_and_cancelled(&stage, &run).await;
    let stats = stage.stats();
    assert_eq!((kept, kept + cancelled), (stats.lines_executed, 100), "{stats:?}");
    assert!(kept >= 20 && cancelled > 0);
    assert_eq!((stats.batches_created, stats.calls), (1, 0));
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.open_calls, spent.unknown_calls), (kept, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_not_forgotten_when_the_provider_stumbles_or_the_worker_dies() {
    for dies in [false, true] {
        let stage = Stage::new(slow_batch());
        let settings = settings(Mode::Batch, "stumbles");
        let run = stage.submit(&settings, &prompts(30)).await;
        let mut worker = stage.work(&[&run]);
        stage.until_batch_completed(5).await;
        if dies {
            stage.double.halt_at(Halt { point: Point::Cancel, nth: 1, side: Side::Before });
        } else {
            stage.double.fail(Point::Cancel, Some(Error::new(Class::Overloaded, "not now").with_status(503)));
        }
        manage::cancel(&stage.pipeline, &run).await.unwrap();
        if dies {
            stage.double.halted().await;
            stage.kill(worker).await;
            worker = stage.work(&[&run]);
        } else {
            stage.until_calls(Point::Cancel, 3).await;
            stage.double.fail(Point::Cancel, None);
        }
        stage.ended(&run).await;
        worker.drain().await;
        let (kept, cancelled) = kept_and_cancelled(&stage, &run).await;
        assert!(kept >= 5 && cancelled > 0, "{kept} {cancelled}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_not_sent_just_ends() {
    let stage = Stage::new(SimOptions::default());
    let settings = settings(Mode::Batch, "unsent");
    let run = stage.submit(&settings, &prompts(30)).await;
    // Nobody has touched it.
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    assert_eq!(stage.process(&run).await.unfinished(), 0);
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    assert_eq!(kept_and_cancelled(&stage, &run).await, (0, 30));
    assert_eq!((stage.stats().batches_created, stage.spent(&run).await.open_calls), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_held_just_ends_too() {
    let stage = Stage::new(SimOptions::default());
    let settings = settings(Mode::Batch, "held");
    let run = stage.submit(&settings, &prompts(30)).await;
    stage.cap(&run, 10).await;
    let worker = stage.work(&[&run]);
    let progress = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
    assert_eq!(progress.held, Some(Hold::Budget));
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.ended(&run).await;
    worker.drain().await;
    assert_eq!(kept_and_cancelled(&stage, &run).await, (0, 30));
    assert_eq!((stage.stats().batches_created, stage.spent(&run).await.open_calls), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_looked_for_is_ended_once_it_is_found() {
    let mut options = slow_batch();
    options.batch.rate_create_lost = 1.0;
    let stage = Stage::new(options);
    let settings = settings(Mode::Batch, "looked for");
    let run = stage.submit(&settings, &prompts(30)).await;
    stage.double.fail(Point::Find, Some(Error::new(Class::Overloaded, "not now").with_status(503)));
    let worker = stage.work(&[&run]);
    stage.until_calls(Point::Find, 2).await;
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.double.fail(Point::Find, None);
    stage.ended(&run).await;
    worker.drain().await;
    let (kept, cancelled) = kept_and_cancelled(&stage, &run).await;
    assert_eq!((kept, kept + cancelled), (stage.stats().lines_executed, 30));
    assert_eq!((stage.stats().batches_created, stage.double.calls(Point::Cancel)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_whose_requests_ask_alone_ends() {
    let batch = BatchOptions { rate_line_failed: 1.0, ..BatchOptions::default() };
    let stage = Stage::new(SimOptions { batch, ..SimOptions::default() });
    let settings = settings(Mode::Batch, "alone");
    let run = stage.submit(&settings, &prompts(60)).await;
    stage.double.halt_at(Halt { point: Point::Complete, nth: 20, side: Side::After });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.double.go_on();
    stage.ended(&run).await;
    worker.drain().await;
    let results = stage.results(&run).await;
    let cancelled = results.iter().filter(|result| result.state == State::Cancelled).count();
    assert!(cancelled > 20 && results.len() == 60, "{cancelled}");
}
