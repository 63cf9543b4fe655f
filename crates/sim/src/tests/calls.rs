//! What goes wrong does so by seed, request and attempt; limits and slots hold.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ask, ask_json, core, provider, with_faults};
use crate::{Faults, Latency, Limits, SimOptions, SimProvider, answer_key};
use longhaul_llm::error::{Class, Error};
use longhaul_llm::provider::Provider;
use longhaul_llm::types::{EmbedRequest, Stop};

const REQUESTS: usize = 400;

fn bad_day() -> Faults {
    Faults {
        rate_429: 0.1,
        rate_5xx: 0.1,
        rate_html: 0.05,
        rate_timeout: 0.05,
        rate_drop: 0.1,
        rate_malformed: 0.1,
        rate_truncated: 0.05,
        ..Faults::default()
    }
}

/// What each attempt at each request brings, when the requests come in this order.
async fn fates(sim: &SimProvider, order: impl Iterator<Item = usize>) -> BTreeMap<(usize, usize), String> {
    let mut fates = BTreeMap::new();
    for number in order {
        for attempt in 0..3 {
            let fate = match sim.complete(&ask(&format!("request {number}"))).await {
                Ok(reply) => format!("{:?} {}", reply.value.stop, reply.value.text),
                Err(error) => error.to_string(),
            };
            fates.insert((number, attempt), fate);
        }
    }
    fates
}

#[tokio::test(start_paused = true)]
async fn faults_do_not_depend_on_order_or_time() {
    let forwards = fates(&provider(with_faults(bad_day())), 0..REQUESTS).await;
    let sim = provider(with_faults(bad_day()));
    tokio::time::advance(Duration::from_secs(1234)).await;
    let backwards = fates(&sim, (0..REQUESTS).rev()).await;
    assert_eq!(forwards, backwards);
    let other = SimOptions { seed: 2, ..with_faults(bad_day()) };
    assert_ne!(forwards, fates(&provider(other), 0..REQUESTS).await);
}

#[tokio::test(start_paused = true)]
async fn faults_come_at_their_rates() {
    let sim = provider(with_faults(bad_day()));
    let total = 4000;
    for number in 0..total {
        let _ = sim.complete(&ask(&format!("request {number}"))).await;
    }
    let stats = sim.core().stats();
    let near = |kind: &str, rate: f64| {
        let share = stats.faults[kind] as f64 / f64::from(total);
        assert!((share - rate).abs() < 0.25 * rate + 0.002, "{kind}: {share} instead of {rate}");
    };
    near("throttled", 0.1);
    near("status_5xx", 0.1);
    near("html", 0.05);
    near("timeout", 0.05);
    near("dropped", 0.05);
    near("cut_off", 0.05);
    near("malformed", 0.1);
    near("truncated", 0.05);
    assert_eq!((stats.calls, stats.distinct_requests, stats.paid_twice), (4000, 4000, 0));
}

#[tokio::test(start_paused = true)]
async fn each_fault_is_what_a_client_would_see() {
    let all = |change: fn(&mut Faults)| {
        let mut faults = Faults::default();
        change(&mut faults);
        provider(with_faults(faults))
    };
    let failure =
        async |sim: SimProvider| -> Error { sim.complete(&ask("x")).await.expect_err("the rate is one") };
    let error = failure(all(|faults| faults.rate_429 = 1.0)).await;
    assert_eq!((error.class, error.status), (Class::Throttled, Some(429)));
    assert_eq!(error.retry_after, Some(Duration::from_secs(1)));
    let error = failure(all(|faults| faults.rate_5xx = 1.0)).await;
    assert!(error.class == Class::Overloaded && error.status >= Some(500), "{error}");
    let error = failure(all(|faults| faults.rate_html = 1.0)).await;
    assert_eq!((error.class, error.status), (Class::Overloaded, Some(502)));
    let start = Instant::now();
    let error = failure(all(|faults| faults.rate_timeout = 1.0)).await;
    assert_eq!((error.class, error.maybe_billed, start.elapsed().as_secs()), (Class::Network, true, 600));
    let error = failure(all(|faults| faults.rate_drop = 1.0)).await;
    assert_eq!((error.class, error.maybe_billed), (Class::Network, true));
}

#[tokio::test(start_paused = true)]
async fn spoilt_answers_look_as_they_should() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a", "b"],
        "additionalProperties": false
    });
    for number in 0..50 {
        let request = ask_json(&format!("request {number}"), schema.clone());
        let key = answer_key(1, &request);
        let spoilt =
            async |faults| provider(with_faults(faults)).complete(&request).await.expect("answers").value;
        let malformed = spoilt(Faults { rate_malformed: 1.0, ..Faults::default() }).await;
        assert!(serde_json::from_str::<Value>(&malformed.text).is_err(), "{}", malformed.text);
        assert_eq!(malformed.stop, Stop::End);
        let broken = spoilt(Faults { rate_schema_break: 1.0, ..Faults::default() }).await;
        let value: Value = serde_json::from_str(&broken.text).expect("it is JSON");
        assert!(!jsonschema::is_valid(&schema, &value), "{value}");
        let fenced = spoilt(Faults { rate_fenced: 1.0, ..Faults::default() }).await;
        assert!(fenced.text.contains(&format!("```json\n{key}\n```")), "{}", fenced.text);
        let truncated = spoilt(Faults { rate_truncated: 1.0, ..Faults::default() }).await;
        assert!(key.starts_with(&truncated.text) && truncated.stop == Stop::Length);
    }
    let sim = provider(with_faults(Faults { rate_fenced: 1.0, ..Faults::default() }));
    assert_eq!(sim.complete(&ask("x")).await.expect("answers").value.text, answer_key(1, &ask("x")));
    assert!(sim.core().stats().faults.is_empty(), "nothing was spoilt");
}

#[tokio::test(start_paused = true)]
async fn later_attempts_can_be_calm() {
    let faults = Faults { rate_5xx: 1.0, calm_after: Some(2), ..Faults::default() };
    let sim = provider(with_faults(faults));
    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(sim.complete(&ask("x")).await.is_ok());
    }
    assert_eq!(ends, [false, false, true, true]);
    assert_eq!(sim.core().stats().paid_twice, 1);
    assert_eq!(sim.core().times_executed(&ask("x").into()), 2);
}

#[tokio::test(start_paused = true)]
async fn books_tell_what_was_paid() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = dir.path().join("sim.jsonl");
    let sim = provider(SimOptions { log: Some(log.clone()), ..SimOptions::default() });
    let mut tokens = 0;
    for number in [1, 2, 3, 1] {
        tokens +=
            sim.complete(&ask(&format!("request {number}"))).await.expect("answers").value.usage.total();
    }
    sim.embed(&EmbedRequest {
        model: "e".to_owned(),
        inputs: vec!["four".into()],
        ..EmbedRequest::default()
    })
    .await
    .expect("embeds");
    let stats = sim.core().stats();
    assert_eq!((stats.calls, stats.answered, stats.executed), (5, 5, 5));
    assert_eq!((stats.distinct_requests, stats.paid_twice), (4, 1));
    assert_eq!(stats.tokens_in + stats.tokens_out, tokens + 1);
    let tail = sim.core().log_tail();
    assert_eq!(tail.iter().map(|entry| entry.attempt).collect::<Vec<_>>(), [1, 1, 1, 2, 1]);
    sim.core().stop();
    let lines = std::fs::read_to_string(&log).expect("the log is there");
    let lines: Vec<crate::LogEntry> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line is an entry")).collect();
    assert_eq!(lines, tail);
}

#[tokio::test(start_paused = true)]
async fn request_bucket_allows_a_burst_and_then_its_rate() {
    let limits = Limits { rpm: Some(600), tpm: None };
    let sim = provider(SimOptions { limits, ..SimOptions::default() });
    let mut admitted = 0;
    let refused = loop {
        match sim.complete(&ask("x")).await {
            Ok(reply) => {
                admitted += 1;
                let window = reply.rate.requests.expect("a limit is told");
                assert_eq!((window.limit, window.remaining), (Some(600), Some(100 - admitted)));
            }
            Err(error) => break error,
        }
    };
    assert_eq!((admitted, refused.class), (100, Class::Throttled));
    let wait = refused.retry_after.expect("the exact time");
    assert_eq!(wait.as_millis(), 100);
    tokio::time::advance(wait.saturating_sub(Duration::from_millis(2))).await;
    assert!(sim.complete(&ask("x")).await.is_err(), "too early");
    tokio::time::advance(Duration::from_millis(3)).await;
    assert!(sim.complete(&ask("x")).await.is_ok(), "in time");
    assert!(sim.complete(&ask("x")).await.is_err(), "only one came back");
    assert_eq!(sim.core().stats().throttled, 3);
    sim.core().set_limits(Limits { rpm: Some(1200), tpm: None });
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut admitted = 0;
    while sim.complete(&ask("x")).await.is_ok() {
        admitted += 1;
    }
    assert!((10..=20).contains(&admitted), "the new rate counts from the next call on: {admitted}");
    tokio::time::advance(Duration::from_secs(1)).await;
    let mut admitted = 0;
    while sim.complete(&ask("x")).await.is_ok() {
        admitted += 1;
    }
    assert_eq!(admitted, 20);
}

#[tokio::test(start_paused = true)]
async fn token_bucket_charges_input_and_max_tokens() {
    let limits = Limits { rpm: None, tpm: Some(60_000) };
    let sim = provider(SimOptions { limits, ..SimOptions::default() });
    let mut request = ask(&"four".repeat(100));
    request.max_tokens = Some(900);
    for left in (0..10).rev() {
        let window = sim.complete(&request).await.expect("admitted").rate.tokens.expect("told");
        assert_eq!(window.remaining, Some(left * 1000));
    }
    let error = sim.complete(&request).await.expect_err("the burst is used up");
    assert_eq!(error.retry_after.map(|wait| wait.as_millis()), Some(1000));
    assert_eq!(error.rate.tokens.and_then(|window| window.limit), Some(60_000));
    let mut other = request.clone();
    other.model = "sim-large".to_owned();
    assert!(sim.complete(&other).await.is_ok(), "each model has its own");
    request.max_tokens = Some(50_000);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(sim.complete(&request).await.is_ok(), "larger than the bucket: needs all of it");
    let error = sim.complete(&request).await.expect_err("in debt");
    assert!(error.retry_after > Some(Duration::from_secs(45)), "{:?}", error.retry_after);
}

#[tokio::test(start_paused = true)]
async fn slots_let_the_rest_wait_in_line() {
    let latency = Latency { base_ms: 1000, ..Latency::default() };
    let sim = provider(SimOptions { latency, slots: Some(4), ..SimOptions::default() });
    let start = Instant::now();
    let requests: Vec<_> = (0..10).map(|number| ask(&format!("request {number}"))).collect();
    let replies = join_all(requests.iter().map(|request| sim.complete(request))).await;
    assert!(replies.iter().all(Result::is_ok));
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn context_and_keys_are_checked() {
    let sim = provider(SimOptions { context_tokens: Some(10), ..SimOptions::default() });
    let error = sim.complete(&ask(&"word ".repeat(50))).await.expect_err("too long");
    assert_eq!(error.class, Class::ContextTooLong);
    let options = SimOptions { require_key: Some("k".to_owned()), ..SimOptions::default() };
    let core = core(options);
    let error = SimProvider::new(std::sync::Arc::clone(&core)).complete(&ask("x")).await.expect_err("no key");
    assert_eq!((error.class, error.status), (Class::Auth, Some(401)));
    assert!(SimProvider::new(core).with_key("k").complete(&ask("x")).await.is_ok());
}

/// Counts of eight bits once stood still at 255, and with them the fault of the last attempt.
#[tokio::test(start_paused = true)]
async fn one_request_can_be_asked_for_ever() {
    let sim = provider(with_faults(Faults { rate_5xx: 0.5, ..Faults::default() }));
    let mut ends = Vec::new();
    for _ in 0..600 {
        ends.push(sim.complete(&ask("x")).await.is_ok());
    }
    let late = ends[300..].iter().filter(|end| **end).count();
    assert!((100..=200).contains(&late), "{late} of 300");
}
