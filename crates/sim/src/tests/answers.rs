//! Answers depend on seed and request alone, and the key tells them.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ask, ask_json, core, provider, with_faults};
use crate::{Faults, Latency, REFUSAL, SimOptions, answer_key, embedding};
use longhaul_llm::provider::Provider;
use longhaul_llm::types::{ChatRequest, Delta, Message, OutputSchema, Role, Stop, Tool, ToolChoice};

#[tokio::test(start_paused = true)]
async fn answer_is_the_key() {
    let sim = provider(SimOptions { seed: 9, ..SimOptions::default() });
    for text in ["What is a harbour?", "", "[[sim:say exactly this]]", "[[sim:words 300]] long"] {
        let request = ask(text);
        let reply = sim.complete(&request).await.expect("nothing goes wrong");
        assert_eq!(reply.value.text, answer_key(9, &request));
        assert_eq!(reply.value.stop, Stop::End);
    }
    assert_eq!(answer_key(9, &ask("[[sim:say exactly this]]")), "exactly this");
    assert_ne!(answer_key(9, &ask("a")), answer_key(8, &ask("a")));
    assert_ne!(answer_key(9, &ask("a")), answer_key(9, &ask("b")));
}

/// Keys are written into other tests and into documents.
#[test]
fn key_is_the_same_for_ever() {
    assert_eq!(
        answer_key(1, &ask("What is the capital of France?")),
        "Ref 8566168f23e9, on capital, France: The formal garden reaches the open village. The quiet record carries \
         the shared season. The formal engine confirms the careful report. The steady bridge carries the recent signal."
    );
}

#[test]
fn what_a_wire_may_lose_does_not_change_the_key() {
    let plain = ChatRequest {
        messages: vec![Message::text(Role::System, "Be brief."), Message::text(Role::User, "Hello there.")],
        ..ask("")
    };
    let key = answer_key(1, &plain);
    let mut sampled = plain.clone();
    sampled.temperature = Some(0.7);
    sampled.seed = Some(3);
    sampled.max_tokens = Some(5);
    sampled.extra.insert("user".to_owned(), json!("me"));
    assert_eq!(answer_key(1, &sampled), key);
    let mut prefixed = plain.clone();
    prefixed.model = "models/sim-small".to_owned();
    assert_eq!(answer_key(1, &prefixed), key);
    let mut moved = plain.clone();
    moved.messages.reverse();
    assert_eq!(answer_key(1, &moved), key);
    let schema = json!({"type": "integer"});
    let named = |name: &str| ChatRequest {
        schema: Some(OutputSchema { name: name.to_owned(), schema: schema.clone(), strict: false }),
        ..plain.clone()
    };
    assert_eq!(answer_key(1, &named("a")), answer_key(1, &named("b")));
}

#[test]
fn complaint_about_a_bad_shape_asks_the_same_question() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let first = ask_json("How many?", schema);
    let key = answer_key(1, &first);
    let with = |answer: &str| {
        let mut request = first.clone();
        request.messages.push(Message::text(Role::Assistant, answer));
        request.messages.push(Message::text(Role::User, "That is not valid. Answer again."));
        request
    };
    for bad in ["not json", "{\"n\": 1", "{\"m\": 1}", "[1]"] {
        assert_eq!(answer_key(1, &with(bad)), key, "{bad}");
    }
    assert_ne!(answer_key(1, &with("{\"n\": 1}")), key, "a turn after a good answer is a new question");
}

#[tokio::test(start_paused = true)]
async fn max_tokens_cuts_the_answer_off() {
    let sim = provider(SimOptions::default());
    let mut request = ask("[[sim:words 100]]");
    request.max_tokens = Some(10);
    let answer = sim.complete(&request).await.expect("nothing goes wrong").value;
    assert_eq!((answer.stop, answer.usage.out), (Stop::Length, 10));
    assert!(answer_key(1, &request).starts_with(&answer.text));
    assert_eq!(answer.usage.fresh_in, "[[sim:words 100]]".len() as u64 / 4);
}

#[tokio::test(start_paused = true)]
async fn prompts_can_give_orders() {
    let sim = provider(SimOptions::default());
    let refused = sim.complete(&ask("[[sim:refuse]]")).await.expect("a refusal is an answer").value;
    assert_eq!((refused.stop, refused.text.as_str()), (Stop::Refused, REFUSAL));
    let cut = sim.complete(&ask("[[sim:truncate]]")).await.expect("a cut answer is an answer").value;
    assert_eq!(cut.stop, Stop::Length);
    let start = Instant::now();
    sim.complete(&ask("[[sim:slow 2500ms]]")).await.expect("slow, but well");
    assert_eq!(start.elapsed().as_millis(), 2500);
}

#[tokio::test(start_paused = true)]
async fn tools_are_called_when_they_must_be() {
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        description: None,
        parameters: json!({
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
            "required": ["city", "days"]
        }),
        strict: None,
    };
    let sim = provider(SimOptions::default());
    let mut request = ask("Weather?");
    request.tools = vec![tool("forecast"), tool("history")];
    assert!(sim.complete(&request).await.expect("answers").value.tool_calls.is_empty());
    request.tool_choice = Some(ToolChoice::Named("history".to_owned()));
    let answer = sim.complete(&request).await.expect("answers").value;
    assert_eq!((answer.stop, answer.tool_calls[0].name.as_str()), (Stop::ToolCalls, "history"));
    let arguments: Value = serde_json::from_str(&answer.tool_calls[0].arguments).expect("arguments are JSON");
    assert!(jsonschema::is_valid(&request.tools[1].parameters, &arguments), "{arguments}");
    assert_eq!(answer_key(1, &request), answer.tool_calls[0].arguments);
    request.tool_choice = Some(ToolChoice::Required);
    assert_eq!(sim.complete(&request).await.expect("answers").value.tool_calls.len(), 1);
    request.tool_choice = None;
    request.messages = vec![Message::text(Role::User, "[[sim:call forecast]]")];
    assert_eq!(sim.complete(&request).await.expect("answers").value.tool_calls[0].name, "forecast");
    request.messages.push(Message::text(Role::Tool, "sunny"));
    assert!(sim.complete(&request).await.expect("answers").value.tool_calls.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stream_tells_the_same_answer_in_its_time() {
    let latency = Latency { base_ms: 500, per_token_us: 10_000, spread: 0.0 };
    let sim = provider(SimOptions { latency, ..SimOptions::default() });
    let request = ask("Tell me a story.");
    let start = Instant::now();
    let mut pieces = sim.stream(&request).await.expect("nothing goes wrong").value;
    assert_eq!(start.elapsed(), Duration::from_millis(500));
    let mut text = String::new();
    let mut end = None;
    while let Some(delta) = pieces.next().await {
        match delta.expect("nothing goes wrong") {
            Delta::Text(piece) => text.push_str(&piece),
            Delta::Own { .. } => {}
            Delta::End(answer) => end = Some(answer),
        }
    }
    let answer = end.expect("a stream ends with the answer");
    assert_eq!(text, answer_key(1, &request));
    assert_eq!(answer.text, text);
    assert_eq!(start.elapsed().as_millis(), 500 + 10 * text.len().div_ceil(4) as u128);
}

#[tokio::test(start_paused = true)]
async fn broken_stream_ends_with_an_error() {
    let sim = provider(with_faults(Faults { rate_drop: 1.0, ..Faults::default() }));
    let mut broken = 0;
    for number in 0..20 {
        // Half of the drops come before the first piece.
        let Ok(reply) = sim.stream(&ask(&format!("story {number}"))).await else { continue };
        let pieces: Vec<_> = reply.value.collect().await;
        assert!(pieces.last().is_some_and(Result::is_err));
        assert!(pieces[..pieces.len() - 1].iter().all(Result::is_ok));
        broken += 1;
    }
    assert!((4..=16).contains(&broken), "{broken}");
    assert_eq!(core(SimOptions::default()).stats().executed, 0);
    assert_eq!(sim.core().stats().executed, broken);
}

#[test]
fn embeddings_are_near_when_words_are_shared() {
    let vector = |text: &str| embedding(1, text, None);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let boats = vector("the harbour is full of boats");
    assert!((dot(&boats, &boats) - 1.0).abs() < 1e-5);
    assert_eq!(boats, vector("The HARBOUR is full of boats."));
    let near = dot(&boats, &vector("boats in the harbour"));
    let far = dot(&boats, &vector("quarterly revenue grew slowly"));
    assert!(near > far + 0.3, "{near} {far}");
    assert_eq!(embedding(1, "", Some(8)).len(), 8);
    assert!((dot(&vector(""), &vector("")) - 1.0).abs() < 1e-5);
}
