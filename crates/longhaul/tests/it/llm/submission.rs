//! Ctrl-C before all requests are stored.

use std::process::Stdio;

use crate::workers::{Process, fifo, interrupt, until};

use super::sim::{Desk, Sim};

/// Enough that storing them takes a while.
const REQUESTS: u64 = 60_000;

fn start(desk: &Desk, args: &[&str]) -> Process {
    Process(desk.command(args).stdout(Stdio::null()).spawn().expect("running longhaul"))
}

/// Its exit code, and what it said.
fn ended(mut process: Process) -> (Option<i32>, String) {
    let said = std::io::read_to_string(process.0.stderr.take().expect("piped")).expect("text");
    (process.0.wait().expect("waiting").code(), said)
}

/// Requests that are stored.
fn stored(desk: &Desk) -> u64 {
    let ran = desk.run(&["process", "ls", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    list["items"][0]["total"].as_u64().unwrap_or(0)
}

#[test]
fn interrupted_while_requests_are_stored_it_ends_and_the_same_command_goes_on() {
    let sim = Sim::start(&[]);
    for mode in ["--sync", "--batch"] {
        let desk = Desk::at(&sim, REQUESTS);
        let args = ["run", "prompts.txt", mode, "--detach"];
        let run = start(&desk, &args);
        until("some requests to be stored", || stored(&desk) > 0);
        interrupt(&run);
        let (code, said) = ended(run);
        assert_eq!(code, Some(130), "{said}");
        assert!(said.contains("stored so far") && said.contains("go on with the same command"), "{said}");
        let before = stored(&desk);
        assert!(before < REQUESTS, "it did not go on to the end: {said}");
        desk.ok(&args);
        let run = desk.only_run();
        assert_eq!(
            (stored(&desk), &run["units"]["total"]),
            (REQUESTS, &REQUESTS.into()),
            "each is stored once"
        );
    }
    assert_eq!(sim.count("calls"), 0);
}

#[test]
fn interrupted_while_prompts_are_read_it_ends_and_has_stored_nothing() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    fifo(&desk.place, "prompts");
    let run = start(&desk, &["run", "prompts", "--sync"]);
    // Opened once the program reads it; held open, so that the prompts do not end.
    let pipe = std::fs::OpenOptions::new().write(true).open(desk.place.path("prompts")).expect("a pipe");
    interrupt(&run);
    let (code, said) = ended(run);
    drop(pipe);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("nothing was stored") && said.contains("same command"), "{said}");
    assert!(!desk.place.path(".longhaul").exists());
}

#[test]
fn a_run_whose_command_was_interrupted_waits_for_a_worker_and_does_not_run() {
    let sim = Sim::start(&["--latency", "50ms"]);
    let desk = Desk::at(&sim, 200);
    let run = start(&desk, &["run", "prompts.txt", "--sync", "--concurrency", "2"]);
    until("an answer", || sim.count("executed") > 0);
    let shown = |word: &str| desk.ok(&["runs", "ls"]).stdout.contains(word);
    until("the worker to be heard of", || shown("running"));
    interrupt(&run);
    let (code, said) = ended(run);
    assert_eq!(code, Some(130), "{said}");
    assert!(shown("waits for a worker") && !shown("running"), "{:?}", desk.ok(&["runs", "ls"]));
    assert_eq!(desk.only_run()["served"], false);
    assert!(desk.ok(&["runs", "show", &desk.run_id()]).stdout.contains("waits for a worker"));
}

/// Its last sign of life was a moment ago; that its process is dead is known all the same.
#[test]
fn a_run_whose_command_was_killed_waits_for_a_worker_at_once() {
    let sim = Sim::start(&["--latency", "50ms"]);
    let desk = Desk::at(&sim, 200);
    let mut run = start(&desk, &["run", "prompts.txt", "--sync", "--concurrency", "2"]);
    let shown = |word: &str| desk.ok(&["runs", "ls"]).stdout.contains(word);
    until("the worker to be heard of", || sim.count("executed") > 0 && shown("running"));
    run.kill();
    assert!(shown("waits for a worker") && !shown("running"), "{:?}", desk.ok(&["runs", "ls"]));
    assert_eq!(desk.json(&["workers", "ls"])["items"], serde_json::json!([]));
}
