//! `runs …`: what becomes of a run that is stored.

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
    assert_eq!(shown["progress"]["status"], "IN_PROGRESS", "{shown}");
    desk.run(&["runs", "wait", &id, "--timeout", "1s"]).fails(124, &["timed out"]);
    desk.ok(&["work", "--drain"]);
    desk.ok(&["runs", "wait", &id]);
    desk.ok(&["runs", "results", &id, "--out", "answers.jsonl"]);
    all_answered(&desk.answers("answers.jsonl"), 20);
    // Without the prefix too.
    let short = id.strip_prefix("run-").expect("the prefix");
    assert!(desk.ok(&["runs", "show", short]).stdout.contains("20 answered"));
    assert_eq!(desk.ok(&["runs", "results", &id]).stdout.lines().count(), 20);
    let watched = desk.ok(&["run", "prompts.txt", "--sync", "--watch", "--out", "watched.txt"]);
    assert!(watched.stderr.contains("20 answered"), "{watched:?}");
    desk.ok(&["runs", "rm", &id, "--yes"]);
    desk.run(&["runs", "show", &id]).fails(4, &["there is no run", "runs ls"]);
    assert_eq!(sim.count("executed"), 20);
}

#[test]
fn a_paused_run_waits_and_a_resumed_one_goes_on() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 10);
    let id = detached(&desk);
    desk.ok(&["runs", "pause", &id]);
    assert_eq!(desk.only_run()["status"], "PAUSED");
    desk.ok(&["work", "--drain"]);
    assert_eq!(sim.count("calls"), 0);
    desk.ok(&["runs", "resume", &id]);
    desk.ok(&["work", "--drain"]);
    assert_eq!((&desk.only_run()["status"], sim.count("executed")), (&"COMPLETED".into(), 10));
}

#[test]
fn a_cancelled_run_keeps_its_answers_and_says_what_is_missing() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 10);
    let id = detached(&desk);
    desk.run(&["runs", "cancel", &id]).fails(2, &["--yes"]);
    desk.ok(&["runs", "cancel", &id, "--yes"]);
    desk.run(&["runs", "wait", &id]).fails(3, &["10 cancelled"]);
    let ran = desk.run(&["runs", "results", &id, "-o", "json"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    desk.run(&["runs", "resolve", &id, "--wait"]).fails(4, &["waits for a decision"]);
    desk.ok(&["runs", "rm", &id, "--yes"]);
    assert_eq!(desk.run(&["runs", "ls"]).code, Some(0));
    assert_eq!(sim.count("calls"), 0);
}

#[test]
fn every_command_speaks_json() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 3);
    let started = desk.json(&["run", "prompts.txt", "--sync", "--detach"]);
    let id = started["id"].as_str().expect("an id").to_owned();
    desk.json(&["runs", "pause", &id]);
    desk.json(&["runs", "resume", &id]);
    desk.json(&["work", "--drain"]);
    for args in [&["runs", "ls"][..], &["runs", "show", &id], &["costs"], &["models"], &["keys", "ls"]] {
        desk.json(args);
    }
    desk.json(&["estimate", "prompts.txt"]);
    desk.json(&["run", "prompts.txt", "--sync", "--dry-run"]);
    desk.json(&["runs", "rm", &id, "--yes"]);
}
