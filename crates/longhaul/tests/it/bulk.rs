//! Lists, filters, and changes of many jobs.

use crate::place::Place;

fn three_failed() -> Place {
    let place = Place::new();
    for _ in 0..3 {
        place.enqueue(&["fail", r#"{"error":"no"}"#, "--max-attempts", "1"]);
    }
    place.drain(&[]);
    place
}

#[test]
fn lists_filter_and_page() {
    let place = three_failed();
    place.enqueue(&["echo", r#"{"needle":1}"#, "--tag", "t", "--queue", "q"]);
    let count =
        |args: &[&str]| place.json(&[&["jobs", "ls"], args].concat())["items"].as_array().map(Vec::len);
    assert_eq!(count(&["--state", "failed"]), Some(3));
    assert_eq!(count(&["--queue", "q"]), Some(1));
    assert_eq!(count(&["--tag", "t"]), Some(1));
    assert_eq!(count(&["--search", "needle"]), Some(1));
    assert_eq!(count(&["--kind", "echo", "--state", "ready", "--state", "failed"]), Some(1));
    let page = place.json(&["jobs", "ls", "--limit", "3"]);
    let next = page["next"].as_str().expect("a cursor");
    assert_eq!(count(&["--limit", "3", "--cursor", next]), Some(1));
    assert_eq!(place.run(&["jobs", "ls", "--kind", "nobody"]).code, Some(4));
}

#[test]
fn an_id_may_be_shortened_while_it_is_unique() {
    let place = Place::new();
    let id = place.enqueue(&["echo"]);
    assert_eq!(place.show(&id[..35])["id"], id.as_str());
    place.run(&["jobs", "show", "01"]).fails(2, &["not a job id"]);
    place.run(&["jobs", "show", "ffffffff"]).fails(4, &["there is no job ffffffff"]);
    place.enqueue(&["echo"]);
    place.run(&["jobs", "show", &id[..4]]).fails(2, &["more than one job"]);
}

#[test]
fn a_bulk_change_needs_a_yes_and_knows_its_count() {
    let place = three_failed();
    place.run(&["jobs", "retry", "--state", "failed"]).fails(2, &["retry 3 jobs", "--yes"]);
    assert_eq!(place.json(&["jobs", "retry", "--state", "failed", "--yes"])["changed"], 3);
    assert_eq!(place.json(&["jobs", "cancel", "--queue", "default", "--yes"])["changed"], 3);
    assert_eq!(place.json(&["jobs", "rm", "--state", "cancelled", "--yes"])["changed"], 3);
    place.run(&["jobs", "rm", "--state", "cancelled", "--yes"]).fails(4, &["no jobs to delete match"]);
    assert_eq!(place.run(&["jobs", "cancel"]).code, Some(2));
}

#[test]
fn a_change_that_is_refused_says_why() {
    let place = Place::new();
    let id = place.enqueue(&["echo"]);
    let ran = place.run(&["jobs", "rm", &id]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("refused") && ran.stdout.contains("ready"), "{ran:?}");
    assert_eq!(place.run(&["jobs", "retry", &id]).code, Some(1));
    assert_eq!(place.json(&["jobs", "cancel", &id])["items"][0]["change"], "cancelled");
}

#[test]
fn a_misspelt_queue_is_neither_paused_nor_resumed() {
    let place = Place::new();
    place.run(&["queues", "pause", "mail"]).fails(6, &["there is no store"]);
    place.enqueue(&["echo", "--queue", "mail"]);
    let before = place.json(&["queues", "ls"]);
    let paused = place.run(&["queues", "pause", "mial"]);
    paused.fails(4, &["there is no queue mial", "did you mean mail?", "--create"]);
    let resumed = place.run(&["queues", "resume", "invoices"]);
    resumed.fails(4, &["there is no queue invoices", "longhaul queues ls"]);
    assert!(!resumed.stderr.contains("--create") && !resumed.stderr.contains("did you mean"), "{resumed:?}");
    assert_eq!(place.json(&["queues", "ls"]), before, "no queue was made");
    // A worker serves this one before its first job.
    assert_eq!(place.json(&["queues", "pause", "default"])["items"][0]["paused"], true);
}

#[test]
fn a_queue_is_paused_limited_and_resumed() {
    let place = Place::new();
    place.run(&["queues", "ls"]).fails(6, &["there is no store"]);
    // Also before the first job.
    place.ok(&["queues", "pause", "q", "--create"]);
    let id = place.enqueue(&["echo", "--queue", "q"]);
    assert!(place.ok(&["jobs", "explain", &id]).contains("paused"));
    place.drain(&["--queue", "q"]);
    assert_eq!(place.show(&id)["state"], "ready");
    let set = place.json(&["queues", "set", "q", "--max-running", "2", "--retention", "keep:1h,2h"]);
    assert_eq!((&set["items"][0]["max_running"], &set["items"][0]["paused"]), (&2.into(), &true.into()));
    assert_eq!(set["items"][0]["counts"]["ready"], 1);
    assert!(
        place.json(&["queues", "set", "q", "--max-running", "none"])["items"][0]["max_running"].is_null()
    );
    place.ok(&["queues", "resume", "q"]);
    place.drain(&["--queue", "q"]);
    assert_eq!(place.show(&id)["state"], "succeeded");
    assert_eq!(place.run(&["queues", "set", "q"]).code, Some(2));
}

#[test]
fn events_tell_of_changes() {
    let place = Place::new();
    let id = place.enqueue(&["echo", "--process", "p"]);
    place.drain(&[]);
    let lines = place.ok(&["events", "--process", "p", "-o", "jsonl"]);
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("events")).expect("JSON");
    assert!(last["id"].is_u64() && last["changes"][0]["state"] == "succeeded", "{last}");
    assert_eq!(last["changes"][0]["job_id"], id.as_str());
    assert_eq!(place.ok(&["events", "--process", "other"]), "");
}

#[test]
fn what_does_not_exist_is_not_deleted_or_resumed() {
    let place = Place::new();
    place.enqueue(&["echo", "1"]);
    let unknown = "99999999-9999-4999-8999-999999999999";
    place.run(&["jobs", "rm", unknown, "--yes"]).fails(4, &["there is no job"]);
    place.run(&["queues", "resume", "nosuch"]).fails(4, &["there is no queue nosuch"]);
}

#[test]
fn a_question_makes_no_store_of_a_foreign_database() {
    let place = Place::new();
    let foreign = place.path("foreign.db");
    rusqlite::Connection::open(&foreign)
        .expect("a database")
        .execute_batch("CREATE TABLE t (a)")
        .expect("a table");
    let url = format!("sqlite://{}", foreign.display());
    let ran = place.run(&["queues", "ls", "--store", &url]);
    assert!(ran.code != Some(0) && ran.stderr.contains("not a Longhaul store"), "{ran:?}");
    let tables = "SELECT count(*) FROM sqlite_schema";
    let connection = rusqlite::Connection::open(&foreign).expect("a database");
    assert_eq!(connection.query_row(tables, [], |row| row.get::<_, i64>(0)), Ok(1));
}

/// CI can go by the exit code, and sees what a drain leaves.
#[test]
fn a_drain_says_what_failed_and_what_is_left() {
    let place = Place::new();
    place.enqueue(&["fail", "{}", "--max-attempts", "1"]);
    place.enqueue(&["nosuch", "1"]);
    let ran = place.run(&["work", "--drain"]);
    ran.fails(3, &["1 failed", "left in the store: 1 ready"]);
}
