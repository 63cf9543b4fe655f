//! What stops a whole run: a budget, a key, a quota. Requests wait at the gate and are let through when the cause is gone.

use longhaul_llm::{Class, Error};
use longhaul_pipeline::Hold;
use longhaul_pipeline::RunId;
use longhaul_pipeline::RunState;
use longhaul_pipeline::testing::{Point, options};
use longhaul_prompts::{Mode, RunSettings};
use longhaul_queue::WorkerOptions;
use longhaul_sim::{BatchOptions, Latency, SimOptions};

use crate::stage::{Progress, Stage, prompts, settings, work};

async fn held(stage: &Stage, run: &RunId, reason: Hold) -> Progress {
    let progress = stage.until_progress(run, |progress| progress.status == RunState::Held).await;
    assert_eq!(progress.held, Some(reason), "{progress:?}");
    assert_eq!(progress.parked + progress.completed, progress.total, "{progress:?}");
    progress
}

#[tokio::test(start_paused = true)]
async fn a_run_stops_before_its_cap_is_exceeded_and_goes_on_when_it_is_raised() {
    // A batch is cheaper, and goes in parts that fit: it is held when not one more request does.
    for (mode, cap) in [(Mode::Sync, 1_000_000), (Mode::Batch, 300_000)] {
        let stage = Stage::new(SimOptions::default());
        let (settings, requests) = (settings(mode, "capped"), prompts(60));
        let run = settings.run_id();
        stage.cap(&run, cap).await;
        stage.submit(&settings, &requests).await;
        let worker = stage.work(&[&run]);
        let progress = held(&stage, &run, Hold::Budget).await;
        let spent = stage.spent(&run).await;
        assert!(spent.cost.0 + spent.open_ceiling.0 <= cap && spent.open_calls == 0, "{spent:?}");
        assert!(progress.completed > 0, "{progress:?}");
        let message = progress.message.expect("a reason");
        assert!(message.contains("raise the cap") && message.contains("--max-tokens"), "{message}");
        stage.cap(&run, 1_000_000_000).await;
        assert!(stage.found(&run).await.resume().await.unwrap() > 0);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        assert_eq!(stage.stats().paid_twice, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cap_that_calls_under_way_have_reserved_is_waited_for() {
    // Room for three ceilings, and for all of what the calls really cost.
    let latency = Latency { base_ms: 500, ..Latency::default() };
    let stage = Stage::new(SimOptions { latency, ..SimOptions::default() });
    let settings = settings(Mode::Sync, "in flight");
    let mut requests = prompts(12);
    for request in &mut requests {
        request.body["max_tokens"] = 10_000.into();
    }
    let run = settings.run_id();
    let ceiling = stage.ceiling(&settings, &requests[0]).await;
    stage.cap(&run, 3 * ceiling + 1_000_000).await;
    stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
}

/// Each part is booked at its ceiling, and the next goes when it has turned out cheaper.
#[tokio::test(start_paused = true)]
async fn a_batch_is_split_to_fit_its_cap_and_the_parts_go_one_after_the_other() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Batch, "split"), prompts(60));
    let run = settings.run_id();
    let route = stage.pipeline.llm().route(&settings.profile, &settings.model).await.unwrap();
    let request = longhaul_prompts::request::compose(
        requests[0].body.clone(),
        longhaul_llm::types::Dialect::OpenAi,
        &settings,
    )
    .unwrap();
    let ceiling = route.ceiling(&request, longhaul_llm::Billing::Batch).unwrap().0;
    // Room for about twenty ceilings, and for all of what the requests really cost.
    let cap = 20 * ceiling;
    stage.cap(&run, cap).await;
    stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
    let (spent, stats) = (stage.spent(&run).await, stage.stats());
    assert!(spent.cost.0 <= cap && spent.open_calls + spent.unknown_calls == 0, "{spent:?}");
    assert!((3..=6).contains(&stats.batches_created), "{stats:?}");
    assert_eq!((stats.executed, stats.paid_twice, stats.calls), (60, 0, 0), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn batches_that_wait_for_each_others_money_do_not_block_the_worker() {
    let stage = Stage::new(SimOptions::default());
    let runs = ["one", "two", "three"]
        .map(|name| RunSettings { tags: vec!["shared".to_owned()], ..settings(Mode::Batch, name) });
    let requests = prompts(10);
    let mut ids = Vec::new();
    for settings in &runs {
        ids.push(stage.submit(settings, &requests).await);
    }
    // Room for the ceiling of one batch at a time.
    let cap = longhaul_llm::NanoUsd(1_400_000);
    stage.pipeline.llm().ledger().set_cap(&longhaul_llm::Scope::tag("shared"), Some(cap)).await.unwrap();
    let worker = work(
        (&stage.engine(), &stage.pipeline),
        &ids.iter().collect::<Vec<_>>(),
        WorkerOptions { concurrency: 1, ..options() },
    );
    for (run, settings) in ids.iter().zip(&runs) {
        stage.ended(run).await;
        stage.all_right(run, settings, &requests).await;
    }
    worker.drain().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_key_is_tried_a_few_times_and_not_once_for_each_request() {
    for mode in [Mode::Sync, Mode::Batch] {
        let options = SimOptions { require_key: Some("good".to_owned()), ..SimOptions::default() };
        let stage = Stage::new(options);
        stage.double.set_key("bad");
        let (settings, requests) = (settings(mode, "key"), prompts(100));
        let run = stage.submit(&settings, &requests).await;
        let worker = stage.work(&[&run]);
        let progress = held(&stage, &run, Hold::Auth).await;
        assert_eq!(progress.completed, 0);
        let tried = stage.double.calls(Point::Complete) + stage.double.calls(Point::Create);
        assert!(tried <= 10, "{tried} calls with a key that is refused");
        // Somebody resumes too early, from another process than the worker's.
        stage.found(&run).await.resume().await.unwrap();
        held_again(&stage, &run, tried).await;
        let again = stage.double.calls(Point::Complete) + stage.double.calls(Point::Create);
        assert!(again > tried && again <= 20, "{again} calls");
        stage.double.set_key("good");
        assert!(stage.found(&run).await.resume().await.unwrap() > 0);
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &settings, &requests).await;
        let spent = stage.spent(&run).await;
        assert_eq!((spent.calls, spent.open_calls, spent.unknown_calls), (100, 0, 0));
    }
}

/// Held, after more than so many calls.
async fn held_again(stage: &Stage, run: &RunId, calls: u64) {
    let more = || stage.double.calls(Point::Complete) + stage.double.calls(Point::Create) > calls;
    stage.until_progress(run, |progress| more() && progress.status == RunState::Held).await;
}

#[tokio::test(start_paused = true)]
async fn an_account_without_money_holds_the_run() {
    let stage = Stage::new(SimOptions::default());
    let empty = Error::new(Class::Quota, "you exceeded your current quota").with_status(429);
    stage.double.fail(Point::Complete, Some(empty));
    let (settings, requests) = (settings(Mode::Sync, "quota"), prompts(40));
    let run = stage.submit(&settings, &requests).await;
    let worker = stage.work(&[&run]);
    let progress = held(&stage, &run, Hold::Quota).await;
    assert!(progress.message.is_some_and(|message| message.contains("exceeded your current quota")));
    assert!(stage.double.calls(Point::Complete) <= 10);
    stage.double.fail(Point::Complete, None);
    assert_eq!(stage.found(&run).await.resume().await.unwrap(), 40);
    stage.ended(&run).await;
    worker.drain().await;
    stage.all_right(&run, &settings, &requests).await;
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_price_is_not_let_pass_under_a_cap() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let settings = RunSettings { model: "nameless".to_owned(), ..settings(mode, "unpriced") };
        let run = stage.submit(&settings, &prompts(5)).await;
        stage.cap(&run, 1_000_000_000).await;
        let worker = stage.work(&[&run]);
        let progress = held(&stage, &run, Hold::Budget).await;
        let message = progress.message.expect("a reason");
        assert!(
            message.contains("nameless has no price") && message.contains("--allow-unpriced"),
            "{message}"
        );
        assert_eq!((stage.stats().calls, stage.stats().batches_created), (0, 0));
        worker.drain().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_run_stands_still_until_it_is_resumed() {
    for mode in [Mode::Sync, Mode::Batch] {
        let batch = BatchOptions { time_scale: 1.0, ..BatchOptions::default() };
        let stage = Stage::new(SimOptions { batch, ..SimOptions::default() });
        let (paused, other) = (settings(mode, "paused"), settings(mode, "other"));
        let requests = prompts(20);
        let run = stage.submit(&paused, &requests).await;
        let beside = stage.submit(&other, &requests).await;
        stage.found(&run).await.pause().await.unwrap();
        let worker = stage.work(&[&run, &beside]);
        stage.ended(&beside).await;
        let progress = stage.progress(&run).await;
        assert_eq!((progress.status, progress.completed), (RunState::Paused, 0));
        stage.found(&run).await.resume().await.unwrap();
        stage.ended(&run).await;
        worker.drain().await;
        stage.all_right(&run, &paused, &requests).await;
    }
}
