//! `--server` with runs: a machine that has neither keys nor a store drives a server.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::place::{Place, read};
use crate::remote::Away;
use crate::served::Served;
use crate::workers::{Process, interrupt};

const SIM: [&str; 4] = ["--profile", "sim", "--model", "sim-small"];
const RUBRIC: &str = "[[category]]\nname = \"delivery\"\n[[category]]\nname = \"price\"\n";
const SCORE: [&str; 6] = ["score", "t.csv", "--text-column", "text", "--rubric", "r.toml"];

fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["run", "p.txt"], &SIM[..], args].concat()
}

fn prompts(place: &Place) {
    place.write("p.txt", &(0..20).map(|number| format!("Question {number}\n")).collect::<String>());
}

/// The answers of a file, each with what it answers.
fn answers(place: &Place, name: &str) -> Vec<(u64, String)> {
    let line = |line: &str| -> (u64, String) {
        let line: Value = serde_json::from_str(line).expect(line);
        (line["index"].as_u64().expect("an index"), line["answer"].as_str().expect("an answer").to_owned())
    };
    read(&place.path(name)).lines().map(line).collect()
}

#[test]
fn prompts_are_answered_at_the_server_as_they_are_here() {
    let (home, here) = (Place::new(), Place::new());
    let server = Served::start(&home, &[], &[]);
    let away = Away::from(&server);
    prompts(&away.place);
    prompts(&here);
    let run_args = run(&["--out", "a.jsonl"]);
    for look in [&["--dry-run"][..], &["--sample", "3", "--out", "s.jsonl"]] {
        let (there, here) = (away.json(&run(look)), here.json(&run(look)));
        let estimate = |told: &Value| told.get("estimate").unwrap_or(told).clone();
        assert_eq!(estimate(&there), estimate(&here), "{look:?}");
        assert_eq!(estimate(&there)["requests"], 20, "{there}");
    }
    away.ok(&run_args);
    here.ok(&run_args);
    assert_eq!(answers(&away.place, "a.jsonl"), answers(&here, "a.jsonl"));

    let listed = away.json(&["runs", "ls"]);
    let id = listed["items"][0]["id"].as_str().expect("a run").to_owned();
    let page = away.json(&["runs", "ls", "--limit", "1"]);
    let next = page["next"].as_str().expect("a cursor");
    let second = ["runs", "ls", "--limit", "1", "--cursor", next];
    assert_eq!(away.json(&second)["items"][0]["id"], listed["items"][1]["id"]);
    for look in [&["runs", "ls"][..], &second, &["runs", "show", &id], &["runs", "wait", &id], &["costs"]] {
        let look = [look, &["-o", "json"]].concat();
        assert_eq!(away.ok(&look), home.ok(&look), "{look:?}");
    }
    // The same command finds the run, and what it wrote is replaced only when asked.
    away.run(&run_args).fails(2, &["a.jsonl exists", "--force"]);
    away.ok(&[&run_args[..], &["--force"]].concat());
    assert_eq!(away.json(&["runs", "ls"])["items"].as_array().map(Vec::len), Some(2));
    let spent = away.json(&["runs", "show", &id])["spent"].clone();
    assert_eq!((&spent["calls"], &spent["cached"]), (&17.into(), &3.into()), "nothing is asked twice");

    away.ok(&["runs", "results", &id, "--out", "b.csv"]);
    assert_eq!(read(&away.place.path("b.csv")).lines().count(), 21);
    away.run(&["runs", "retry", &id]).fails(4, &["no request of"]);
    away.run(&["runs", "retry", &id, "--part", "1"]).fails(2, &["no parts"]);
    assert_eq!(away.json(&["runs", "rm", &id, "--yes"])["id"], id.as_str());
    home.run(&["runs", "show", &id]).fails(4, &["there is no run"]);
    away.run(&["runs", "show", &id]).fails(4, &["there is no run"]);
}

#[test]
fn a_table_is_scored_at_the_server_as_it_is_here() {
    let (home, here) = (Place::new(), Place::new());
    let server = Served::start(&home, &[], &[]);
    let away = Away::from(&server);
    for place in [&away.place, &here] {
        place.write("t.csv", "id,text\n1,late delivery\n2,great value\n3,broken box\n");
        place.write("r.toml", RUBRIC);
    }
    let score = |more: &[&'static str]| [&SCORE[..], &SIM, more].concat();
    let sample = away.json(&score(&["--sample", "2"]));
    assert_eq!(sample["sample"].as_array().map(Vec::len), Some(2), "{sample}");
    away.ok(&score(&["--out", "s.csv"]));
    here.ok(&score(&["--out", "s.csv"]));
    assert_eq!(read(&away.place.path("s.csv")), read(&here.path("s.csv")));
    let dry = away.json(&score(&["--out", "x.csv", "--dry-run"]));
    assert_eq!((&dry["rows"], &dry["model"]), (&3.into(), &"sim-small".into()), "{dry}");
    assert_eq!(away.json(&[&["estimate"], &SCORE[1..], &SIM].concat()), dry);

    let listed = away.json(&["runs", "ls", "--pipeline", "sheets", "--limit", "1"]);
    let id = listed["items"][0]["id"].as_str().expect("a sheet").to_owned();
    let show = ["runs", "show", &id, "-o", "json"];
    assert_eq!(away.ok(&show), home.ok(&show));
    let written = away.json(&["runs", "results", &id, "--out", "s.jsonl"]);
    assert_eq!(written, home.json(&["runs", "results", &id, "--out", "s.jsonl"]));
    assert_eq!(read(&away.place.path("s.jsonl")).lines().count(), 3);
    away.run(&["runs", "results", &id]).fails(2, &["--out is required for a sheet"]);
    away.place.write("u.csv", "id,text\n1,late delivery\n");
    away.ok(&[
        "score",
        "u.csv",
        "--text-column",
        "text",
        "--rubric",
        "r.toml",
        "--in-place",
        "--profile",
        "sim",
        "--model",
        "sim-small",
    ]);
    assert!(read(&away.place.path("u.csv")).starts_with("id,text,delivery,price\n1,late delivery,0."));
    let uploads = std::fs::read_dir(home.path(".longhaul/files")).expect("a folder");
    let uploads = uploads.filter(|entry| entry.as_ref().expect("an entry").path().is_file()).count();
    assert_eq!(uploads, 0, "uploads are deleted when the server has read them");
}

#[test]
fn a_command_that_is_interrupted_leaves_its_run_to_the_server() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    prompts(&away.place);
    let args = run(&["--out", "a.jsonl", "-o", "json", "--progress", "lines"]);
    let mut command = away.place.command(&away.args(&args));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut process = Process(child.expect("running longhaul"));
    let mut told = BufReader::new(process.0.stderr.take().expect("piped")).lines();
    let follows = told.any(|line| line.expect("a line").contains("progress done=0"));
    assert!(follows, "it follows the run");
    interrupt(&process);
    let code = process.0.wait().expect("an end").code();
    assert_eq!(code, Some(130), "{:?}", told.collect::<Vec<_>>());
    home.ok(&["work", "--drain"]);
    let listed = away.json(&["runs", "ls"]);
    assert_eq!(listed["items"][0]["state"], "completed", "{listed}");
    away.ok(&run(&["--out", "a.jsonl"]));
    assert_eq!(answers(&away.place, "a.jsonl").len(), 20);
}

#[test]
fn runs_are_steered_and_paid_for_at_the_server() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    prompts(&away.place);
    let detached = away.run(&run(&["--detach", "--max-cost", "0.000001"]));
    assert!(!detached.stderr.contains("longhaul work"), "the server has workers: {detached:?}");
    let id = detached.stdout.trim();
    assert_eq!(away.json(&["runs", "pause", id])["state"], "paused");
    assert_eq!(home.json(&["runs", "show", id])["state"], "paused");
    let resumed = away.run(&["runs", "resume", id, "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&resumed.stdout).ok(), Some(json!({ "id": id, "changed": 0 })));
    assert!(!resumed.stderr.contains("longhaul work"), "{resumed:?}");
    home.run(&["work", "--drain"]);
    assert_eq!(away.json(&["runs", "show", id])["hold"], "budget");
    away.ok(&["runs", "resume", id, "--max-cost", "5"]);
    home.ok(&["work", "--drain"]);
    assert_eq!(away.json(&["runs", "wait", id])["state"], "completed");
    let costs = away.json(&["costs"]);
    assert_eq!(costs["items"][0]["calls"], 20, "{costs}");
    assert_eq!(away.json(&["costs", "unknown"])["items"].as_array().map(Vec::len), Some(0));
    away.run(&["costs", "resolve", "--billed", "--yes"]).fails(4, &["no unresolved call"]);
    away.run(&["costs", "unknown", "--day", "today"]).fails(2, &["--day"]);
    assert_eq!(away.json(&["costs", "decisions"])["items"].as_array().map(Vec::len), Some(0));
    let estimate = away.json(&[&["estimate", "p.txt"][..], &SIM].concat());
    assert_eq!((&estimate["requests"], &estimate["simulated"]), (&20.into(), &true.into()));

    // What a sample costs is the base of the estimate for all.
    away.place.write("q.txt", &(0..40).map(|number| format!("Another {number}\n")).collect::<String>());
    away.ok(&[&["run", "q.txt", "--sample", "8", "--detach"][..], &SIM].concat());
    home.ok(&["work", "--drain"]);
    let estimate = away.json(&[&["estimate", "q.txt"][..], &SIM].concat());
    assert_eq!((&estimate["basis"], &estimate["requests"]), (&"sample".into(), &40.into()), "{estimate}");
}

#[test]
fn wrong_input_is_told_as_without_a_server() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Away::from(&server);
    prompts(&away.place);
    away.place.write("t.csv", "id,text\n1,late delivery\n");
    away.place.write("r.toml", RUBRIC);
    away.run(&["run", "p.txt", "--profile", "nosuch"]).fails(2, &["there is no profile \"nosuch\""]);
    away.run(&["run", "missing.txt", "--profile", "sim"]).fails(4, &["missing.txt"]);
    away.run(&["runs", "ls", "--pipeline", "poems"]).fails(2, &["poems", "prompts, sheets"]);
    away.run(&run(&["--base-url", "http://localhost:1"])).fails(2, &["--base-url", "--server"]);
    away.run(&run(&["--concurrency", "3"])).fails(2, &["--concurrency", "--server"]);
    away.run(&[&SCORE[..], &SIM].concat()).fails(2, &["--out"]);
    let column = ["score", "t.csv", "--text-column", "nope", "--rubric", "r.toml", "--out", "s.csv"];
    away.run(&[&column[..], &SIM].concat()).fails(2, &["there is no column \"nope\""]);
    let sheet = ["score", "sheets://abc", "--layout", "sheet", "--profile", "sim"];
    away.run(&sheet).fails(2, &["sheets://abc/TITLE"]);
    assert_eq!(home.json(&["runs", "ls"])["items"].as_array().map(Vec::len), Some(0), "nothing was stored");
}
