//! Results in submission order, and their deletion after they are safe.

use crate::place::{Place, read};

fn finished() -> Place {
    let place = Place::new();
    for n in 0..3 {
        place.enqueue(&["echo", &n.to_string(), "--process", "p", "--priority", &(-n).to_string()]);
    }
    place.drain(&["--concurrency", "1"]);
    place
}

fn results(text: &str) -> Vec<i64> {
    let result = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["result"].as_i64().expect("a number")
    };
    text.lines().map(result).collect()
}

#[test]
fn results_come_in_submission_order() {
    let place = finished();
    assert_eq!(results(&place.ok(&["results", "p"])), [0, 1, 2]);
    assert_eq!(results(&place.ok(&["results", "p", "--wait"])), [0, 1, 2]);
    place.run(&["results", "nobody"]).fails(4, &["there is no process nobody"]);
    assert_eq!(place.run(&["results", "p", "--consume"]).code, Some(2));
}

#[test]
fn consumed_results_are_in_the_file_and_gone_from_the_store() {
    let place = finished();
    place.ok(&["results", "p", "--out", "r.jsonl", "--consume"]);
    assert_eq!(results(&read(&place.path("r.jsonl"))), [0, 1, 2]);
    assert_eq!(place.run(&["process", "show", "p"]).code, Some(4));
}

#[test]
fn a_crash_between_write_and_delete_repeats_no_line() {
    let place = finished();
    place.ok(&["results", "p", "--out", "r.jsonl"]);
    let torn = read(&place.path("r.jsonl")).lines().last().expect("a line")[..30].to_owned();
    let whole = read(&place.path("r.jsonl"));
    place.write("r.jsonl", &(whole + &torn));
    place.ok(&["results", "p", "--out", "r.jsonl", "--consume"]);
    assert_eq!(results(&read(&place.path("r.jsonl"))), [0, 1, 2]);
}

/// Only the start of each line is read into memory.
#[test]
fn ids_are_found_behind_lines_of_any_length_and_form() {
    let place = finished();
    place.ok(&["results", "p", "--out", "r.jsonl"]);
    let whole = read(&place.path("r.jsonl"));
    let foreign = format!("{}\n\n{{\"id\":\"short\"}}\n", "x".repeat(3_000_000));
    place.write("r.jsonl", &(foreign.clone() + &whole));
    place.ok(&["results", "p", "--out", "r.jsonl", "--force", "--consume"]);
    assert_eq!(read(&place.path("r.jsonl")), foreign + &whole, "no line came twice");
}

#[test]
fn a_file_of_somebody_else_is_left_alone() {
    let place = finished();
    place.write("notes.txt", "my notes without an end");
    place.run(&["results", "p", "--out", "notes.txt", "--consume"]).fails(2, &["notes.txt"]);
    assert_eq!(read(&place.path("notes.txt")), "my notes without an end");
    assert_eq!(results(&place.ok(&["results", "p"])), [0, 1, 2]);
}

#[test]
fn consume_refuses_while_a_job_is_unfinished() {
    let place = finished();
    let id = place.enqueue(&["echo", "--process", "p"]);
    place.run(&["consume", "p"]).fails(1, &["1 unfinished"]);
    place.ok(&["jobs", "cancel", &id]);
    assert_eq!(place.json(&["consume", "p"])["changed"], 4);
    place.run(&["consume", "p"]).fails(4, &["no process p"]);
}

#[test]
fn a_process_is_opened_sealed_and_cancelled() {
    let place = Place::new();
    place.enqueue(&["echo", "--process", "p"]);
    place.ok(&["process", "open", "p"]);
    let after = place.enqueue(&["echo", "--after-process", "p"]);
    place.drain(&[]);
    assert_eq!(place.show(&after)["state"], "blocked");
    assert_eq!(place.json(&["process", "seal", "p"])["sealed"], true);
    place.drain(&[]);
    assert_eq!(place.show(&after)["state"], "succeeded");
    place.enqueue(&["echo", "--process", "p"]);
    place.run(&["process", "cancel", "p"]).fails(2, &["cancel 1 unfinished"]);
    assert_eq!(place.json(&["process", "cancel", "p", "--yes"])["changed"], 1);
    let shown = place.json(&["process", "show", "p"]);
    assert_eq!((&shown["counts"]["cancelled"], &shown["unfinished"]), (&1.into(), &0.into()));
    assert_eq!(place.json(&["process", "ls"])["items"][0]["id"], "p");
}

/// Line breaks between the tokens of a document must not break the lines of the results.
#[test]
fn a_result_of_many_lines_is_one_line() {
    let place = Place::new();
    let payload = place.write("p.json", "{\n  \"a\": [1,\r\n 2]\n}\n");
    place.enqueue(&["echo", &format!("@{}", payload.display()), "--process", "p"]);
    place.enqueue(&["x", "--process", "p", "--queue", "exec"]);
    place.drain(&[]);
    place.drain(&["--queue", "exec", "--exec", "printf '{\\n\"b\": 1\\n}\\n'"]);
    let text = place.ok(&["results", "p"]);
    let values: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(values[0]["result"], serde_json::json!({ "a": [1, 2] }));
    assert_eq!(values[1]["result"], serde_json::json!({ "b": 1 }));
}

#[test]
fn results_go_to_a_plain_file_or_nowhere() {
    let place = finished();
    place.run(&["results", "p", "--out", "/dev/null"]).fails(2, &["is not a plain file"]);
    assert_eq!(place.ok(&["results", "p", "-o", "none"]), "");
}
