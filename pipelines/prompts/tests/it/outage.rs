//! A provider that answers nobody: the run is held, one call now and then finds out whether it is over, and it goes on by itself.

use longhaul_pipeline::testing::{Halt, Point, Side, outages};
use std::time::Duration;

use longhaul_llm::{Class, Error};
use longhaul_pipeline::Hold;
use longhaul_pipeline::RunState;
use longhaul_prompts::batch::BatchTold;
use longhaul_prompts::{Mode, manage};
use longhaul_queue::State;
use longhaul_sim::SimOptions;

use crate::stage::{Stage, prompts, settings};

const HOUR: Duration = Duration::from_secs(3600);

/// Begins or ends an outage, of which the page of models is a part.
fn set_outage(stage: &Stage, error: Option<&Error>) {
    for point in [Point::Complete, Point::Models] {
        stage.double.fail(point, error.cloned());
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_hours_holds_a_run_which_goes_on_by_itself_and_fails_nothing() {
    for error in outages() {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(Mode::Sync, "outage"), prompts(200));
        let run = stage.submit(&settings, &requests).await;
        stage.double.halt_at(Halt { point: Point::Complete, nth: 60, side: Side::After });
        let worker = stage.work(&[&run]);
        stage.double.halted().await;
        set_outage(&stage, Some(&error));
        stage.double.go_on();
        let progress = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
        assert_eq!((progress.held, progress.is_over()), (Some(Hold::Outage), false), "{progress:?}");
        assert!(progress.message.is_some_and(|message| message.contains(&error.message)));
        let before = stage.double.calls(Point::Complete);
        tokio::time::sleep(5 * HOUR).await;
        let progress = stage.progress(&run).await;
        assert_eq!((progress.status, progress.failed), (RunState::Held, 0), "{progress:?}");
        // One free question a minute, and no call that costs.
        let asked = stage.double.calls(Point::Models);
        assert!((290..=310).contains(&asked), "{asked} questions in five hours");
        assert!(stage.double.calls(Point::Complete) <= before + 40, "calls that were under way");
        set_outage(&stage, None);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        let (spent, progress) = (stage.spent(&run).await, stage.progress(&run).await);
        assert_eq!((progress.status, spent.calls, spent.open_calls), (RunState::Completed, 200, 0));
        assert_eq!(spent.unknown_calls > 0, error.maybe_billed, "{spent:?}");
        assert!(spent.retried > 0, "{spent:?}");
    }
}

/// Where even the page of models is answered, single calls find out; they rotate, and no try is counted.
#[tokio::test(start_paused = true)]
async fn the_last_request_of_a_run_survives_an_outage_of_hours() {
    for error in outages() {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(Mode::Sync, "alone"), prompts(1));
        let run = stage.submit(&settings, &requests).await;
        stage.double.fail(Point::Complete, Some(error.clone()));
        let worker = stage.work(&[&run]);
        stage.until_progress(&run, |progress| progress.held == Some(Hold::Outage)).await;
        // Each hour of the virtual clock takes the worker a second or so of a busy machine.
        tokio::time::sleep(8 * HOUR).await;
        stage.double.fail(Point::Complete, None);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_for_a_day_and_never_answered_is_taken_for_the_cause() {
    let [unreachable, unanswered, overloaded] = outages();
    for (error, ends) in [(unreachable, false), (unanswered, true), (overloaded, true)] {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(Mode::Sync, "the cause"), prompts(3));
        let run = stage.submit(&settings, &requests).await;
        stage.double.fail(Point::Complete, Some(error.clone()));
        let worker = stage.work(&[&run]);
        tokio::time::sleep(26 * HOUR).await;
        let (status, failed) = if ends { (RunState::Failed, 3) } else { (RunState::Held, 0) };
        // While a call finds out whether the outage is over, the run is running.
        stage.until_progress(&run, |progress| progress.status == status).await;
        assert_eq!(stage.progress(&run).await.failed, failed, "{error}");
        worker.drain().await;
    }
}

/// A connection that was never made is not billed; a call that was sent and not answered may have been.
#[tokio::test(start_paused = true)]
async fn an_outage_does_not_eat_a_budget_that_is_nearly_spent() {
    for error in outages() {
        let stage = Stage::new(SimOptions::default());
        let (settings, mut requests) = (settings(Mode::Sync, "nearly spent"), prompts(40));
        for request in &mut requests {
            request.body["max_tokens"] = 100.into();
        }
        let run = settings.run_id();
        let ceiling = stage.ceiling(&settings, &requests[0]).await;
        // What was sent and not answered stays booked: at most as many calls as are under way at once.
        let under_way = if error.maybe_billed { 32 } else { 0 };
        stage.cap(&run, (requests.len() as u64 + under_way) * ceiling).await;
        stage.submit(&settings, &requests).await;
        set_outage(&stage, Some(&error));
        let worker = stage.work(&[&run]);
        stage.until_progress(&run, |progress| progress.held == Some(Hold::Outage)).await;
        tokio::time::sleep(HOUR).await;
        let spent = stage.spent(&run).await;
        assert_eq!((spent.cost.0, spent.open_calls), (0, 0), "{error}: {spent:?}");
        assert!(spent.unknown_calls <= under_way, "{error}: {spent:?}");
        set_outage(&stage, None);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_whose_provider_does_not_answer_is_held_and_goes_on_by_itself() {
    let points = [Point::Upload, Point::Poll, Point::Results];
    for (point, error) in points.into_iter().flat_map(|point| outages().map(|error| (point, error))) {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(Mode::Batch, "outage"), prompts(30));
        let run = stage.submit(&settings, &requests).await;
        stage.double.fail(point, Some(error.clone()));
        let worker = stage.work(&[&run]);
        let held = stage.until_progress(&run, |progress| progress.held == Some(Hold::Outage)).await;
        assert_eq!((held.status, held.failed), (RunState::Held, 0), "{point:?} {error}: {held:?}");
        tokio::time::sleep(HOUR).await;
        stage.double.fail(point, None);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        assert_eq!((stage.stats().batches_created, stage.stats().paid_twice), (1, 0), "{point:?} {error}");
    }
}

/// Neither a 404 alone nor anything else that time does not heal is waited for without a word.
#[tokio::test(start_paused = true)]
async fn a_batch_of_which_the_provider_refuses_to_tell_is_held_until_somebody_decides() {
    for (decision, executed) in [(BatchTold::Wait, 1), (BatchTold::Resubmit, 2), (BatchTold::Alone, 2)] {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(Mode::Batch, "refuses"), prompts(10));
        let run = stage.submit(&settings, &requests).await;
        let error = Error::new(Class::BadRequest, "this batch belongs to another project").with_status(400);
        stage.double.fail(Point::Poll, Some(error));
        let worker = stage.work(&[&run]);
        let held = stage.until_progress(&run, |progress| progress.status == RunState::Held).await;
        assert_eq!((held.held, held.is_over()), (Some(Hold::Ambiguous), true), "{held:?}");
        assert!(held.message.is_some_and(|message| message.contains("another project")));
        stage.double.fail(Point::Poll, None);
        assert_eq!(manage::resolve(&stage.pipeline, &run, decision).await.unwrap(), 1);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        let stats = stage.stats();
        assert_eq!(stats.lines_executed + stats.calls, executed * 10, "{decision:?}: {stats:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn going_on_with_a_run_asks_what_failed_and_what_was_cancelled() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Sync, "goes on"), prompts(12));
    let run = stage.submit(&settings, &requests).await;
    let refused = Error::new(Class::BadRequest, "not today").with_status(400);
    stage.double.halt_at(Halt { point: Point::Complete, nth: 4, side: Side::After });
    let options = longhaul_queue::WorkerOptions { concurrency: 1, ..longhaul_pipeline::testing::options() };
    let worker = crate::stage::work((&stage.engine(), &stage.other_process()), &[&run], options);
    stage.double.halted().await;
    stage.double.fail(Point::Complete, Some(refused));
    stage.double.halt_at(Halt { point: Point::Complete, nth: 8, side: Side::Before });
    stage.double.go_on();
    stage.double.halted().await;
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    stage.double.go_on();
    stage.ended(&run).await;
    worker.drain().await;
    let progress = stage.progress(&run).await;
    assert_eq!((progress.completed, progress.status), (4, RunState::Cancelled), "{progress:?}");
    let message = progress.message.expect("what is missing");
    assert!(message.contains("not today") && message.contains("of 12 requests were cancelled"), "{message}");
    stage.double.fail(Point::Complete, None);
    assert_eq!(manage::go_on(&stage.pipeline, &run).await.unwrap(), 8);
    assert_eq!(manage::go_on(&stage.pipeline, &run).await.unwrap(), 0);
    let worker = stage.work(&[&run]);
    stage.until(&run, |info| info.counts[State::Succeeded as usize] == 12).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    assert_eq!((stage.stats().paid_twice, stage.progress(&run).await.status), (0, RunState::Completed));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_says_whether_some_or_all_failed_and_why() {
    for (failing, status) in [(0, RunState::Completed), (1, RunState::PartlyFailed), (3, RunState::Failed)] {
        let stage = Stage::new(SimOptions::default());
        let (settings, mut requests) = (settings(Mode::Sync, "some fail"), prompts(3));
        for request in &mut requests[..failing] {
            request.body = serde_json::json!({ "messages": "none" });
        }
        let run = stage.submit(&settings, &requests).await;
        let worker = stage.work(&[&run]);
        stage.ended(&run).await;
        worker.drain().await;
        let progress = stage.progress(&run).await;
        assert_eq!((progress.status, progress.failed), (status, failing as u64), "{progress:?}");
        let expected = format!("{failing} of 3 requests failed, the first with: bad_request");
        match failing {
            0 => assert_eq!(progress.message, None),
            _ => assert!(progress.message.is_some_and(|message| message.starts_with(&expected))),
        }
    }
}
