//! The simulator seen through every client: over the wire each of them must see what the in-process provider sees.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use longhaul_llm::local::{EngineKind, detect};
use longhaul_llm::provider::{
    BatchInput, BatchItem, BatchLine, BatchProbe, BatchState, LineOutcome, Provider,
};
use longhaul_llm::types::{
    ChatRequest, Delta, EmbedInput, EmbedRequest, Endpoint, Message, OutputSchema, Role,
};
use longhaul_llm::{Class, Profile, ProviderKind, Secret, connect};
use longhaul_sim::{
    BatchOptions, Faults, Limits, SimCore, SimOptions, SimProvider, SimServer, answer_key, embedding,
};
use serde_json::json;

/// So fast that a batch has ended when it is asked for.
const AT_ONCE: f64 = 1e12;

/// One simulator, and every client of it.
struct Site {
    server: SimServer,
    clients: Vec<(&'static str, Arc<dyn Provider>)>,
}

impl Site {
    async fn new(options: SimOptions) -> Self {
        let server = SimServer::bind(options, ([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let mut clients: Vec<(&'static str, Arc<dyn Provider>)> = Vec::new();
        for kind in [ProviderKind::OpenAi, ProviderKind::Anthropic, ProviderKind::Gemini] {
            clients.push((kind.as_str(), connect(&profile(&server, kind)).expect("a client")));
        }
        clients.push(("sim", Arc::new(SimProvider::new(Arc::clone(server.core())).with_key("secret"))));
        Self { server, clients }
    }

    fn core(&self) -> &SimCore {
        self.server.core()
    }
}

fn profile(server: &SimServer, kind: ProviderKind) -> Profile {
    let mut profile = Profile::new("sim", kind);
    profile.base_url = server.url();
    profile.key = Some(Secret::new("secret"));
    profile.batches = Some(true);
    profile
}

/// A request of its own for each client, or the second client would make the second attempt.
fn ask(client: &str, number: usize) -> ChatRequest {
    ChatRequest {
        model: "sim-small".to_owned(),
        messages: vec![
            Message::text(Role::System, "Be brief."),
            Message::text(Role::User, format!("Question {number} by {client}.")),
        ],
        ..ChatRequest::default()
    }
}

fn ask_json(client: &str, number: usize) -> ChatRequest {
    let schema = json!({
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 10}, "why": {"type": "string"}},
        "required": ["score", "why"],
        "additionalProperties": false
    });
    let schema = OutputSchema { name: "score".to_owned(), schema, strict: true };
    ChatRequest { schema: Some(schema), ..ask(client, number) }
}

fn input(client: &str, count: usize) -> BatchInput {
    let item =
        |number| BatchItem { custom_id: format!("line-{number}"), request: ask(client, number).into() };
    BatchInput { tag: format!("chunk-{client}-{count}"), items: (0..count).map(item).collect() }
}

fn at_once() -> BatchOptions {
    BatchOptions { time_scale: AT_ONCE, ..BatchOptions::default() }
}

#[tokio::test]
async fn every_client_gets_the_right_answer() {
    let site =
        Site::new(SimOptions { require_key: Some("secret".to_owned()), ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        for request in [ask(name, 1), ask_json(name, 2)] {
            let answer = client.complete(&request).await.expect("an answer").value;
            assert_eq!(answer.text, answer_key(1, &request), "{name}");
            let mut stream = client.stream(&request).await.expect("a stream").value;
            let (mut text, mut end) = (String::new(), None);
            while let Some(delta) = stream.next().await {
                match delta.expect("a whole stream") {
                    Delta::Text(piece) => text.push_str(&piece),
                    Delta::Own { .. } => {}
                    Delta::End(answer) => end = Some(answer),
                }
            }
            let end = end.expect("an end");
            assert_eq!((&text, &end.text), (&answer.text, &answer.text), "{name}");
            assert_eq!((end.stop, end.usage), (answer.stop, answer.usage), "{name}");
        }
        let models = client.models().await.expect("models");
        assert!(models.iter().any(|model| model.id == "sim-small"), "{name}: {models:?}");
    }
    let stats = site.core().stats();
    assert_eq!((stats.executed, stats.answered, stats.distinct_requests), (16, 16, 8));
}

#[tokio::test]
async fn every_client_that_can_embeds() {
    let site = Site::new(SimOptions::default()).await;
    let texts = ["boats in the harbour", "revenue"];
    let request = EmbedRequest {
        model: "sim-embed".to_owned(),
        inputs: texts.map(EmbedInput::from).to_vec(),
        dimensions: Some(32),
        ..EmbedRequest::default()
    };
    let expected: Vec<_> = texts.iter().map(|text| embedding(1, text, Some(32))).collect();
    for (name, client) in site.clients.iter().filter(|(_, client)| client.caps().embeddings) {
        let embeddings = client.embed(&request).await.expect("vectors").value;
        assert_eq!(embeddings.vectors, expected, "{name}");
        assert!(embeddings.usage.fresh_in > 0, "{name}");
    }
}

#[tokio::test]
async fn every_client_that_can_embeds_in_batches_small_and_large() {
    let site = Site::new(SimOptions { batch: at_once(), ..SimOptions::default() }).await;
    let text = |name: &str, number: usize| format!("{name} text {number}");
    let input = |name: &str, count: usize| {
        let item = |number| {
            let inputs = vec![EmbedInput::Text(text(name, number))];
            let request = EmbedRequest {
                model: "sim-embed".to_owned(),
                inputs,
                dimensions: Some(8),
                ..Default::default()
            };
            BatchItem { custom_id: format!("line-{number}"), request: request.into() }
        };
        BatchInput { tag: format!("embed-{name}-{count}"), items: (0..count).map(item).collect() }
    };
    for (name, client) in &site.clients {
        if client.caps().batches_of(Endpoint::Embeddings).is_none() {
            let error = client.create_batch(&input(name, 2), None).await.expect_err("no embeddings");
            assert_eq!(error.message, "anthropic offers no embeddings; choose another profile for them");
            continue;
        }
        for count in [3, 150] {
            let input = input(name, count);
            let file = client.upload_batch(&input).await.expect("uploaded");
            let id = client.create_batch(&input, file.as_deref()).await.expect("created").id;
            assert_eq!(client.poll_batch(&id).await.expect("told").state, BatchState::Completed, "{name}");
            let lines = client.batch_results(&id).await.expect("results");
            let lines: Vec<BatchLine> = lines.try_collect().await.expect("lines");
            assert_eq!(lines.len(), count, "{name}");
            for line in lines {
                let id = line.custom_id.expect("a name");
                let number = id.strip_prefix("line-").and_then(|number| number.parse().ok()).expect("ours");
                let LineOutcome::Answered(answer) = line.outcome else { panic!("{name}: {id}") };
                assert_eq!(answer.vectors, [embedding(1, &text(name, number), Some(8))], "{name}");
                assert!(answer.usage.fresh_in > 0 && answer.usage.output() == 0, "{name}");
            }
        }
    }
}

/// Answered lines are right, and every line is there once.
fn check(name: &str, lines: Vec<BatchLine>) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for line in lines {
        let id = line.custom_id.expect("a name");
        let number = id.strip_prefix("line-").and_then(|number| number.parse().ok()).expect("ours");
        let kind = match line.outcome {
            LineOutcome::Answered(answer) => {
                assert_eq!(answer.text, answer_key(1, &ask(name, number)), "{name}");
                "answered"
            }
            LineOutcome::Failed(error) => {
                assert_eq!(error.class, Class::Overloaded, "{name}: {error}");
                "failed"
            }
            LineOutcome::NotRun => "not run",
        };
        *counts.entry(kind).or_insert(0) += 1;
        assert!(seen.insert(id, ()).is_none(), "{name}: a line came twice");
    }
    counts
}

#[tokio::test]
async fn every_client_runs_batches_small_and_large() {
    let batch = BatchOptions { rate_line_failed: 0.1, ..at_once() };
    let site = Site::new(SimOptions { batch, ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        // Gemini's small ones go and come inline.
        for count in [20, 300] {
            let input = input(name, count);
            let file = client.upload_batch(&input).await.expect("uploaded");
            let id = client.create_batch(&input, file.as_deref()).await.expect("created").id;
            let status = client.poll_batch(&id).await.expect("told");
            assert_eq!(status.state, BatchState::Completed, "{name}");
            let lines = client.batch_results(&id).await.expect("results").try_collect().await.expect("lines");
            let counts = check(name, lines);
            assert_eq!(counts.values().sum::<usize>(), count, "{name}");
            assert_eq!(status.completed, Some(counts["answered"] as u64), "{name}");
            assert_eq!(
                status.failed,
                Some(counts.get("failed").copied().unwrap_or_default() as u64),
                "{name}"
            );
        }
    }
    // The small batch's requests are among the large one's.
    let stats = site.core().stats();
    assert_eq!((stats.batches_created, stats.lines_executed + stats.lines_failed), (8, 4 * 320));
}

#[tokio::test]
async fn every_client_keeps_what_an_expired_batch_has_done() {
    let batch = BatchOptions { expire_after: Some(0.5), ..at_once() };
    let site = Site::new(SimOptions { batch, ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        let input = input(name, 40);
        let file = client.upload_batch(&input).await.expect("uploaded");
        let id = client.create_batch(&input, file.as_deref()).await.expect("created").id;
        assert_eq!(client.poll_batch(&id).await.expect("told").state, BatchState::Expired, "{name}");
        let lines = client.batch_results(&id).await.expect("results").try_collect().await.expect("lines");
        let counts = check(name, lines);
        assert!((15..=20).contains(&counts["answered"]), "{name}: {counts:?}");
        // Gemini leaves out what never ran; that is for its reader to notice.
        let not_run = counts.get("not run").copied().unwrap_or_default();
        assert_eq!(not_run, if *name == "gemini" { 0 } else { 40 - counts["answered"] }, "{name}");
    }
}

#[tokio::test]
async fn every_client_finds_a_batch_whose_creation_was_not_confirmed() {
    let batch = BatchOptions { rate_create_lost: 1.0, ..at_once() };
    let site = Site::new(SimOptions { batch, ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        let input = input(name, 5);
        let file = client.upload_batch(&input).await.expect("uploaded");
        let error = client.create_batch(&input, file.as_deref()).await.expect_err("the response is lost");
        assert!(error.class == Class::Network && error.maybe_billed, "{name}: {error}");
        let sent_at_ms = longhaul_llm::clock::WallClock::now_ms(&longhaul_llm::clock::SystemWallClock);
        let probe = BatchProbe { tag: input.tag.clone(), file, sent_at_ms, requests: 5 };
        let found = client.find_batches(&probe).await.expect("a list");
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].certain, *name != "anthropic", "{name}");
        let results = client.batch_results(&found[0].status.id).await.expect("results");
        assert_eq!(check(name, results.try_collect().await.expect("lines"))["answered"], 5);
    }
    assert_eq!(site.core().stats().batches_created, 4);
}

#[tokio::test]
async fn every_client_cancels() {
    // Slower than real, so that it cannot end by itself.
    let batch = BatchOptions { time_scale: 0.1, queue_s: 0.0, cancel_s: 0.0, ..BatchOptions::default() };
    let site = Site::new(SimOptions { batch, ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        let input = input(name, 5);
        let file = client.upload_batch(&input).await.expect("uploaded");
        let id = client.create_batch(&input, file.as_deref()).await.expect("created").id;
        assert_eq!(client.poll_batch(&id).await.expect("told").state, BatchState::Running, "{name}");
        client.cancel_batch(&id).await.expect("asked");
        assert_eq!(client.poll_batch(&id).await.expect("told").state, BatchState::Cancelled, "{name}");
    }
    assert_eq!(site.core().stats().executed, 0);
}

/// The faults that a client retries; those of content are for the layers above.
fn bad_day() -> Faults {
    Faults {
        rate_429: 0.1,
        rate_5xx: 0.1,
        rate_html: 0.05,
        rate_drop: 0.1,
        retry_after_ms: 1,
        ..Faults::default()
    }
}

#[tokio::test]
async fn a_disturbed_run_ends_with_the_undisturbed_answers() {
    let site = Site::new(SimOptions { faults: bad_day(), ..SimOptions::default() }).await;
    let mut failures = BTreeMap::new();
    for (name, client) in &site.clients {
        for number in 0..60 {
            let request = ask(name, number);
            let answer = loop {
                match client.complete(&request).await {
                    Ok(reply) => break reply.value,
                    Err(error) => *failures.entry(error.class.as_str()).or_insert(0) += 1,
                }
            };
            assert_eq!(answer.text, answer_key(1, &request), "{name}");
        }
    }
    assert_eq!(failures.keys().copied().collect::<Vec<_>>(), ["network", "overloaded", "throttled"]);
    let stats = site.core().stats();
    assert_eq!(stats.answered, 240);
    assert_eq!(stats.executed, 240 + stats.faults["cut_off"], "what was cut off was paid for too");
}

#[tokio::test]
async fn limits_reach_every_client() {
    let limits = Limits { rpm: Some(6), tpm: None };
    let site = Site::new(SimOptions { limits, ..SimOptions::default() }).await;
    for (name, client) in &site.clients {
        let request = ChatRequest { model: format!("model-{name}"), ..ask(name, 1) };
        let told = client.complete(&request).await.expect("the first is let in").rate.requests;
        assert_eq!(told.and_then(|window| window.limit), (*name != "gemini").then_some(6), "{name}");
        let error = client.complete(&request).await.expect_err("the second is not");
        assert_eq!(error.class, Class::Throttled, "{name}");
        assert!(error.retry_after.is_some_and(|wait| wait <= Duration::from_millis(10_100)), "{name}");
    }
}

#[tokio::test]
async fn a_client_gives_up_on_a_call_that_hangs() {
    let faults = Faults { rate_timeout: 1.0, ..Faults::default() };
    let site = Site::new(SimOptions { faults, ..SimOptions::default() }).await;
    for kind in [ProviderKind::OpenAi, ProviderKind::Anthropic, ProviderKind::Gemini] {
        let mut profile = profile(&site.server, kind);
        profile.timeouts.answer = Duration::from_millis(50);
        let client = connect(&profile).expect("a client");
        let error = client.complete(&ask(kind.as_str(), 1)).await.expect_err("it hangs");
        assert!(error.class == Class::Network && error.maybe_billed, "{kind}: {error}");
    }
}

#[tokio::test]
async fn a_simulator_with_slots_looks_like_a_local_engine() {
    let site = Site::new(SimOptions { slots: Some(4), ..SimOptions::default() }).await;
    let engine = detect(&site.server.url()).await.expect("no error").expect("an engine");
    assert_eq!((engine.kind, engine.slots, engine.ready), (EngineKind::LlamaCpp, Some(4), true));
    let (_, native) = site.clients.last().expect("the in-process client");
    assert!(native.caps().batches.is_none());
}
