//! Runs of texts to embed: the same road as prompts, with vectors at its end.

use longhaul_llm::cache::CacheMode;
use longhaul_llm::types::Dialect;
use longhaul_llm::wire::openai::VectorForm;
use longhaul_llm::{Billing, Endpoint};
use longhaul_pipeline::testing::{Halt, Point, SEED, Side};
use longhaul_prompts::request::{RequestResult, compose};
use longhaul_prompts::{Error, Mode, NewRequest, Run, RunId, RunSettings, Submission};
use longhaul_sim::{BatchOptions, Faults, SimOptions, embedding};
use serde_json::{Value, json};

use crate::stage::{Stage, settings};

fn embedding_settings(mode: Mode, name: &str) -> RunSettings {
    let defaults = serde_json::Map::from_iter([("dimensions".to_owned(), json!(16))]);
    let model = "sim-embed".to_owned();
    RunSettings { model, endpoint: Endpoint::Embeddings, defaults, ..settings(mode, name) }
}

fn request(number: usize, input: &Value) -> NewRequest {
    let custom_id = Some(format!("t{number}"));
    NewRequest { custom_id, body: json!({ "input": input }), ..NewRequest::default() }
}

fn texts(count: usize) -> Vec<NewRequest> {
    (0..count).map(|number| request(number, &json!(format!("text {number} about rivers")))).collect()
}

fn assert_right(result: &RequestResult, request: &NewRequest) {
    assert_eq!(result.custom_id, request.custom_id);
    let inputs = match &request.body["input"] {
        Value::Array(inputs) => inputs.clone(),
        only => vec![only.clone()],
    };
    let vector = |input: &Value| embedding(SEED, input.as_str().unwrap_or_default(), Some(16));
    assert_eq!(result.answer.vectors, inputs.iter().map(vector).collect::<Vec<_>>());
}

async fn run(stage: &Stage, settings: &RunSettings, requests: &[NewRequest]) -> RunId {
    let run = stage.submit(settings, requests).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    run
}

#[tokio::test(start_paused = true)]
async fn every_text_has_its_vector_and_is_paid_once_on_a_bad_day() {
    for mode in [Mode::Sync, Mode::Batch] {
        let faults = Faults { rate_429: 0.05, rate_5xx: 0.05, retry_after_ms: 5, ..Faults::default() };
        let batch = BatchOptions { rate_line_failed: 0.1, ..BatchOptions::default() };
        let stage = Stage::new(SimOptions { faults, batch, ..SimOptions::default() });
        let (settings, mut requests) = (embedding_settings(mode, "bad day"), texts(120));
        requests[7] = request(7, &json!(["one", "two", "three"]));
        let run = run(&stage, &settings, &requests).await;
        let answers = stage.answers(&run).await;
        assert_eq!(answers.len(), 120);
        answers.iter().zip(&requests).for_each(|(answer, request)| assert_right(answer, request));
        let (stats, spent) = (stage.stats(), stage.spent(&run).await);
        assert_eq!((stats.executed, stats.paid_twice, stats.tokens_out), (120, 0, 0), "{mode}: {stats:?}");
        assert_eq!((spent.answers, spent.open_calls, spent.unknown_calls), (120, 0, 0), "{mode}: {spent:?}");
        assert_eq!((spent.usage.input(), spent.usage.output()), (stats.tokens_in, 0), "{mode}");
        assert!(spent.cost.0 > 0, "{mode}: {spent:?}");
        if mode == Mode::Batch {
            assert!(stats.batches_created == 1 && stats.lines_failed > 0 && stats.calls > 0, "{stats:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_input_is_reserved_and_a_known_text_costs_nothing() {
    let stage = Stage::new(SimOptions::default());
    let settings = RunSettings { cache: CacheMode::Auto, ..embedding_settings(Mode::Sync, "known") };
    let requests = texts(5);
    let route = stage.pipeline.llm().route(&settings.profile, &settings.model).await.unwrap();
    let composed = compose(requests[0].body.clone(), Dialect::OpenAi, &settings).unwrap();
    // Under a cap that leaves no room for any output.
    let ceiling = route.ceiling(&composed, Billing::Sync).unwrap().0;
    assert!(ceiling <= 2_000, "{ceiling}");
    stage.cap(&settings.run_id(), 5 * ceiling).await;
    run(&stage, &settings, &requests).await;
    assert_eq!(stage.stats().executed, 5);
    let mut other = settings.clone();
    other.source.sha256 = "other".to_owned();
    // The way vectors are written is no part of what is asked for.
    let compact: Vec<NewRequest> = requests
        .iter()
        .cloned()
        .map(|mut request| {
            request.body["encoding_format"] = "base64".into();
            request
        })
        .collect();
    let second = run(&stage, &other, &compact).await;
    assert_eq!(stage.stats().executed, 5, "all were in the cache");
    for (answer, request) in stage.answers(&second).await.iter().zip(&requests) {
        assert_right(answer, request);
        assert_eq!((answer.cached, answer.cost_usd), (true, Some(longhaul_llm::NanoUsd::ZERO)));
        assert_eq!(answer.encoding_format, VectorForm::Base64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_holds_no_more_texts_than_the_provider_takes() {
    let stage = Stage::new(SimOptions::default());
    stage.double.limit_inputs(10);
    let settings = embedding_settings(Mode::Batch, "chunks");
    let requests: Vec<NewRequest> =
        (0..6).map(|number| request(number, &json!([format!("{number}"), "b", "c", "d"]))).collect();
    let run = run(&stage, &settings, &requests).await;
    let answers = stage.answers(&run).await;
    answers.iter().zip(&requests).for_each(|(answer, request)| assert_right(answer, request));
    assert_eq!(stage.stats().batches_created, 3, "two requests of four texts fit");
}

#[tokio::test(start_paused = true)]
async fn a_batch_survives_a_kill_after_its_creation() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (embedding_settings(Mode::Batch, "killed"), texts(20));
    let run = stage.submit(&settings, &requests).await;
    stage.double.halt_at(Halt { point: Point::Create, nth: 1, side: Side::After });
    let worker = stage.work(&[&run]);
    stage.double.halted().await;
    stage.kill(worker).await;
    let worker = stage.work(&[&run]);
    stage.ended(&run).await;
    worker.drain().await;
    let answers = stage.answers(&run).await;
    answers.iter().zip(&requests).for_each(|(answer, request)| assert_right(answer, request));
    assert_eq!((stage.stats().batches_created, stage.stats().paid_twice), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_kept_fails_its_request_alone() {
    for mode in [Mode::Sync, Mode::Batch] {
        let stage = Stage::new(SimOptions::default());
        let mut settings = embedding_settings(mode, "large");
        settings.defaults.insert("dimensions".to_owned(), json!(4096));
        let many: Vec<String> = (0..50).map(|number| format!("text {number}")).collect();
        let run = run(&stage, &settings, &[request(0, &json!(many)), request(1, &json!("one"))]).await;
        let results = stage.results(&run).await;
        let error = results[0].error.as_ref().expect("too large").text.clone();
        assert!(error.contains("can be kept; ask for less in one request"), "{mode}: {error}");
        assert!(results[1].result.is_some(), "{mode}: {results:?}");
        assert_eq!(stage.stats().paid_twice, 0, "{mode}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_is_refused_before_anything_is_stored() {
    let stage = Stage::new(SimOptions::default());
    let base = embedding_settings(Mode::Sync, "senseless");
    let with = |name: &str, value: Value| {
        let mut settings = base.clone();
        settings.defaults.insert(name.to_owned(), value);
        settings
    };
    let chat = RunSettings { endpoint: Endpoint::Chat, ..base.clone() };
    let cases = [
        (RunSettings { schema: Some(json!({})), ..base.clone() }, "embeddings cannot have a schema"),
        (
            RunSettings { fallback_model: Some("sim-small".to_owned()), ..base.clone() },
            "embeddings cannot have a fallback model",
        ),
        (with("system", json!("be brief")), "embeddings cannot have a system text"),
        (with("max_tokens", json!(5)), "embeddings cannot have a limit of output"),
        (chat, "only embeddings have dimensions"),
    ];
    for (settings, problem) in cases {
        let Err(Error::Llm(error)) = Submission::begin(&stage.pipeline, settings.clone()).await else {
            panic!("{problem}");
        };
        assert_eq!(error.message, problem);
        assert!(Run::find(stage.pipeline.queue(), &settings.run_id()).await.unwrap().is_none());
    }
    stage.double.forget_embeddings();
    let pipeline = stage.other_process();
    let Err(Error::Llm(error)) = Submission::begin(&pipeline, base.clone()).await else { panic!("embedded") };
    assert_eq!(error.message, "sim offers no embeddings; choose another profile for them");
    assert!(Run::find(stage.pipeline.queue(), &base.run_id()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_embedded_is_refused_as_it_is_added() {
    let stage = Stage::new(SimOptions::default());
    let settings = embedding_settings(Mode::Batch, "refused");
    let mut submission = Submission::begin(&stage.pipeline, settings).await.unwrap();
    for input in [json!([]), json!({}), json!(vec!["x"; 2049])] {
        assert!(matches!(submission.push(request(0, &input)).await, Err(Error::Llm(_))));
    }
    submission.push(request(0, &json!([1, 2, 3]))).await.unwrap();
    submission.finish().await.unwrap();
}
