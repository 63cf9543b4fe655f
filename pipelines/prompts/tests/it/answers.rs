//! What a single answer may be: from another model, known already, cut off, refused, of the wrong shape.

use longhaul_llm::cache::CacheMode;
use longhaul_llm::types::{Dialect, Stop};
use longhaul_prompts::request::{RequestResult, compose, is_cut_off};
use longhaul_prompts::{Mode, NewRequest, RunId, RunSettings};
use longhaul_queue::State;
use longhaul_queue::job::JobResult;
use longhaul_sim::{Faults, Latency, SimOptions};
use serde_json::json;

use crate::stage::{Stage, prompt, prompts, settings};

async fn run(stage: &Stage, settings: &RunSettings, requests: &[NewRequest]) -> RunId {
    let run = stage.submit(settings, requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    run
}

fn with_schema(settings: RunSettings) -> RunSettings {
    let schema = json!({
        "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"],
        "additionalProperties": false
    });
    RunSettings { schema: Some(schema), ..settings }
}

fn failure(result: &JobResult) -> &str {
    assert_eq!(result.state, State::Failed, "{result:?}");
    &result.error.as_ref().expect("a reason").text
}

#[tokio::test(start_paused = true)]
async fn known_answers_cost_nothing_and_say_so() {
    for (first, second) in [(Mode::Sync, Mode::Sync), (Mode::Batch, Mode::Sync)] {
        let stage = Stage::new(SimOptions::default());
        let cached = |mode, name| RunSettings { cache: CacheMode::Auto, ..settings(mode, name) };
        let requests = prompts(10);
        run(&stage, &cached(first, "first"), &requests).await;
        let executed = stage.stats().executed;
        let settings = cached(second, "second");
        let again = run(&stage, &settings, &requests).await;
        stage.all_right(&again, &settings, &requests).await;
        let cached =
            |answer: &RequestResult| answer.cached && answer.cost_usd == Some(longhaul_llm::NanoUsd::ZERO);
        assert!(stage.answers(&again).await.iter().all(cached));
        assert_eq!(stage.stats().executed, executed);
        let spent = stage.spent(&again).await;
        assert_eq!((spent.cached, spent.calls, spent.cost.0), (10, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn identical_prompts_under_way_share_one_call() {
    let latency = Latency { base_ms: 1_000, ..Latency::default() };
    let stage = Stage::new(SimOptions { latency, ..SimOptions::default() });
    let settings = RunSettings { cache: CacheMode::Auto, ..settings(Mode::Sync, "same") };
    let requests: Vec<NewRequest> = (0..30).map(|number| prompt(number, "The same for all")).collect();
    let same = run(&stage, &settings, &requests).await;
    stage.all_right(&same, &settings, &requests).await;
    assert_eq!(stage.stats().executed, 1);
    let spent = stage.spent(&same).await;
    assert_eq!((spent.calls, spent.cached), (1, 29));
}

#[tokio::test(start_paused = true)]
async fn where_only_known_answers_are_allowed_nothing_is_paid_for() {
    let stage = Stage::new(SimOptions::default());
    let auto = RunSettings { cache: CacheMode::Auto, ..settings(Mode::Sync, "some") };
    run(&stage, &auto, &prompts(3)).await;
    let only = RunSettings { cache: CacheMode::Only, ..settings(Mode::Sync, "more") };
    let more = run(&stage, &only, &prompts(5)).await;
    let results = stage.results(&more).await;
    assert!(results[..3].iter().all(|result| result.state == State::Succeeded));
    assert!(results[3..].iter().all(|result| failure(result).starts_with("cache_miss")));
    assert_eq!(stage.stats().executed, 3);
}

#[tokio::test(start_paused = true)]
async fn another_model_answers_what_the_first_cannot() {
    // The first is asked three times in vain; the other model is another request, and so has other luck.
    let faults = Faults { rate_schema_break: 0.7, ..Faults::default() };
    let stage = Stage::new(SimOptions { faults, ..SimOptions::default() });
    let requests = prompts(40);
    let without = with_schema(settings(Mode::Sync, "without"));
    let alone = run(&stage, &without, &requests).await;
    let failed = stage.progress(&alone).await.failed;
    assert!(failed > 3, "{failed}");
    assert!(
        stage
            .results(&alone)
            .await
            .iter()
            .filter(|r| r.state == State::Failed)
            .all(|result| { failure(result).starts_with("bad_shape") })
    );
    let with = RunSettings { fallback_model: Some("sim-large".to_owned()), ..without };
    let both = run(&stage, &with, &requests).await;
    let results = stage.results(&both).await;
    let answers = results.iter().filter_map(|result| result.result.as_ref());
    let models: Vec<String> =
        answers.map(|value| value.to::<RequestResult>().unwrap().answer.model).collect();
    assert!(models.iter().any(|model| model == "sim-large"), "{models:?}");
    assert!(stage.progress(&both).await.failed < failed);
}

#[tokio::test(start_paused = true)]
async fn a_text_that_was_cut_off_is_kept_and_flagged() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let requests = [prompt(0, "[[sim:truncate]] Tell me everything"), prompt(1, "Tell me something")];
        let cut = run(&stage, &settings(mode, "cut"), &requests).await;
        let answers = stage.answers(&cut).await;
        assert_eq!((answers[0].answer.stop, answers[1].answer.stop), (Stop::Length, Stop::End));
        assert!(is_cut_off(&answers[0]) && !is_cut_off(&answers[1]));
    }
}

#[tokio::test(start_paused = true)]
async fn json_that_was_cut_off_fails_and_is_neither_mended_nor_asked_for_again() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let requests = [prompt(0, "[[sim:truncate]] A number"), prompt(1, "A number")];
        let cut = run(&stage, &with_schema(settings(mode, "cut")), &requests).await;
        let results = stage.results(&cut).await;
        assert!(failure(&results[0]).starts_with("truncated"), "{results:?}");
        assert_eq!(results[1].state, State::Succeeded);
        assert_eq!(stage.stats().executed, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_model_declines_fails_and_is_paid_for() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let requests = [prompt(0, "[[sim:refuse]] Do it"), prompt(1, "Do it")];
        let refused = run(&stage, &settings(mode, "refused"), &requests).await;
        let results = stage.results(&refused).await;
        assert!(failure(&results[0]).starts_with("refused"), "{results:?}");
        assert_eq!((stage.stats().executed, stage.spent(&refused).await.calls), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_batch_are_judged_and_repaired_like_any_other() {
    let faults = Faults {
        rate_schema_break: 0.1,
        rate_malformed: 0.05,
        rate_fenced: 0.2,
        rate_5xx: 0.3,
        ..Faults::default()
    };
    let stage = Stage::new(SimOptions { faults, ..SimOptions::default() });
    let (settings, requests) = (with_schema(settings(Mode::Batch, "repaired")), prompts(60));
    let repaired = run(&stage, &settings, &requests).await;
    stage.all_right(&repaired, &settings, &requests).await;
    let stats = stage.stats();
    assert!(stats.calls > 0 && stats.faults["status_5xx"] > 0, "{stats:?}");
    assert_eq!((stats.batches_created, stats.lines_executed), (1, 60), "{stats:?}");
    for request in &requests {
        let asked = compose(request.body.clone(), Dialect::OpenAi, &settings).unwrap();
        assert_eq!(stage.core.times_executed(&asked), 1, "a repair that failed does not ask from the start");
    }
    assert_eq!(stage.spent(&repaired).await.calls, stats.executed);
}
