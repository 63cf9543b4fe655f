//! One job from arguments, many from lines.

use std::process::{Command, Stdio};

use crate::place::Place;
use crate::workers::until;

#[test]
fn options_reach_the_job() {
    let place = Place::new();
    let parent = place.enqueue(&["echo"]);
    let args = [
        "mail",
        r#"{"n":12345678901234567890}"#,
        "--queue",
        "q",
        "--process",
        "p",
        "--priority",
        "-5",
        "--tag",
        "a",
        "--tag",
        "b",
        "--title",
        "文書",
        "--owner",
        "me",
        "--max-attempts",
        "7",
        "--run-limit",
        "10m",
        "--retention",
        "delete-on-success",
        "--after",
        &parent,
        "--on-failure",
        "hold",
        "--unique",
        "k",
        "--unique-window",
        "1h",
        "--retry",
        "fixed:5s",
    ];
    let job = place.show(&place.enqueue(&args));
    assert_eq!(
        (&job["queue"], &job["process_id"], &job["priority"]),
        (&"q".into(), &"p".into(), &(-5).into())
    );
    assert_eq!(job["state"], "blocked");
    assert_eq!(job["depends_on"][0]["on_failure"], "hold");
    assert_eq!(job["options"]["title"], "文書");
    assert_eq!(job["options"]["max_attempts"], 7);
    assert_eq!(job["options"]["run_limit_ms"], 600_000);
    assert_eq!(job["options"]["retry"]["delay_ms"], 5_000);
    let text = place.ok(&["jobs", "show", job["id"].as_str().expect("an id"), "-o", "json"]);
    assert!(text.contains(r#""payload":{"n":12345678901234567890}"#), "{text}");
}

#[test]
fn a_payload_comes_from_a_file_or_stdin() {
    let place = Place::new();
    place.write("p.json", "[1, 2]");
    assert_eq!(place.show(&place.enqueue(&["echo", "@p.json"]))["payload"][1], 2);
    let ran = place.feed(&["enqueue", "echo", "-"], "\"text\"");
    assert_eq!(place.show(ran.stdout.trim())["payload"], "text");
    place.run(&["enqueue", "echo", "text"]).fails(2, &["not valid JSON", "hint:"]);
    place.run(&["enqueue", "echo", "@missing.json"]).fails(4, &["missing.json"]);
}

#[test]
fn a_taken_unique_key_says_so() {
    let place = Place::new();
    let first = place.enqueue(&["echo", "--unique", "k"]);
    let second = place.run(&["enqueue", "echo", "--unique", "k"]);
    assert_eq!(second.stdout.trim(), first);
    assert!(second.stderr.contains("the unique key is taken"), "{second:?}");
    assert_eq!(place.json(&["enqueue", "echo", "--unique", "k"])["how"], "skipped");
}

#[test]
fn an_id_of_ones_own_makes_enqueue_repeatable() {
    let place = Place::new();
    let args = ["enqueue", "echo", "1", "--id", "0198c5a2-7d1e-7000-8000-000000000001"];
    assert_eq!(place.json(&args)["how"], "inserted");
    assert_eq!(place.json(&args)["how"], "duplicate");
    place
        .run(&["enqueue", "echo", "2", "--id", "0198c5a2-7d1e-7000-8000-000000000001"])
        .fails(1, &["0198c5a2"]);
}

#[test]
fn lines_form_a_graph_with_local_names() {
    let place = Place::new();
    let lines = r#"
        {"kind":"merge","depends_on":["a",{"job":"b","on_failure":"run"}],"process_id":"p"}
        {"kind":"fetch","ref":"a","process_id":"p"}
        {"kind":"fetch","ref":"b","process_id":"p","options":{"tags":["x"]}}
    "#;
    let ran = place.feed(&["enqueue", "-"], lines);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ids: Vec<&str> = ran.stdout.lines().collect();
    let merge = place.show(ids[0]);
    assert_eq!(merge["state"], "blocked");
    assert_eq!(merge["depends_on"][0]["job_id"], ids[1]);
    assert_eq!(merge["depends_on"][1]["on_failure"], "run");
}

#[test]
fn a_wrong_line_is_named_and_nothing_is_stored() {
    let place = Place::new();
    let cases = [
        ("{\"kind\":\"a\"}\n{\"kind\":\"b\",\"quue\":1}\n", &["line 2", "unknown field `quue`"]),
        ("{\"kind\":\"a\"}\n\n{\"kind\":\"b\",\"delay\":\"5s\"}\n", &["line 3", "`delay`"]),
        ("{\"kind\":\"a\",\"depends_on\":[\"nobody\"]}\n", &["line 1", "nobody"]),
        ("{\"kind\":\"a\",\"ref\":\"x\"}\n{\"kind\":\"a\",\"ref\":\"x\"}\n", &["line 2", "given twice"]),
        ("{\"kind\":\"a\"}\nnot json\n", &["line 2", "column"]),
        ("{\"kind\":\"a\",\"options\":{\"max_attempts\":0}}\n", &["line 1", "max_attempts"]),
    ];
    for (lines, words) in cases {
        place.feed(&["enqueue", "-"], lines).fails(2, words);
    }
    assert_eq!(place.json(&["jobs", "ls"])["items"].as_array().map(Vec::len), Some(0));
    let cycle = "{\"kind\":\"a\",\"ref\":\"x\",\"depends_on\":[\"y\"]}\n{\"kind\":\"a\",\"ref\":\"y\",\"depends_on\":[\"x\"]}\n";
    assert_eq!(place.feed(&["enqueue", "-"], cycle).code, Some(1));
    assert_eq!(place.feed(&["enqueue", "-"], "").code, Some(4));
}

#[test]
fn a_delayed_job_waits_and_explain_says_so() {
    let place = Place::new();
    let id = place.enqueue(&["echo", "--delay", "2h"]);
    let explanation = place.json(&["jobs", "explain", &id]);
    assert_eq!(explanation["state"], "scheduled");
    assert!(explanation["until"].is_i64());
    place.run(&["enqueue", "echo", "--at", "tomorrow"]).fails(2, &["--at", "tomorrow"]);
}

#[test]
fn ctrl_c_ends_a_command_that_reads_stdin() {
    let place = Place::new();
    for args in [&["enqueue", "-"][..], &["enqueue", "x", "-"]] {
        let mut reading = place.command(args).stdin(Stdio::piped()).spawn().expect("running longhaul");
        let _stdin = reading.stdin.take();
        let pid = reading.id().to_string();
        // Until then the signal would end it without a word.
        until("it catches signals", || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
            u64::from_str_radix(caught.trim(), 16).expect("a mask") & 2 != 0
        });
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
        let ended = reading.wait_with_output().expect("waiting for longhaul");
        assert_eq!(ended.status.code(), Some(130), "{args:?}: {ended:?}");
    }
}
