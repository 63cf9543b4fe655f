//! A disk that becomes full while a run is answering: nothing more is asked, answers wait in memory, and whether space
//! comes back or the program has to end, what was paid is told.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{ChildStderr, Command, Stdio};

use longhaul_queue::{Clock as _, SystemClock};
use rustix::process::{Pid, Resource, Rlimit};

use crate::workers::{Process, interrupt, until};

use super::sim::{Desk, Sim, all_answered};

const REQUESTS: u64 = 200;
const SLOTS: u64 = 8;
const RUN: [&str; 7] = ["run", "prompts.txt", "--sync", "--concurrency", "8", "--out", "answers.jsonl"];

/// A run whose disk can be filled.
struct Run {
    process: Process,
    said: Lines<BufReader<ChildStderr>>,
    heard: Vec<String>,
}

impl Run {
    /// Starts one, and waits until it has some answers.
    fn under_way(desk: &Desk, sim: &Sim) -> Self {
        let program = desk.command(&RUN);
        // A write beyond the limit would end the program by a signal.
        let mut command = Command::new("sh");
        command.args(["-c", r#"trap '' XFSZ; exec "$0" "$@""#]);
        command.arg(program.get_program()).args(program.get_args());
        command.current_dir(program.get_current_dir().expect("a folder"));
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Process(command.spawn().expect("running longhaul"));
        let said = BufReader::new(process.0.stderr.take().expect("piped")).lines();
        until("some answers", || sim.count("executed") >= REQUESTS / 5);
        Self { process, said, heard: Vec::new() }
    }

    /// No file of the program takes anything more; or all do again.
    fn set_disk_full(&self, full: bool) {
        let id = i32::try_from(self.process.0.id()).ok().and_then(Pid::from_raw).expect("a process id");
        let limit = Rlimit { current: full.then_some(0), maximum: None };
        rustix::process::prlimit(Some(id), Resource::Fsize, limit).expect("the limit is set");
    }

    /// Listens until it says this.
    fn hear(&mut self, words: &str) {
        while !self.heard.last().is_some_and(|line| line.contains(words)) {
            let line = self.said.next().unwrap_or_else(|| panic!("no {words:?} in {:#?}", self.heard));
            self.heard.push(line.expect("text"));
        }
    }

    /// Its exit code, and all that it said.
    fn ended(mut self) -> (Option<i32>, String) {
        self.heard.extend(self.said.map_while(Result::ok));
        (self.process.0.wait().expect("waiting").code(), self.heard.join("\n"))
    }
}

#[test]
fn a_disk_that_is_full_for_a_while_costs_no_answer_and_no_call() {
    let sim = Sim::start(&["--latency", "50ms"]);
    let desk = Desk::at(&sim, REQUESTS);
    let mut run = Run::under_way(&desk, &sim);
    run.set_disk_full(true);
    let before = sim.count("executed");
    run.hear("nothing can be stored");
    // For longer than the leases hold, which cannot be renewed meanwhile.
    until("the leases to expire", || {
        let now_ms = SystemClock.now().as_millis();
        let running = desk.json(&["jobs", "ls", "--state", "running"]);
        let running = running["items"].as_array().expect("a list");
        let is_over = |job: &serde_json::Value| job["lease_until"].as_i64().expect("a time") < now_ms;
        !running.is_empty() && running.iter().all(is_over)
    });
    let asked = sim.count("executed");
    assert!(asked <= before + SLOTS, "{asked} asked, {before} before the disk was full");
    run.set_disk_full(false);
    let (code, said) = run.ended();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("nothing can be stored").count(), 1, "said once: {said}");
    assert!(said.matches("WARN").count() <= 1, "only the cache may say that it keeps nothing: {said}");
    assert!(said.contains("disk") && said.contains("room again"), "{said}");
    all_answered(&desk.answers("answers.jsonl"), REQUESTS);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (REQUESTS, 0));
    let run = desk.only_run();
    assert_eq!(
        (&run["spent"]["calls"], &run["spent"]["unknown_calls"]),
        (&REQUESTS.into(), &0.into()),
        "{run}"
    );
}

#[test]
fn interrupted_on_a_full_disk_it_ends_and_the_same_command_tells_what_may_be_paid_twice() {
    let sim = Sim::start(&["--latency", "50ms"]);
    let desk = Desk::at(&sim, REQUESTS);
    let mut run = Run::under_way(&desk, &sim);
    run.set_disk_full(true);
    run.hear("nothing can be stored");
    run.hear("Ctrl-C ends it");
    interrupt(&run.process);
    run.hear("draining");
    interrupt(&run.process);
    let (code, said) = run.ended();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("may have been billed") && said.contains("go on with the same command"), "{said}");
    assert!(!desk.place.path("answers.jsonl").exists(), "no half file");
    let ran = desk.ok(&RUN);
    all_answered(&desk.answers("answers.jsonl"), REQUESTS);
    // Told at once where the call was booked and its answer not stored, in the end where it was not even booked.
    let twice = sim.count("executed") - REQUESTS;
    let unstored =
        said.split_once("interrupted; ").and_then(|(_, rest)| rest.split_once(" answer")?.0.parse().ok());
    let spent = &desk.only_run()["spent"];
    let unknown = spent["unknown_calls"].as_u64().expect("a count");
    let told = unknown + unstored.unwrap_or(0);
    assert!((1..=SLOTS).contains(&told) && twice <= told, "{twice} paid twice, {told} told: {said}, {spent}");
    let says_unknown =
        ran.stderr.contains(&format!("{unknown} call")) && ran.stderr.contains("may have been billed");
    assert!(unknown == 0 || says_unknown, "{ran:?}");
}
