//! The README's first command.

use crate::place::Place;

#[test]
fn the_demo_tells_what_the_store_knows() {
    let place = Place::new();
    let tally = place.json(&["demo", "--jobs", "60", "--prompts", "80", "--no-open"]);
    for (name, expected) in [("jobs", 60), ("succeeded", 60), ("failed", 0), ("runs", 60)] {
        assert_eq!(tally[name], expected, "{name}: {tally}");
    }
    for name in ["runs_repeated", "results_lost", "results_twice", "rows_left"] {
        assert_eq!(tally[name], 0, "{name}: {tally}");
    }
    assert_eq!(tally["report"], tally["report_expected"]);
    assert!(tally["kill"].is_null());
    let prompts = &tally["prompts"];
    for name in ["prompts", "answered", "right"] {
        assert_eq!(prompts[name], 80, "{name}: {prompts}");
    }
    for name in ["failed", "answered_twice", "paid_twice", "unknown_calls"] {
        assert_eq!(prompts[name], 0, "{name}: {prompts}");
    }
    assert!(prompts["throttled"].as_u64() > Some(0) && prompts["retried"].as_u64() > Some(0), "{prompts}");
    // What the ledger booked is what the simulator executed, to the call.
    assert_eq!(prompts["calls"], prompts["executed"], "{prompts}");
}

#[test]
fn a_killed_run_of_prompts_is_answered_whole_and_books_what_was_cut_off() {
    let place = Place::new();
    let tally = place.json(&["demo", "--crash", "--jobs", "12"]);
    let prompts = &tally["prompts"];
    for name in ["prompts", "answered", "right"] {
        assert_eq!(prompts[name], 200, "{name}: {prompts}");
    }
    assert_eq!((&prompts["failed"], &prompts["answered_twice"]), (&0.into(), &0.into()));
    assert!(prompts["kill"]["done"].as_u64() < Some(200), "{prompts}");
    // A call may be paid twice, but none is that nobody booked.
    let count = |name: &str| prompts[name].as_u64().expect("a number");
    assert!(count("executed") <= count("calls") + count("unknown_calls"), "{prompts}");
    assert_eq!(tally["rows_left"], 0);
}

#[test]
fn a_killed_worker_loses_nothing_and_the_tally_says_what_was_repeated() {
    let place = Place::new();
    let tally = place.json(&["demo", "--crash"]);
    let in_flight = tally["kill"]["in_flight"].as_u64().expect("a number");
    assert!(in_flight > 0, "{tally}");
    assert_eq!((&tally["jobs"], &tally["succeeded"]), (&300.into(), &300.into()));
    assert_eq!(tally["runs_repeated"], in_flight, "{tally}");
    assert_eq!(tally["runs"], 300 + in_flight, "{tally}");
    assert_eq!((&tally["results_lost"], &tally["results_twice"]), (&0.into(), &0.into()));
    assert_eq!(tally["report"], tally["report_expected"]);
    assert_eq!(tally["rows_left"], 0);
}

#[test]
fn a_kept_demo_can_be_looked_at() {
    let place = Place::new();
    let ran = place.run(&["demo", "--jobs", "12", "--prompts", "10", "--keep", "kept"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("kept, as asked"), "{ran:?}");
    assert!(ran.stderr.contains("longhaul results demo --store sqlite://"), "{ran:?}");
    let process = place.json(&["process", "show", "demo", "--store", "sqlite://kept/longhaul.db"]);
    assert_eq!(process["counts"]["succeeded"], 12, "{process}");
    // Nothing was written to the store that people use.
    assert!(!place.path(".longhaul").exists());
    place.run(&["demo", "--keep", "kept"]).fails(2, &["is not empty"]);
}
