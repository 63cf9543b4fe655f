//! `-o json`: what is on stdout is JSON and nothing else, also where there is nothing to tell.

use serde_json::{Value, json};

use crate::llm::sim::{Desk, Sim};
use crate::place::{Place, Ran};

/// The only document on stdout.
fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// The documents on stdout, one a line.
fn lines(ran: &Ran) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    ran.stdout.lines().map(line).collect()
}

#[test]
fn commands_about_the_place_print_documents() {
    let place = Place::new();
    assert_eq!(place.json(&["init"]), json!({ "file": "longhaul.toml" }));
    place.json(&["tokens", "add", "me"]);
    assert_eq!(place.json(&["tokens", "rm", "me"]), json!({ "removed": "me" }));
    let nothing = json!({ "items": [], "unknown_calls": 0, "unknown_ceiling_usd": 0.0 });
    assert_eq!(place.json(&["costs"]), nothing, "as the server tells it");
    place.enqueue(&["echo", "--process", "p"]);
    for empty in [
        &["costs", "unknown"][..],
        &["costs", "decisions"],
        &["runs", "ls"],
        &["runs", "ls", "--pipeline", "sheets"],
        &["schedule", "ls"],
        &["tokens", "ls"],
        &["workers", "ls"],
    ] {
        assert_eq!(place.json(empty), json!({ "items": [] }), "{empty:?}");
        // People are told that there is nothing.
        let ran = place.run(empty);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{empty:?}: {ran:?}");
    }
    let job = place.json(&["jobs", "ls"])["items"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(place.json(&["jobs", "log", &job])["items"], json!([]));
    place.drain(&[]);
    // As the server tells them.
    assert_eq!(place.json(&["events", "--process", "other"]), json!({ "events": [], "resync": false }));
    let events = place.json(&["events"]);
    assert!(events["events"].as_array().is_some_and(|events| events.len() > 1), "{events}");
    let written = place.json(&["results", "p", "--out", "p.jsonl"]);
    assert_eq!((&written["results"], &written["file"]), (&json!(1), &json!("p.jsonl")), "{written}");
}

#[test]
fn a_run_prints_its_answers_as_lines_or_what_became_of_it() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("prompts.txt", "one\n[[sim:refuse]] two\n");
    desk.place.write("rows.csv", "text\none\n");
    let ran = desk.run(&["run", "prompts.txt", "-o", "json"]);
    assert_eq!((ran.code, lines(&ran).len()), (Some(3), 2), "answers of a text file: {ran:?}");
    let rows = desk.ok(&["run", "rows.csv", "--template", "{{text}}", "-o", "jsonl"]);
    assert_eq!(lines(&rows)[0]["index"], 0, "answers of a table");
    let told = document(&desk.run(&["run", "prompts.txt", "--out", "a.jsonl", "-o", "json"]));
    let id = told["id"].as_str().expect("an id");
    assert_eq!((&told["units"]["done"], &told["units"]["failed"]), (&json!(1), &json!(1)), "{told}");
    assert_eq!(document(&desk.run(&["runs", "wait", id, "-o", "json"]))["id"], id);
    let written = document(&desk.run(&["runs", "results", id, "--out", "b.jsonl", "-o", "json"]));
    assert_eq!((&written["file"], &written["failed"]), (&json!("b.jsonl"), &json!(1)));
    assert_eq!(lines(&desk.run(&["runs", "results", id, "-o", "json"])).len(), 2);
    assert_eq!(desk.run(&["runs", "results", id, "-o", "none"]).stdout, "");
    let sample = ["run", "rows.csv", "--template", "{{text}}?", "--sample", "1", "--out", "s.csv"];
    assert_eq!(desk.json(&sample)["estimate"]["requests"], 1);
}

#[test]
fn a_failed_request_is_told_once_and_its_class_too() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 0);
    desk.place.write("rows.csv", "text\none\n[[sim:refuse]] two\n");
    let ran =
        desk.run(&["run", "rows.csv", "--template", "{{text}}", "--out", "a.csv", "--errors", "e.jsonl"]);
    ran.fails(3, &["without an answer: 1 request; the first: refused: the model declined"]);
    assert!(!ran.stderr.contains("job_id") && !ran.stderr.contains("failed for good"), "{ran:?}");
    let table = crate::place::read(&desk.place.path("a.csv"));
    assert!(table.contains(",refused: the model declined") && !table.contains("refused: refused"), "{table}");
    let error = &desk.answers("e.jsonl")[0]["error"];
    assert_eq!(error["class"], "refused");
    assert!(error["message"].as_str().is_some_and(|text| text.starts_with("the model declined")), "{error}");
}
