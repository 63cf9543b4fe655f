//! Provider batches with the program killed at each step: one batch for one set of requests, whatever happens.

use crate::workers::until;

use super::relay::{Relay, Stop, StopAt};
use super::sim::{Desk, Sim, all_answered};

const REQUESTS: u64 = 120;
const RUN: [&str; 7] = ["run", "prompts.txt", "--batch", "--schema", "schema.json", "--out", "answers.jsonl"];

/// A simulator whose batches take about a third of a second.
const QUICK: &str = r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000}}"#;

/// A provider's dialect: where it is, and the calls of a batch's life.
struct Dialect {
    provider: &'static str,
    path: &'static str,
    create: fn(&str) -> bool,
    poll: fn(&str) -> bool,
    results: fn(&str) -> bool,
}

const OPENAI: Dialect = Dialect {
    provider: "openai",
    path: "/v1",
    create: |target| target == "POST /v1/batches",
    poll: |target| target.starts_with("GET /v1/batches/"),
    results: |target| target.starts_with("GET /v1/files/") && target.ends_with("/content"),
};
const ANTHROPIC: Dialect = Dialect {
    provider: "anthropic",
    path: "",
    create: |target| target == "POST /v1/messages/batches",
    poll: |target| target.starts_with("GET /v1/messages/batches/") && !target.ends_with("/results"),
    results: |target| target.starts_with("GET /v1/messages/batches/") && target.ends_with("/results"),
};
const GEMINI: Dialect = Dialect {
    provider: "gemini",
    path: "/v1beta",
    create: |target| target.starts_with("POST /v1beta/") && target.ends_with(":batchGenerateContent"),
    poll: |target| target.starts_with("GET /v1beta/batches/"),
    results: |target| target.starts_with("GET /download/"),
};

fn at(target: fn(&str) -> bool, nth: u32, stop: Stop) -> StopAt {
    StopAt { target, nth, stop }
}

/// Kills the program at each of these moments, then lets it end.
fn killed_at(dialect: &Dialect, options: &str, moments: Vec<StopAt>) -> (Sim, Desk) {
    let sim = Sim::with(options);
    let relay = Relay::start(sim.address());
    let desk = Desk::new(REQUESTS, dialect.provider, &format!("{}{}", relay.url(), dialect.path));
    for moment in moments {
        let half = moment.stop == Stop::HalfOfAnswer;
        relay.stop_at(moment);
        let mut run = desk.start(&RUN);
        relay.wait();
        if half {
            until("the first answers to be stored", || desk.only_run()["units"]["done"].as_u64() > Some(0));
        }
        run.kill();
    }
    (sim, desk)
}

fn moments(dialect: &Dialect) -> Vec<StopAt> {
    vec![
        at(dialect.create, 1, Stop::BeforeRequest),
        at(dialect.create, 1, Stop::BeforeAnswer),
        at(dialect.poll, 1, Stop::BeforeAnswer),
        at(dialect.results, 2, Stop::HalfOfAnswer),
    ]
}

/// One batch, each request paid once, all answered.
fn check(sim: &Sim, desk: &Desk) {
    all_answered(&desk.answers("answers.jsonl"), REQUESTS);
    let stats = sim.stats();
    assert_eq!(stats["batches_created"], 1, "{stats}");
    assert_eq!((&stats["executed"], &stats["paid_twice"]), (&REQUESTS.into(), &0.into()), "{stats}");
    assert_eq!(stats["calls"], 0, "{stats}");
    let run = desk.only_run();
    let spent = (&run["spent"]["answers"], &run["spent"]["unknown_calls"], &run["spent"]["open_calls"]);
    assert_eq!(spent, (&REQUESTS.into(), &0.into(), &0.into()), "{run}");
}

#[test]
fn an_openai_batch_survives_a_kill_at_each_step() {
    let (sim, desk) = killed_at(&OPENAI, QUICK, moments(&OPENAI));
    desk.ok(&RUN);
    check(&sim, &desk);
}

#[test]
fn a_gemini_batch_survives_a_kill_at_each_step() {
    let (sim, desk) = killed_at(&GEMINI, QUICK, moments(&GEMINI));
    desk.ok(&RUN);
    check(&sim, &desk);
}

/// No tags: by the time that the dead worker's lease is over, the batch has ended and is known by its results.
#[test]
fn an_anthropic_batch_survives_a_kill_at_each_step() {
    let (sim, desk) = killed_at(&ANTHROPIC, QUICK, moments(&ANTHROPIC));
    desk.ok(&RUN);
    check(&sim, &desk);
}

/// While such a batch still runs nobody can tell whether it is ours: it is shown, and never sent again by itself.
#[test]
fn an_unconfirmed_batch_without_tags_is_shown_and_never_sent_again() {
    let slow = r#"{"batch":{"queue_s":0,"run_s":6000,"finalize_s":0,"time_scale":1000}}"#;
    let moments = vec![at(ANTHROPIC.create, 1, Stop::BeforeAnswer)];
    let (sim, desk) = killed_at(&ANTHROPIC, slow, moments);
    let ran = desk.run(&RUN);
    ran.fails(1, &["held (ambiguous)", "keeps no tags", "runs resolve", "--resubmit"]);
    let id = desk.run_id();
    let shown = desk.ok(&["runs", "show", &id]).stdout;
    assert!(shown.contains("held: ambiguous") && shown.contains("ambiguous: may be msgbatch_"), "{shown}");
    assert_eq!(sim.count("batches_created"), 1);
    // It says so itself once it has ended: its results carry our ids.
    until("the batch to end", || sim.count("lines_executed") == REQUESTS);
    desk.ok(&["runs", "resolve", &id, "--wait"]);
    desk.ok(&RUN);
    check(&sim, &desk);
}

/// The response of the creation is lost, the program lives: it looks for the batch by its tag.
#[test]
fn a_creation_whose_response_is_lost_is_found_again() {
    let lost =
        r#"{"batch":{"queue_s":60,"run_s":200,"finalize_s":60,"time_scale":1000,"rate_create_lost":1.0}}"#;
    for dialect in [OPENAI, GEMINI] {
        let (sim, desk) = killed_at(&dialect, lost, Vec::new());
        desk.ok(&RUN);
        check(&sim, &desk);
    }
}

/// A local engine has no batches: the run says so and goes on one by one.
#[test]
fn without_a_batch_api_the_fallback_is_visible() {
    let sim = Sim::start(&["--slots", "2"]);
    let mut desk = Desk::at(&sim, 20);
    desk.set("LONGHAUL_PROFILES__P__BATCHES", "false");
    let ran = desk.ok(&RUN);
    assert!(ran.stderr.contains("one by one") || ran.stderr.contains("no batch"), "{ran:?}");
    all_answered(&desk.answers("answers.jsonl"), 20);
    let id = desk.run_id();
    let run = desk.json(&["runs", "show", &id]);
    assert!(run["settings"]["mode_note"].is_string(), "{run}");
}

/// Detached, answered by a worker, and cancelled while the provider works: what it has answered by then is kept.
#[test]
fn a_cancelled_batch_keeps_what_was_answered() {
    let slow = r#"{"batch":{"queue_s":0,"run_s":3000,"finalize_s":0,"cancel_s":50,"time_scale":1000}}"#;
    let sim = Sim::with(slow);
    let desk = Desk::at(&sim, REQUESTS);
    let id = desk.ok(&["run", "prompts.txt", "--batch", "--detach"]).stdout.trim().to_owned();
    let worker = desk.start(&["work"]);
    until("some lines to be run", || sim.count("lines_executed") > REQUESTS / 10);
    desk.ok(&["runs", "cancel", &id, "--yes"]);
    let waited = desk.run(&["runs", "wait", &id, "--timeout", "60s"]);
    waited.fails(3, &["cancelled"]);
    drop(worker);
    let run = desk.only_run();
    let (done, cancelled) = (run["units"]["done"].as_u64(), run["units"]["cancelled"].as_u64());
    assert_eq!(done, Some(sim.count("lines_executed")), "{run}");
    assert_eq!(done.zip(cancelled).map(|(a, b)| a + b), Some(REQUESTS), "{run}");
}
