//! `move`: a store's contents go to another store, are compared there, and live on.

use std::time::Duration;

use longhaul_stores::temporary::{Kind, Server};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::place::Place;
use crate::servers::server;
use crate::workers::{Process, until};

/// Something of everything that the command line can make.
fn furnish(place: &Place) {
    let first = place.enqueue(&["echo", r#"{"n":1}"#, "--process", "p", "--tag", "red"]);
    place.enqueue(&["echo", "2", "--process", "p", "--after", &first]);
    place.enqueue(&["fail", "--max-attempts", "1", "--process", "q"]);
    place.drain(&[]);
    let parent = place.enqueue(&["echo", "3", "--fair-key", "a", "--priority", "-2"]);
    place.enqueue(&["echo", "4", "--after", &parent, "--fair-key", "b"]);
    place.enqueue(&["echo", "5", "--delay", "2h", "--unique", "daily", "--unique-window", "1d"]);
    place.enqueue(&["echo", &format!("{:?}", "long ".repeat(5_000))]);
    place.ok(&["queues", "set", "default", "--max-running-per-key", "2", "--ageing", "10m"]);
    place.ok(&["queues", "pause", "quiet", "--create"]);
    place.ok(&[
        "schedule",
        "add",
        "nightly",
        "{}",
        "--cron",
        "0 3 * * *",
        "--kind",
        "echo",
        "--tz",
        "Asia/Tokyo",
    ]);
}

/// All that people see of a store.
fn seen(place: &Place, store: &str) -> Vec<Value> {
    let look = |args: &[&str]| place.json(&[args, &["--store", store]].concat());
    let jobs = look(&["jobs", "ls", "--limit", "100"]);
    let details = jobs["items"]
        .as_array()
        .expect("jobs")
        .iter()
        .map(|job| look(&["jobs", "show", job["id"].as_str().expect("an id")]));
    let mut all: Vec<Value> = details.collect();
    all.push(look(&["queues", "ls"]));
    all.push(look(&["schedule", "ls"]));
    all.push(look(&["process", "ls"]));
    all
}

fn url_of(place: &Place, file: &str) -> String {
    format!("sqlite://{}", place.path(file).display())
}

#[test]
fn a_store_goes_through_all_kinds_and_comes_back_the_same() {
    let place = Place::new();
    furnish(&place);
    let servers = [Kind::Redis, Kind::Postgres].map(server);
    let [redis, postgres] = servers.each_ref().map(Server::url);
    let (old, new) = (url_of(&place, ".longhaul/longhaul.db"), url_of(&place, "new.db"));
    let before = seen(&place, &old);
    for (from, to) in [(&old, &redis), (&redis, &postgres), (&postgres, &new)] {
        let rows = place.json(&["move", "--from", from, "--to", to]);
        let rows = rows["items"].as_array().expect("a row for each part");
        assert!(rows.iter().all(|row| row["same"] == true), "{rows:?}");
        let count = |part: &str| rows.iter().find(|row| row["part"] == part).map(|row| row["new"].clone());
        assert_eq!((count("jobs"), count("schedules")), (Some(7.into()), Some(1.into())), "{rows:?}");
        assert_eq!(seen(&place, to), before, "after {from} to {to}");
    }
    place.run(&["move", "--from", &old, "--to", &new]).fails(1, &["is not empty", "?schema="]);
    let lives_on = |args: &[&str]| place.ok(&[args, &["--store", &new]].concat());
    let worker = Process::start(&place, &["work", "--store", &new]);
    until("what was ready has run", || {
        place.run(&["jobs", "ls", "--store", &new, "--state", "ready"]).code == Some(4)
    });
    drop(worker);
    assert_eq!(lives_on(&["results", "p", "-o", "jsonl"]).lines().count(), 2);
    let same = lives_on(&["enqueue", "echo", "6", "--unique", "daily", "-o", "json"]);
    assert!(same.contains("skipped"), "its key is taken: {same}");
    assert_eq!(seen(&place, &old), before, "the old store is as it was");
}

#[test]
fn only_a_store_at_rest_is_moved() {
    let place = Place::new();
    let (old, new) = (url_of(&place, ".longhaul/longhaul.db"), url_of(&place, "new.db"));
    let args = ["move", "--from", &old, "--to", &new];
    place.run(&args).fails(6, &["there is no store"]);
    place.run(&["move", "--from", &old, "--to", &old]).fails(2, &["the same store"]);
    place.run(&["move", "--from", "memory://", "--to", &old]).fails(2, &["--from", "cannot be moved"]);
    place.enqueue(&["sleep", r#"{"for":"1h"}"#]);
    let mut worker = Process::start(&place, &["work", "--lease", "2s"]);
    until("the job runs", || place.run(&["jobs", "ls", "--state", "running"]).code == Some(0));
    place.run(&args).fails(1, &["worker", "uses"]);
    worker.kill();
    // Its last sign of life was a moment ago, but its process is known to be dead.
    place.ok(&args);
}

/// Whoever is cut off says it again: what has arrived stays.
#[test]
fn a_move_that_was_killed_is_finished_by_the_next() {
    let place = Place::new();
    let lines: String = (0..4_000).map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n}}}\n")).collect();
    assert_eq!(place.feed(&["enqueue", "-"], &lines).code, Some(0));
    let (old, new) = (url_of(&place, ".longhaul/longhaul.db"), url_of(&place, "new.db"));
    let args = ["move", "--from", &old, "--to", &new];
    for moment in [30, 60, 100, 150] {
        Process::start(&place, &args).kill_after(Duration::from_millis(moment));
    }
    let ran = place.run(&args);
    // The last of those that were killed may have come to its end.
    let finished = ran.code == Some(0) || ran.stderr.contains("is not empty");
    assert!(finished, "{ran:?}");
    let counts = place.json(&["queues", "ls", "--store", &new]);
    assert_eq!(counts["items"][0]["counts"]["ready"], 4_000, "{counts}");
}

/// What is done in half a store would be done again from the old one.
#[test]
fn a_store_that_is_half_moved_is_not_worked_on() {
    let place = Place::new();
    let lines: String = (0..20_000).map(|n| format!("{{\"kind\":\"echo\",\"payload\":{n}}}\n")).collect();
    assert_eq!(place.feed(&["enqueue", "-"], &lines).code, Some(0));
    let (old, new) = (url_of(&place, ".longhaul/longhaul.db"), url_of(&place, "new.db"));
    let args = ["move", "--from", &old, "--to", &new];
    let moving = Process::start(&place, &args);
    // As soon as something has arrived.
    until("the first jobs", || {
        let db = Connection::open_with_flags(place.path("new.db"), OpenFlags::SQLITE_OPEN_READ_ONLY);
        let jobs =
            db.and_then(|db| db.query_row("SELECT count(*) FROM lh_jobs", [], |row| row.get::<_, u64>(0)));
        jobs.is_ok_and(|jobs| jobs > 0)
    });
    drop(moving);
    for command in [&["enqueue", "echo", "1"][..], &["work", "--drain"], &["queues", "ls"]] {
        let ran = place.run(&[command, &["--store", &new]].concat());
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("is not finished") && ran.stderr.contains("longhaul move"), "{ran:?}");
    }
    assert_eq!(place.run(&args).code, Some(0));
    assert_eq!(place.json(&["queues", "ls", "--store", &new])["items"][0]["counts"]["ready"], 20_000);
}
