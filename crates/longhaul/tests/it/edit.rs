//! `jobs edit`: what a person changes of a job, here and through a server.

use serde_json::json;

use crate::place::Place;
use crate::served::Served;

#[test]
fn a_failed_job_is_edited_and_runs_again() {
    let place = Place::new();
    let id = place.enqueue(&["x", r#"{"n":1}"#, "--max-attempts", "1"]);
    let exec = ["--exec", r#"echo '{"longhaul":"save","data":{"at":5}}'; grep -q '"n":2'"#];
    place.drain(&exec);
    assert_eq!((&place.show(&id)["state"], &place.show(&id)["data"]["at"]), (&json!("failed"), &json!(5)));
    place.run(&["jobs", "edit", &id]).fails(2, &["--priority", "--title", "--payload"]);
    place.run(&["jobs", "edit", &id, "--payload", "{"]).fails(2, &["JSON"]);
    place.run(&["jobs", "edit", &id, "--payload", "@."]).fails(2, &["is a folder"]);
    place.ok(&["jobs", "edit", &id, "--payload", r#"{"n":2}"#, "--title", "second try", "--retry"]);
    let edited = place.show(&id);
    assert_eq!((&edited["state"], &edited["data"]), (&json!("ready"), &json!(null)), "{edited}");
    place.drain(&exec);
    let shown = place.show(&id);
    assert_eq!((&shown["state"], &shown["options"]["title"]), (&json!("succeeded"), &json!("second try")));
    place.run(&["jobs", "edit", &id, "--priority", "3"]).fails(1, &["is succeeded and cannot be changed"]);
    place.run(&["jobs", "edit", "0198c5a2-0000-7000-8000-000000000000", "--priority", "3"]).fails(4, &[]);
}

#[test]
fn a_waiting_job_is_edited_through_a_server() {
    let home = Place::new();
    let server = Served::start(&home, &["--no-workers"], &[]);
    let away = Place::new();
    let first = home.enqueue(&["x", "1"]);
    let second = home.enqueue(&["x", "2", "--title", "plain"]);
    let edit = |args: &[&str]| {
        let args = [&["jobs", "edit", &second], args, &["--server", &server.url]].concat();
        away.json(&args)
    };
    let changed = edit(&["--priority", "-5", "--title", "", "--payload", "null"]);
    assert_eq!(changed["items"][0]["state"], "ready", "{changed}");
    let shown = home.show(&second);
    assert_eq!((&shown["priority"], &shown["payload"]), (&json!(-5), &json!(null)), "{shown}");
    assert!(shown["options"]["title"].is_null(), "{shown}");
    drop(server);
    // The more urgent of the two, which came later, is the first to run.
    home.drain(&["--exec", "sleep 0.01", "--concurrency", "1"]);
    let started = |id: &str| home.show(id)["started_at"].as_i64().expect("it has run");
    assert!(started(&second) < started(&first));
}
