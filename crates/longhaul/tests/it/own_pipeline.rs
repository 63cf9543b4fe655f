//! A pipeline that is not ours, in a program that is not ours: `examples/own_pipeline.rs`. Every command, the HTTP API, events and metrics
//! know it, and it survives kill -9.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::place::Place;
use crate::served::Served;
use crate::workers::{Process, fifo, until};

const NAME: &str = "own_pipeline";

/// The program. Cargo builds examples before tests unless one test binary is asked for by its name; then it is built here.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_BIN_EXE_longhaul")).parent().expect("a folder");
    let program = folder.join("examples").join(NAME);
    if !is_fresh(&program) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-p", "longhaul", "--example", NAME]);
        assert!(build.status().expect("running cargo").success(), "building {NAME}");
    }
    program
});

/// Whether a program is younger than all of its sources, which Cargo lists beside it.
fn is_fresh(program: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|found| found.modified()).ok();
    let (Some(built), Ok(listed)) = (modified(program), std::fs::read_to_string(program.with_extension("d")))
    else {
        return false;
    };
    let mut sources = listed.split_whitespace().skip(1);
    sources.all(|source| modified(Path::new(source)).is_some_and(|changed| changed <= built))
}

/// A place with two files of words.
fn place() -> Place {
    let place = Place::of(PROGRAM.clone());
    place.write("one.txt", "a b c\nd\n");
    place.write("two.txt", "e f\n");
    place
}

fn show(place: &Place, id: &str) -> Value {
    place.json(&["runs", "show", id])
}

/// What became of each file.
fn results(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_command_for_runs_knows_a_pipeline_that_is_not_ours() {
    let place = place();
    let files = ["start", "one.txt", "two.txt", "later.txt"];
    let id = place.ok(&files);
    assert!(id.starts_with("words-"), "{id}");
    assert_eq!(place.ok(&files), id, "the same files are the same run");
    assert!(place.ok(&["--help"]).contains("Counts the words of files"));

    let listed = place.json(&["runs", "ls", "--pipeline", "words"]);
    let run = &listed["items"][0];
    assert_eq!((&run["id"], &run["pipeline"]), (&id.as_str().into(), &"words".into()), "{listed}");
    assert_eq!((&run["state"], &run["units"]["total"]), (&"running".into(), &3.into()), "{listed}");
    place.run(&["runs", "ls", "--pipeline", "poems"]).fails(2, &["poems", "prompts, sheets, words"]);
    place.ok(&["runs", "pause", &id]);
    assert_eq!(show(&place, &id)["state"], "paused");
    place.ok(&["runs", "resume", &id]);

    // One file is not there yet.
    place.drain(&[]);
    let shown = place.ok(&["runs", "show", &id]);
    for words in ["files        2 of 3 done", "partly_failed", "later.txt: No such file"] {
        let shown = format!("{shown}\n{}", show(&place, &id)["failures"]);
        assert!(shown.contains(words), "{words:?} is missing: {shown}");
    }
    let ran = place.run(&["runs", "results", &id]);
    assert_eq!((ran.code, results(&ran.stdout).len()), (Some(3), 3), "{ran:?}");

    place.write("later.txt", "g h i j\n");
    place.ok(&["runs", "retry", &id]);
    place.drain(&[]);
    assert!(place.ok(&["runs", "wait", &id, "-o", "json"]).contains("\"completed\""));
    place.ok(&["runs", "results", &id, "--out", "words.jsonl"]);
    let written = results(&crate::place::read(&place.path("words.jsonl")));
    let words: Vec<&Value> = written.iter().map(|line| &line["result"]["words"]).collect();
    assert_eq!(words, [4, 2, 4], "{written:?}");
    place.run(&["runs", "results", &id, "--errors", "e"]).fails(2, &["runs of words"]);

    place.ok(&["runs", "rm", &id, "--yes"]);
    place.run(&["runs", "show", &id]).fails(4, &["there is no run"]);
    assert_eq!(place.json(&["jobs", "ls"])["items"], Value::Array(Vec::new()), "it leaves nothing");
}

#[test]
fn a_cancelled_run_keeps_what_was_done_and_can_go_on() {
    let place = place();
    let id = place.ok(&["start", "one.txt", "two.txt"]);
    place.ok(&["runs", "cancel", &id, "--yes"]);
    let cancelled = show(&place, &id);
    assert_eq!((&cancelled["state"], &cancelled["units"]["cancelled"]), (&"cancelled".into(), &2.into()));
    assert!(place.run(&["runs", "show", &id]).stderr.contains("runs retry"));
    // Nobody has heard of its end yet, and it can be removed all the same.
    let other = place.ok(&["start", "two.txt"]);
    place.ok(&["runs", "cancel", &other, "--yes"]);
    assert!(place.run(&["start", "two.txt"]).stderr.contains("trying again what has no result: 1 file"));
    assert_eq!(show(&place, &other)["state"], "running");
    place.ok(&["runs", "cancel", &other, "--yes"]);
    place.ok(&["runs", "rm", &other, "--yes"]);
    assert_eq!(place.json(&["runs", "ls"])["items"].as_array().map(Vec::len), Some(1));

    assert!(place.ok(&["runs", "retry", &id]).contains("2 files"));
    place.drain(&[]);
    let ended = show(&place, &id);
    assert_eq!((&ended["state"], &ended["units"]["done"]), (&"completed".into(), &2.into()), "{ended}");
}

#[test]
fn names_of_the_pipeline_are_reserved_in_its_program_alone() {
    let enqueue = ["enqueue", "words.file", "\"one.txt\""];
    place().run(&enqueue).fails(2, &["reserved", "words."]);
    Place::new().ok(&enqueue);
}

async fn get(served: &Served, path: &str, accept: &str) -> String {
    let url = format!("{}{path}", served.url);
    let client = longhaul_llm::plain_client(&url, Duration::from_secs(60)).expect("a client");
    let response = client.get(&url).header("accept", accept).send().await.expect("an answer");
    assert!(response.status().is_success(), "{url}: {}", response.status());
    response.text().await.expect("a body")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_runs_it_and_tells_of_it() {
    const JSON: &str = "application/json";
    let place = place();
    let served = Served::start(&place, &[], &[]);
    let id = place.ok(&["start", "one.txt", "two.txt"]);
    let json =
        async |path: &str| -> Value { serde_json::from_str(&get(&served, path, JSON).await).expect("JSON") };
    let shown = json(&format!("/api/v1/runs/{id}?wait=30s")).await;
    assert_eq!((&shown["state"], &shown["pipeline"]), (&"completed".into(), &"words".into()), "{shown}");
    let listed = json("/api/v1/runs?pipeline=words").await;
    assert_eq!(listed["items"][0]["id"], id.as_str(), "{listed}");
    let lines = get(&served, &format!("/api/v1/runs/{id}/results"), "application/jsonl").await;
    assert_eq!(results(&lines).len(), 2, "{lines}");

    let events = json(&format!("/api/v1/events?process={id}&limit=1000")).await.to_string();
    for words in ["words.file", "succeeded", id.as_str()] {
        assert!(events.contains(words), "{words:?} is missing: {events}");
    }
    assert!(place.ok(&["events", "--process", &id]).contains("words.file"));
    let metrics = get(&served, "/metrics", "text/plain").await;
    assert!(metrics.contains("longhaul_runs{pipeline=\"words\",state="), "{metrics}");
    assert!(
        metrics.contains("longhaul_jobs_finished_total{queue=\"words\",outcome=\"succeeded\"}"),
        "{metrics}"
    );
    assert!(place.json(&["workers", "ls"]).to_string().contains("words.file"));
}

#[test]
fn a_killed_worker_is_taken_over_from_at_the_checkpoint_of_each_file() {
    let place = place();
    fifo(&place, "slow.txt");
    let id = place.ok(&["start", "one.txt", "slow.txt"]);
    let units = |field: &str| {
        let jobs = place.json(&["jobs", "ls", "--process", &id, "--kind", "words.file"]);
        let ids = jobs["items"].as_array().expect("jobs").iter().map(|job| job["id"].clone());
        let mut shown: Vec<Value> = ids.map(|id| place.show(id.as_str().expect("an id"))).collect();
        shown.sort_by_key(|job| job["id"].to_string());
        shown.iter().map(|job| job[field].clone()).collect::<Vec<_>>()
    };
    let mut worker = Process::start(&place, &["work", "--drain"]);
    let mut pipe = OpenOptions::new().write(true).open(place.path("slow.txt")).expect("its reader");
    pipe.write_all(b"a b\nc\nd e f\n").expect("its reader");
    until("three lines are counted", || units("state")[0] == "succeeded" && units("data")[1]["lines"] == 3);
    worker.kill();
    drop(pipe);
    assert_eq!(show(&place, &id)["state"], "running");

    std::fs::remove_file(place.path("slow.txt")).expect("the pipe");
    place.write("slow.txt", "a b\nc\nd e f\ng\nh i\n");
    place.drain(&[]);
    let ended = show(&place, &id);
    assert_eq!((&ended["state"], &ended["units"]["done"]), (&"completed".into(), &2.into()), "{ended}");
    assert!(ended["ended_at"].is_number(), "its manifest has run: {ended}");
    let counted = results(&place.ok(&["runs", "results", &id]));
    let [one, slow] = [0, 1].map(|index: usize| counted[index]["result"].to_string());
    assert_eq!(one, r#"{"lines":2,"words":4,"resumed_at":[]}"#, "done once, before the kill");
    assert_eq!(slow, r#"{"lines":5,"words":9,"resumed_at":[3]}"#, "taken over after its third line");
}
