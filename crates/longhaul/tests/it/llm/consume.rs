//! Consumed runs leave nothing behind.

use serde_json::Value;

use super::sim::{Desk, Sim};

const ROUNDS: usize = 20;
const REQUESTS: u64 = 100;

#[test]
fn twenty_rounds_leave_no_row_and_files_do_not_grow() {
    let sim = Sim::start(&[]);
    for mode in ["--sync", "--batch"] {
        let desk = Desk::at(&sim, REQUESTS);
        let rounds = if mode == "--sync" { ROUNDS } else { ROUNDS / 4 };
        let mut sizes = Vec::new();
        for round in 0..rounds {
            let out = format!("answers-{round}.jsonl");
            desk.ok(&["run", "prompts.txt", mode, "--cache", "off", "--consume", "--out", &out]);
            assert_eq!(desk.answers(&out).len() as u64, REQUESTS);
            sizes.push(["longhaul.db", "llm.db"].map(|name| size(&desk, name)));
        }
        for args in [["process", "ls"], ["jobs", "ls"], ["runs", "ls"]] {
            let ran = desk.run(&[&args[..], &["-o", "json"]].concat());
            let list: Value = serde_json::from_str(&ran.stdout).expect("JSON");
            assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{args:?}: {ran:?}");
        }
        let (warm, last) = (sizes[rounds / 4], sizes[rounds - 1]);
        assert_eq!(last, warm, "{mode}: the files grow: {sizes:?}");
    }
}

/// Pages in use once all processes have closed a database, without the journal of events: that one is a ring of a fixed
/// number of entries, which small rounds take long to fill.
fn size(desk: &Desk, name: &str) -> u64 {
    let path = desk.place.path(".longhaul").join(name);
    let database = rusqlite::Connection::open(path).expect("a database");
    let pages = "SELECT count(*) FROM dbstat WHERE name != 'lh_events'";
    database.query_row(pages, [], |row| row.get(0)).expect("a count of pages")
}

#[test]
fn a_run_that_has_not_ended_is_not_deleted() {
    let sim = Sim::start(&[]);
    let desk = Desk::at(&sim, 5);
    let id = desk.ok(&["run", "prompts.txt", "--sync", "--detach"]).stdout.trim().to_owned();
    let ran = desk.run(&["runs", "rm", &id, "--yes"]);
    assert!(ran.code != Some(0) && ran.stderr.contains("unfinished"), "{ran:?}");
    assert_eq!(desk.only_run()["units"]["total"], 5);
    assert_eq!(sim.count("calls"), 0);
}
