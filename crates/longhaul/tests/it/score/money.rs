//! What a sheet costs: known before, limited, and paid once.

use serde_json::Value;

use super::{SCORE, all_right, start, status, write_table};
use crate::llm::sim::nanos;
use crate::place::{Place, read};

const ROWS: usize = 100;
const CATEGORIES: usize = 12;
const UNITS: u64 = 200;

#[test]
fn a_sheet_stops_before_its_limit_and_goes_on_when_more_is_allowed() {
    let (sim, desk) = start("");
    write_table(&desk, ROWS, CATEGORIES);
    // About a third of what all of them cost.
    let limited = [&SCORE[..], &["--max-cost", "0.003", "--max-tokens", "200"]].concat();
    let ran = desk.run(&limited);
    assert_eq!(ran.code, Some(7), "{ran:?}");
    for words in ["stops before $0.003", "held (budget)", "runs resume sheet-", "--max-cost USD"] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let held = status(&desk);
    assert_eq!((&held["state"], &held["hold"]), (&"held".into(), &"budget".into()), "{held}");
    assert!(nanos(&held["spent"]["cost_usd"]) <= 3_000_000, "{held}");
    assert!(sim.count("executed") > UNITS / 10, "it stops close to the limit");
    assert!(!desk.place.path("scored.csv").exists());
    // The same command meets the same limit.
    assert_eq!(desk.run(&limited).code, Some(7));
    let id = held["id"].as_str().expect("an id");
    assert!(desk.ok(&["runs", "show", id]).stdout.contains("held: budget"));
    desk.ok(&["runs", "resume", id, "--max-cost", "1"]);
    desk.ok(&["work", "--drain"]);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (UNITS, 0));
}

#[test]
fn a_sheet_without_a_price_under_a_budget_is_held_with_one_hint_that_can_be_followed() {
    let (sim, mut desk) = start("");
    write_table(&desk, 3, 2);
    desk.set("LONGHAUL_BUDGET__DAY", "1");
    let ran = desk.run(&[&SCORE[..], &["--model", "nobody-prices-this"]].concat());
    ran.fails(7, &["runs resume sheet-", "--allow-unpriced"]);
    assert_eq!(ran.stderr.matches("hint:").count(), 1, "{ran:?}");
    assert_eq!(sim.count("executed"), 0);
    let id = status(&desk)["id"].as_str().expect("an id").to_owned();
    desk.ok(&["runs", "resume", &id, "--allow-unpriced"]);
    desk.ok(&["work", "--drain"]);
    assert_eq!(sim.count("executed"), 3);
}

#[test]
fn the_estimate_is_a_range_that_holds_what_a_sheet_costs() {
    for more in [&[][..], &["--batch-size", "3"], &["--range", "-1..1", "--instructions", "Be strict."]] {
        let (_sim, desk) = start("");
        write_table(&desk, ROWS, CATEGORIES);
        desk.ok(&[&SCORE[..], more].concat());
        let status = status(&desk);
        let spent = nanos(&status["spent"]["cost_usd"]);
        let [low, high] = [&status["estimated_usd"], &status["estimated_max_usd"]].map(nanos);
        assert!((low..=high).contains(&spent), "{more:?}: {spent} is not between {low} and {high}");
        assert!(low < high && high < 4 * low, "{more:?}: {low} to {high} says little");
    }
}

#[test]
fn the_estimate_of_a_table_needs_no_key_and_makes_no_store() {
    let (sim, desk) = start("");
    write_table(&desk, 50, CATEGORIES);
    let estimate = [&["estimate"], &SCORE[1..6]].concat();
    let keyless = Place::new();
    for name in ["table.csv", "rubric.toml"] {
        keyless.write(name, &read(&desk.place.path(name)));
    }
    let told = keyless.json(&[&estimate[..], &["--model", "gpt-5-mini"]].concat());
    assert_eq!((&told["rows"], &told["units"]), (&50.into(), &100.into()), "{told}");
    assert!(told["cost_usd"].as_f64() > Some(0.0) && told["cost_usd"] != told["cost_max_usd"], "{told}");
    assert!(!keyless.path(".longhaul").exists(), "nothing is made");
    for more in [&[][..], &["--batch-size", "3"], &["--rationale"], &["--limit", "7"]] {
        let dry = desk.json(&[&SCORE[..], &["--dry-run"], more].concat());
        assert_eq!(desk.json(&[&estimate[..], more].concat()), dry, "{more:?}");
    }
    desk.run(&["estimate", "table.csv", "--rubric", "rubric.toml"]).fails(2, &["--text-column"]);
    desk.run(&[&estimate[..], &["--template", "{{text}}"]].concat()).fails(2, &["--template"]);
    assert_eq!(sim.count("calls"), 0);
}

/// How long reasons and fields are nobody knows before a few are there; a sample tells.
#[test]
fn after_a_sample_the_estimate_is_within_a_tenth_in_every_mode() {
    let rubric = ["--rubric", "rubric.toml"];
    for mode in [&rubric[..], &[&rubric[..], &["--rationale"]].concat(), &["--schema", "schema.json"]] {
        let (_sim, desk) = start("");
        write_table(&desk, ROWS, CATEGORIES);
        let score = |more: &[&str]| desk.ok(&[&SCORE[..4], mode, &["--cache", "off"], more].concat());
        score(&["--sample", "20"]);
        score(&["--out", "scored.csv"]);
        let status = status(&desk);
        assert_eq!(status["estimated_usd"], status["estimated_max_usd"], "{mode:?}: one amount");
        let [estimated, spent] = [&status["estimated_usd"], &status["spent"]["cost_usd"]].map(nanos);
        eprintln!("{mode:?}: {estimated} estimated, {spent} spent");
        assert!(estimated.abs_diff(spent) * 10 <= spent, "{mode:?}: {estimated} instead of {spent}");
    }
}

#[test]
fn a_sample_is_shown_and_not_paid_for_again() {
    let (sim, desk) = start("");
    write_table(&desk, ROWS, CATEGORIES);
    let sample = |more: &[&str]| desk.ok(&[&SCORE[..6], more, &["--sample", "20"]].concat());
    let ran = sample(&[]);
    assert_eq!(ran.stdout.lines().filter(|line| line.starts_with("row ")).count(), 20, "{ran:?}");
    assert!(ran.stdout.contains("cat11 ") && ran.stderr.contains("--out FILE"), "{ran:?}");
    assert_eq!(sim.count("executed"), 40);
    let shown: Value = serde_json::from_str(&sample(&["-o", "json"]).stdout).expect("one document");
    assert_eq!((&shown["state"], shown["sample"].as_array().map(Vec::len)), (&"completed".into(), Some(20)));
    assert_eq!(sim.count("executed"), 40, "the same sample is there already");
    desk.ok(&SCORE);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!(sim.count("executed"), UNITS);
    assert_eq!(status(&desk)["details"]["cached"], 40);
    // And once it is done, the same command says so and asks nobody.
    desk.ok(&SCORE);
    assert_eq!(sim.count("calls"), UNITS);
}
