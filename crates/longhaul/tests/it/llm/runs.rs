//! `runs …`: what becomes of a run that is stored.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::workers::until;

use super::sim::{Desk, Sim, all_answered};

fn detached(desk: &Desk) -> String {
    let ran = desk.ok(&["run", "prompts.txt", "--sync", "--detach"]);
    assert!(ran.stderr.contains("longhaul work"), "{ran:?}");
    ran.stdout.trim().to_owned()
}

#[test]
fn a_detached_run_is_answered_by_a_worker_and_read_later() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 20);
    let id = detached(&desk);
    assert_eq!(detached(&desk), id, "the same command is the same run");
    let shown = desk.json(&["runs", "show", &id]);
    assert_eq!((&shown["state"], &shown["served"]), (&"running".into(), &false.into()), "{shown}");
    desk.run(&["runs", "wait", &id, "--timeout", "1s"]).fails(124, &["timed out"]);
    desk.ok(&["work", "--drain"]);
    desk.ok(&["runs", "wait", &id]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 20);
    // Without the prefix too.
    let short = id.strip_prefix("run-").expect("the prefix");
    assert!(desk.ok(&["runs", "show", short]).stdout.contains("20 of 20 done"));
    assert_eq!(desk.ok(&["runs", "results", &id]).stdout.lines().count(), 20);
    let watched = desk.ok(&["run", "prompts.txt", "--sync", "--watch", "--out", "watched.txt"]);
    assert!(watched.stderr.contains("20 of 20 done"), "{watched:?}");
    desk.ok(&["runs", "rm", &id, "--yes"]);
    desk.run(&["runs", "show", &id]).fails(4, &["there is no run", "runs ls"]);
    assert_eq!(sim.count("executed"), 20);
}

#[test]
fn a_run_shows_how_refusals_changed_its_concurrency() {
    let sim = Sim::with(r#"{"faults":{"rate_429":0.2,"retry_after_ms":20}}"#);
    let desk = Desk::at(&sim, 60);
    desk.ok(&["run", "prompts.txt", "--sync", "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 60);
    let id = desk.run_id();
    let shown = desk.json(&["runs", "show", &id]);
    let changes = shown["adaptive_concurrency"]["changes"].as_array().expect("a list");
    assert!(changes.iter().any(|change| change["refused"] == true), "{shown}");
    let told = desk.ok(&["runs", "show", &id]).stdout;
    assert!(told.contains("adaptive, lowered") && told.contains("by 429s"), "{told}");
}

#[test]
fn a_paused_run_waits_and_a_resumed_one_goes_on() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 10);
    let id = detached(&desk);
    desk.ok(&["runs", "pause", &id]);
    assert_eq!(desk.only_run()["state"], "paused");
    desk.ok(&["work", "--drain"]);
    assert_eq!(sim.count("calls"), 0);
    desk.ok(&["runs", "resume", &id]);
    desk.ok(&["work", "--drain"]);
    assert_eq!((&desk.only_run()["state"], sim.count("executed")), (&"completed".into(), 10));
}

#[test]
fn a_cancelled_run_keeps_its_answers_and_says_what_is_missing() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 10);
    let id = detached(&desk);
    desk.run(&["runs", "cancel", &id]).fails(2, &["--yes"]);
    let ran = desk.ok(&["runs", "cancel", &id, "--yes"]);
    assert!(ran.stdout.contains("is cancelled") && ran.stdout.contains("10 cancelled"), "{ran:?}");
    let ran = desk.ok(&["runs", "cancel", &id, "--yes"]);
    assert!(ran.stdout.contains("nothing of") && ran.stdout.contains("left to cancel"), "{ran:?}");
    let ran = desk.run(&["runs", "wait", &id]);
    ran.fails(3, &["10 cancelled", "go on after all with the same command"]);
    assert!(ran.stderr.contains("longhaul runs retry"), "what was cancelled can go on: {ran:?}");
    let ran = desk.run(&["runs", "results", &id, "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    desk.run(&["runs", "resolve", &id, "--wait"]).fails(4, &["waits for a decision"]);
    desk.ok(&["runs", "rm", &id, "--yes"]);
    assert_eq!(desk.run(&["runs", "ls"]).code, Some(0));
    assert_eq!(sim.count("calls"), 0);
}

/// Its requests would wait for it for ever.
#[test]
fn a_batch_is_not_cancelled_without_its_run() {
    let slow = r#"{"batch":{"queue_s":0,"run_s":80000,"finalize_s":0,"cancel_s":0,"time_scale":1000}}"#;
    let sim = Sim::with(slow);
    let desk = Desk::at(&sim, 10);
    let id = desk.ok(&["run", "prompts.txt", "--batch", "--detach"]).stdout.trim().to_owned();
    let worker = desk.start(&["work"]);
    until("the batch to be at the provider", || sim.count("batches_created") == 1);
    let way_out = format!("longhaul runs cancel {id}");
    let batches = desk.json(&["jobs", "ls", "--kind", "llm.batch"]);
    let batch = batches["items"][0]["id"].as_str().expect("an id").to_owned();
    desk.run(&["jobs", "cancel", &batch]).fails(1, &["requests wait for it", &way_out]);
    let ran = desk.ok(&["jobs", "cancel", "--kind", "llm.batch", "--yes"]);
    assert!(ran.stdout.contains("0 cancelled") && ran.stderr.contains(&way_out), "{ran:?}");
    let shown = desk.json(&["jobs", "show", &batch]);
    assert!(shown["cancel_requested"] != true && shown["state"] != "cancelled", "{shown}");
    // The process is the run, which ends the batch at the provider.
    let told = desk.ok(&["process", "cancel", &id, "--yes"]).stdout;
    assert!(told.contains("is a run and is cancelled"), "{told}");
    desk.run(&["runs", "wait", &id, "--timeout", "60s"]).fails(3, &["cancelled"]);
    drop(worker);
}

#[test]
fn every_command_speaks_json() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 3);
    let started = desk.json(&["run", "prompts.txt", "--sync", "--detach"]);
    let id = started["id"].as_str().expect("an id").to_owned();
    assert_eq!(desk.json(&["runs", "pause", &id])["state"], "paused");
    assert_eq!(desk.json(&["runs", "resume", &id]), json!({ "id": id, "changed": 0 }));
    desk.json(&["work", "--drain"]);
    for args in [&["runs", "ls"][..], &["runs", "show", &id], &["costs"], &["models"], &["keys", "ls"]] {
        desk.json(args);
    }
    desk.json(&["estimate", "prompts.txt"]);
    desk.json(&["run", "prompts.txt", "--sync", "--dry-run"]);
    let deleted = desk.json(&["runs", "rm", &id, "--yes"]);
    assert!(deleted["id"] == id.as_str() && deleted["changed"].as_u64() > Some(3), "{deleted}");
}

/// What a terminal of 80 columns is told, line by line, without colours and the like.
fn on_a_terminal(desk: &Desk, args: &[&str]) -> Vec<String> {
    let program = desk.command(args);
    let words: Vec<String> = [program.get_program()]
        .into_iter()
        .chain(program.get_args())
        .map(|word| format!("'{}'", word.to_str().expect("text")))
        .collect();
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &format!("stty cols 80; exec {}", words.join(" ")), "/dev/null"]);
    terminal.current_dir(program.get_current_dir().expect("a folder")).env("TERM", "xterm");
    terminal.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = terminal.stdin(Stdio::null()).output().expect("running script");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\r' | '\n' => lines.push(String::new()),
            // An escape ends with a letter.
            '\u{1b}' => drop(letters.by_ref().find(char::is_ascii_alphabetic)),
            letter => lines.last_mut().expect("one").push(letter),
        }
    }
    lines
}

#[test]
fn the_bar_fits_a_terminal_of_80_columns() {
    let sim = Sim::start(&["--latency", "30ms"]);
    let desk = Desk::at(&sim, 200);
    let args = ["run", "prompts.txt", "--sync", "--concurrency", "4", "--out", "a.jsonl"];
    let lines = on_a_terminal(&desk, &args);
    let bars: Vec<&String> = lines.iter().filter(|line| line.contains('▕')).collect();
    assert!(bars.iter().any(|bar| bar.contains("/200") && bar.contains("/s")), "{lines:#?}");
    for bar in bars {
        assert!(bar.chars().count() <= 80, "it is wrapped: {bar:?}");
    }
}

/// The simulator's log has each call as soon as it was made, not only when the simulator ends.
#[test]
fn the_log_of_the_simulator_has_each_call_at_once() {
    let log = tempfile::NamedTempFile::new().expect("a file");
    let path = log.path().to_str().expect("a path of text");
    let sim = Sim::start(&["--log", path]);
    let desk = Desk::at(&sim, 3);
    desk.ok(&["run", "prompts.txt", "--out", "answers.jsonl"]);
    assert_eq!(crate::place::read(log.path()).lines().count(), 3);
}
