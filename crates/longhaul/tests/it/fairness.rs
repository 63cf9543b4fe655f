//! Fair keys: tenants of one queue take turns, over all processes and on every store.

use crate::llm::sim::{Desk, Sim};
use crate::place::Place;
use crate::workers::{Process, until};

#[test]
fn a_small_tenant_does_not_wait_behind_a_large_one() {
    let stores: [&[&str]; 3] = [&[], &["--own", "redis"], &["--own", "postgres"]];
    for store in stores {
        let args = ["verify", "fair", "--rounds", "1", "--jobs", "10", "--job-ms", "20"];
        let report = Place::new().json(&[&args[..], store].concat());
        assert_eq!(report["ok"], true, "{store:?}: {report}");
        assert_eq!(report["checks"].as_array().map(Vec::len), Some(2), "{report}");
    }
}

#[test]
fn keys_and_their_limits_are_set_shown_and_explained() {
    let place = Place::new();
    let first = place.enqueue(&["sleep", r#"{"for":"1h"}"#, "--queue", "t", "--fair-key", "acme"]);
    let text = place.ok(&["queues", "set", "t", "--max-running-per-key", "1", "--ageing", "5m"]);
    assert!(text.contains("1 a key") && text.contains("5m"), "{text}");
    let shown = &place.json(&["queues", "ls"])["items"][0];
    assert_eq!((&shown["max_running_per_key"], &shown["ageing_ms"]), (&1.into(), &300_000.into()));
    let second = place.enqueue(&["echo", "--queue", "t", "--fair-key", "acme"]);
    assert_eq!(place.show(&second)["options"]["fair_key"], "acme");
    let worker = Process::start(&place, &["work", "--queue", "t", "--concurrency", "4"]);
    until("the first runs", || place.show(&first)["state"] == "running");
    let why = place.ok(&["jobs", "explain", &second]);
    assert!(why.contains(r#"runs 1 of at most 1 jobs of key "acme""#), "{why}");
    let other = place.enqueue(&["echo", "--queue", "t", "--fair-key", "other"]);
    until("another key's job runs past it", || place.show(&other)["state"] == "succeeded");
    place.ok(&["queues", "set", "t", "--max-running-per-key", "none"]);
    until("the limit is lifted", || place.show(&second)["state"] == "succeeded");
    drop(worker);
    place.run(&["queues", "set", "t"]).fails(2, &["--ageing"]);
    place.run(&["queues", "set", "t", "--ageing", "0s"]).fails(2, &["--ageing", "1ms to 365d"]);
    place.run(&["enqueue", "echo", "--fair-key", ""]).fails(2, &["--fair-key", "is empty"]);
}

/// Two processes with one key, each of which would take the provider's whole limit for its own.
#[test]
fn processes_share_the_limits_of_a_key() {
    let sim = Sim::start(&["--rpm", "1800", "--latency", "100ms"]);
    let desk = Desk::at(&sim, 300);
    desk.place.write("more.txt", &(0..300).map(|n| format!("another {n}\n")).collect::<String>());
    let mut runs = ["prompts.txt", "more.txt"]
        .map(|prompts| desk.start(&["run", prompts, "--out", &format!("{prompts}.out")]));
    for run in &mut runs {
        assert!(run.0.wait().expect("a run").success());
    }
    assert_eq!(sim.count("answered"), 600);
    // Without shares it is one in thirteen.
    assert!(sim.count("throttled") <= 18, "{}", sim.stats());
}

/// Somebody elsewhere pauses a queue, and cancels what runs: every worker hears of it at once.
#[test]
fn a_pause_and_a_cancel_reach_every_process() {
    let place = Place::new();
    let lines: String =
        (0..40).map(|_| "{\"kind\":\"sleep\",\"payload\":{\"for\":\"1h\"},\"process_id\":\"p\"}\n").collect();
    assert_eq!(place.feed(&["enqueue", "-"], &lines).code, Some(0));
    let workers: Vec<Process> =
        (0..3).map(|_| Process::start(&place, &["work", "--concurrency", "4"])).collect();
    let count =
        |state: &str| place.json(&["queues", "ls"])["items"][0]["counts"][state].as_u64().expect("a count");
    until("all slots are taken", || count("running") == 12);
    place.ok(&["queues", "pause", "default"]);
    place.ok(&["process", "cancel", "p", "--yes"]);
    until("all have ended", || count("cancelled") == 40);
    place.enqueue(&["echo"]);
    place.ok(&["queues", "resume", "default"]);
    until("work goes on", || count("succeeded") == 1);
    drop(workers);
}

#[test]
fn a_worker_is_a_line_of_a_list_and_whole_as_json() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let _worker = Process::start(&place, &["work"]);
    let list = || place.json(&["workers", "ls"])["items"].clone();
    until("the worker is known", || list()[0].is_object());
    let kinds = list()[0]["kinds"].as_array().expect("a list").len();
    let text = place.ok(&["workers", "ls"]);
    let line = text.lines().nth(1).expect("a line below the header");
    assert!(line.contains(&format!("echo,fail,sleep +{}", kinds - 3)), "{text}");
    assert!(line.contains("default +2"), "{text}");
    // The machine's name may be long.
    let host = list()[0]["host"].as_str().expect("a name").len();
    assert!(line.chars().count() <= 90 + host, "{text}");
}
