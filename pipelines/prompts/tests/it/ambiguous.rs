//! Batches whose creation was not confirmed.

use longhaul_llm::{Class, Error};
use longhaul_pipeline::Hold;
use longhaul_pipeline::RunState;
use longhaul_pipeline::testing::{Halt, Point, Side};
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::{Mode, NewRequest, RunId, RunSettings, manage};
use longhaul_queue::State;
use longhaul_queue::testing::Started;
use longhaul_sim::{BatchOptions, SimOptions};

use crate::stage::{Stage, prompts, settings};

fn lost() -> SimOptions {
    // Slow, so that nothing ends by itself before the test looks at it.
    let batch = BatchOptions { rate_create_lost: 1.0, time_scale: 0.1, ..BatchOptions::default() };
    SimOptions { batch, ..SimOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_creation_was_not_confirmed_is_found_by_its_tag() {
    let stage = Stage::new(lost());
    let (settings, requests) = (settings(Mode::Batch, "lost"), prompts(10));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    assert_eq!((stage.stats().batches_created, stage.double.calls(Point::Create)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_never_created_is_sent_once_nobody_finds_it() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Batch, "never"), prompts(10));
    let run = stage.submit(&settings, &requests).await;
    stage.double.halt_at(Halt { point: Point::Create, nth: 1, side: Side::Before });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.kill(worker).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    assert!(stage.double.calls(Point::Find) >= 4, "a list may lag behind: it is asked more than once");
    assert_eq!(stage.stats().batches_created, 1);
}

/// A run whose batch may or may not exist, and which nobody but a person can decide.
async fn held(stage: &Stage, requests: &[NewRequest]) -> (RunId, RunSettings, Started) {
    stage.double.lose_tags();
    let settings = settings(Mode::Batch, "held");
    let run = stage.submit(&settings, requests).await;
    let worker = stage.work(&[&run]);
    let progress = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
    assert_eq!(progress.held, Some(Hold::Ambiguous));
    assert!(progress.message.is_some_and(|message| message.contains("did not confirm")));
    (run, settings, worker)
}

#[tokio::test(start_paused = true)]
async fn without_tags_it_is_held_and_never_sent_again_by_itself() {
    let stage = Stage::new(lost());
    // More than any page that is looked at.
    let requests = prompts(40);
    let (run, settings, worker) = held(&stage, &requests).await;
    // Looked for again and again, until the candidate has ended and can be told by its lines.
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let stats = stage.stats();
    assert_eq!((stats.batches_created, stats.lines_executed, stats.calls), (1, 40, 0));
    assert_eq!(stage.double.calls(Point::Create), 1);
    let spent = stage.spent(&run).await;
    assert_eq!((spent.calls, spent.unknown_calls, spent.open_calls), (40, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stranger_of_the_same_size_is_not_taken_for_ours() {
    let stage = Stage::new(SimOptions::default());
    let strange = settings(Mode::Batch, "strange");
    let stranger = stage.submit(&strange, &prompts(7)).await;
    let worker = stage.work(&[&stranger]);
    stage.ended(&stranger).await;
    worker.drain().await;
    stage.double.lose_tags();
    stage.double.halt_at(Halt { point: Point::Create, nth: 2, side: Side::Before });
    let (ours, requests) = (settings(Mode::Batch, "ours"), prompts(7));
    let run = stage.submit(&ours, &requests).await;
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.kill(worker).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &ours, &requests).await;
    assert_eq!(stage.stats().batches_created, 2);
}

/// A run whose batch the provider says that it does not have, when asked for it or for its results.
async fn forgotten(stage: &Stage, point: Point, requests: &[NewRequest]) -> (RunId, RunSettings, Started) {
    let settings = settings(Mode::Batch, "forgotten");
    let run = stage.submit(&settings, requests).await;
    stage.double.fail(point, Some(Error::new(Class::BadRequest, "no such batch").with_status(404)));
    let worker = stage.work(&[&run]);
    let progress = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
    assert_eq!(progress.held, Some(Hold::Ambiguous));
    assert!(progress.message.is_some_and(|message| message.contains("the provider no longer")));
    assert!(stage.double.calls(point) >= 5, "one answer is not believed");
    (run, settings, worker)
}

const FORGOTTEN: [Point; 2] = [Point::Poll, Point::Results];

#[tokio::test(start_paused = true)]
async fn a_forgotten_batch_is_held_and_goes_on_when_it_is_remembered() {
    for point in FORGOTTEN {
        let stage = Stage::new(SimOptions::default());
        let requests = prompts(6);
        let (run, settings, worker) = forgotten(&stage, point, &requests).await;
        stage.double.fail(point, None);
        assert_eq!(manage::resolve(&stage.pipeline, &run, BatchTold::Wait).await.unwrap(), 1);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        assert_eq!((stage.stats().batches_created, stage.stats().paid_twice), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_batch_may_be_sent_again_or_dropped() {
    let decisions = [(BatchTold::Resubmit, 2), (BatchTold::Drop, 1)];
    for (point, (decision, batches)) in
        FORGOTTEN.into_iter().flat_map(|point| decisions.map(|one| (point, one)))
    {
        let stage = Stage::new(SimOptions::default());
        let requests = prompts(6);
        let (run, settings, worker) = forgotten(&stage, point, &requests).await;
        stage.double.fail(point, None);
        manage::resolve(&stage.pipeline, &run, decision).await.unwrap();
        stage.ended(&run).await;
        worker.drain().await;
        assert_eq!(stage.stats().batches_created, batches);
        if decision == BatchTold::Resubmit {
            stage.all_right(&run, &settings, &requests).await;
        } else {
            let failed = stage.results(&run).await.iter().filter(|r| r.state == State::Failed).count();
            assert_eq!((failed, stage.spent(&run).await.unknown_calls), (6, 6), "it may have been billed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_person_may_send_it_again() {
    let stage = Stage::new(lost());
    let requests = prompts(5);
    let (run, settings, worker) = held(&stage, &requests).await;
    // The second creation is heard of.
    let calm = longhaul_sim::Faults { calm_after: Some(1), ..Default::default() };
    stage.core.set_faults(calm);
    assert_eq!(manage::resolve(&stage.pipeline, &run, BatchTold::Resubmit).await.unwrap(), 1);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    assert_eq!(stage.stats().batches_created, 2, "that is what was asked for");
}

#[tokio::test(start_paused = true)]
async fn a_person_may_wait() {
    let stage = Stage::new(lost());
    let requests = prompts(5);
    let (run, settings, worker) = held(&stage, &requests).await;
    let looks = stage.double.calls(Point::Find);
    assert_eq!(manage::resolve(&stage.pipeline, &run, BatchTold::Wait).await.unwrap(), 1);
    stage.ended(&run).await;
    worker.drain().await;
    assert!(stage.double.calls(Point::Find) > looks);
    stage.all_right(&run, &settings, &requests).await;
    assert_eq!(stage.stats().batches_created, 1);
}

#[tokio::test(start_paused = true)]
async fn a_person_may_give_it_up() {
    let stage = Stage::new(lost());
    let (run, _, worker) = held(&stage, &prompts(5)).await;
    assert_eq!(manage::resolve(&stage.pipeline, &run, BatchTold::Drop).await.unwrap(), 1);
    stage.ended(&run).await;
    worker.drain().await;
    for result in stage.results(&run).await {
        let error = result.error.expect("a reason").text;
        assert!(result.state == State::Failed && error.contains("given up"), "{error}");
    }
    let spent = stage.spent(&run).await;
    assert_eq!((spent.unknown_calls, spent.open_calls, spent.calls), (5, 0, 0), "it may have been billed");
    assert_eq!(stage.stats().batches_created, 1);
}
