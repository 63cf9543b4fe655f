//! Kinds of the program itself, through the real binary: test kinds run only where `demo` and `verify` start the worker, and
//! nobody enqueues the others.

use serde_json::Value;

use crate::place::Place;
use crate::workers::{Process, until};

#[test]
fn a_plain_worker_runs_no_kind_of_demo_or_verify() {
    let place = Place::new();
    place.enqueue(&["echo"]);
    let _worker = Process::start(&place, &["work"]);
    let list = || place.json(&["workers", "ls"])["items"].clone();
    until("the worker is known", || list()[0].is_object());
    let workers = list();
    let kinds = workers[0]["kinds"].as_array().expect("a list").iter().filter_map(Value::as_str);
    let test_kinds: Vec<&str> =
        kinds.filter(|kind| kind.starts_with("demo.") || kind.starts_with("verify.")).collect();
    assert_eq!(test_kinds, Vec::<&str>::new());
    for kind in ["verify.step", "verify.block", "verify.turn", "demo.work"] {
        place.run(&["work", "--drain", "--kind", kind]).fails(2, &["no handler"]);
    }
}

#[test]
fn a_kind_or_queue_of_the_program_is_refused_by_every_command_that_enqueues() {
    let place = Place::new();
    let journal = place.path("journal");
    let payload = format!(r#"{{"journal":{:?},"seconds":1}}"#, journal.display());
    let words = ["is reserved", "webhook.", "choose another name"];
    for kind in ["verify.block", "webhook.deliver", "llm.mine"] {
        place.run(&["enqueue", kind, &payload]).fails(2, &words);
        place.run(&["schedule", "add", "s", "--cron", "0 * * * *", "--kind", kind]).fails(2, &words);
        let line = format!("{{\"kind\":\"{kind}\",\"payload\":{payload}}}\n");
        place.feed(&["enqueue", "-"], &line).fails(2, &words);
    }
    for queue in ["webhooks", "batches", "run-1"] {
        place.run(&["work", "--drain", "--queue", queue, "--exec", "true"]).fails(2, &["Longhaul's own"]);
    }
    for queue in ["webhooks", "batches", "run-1", "sheet-1"] {
        let words = ["queue", "is reserved"];
        place.run(&["enqueue", "echo", "1", "--queue", queue]).fails(2, &words);
        place
            .run(&["schedule", "add", "s", "--cron", "0 * * * *", "--kind", "echo", "--queue", queue])
            .fails(2, &words);
        place
            .feed(&["enqueue", "-"], &format!("{{\"kind\":\"echo\",\"queue\":\"{queue}\"}}\n"))
            .fails(2, &words);
    }
    let job = place.exec("1", r#"echo '{"longhaul":"enqueue","job":{"kind":"webhook.deliver"}}'; echo 1"#);
    assert!(job["error"]["text"].as_str().is_some_and(|text| text.contains("is reserved")), "{job}");
    assert!(!journal.exists());
}
