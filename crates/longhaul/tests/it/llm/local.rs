//! A real model: SmolLM2-135M under llama.cpp, from registry packages, on loopback.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::workers::Process;

use super::relay::Relay;
use super::sim::{Desk, Sim, all_answered};

const PROMPTS: u64 = 20;
const SLOTS: &str = "2";
/// The engine's grammar allows up to 22 blanks at each of the six places around the tokens of `{"ok":true}`; a sampled
/// answer may use them all.
const TOKENS_MAX: &str = "200";
/// For the answers alone; the first start also fetches and loads the model.
const TIME_MAX: Duration = Duration::from_secs(120);

#[test]
fn a_real_model_answers_by_a_schema() {
    let (_server, url) = start();
    let desk = Desk::new(PROMPTS, "openai", &url);
    desk.place.write(
        "schema.json",
        r#"{"type":"object","required":["ok"],"additionalProperties":false,"properties":{"ok":{"type":"boolean"}}}"#,
    );
    let started = Instant::now();
    let args =
        ["run", "prompts.txt", "--base-url", &url, "--model", "smollm2-135m", "--max-tokens", TOKENS_MAX];
    let ran = desk.ok(&[&args[..], &["--schema", "schema.json", "--out", "answers.jsonl"]].concat());
    assert!(started.elapsed() < TIME_MAX, "{:?}: {ran:?}", started.elapsed());
    let answers = desk.answers("answers.jsonl");
    all_answered(&answers, PROMPTS);
    for answer in &answers {
        assert!(answer["answer"]["ok"].is_boolean(), "{answer}");
        assert_eq!(answer["answer"].as_object().map(serde_json::Map::len), Some(1), "{answer}");
    }
}

/// A local engine tells how many calls it works on at once, and gets no more than that and one that waits.
#[test]
fn the_slots_of_a_local_engine_are_found_and_kept_to() {
    let sim = Sim::start(&["--slots", "3", "--latency", "50ms"]);
    let relay = Relay::start(sim.address());
    let desk = Desk::new(60, "openai", "http://127.0.0.1:9/v1");
    let url = format!("{}/v1", relay.url());
    desk.ok(&["run", "prompts.txt", "--base-url", &url, "--model", "sim-small", "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 60);
    let most = relay.most_at_once();
    assert!((3..=4).contains(&most), "{most} at once for 3 slots");
}

/// The server, which ends with its stdin, and its base URL.
fn start() -> (Process, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/local-llm");
    let mut command = Command::new(&script);
    command.args(["--slots", SLOTS]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Process(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", script.display())));
    let mut url = String::new();
    let stdout = server.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut url).expect("the server's address");
    if !url.starts_with("http://") {
        let mut said = String::new();
        let _ = server.0.stderr.take().expect("piped").read_to_string(&mut said);
        panic!(
            "no real model: {said}\nrun scripts/local-llm --install-only where PyPI can be reached, then test again"
        );
    }
    (server, url.trim_end().to_owned())
}
