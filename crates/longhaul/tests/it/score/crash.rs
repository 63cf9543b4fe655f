//! Killed at ten random points, a sheet ends as if nothing had happened.

use super::{SCORE, Witness, all_right, count, start, status, write_table};
use crate::workers::until;

/// More by this variable; 100,000 take half an hour.
const ROWS_NAME: &str = "SHEET_ROWS";
const ROWS: usize = 600;
const CATEGORIES: usize = 20;
/// Ten categories are one request.
const BLOCKS: usize = 2;
const KILLS: u64 = 10;

#[test]
fn ten_kills_leave_every_cell_right_and_ask_for_nothing_durable_again() {
    let rows = std::env::var(ROWS_NAME).ok().and_then(|rows| rows.parse().ok()).unwrap_or(ROWS);
    let units = (rows * BLOCKS) as u64;
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}, {rows} rows");
    let mut random = fastrand::Rng::with_seed(seed);
    let log = tempfile::NamedTempFile::new().expect("a file");
    // Who lives for a hundred calls cannot tell refusals at random from a limit, and is slow for each of them.
    let (rate_429, retry_after_ms) = if rows > ROWS { (0.05, 1_000) } else { (0.003, 10) };
    let (sim, desk) = start(&format!(
        r#","log":{:?},"latency":{{"base_ms":20,"spread":0.5}},"faults":{{"rate_429":{rate_429},"rate_5xx":0.02,
            "rate_malformed":0.04,"rate_schema_break":0.04,"retry_after_ms":{retry_after_ms},"calm_after":3}}"#,
        log.path()
    ));
    write_table(&desk, rows, CATEGORIES);
    let mut witness = Witness::default();
    for _ in 0..KILLS {
        let wanted = sim.count("executed") + random.u64(0..units / (KILLS + 2));
        let mut run = desk.start(&SCORE);
        until("so many calls", || sim.count("executed") >= wanted || run.has_ended());
        run.kill();
        witness.look(&sim, &desk, |row| super::text(row as usize - 1));
    }
    assert!((witness.durable.len() as u64) < units, "all was done before the last kill");
    let ran = desk.ok(&SCORE);
    witness.look(&sim, &desk, |row| super::text(row as usize - 1));
    assert_eq!(witness.durable.len() as u64, units);
    all_right(&desk, "scored.csv", rows, CATEGORIES);

    let (status, stats) = (status(&desk), sim.stats());
    let [asked, lost] = [&status["details"]["asked"], &status["details"]["lost_calls"]].map(count);
    let [calls, unknown] = [&status["spent"]["calls"], &status["spent"]["unknown_calls"]].map(count);
    let bad = count(&stats["faults"]["malformed"]) + count(&stats["faults"]["schema_break"]);
    eprintln!("{units} units, {bad} bad answers, {unknown} calls cut off, {lost} answers lost, {stats}");
    assert_eq!((unknown, lost), (witness.under_way.len() as u64, calls - asked), "{status}");
    assert!(asked <= units + bad && count(&stats["executed"]) <= asked + lost + unknown, "{status}: {stats}");
    for (count, words) in [(unknown, "may have been billed"), (lost, "answered and paid for just before")] {
        assert_eq!(count > 0, ran.stdout.contains(words), "{count} {words}: {ran:?}");
    }
    assert!(
        ["status_5xx", "schema_break", "malformed"].iter().all(|kind| count(&stats["faults"][*kind]) > 0)
    );
}

/// As runs of prompts do: its last sign of life was a moment ago, and its process is known to be dead.
#[test]
fn a_sheet_whose_command_was_killed_waits_for_a_worker_at_once() {
    let (sim, desk) = start(r#","latency":{"base_ms":50}"#);
    write_table(&desk, ROWS, CATEGORIES);
    let mut run = desk.start(&SCORE);
    let shown = |word: &str| desk.ok(&["runs", "ls"]).stdout.contains(word);
    until("the worker to be heard of", || sim.count("executed") > 0 && shown("running"));
    run.kill();
    assert!(shown("waits for a worker") && !shown("running"), "{:?}", desk.ok(&["runs", "ls"]));
    assert!(desk.ok(&["runs", "show", &desk.run_id()]).stdout.contains("waits for a worker"));
    assert_eq!(desk.only_run()["served"], false);
}
