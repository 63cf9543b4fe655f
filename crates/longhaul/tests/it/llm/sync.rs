//! Requests one by one: a provider that misbehaves, a program that is killed or asked to end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use crate::workers::{Process, interrupt, until};

use super::sim::{Desk, Sim, all_answered};

/// The faults of "Must show" 1; the waits they ask for are short.
const FAULTS: &str =
    r#"{"faults":{"rate_429":0.05,"rate_5xx":0.02,"rate_malformed":0.01,"retry_after_ms":20}}"#;

/// How many requests; `LONGHAUL_BULK_REQUESTS=10000` is the number that is promised.
fn requests() -> u64 {
    std::env::var("LONGHAUL_BULK_REQUESTS").map_or(1_000, |text| text.parse().expect("a number"))
}

#[test]
fn a_provider_that_misbehaves_costs_no_answer_and_changes_none() {
    let requests = requests();
    let args = ["run", "prompts.txt", "--sync", "--schema", "schema.json", "--out", "answers.jsonl"];
    let calm = Sim::start(&[]);
    let undisturbed = Desk::at(&calm, requests);
    undisturbed.ok(&args);
    let sim = Sim::with(FAULTS);
    let desk = Desk::at(&sim, requests);
    let ran = desk.ok(&args);
    let (expected, answers) = (undisturbed.answers("answers.jsonl"), desk.answers("answers.jsonl"));
    all_answered(&answers, requests);
    for (expected, answer) in expected.iter().zip(&answers) {
        assert_eq!(expected["answer"], answer["answer"]);
    }
    let stats = sim.stats();
    let malformed = stats["faults"]["malformed"].as_u64().unwrap_or(0);
    assert!(stats["faults"]["throttled"].as_u64() > Some(0), "{stats}");
    assert!(stats["faults"]["status_5xx"].as_u64() > Some(0) && malformed > 0, "{stats}");
    // Only what came back broken is asked, and paid for, once more.
    let executed = stats["executed"].as_u64().expect("a count");
    assert!((requests..=requests + malformed).contains(&executed), "{stats}");
    assert!(ran.stderr.contains(&format!("{} times throttled", stats["faults"]["throttled"])), "{ran:?}");
    // The same command has nothing left to do, asks nobody, and writes the same file.
    let again = desk.ok(&args);
    assert!(again.stderr.contains("going on with"), "{again:?}");
    assert_eq!(sim.count("executed"), executed);
    assert_eq!(desk.answers("answers.jsonl"), answers);
}

#[test]
fn kills_in_the_middle_lose_nothing_and_ask_nothing_finished_again() {
    const REQUESTS: u64 = 300;
    const KILLS: u64 = 3;
    const IN_FLIGHT: u64 = 16;
    let sim = Sim::start(&["--latency", "40ms"]);
    let desk = Desk::at(&sim, REQUESTS);
    let args =
        ["run", "prompts.txt", "--sync", "--cache", "off", "--concurrency", "16", "--out", "answers.jsonl"];
    for kill in 1..=KILLS {
        let mut run = desk.start(&args);
        until("requests to be answered", || {
            assert!(!run.has_ended(), "the run ended before kill {kill}");
            sim.count("executed") >= kill * REQUESTS / (KILLS + 2)
        });
        run.kill();
    }
    let ran = desk.ok(&args);
    all_answered(&desk.answers("answers.jsonl"), REQUESTS);
    let executed = sim.count("executed");
    assert!((REQUESTS..=REQUESTS + KILLS * IN_FLIGHT).contains(&executed), "{executed} executed");
    // What was under way at a kill is not hidden: it is booked as unknown, and said.
    assert!(ran.stderr.contains("may have been billed"), "{ran:?}");
    let spent = &desk.only_run()["spent"];
    let unknown = spent["unknown_calls"].as_u64().expect("a count");
    assert!((1..=KILLS * IN_FLIGHT).contains(&unknown), "{spent}");
    // The books never know of less than was paid.
    let known = spent["calls"].as_u64().expect("a count");
    assert!((REQUESTS..=known + unknown).contains(&executed), "{executed} executed, {spent}");
    assert!(desk.ok(&["costs"]).stderr.contains("may have been billed"));
}

#[test]
fn a_run_after_a_kill_does_not_wait_for_the_leases_of_the_dead() {
    const REQUESTS: usize = 4;
    const LEASE_MS: u64 = 2 * 60 * 1_000;
    let sim = Sim::with(r#"{"faults":{"rate_timeout":1.0}}"#);
    let mut desk = Desk::at(&sim, REQUESTS as u64);
    desk.set("LONGHAUL_WORKER__LEASE", "2m");
    let args = ["run", "prompts.txt", "--sync", "--concurrency", "4", "--out", "answers.jsonl"];
    let mut first = under_way(&desk, &sim, &args);
    assert_eq!(locks(&desk), 1);
    first.kill();
    assert_eq!(locks(&desk), 1, "the dead one's, which nobody holds");
    sim.set_faults(r#"{"rate_timeout":0.0}"#);
    desk.ok(&args);
    all_answered(&desk.answers("answers.jsonl"), REQUESTS as u64);
    assert_eq!(locks(&desk), 0, "who ends in order leaves nothing");
    let jobs = desk.json(&["jobs", "ls", "--kind", "llm.request"]);
    let jobs = jobs["items"].as_array().expect("a list").clone();
    assert_eq!(jobs.len(), REQUESTS);
    for job in jobs {
        let job = desk.json(&["jobs", "show", job["id"].as_str().expect("an id")]);
        let runs = job["runs"].as_array().expect("runs");
        let outcomes: Vec<_> = runs.iter().map(|run| run["outcome"].as_str()).collect();
        assert_eq!(outcomes, [Some("crash"), Some("done")], "{job}");
        let at = |name: &str| runs[0][name].as_u64().unwrap_or_else(|| panic!("no {name} in {job}"));
        assert!(at("ended_at") - at("started_at") < LEASE_MS / 2, "{job}");
        assert_eq!(job["spent"]["crashes"], 1, "{job}");
    }
}

/// Files of locks beside the store.
fn locks(desk: &Desk) -> usize {
    let entries = std::fs::read_dir(desk.place.path(".longhaul")).expect("the folder").flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("longhaul.db-process-")).count()
}

#[test]
fn one_interrupt_drains_and_the_same_command_goes_on() {
    let sim = Sim::start(&["--latency", "100ms"]);
    let desk = Desk::at(&sim, 60);
    let args = ["run", "prompts.txt", "--sync", "--concurrency", "4", "--out", "answers.jsonl"];
    let run = under_way(&desk, &sim, &args);
    interrupt(&run);
    let (code, said) = ended(run);
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("draining") && said.contains("go on with the same command"), "{said}");
    assert!(!desk.place.path("answers.jsonl").exists(), "no half file");
    // Those under way were answered, and none is lost or paid twice.
    let run = desk.only_run();
    assert_eq!(run["units"]["done"].as_u64(), Some(sim.count("executed")), "{run}");
    assert_eq!(run["spent"]["unknown_calls"], 0, "{run}");
    desk.ok(&args);
    all_answered(&desk.answers("answers.jsonl"), 60);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (60, 0));
}

#[test]
fn a_second_interrupt_stops_at_once() {
    let sim = Sim::with(r#"{"faults":{"rate_timeout":1.0}}"#);
    let desk = Desk::at(&sim, 8);
    let args = ["run", "prompts.txt", "--sync", "--out", "answers.jsonl"];
    let mut run = under_way(&desk, &sim, &args);
    interrupt(&run);
    let mut stderr = BufReader::new(run.0.stderr.take().expect("piped"));
    let drains = stderr.by_ref().lines().map_while(Result::ok).any(|line| line.contains("draining"));
    assert!(drains, "the first signal drains");
    // The calls hang for ten minutes: only the second signal can end this.
    interrupt(&run);
    let said = std::io::read_to_string(stderr).expect("text");
    let code = run.0.wait().expect("waiting").code();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("stopping") && said.contains("may have been billed"), "{said}");
    sim.set_faults(r#"{"rate_timeout":0.0}"#);
    desk.ok(&args);
    all_answered(&desk.answers("answers.jsonl"), 8);
}

/// A run that has sent requests.
fn under_way(desk: &Desk, sim: &Sim, args: &[&str]) -> Process {
    let run = Process(desk.command(args).stdout(Stdio::null()).spawn().expect("running longhaul"));
    until("requests to be sent", || sim.count("calls") >= 4);
    run
}

/// How it ended, and what it said on the way.
fn ended(mut process: Process) -> (Option<i32>, String) {
    let stderr = process.0.stderr.take().expect("piped");
    let said = std::io::read_to_string(stderr).expect("text");
    (process.0.wait().expect("waiting").code(), said)
}
