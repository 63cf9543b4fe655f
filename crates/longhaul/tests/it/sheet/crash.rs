//! Killed at ten random points, a sheet ends as if nothing had happened.

use super::{SCORE, Witness, all_right, count, start, status, write_table};
use crate::workers::until;

const ROWS: usize = 600;
const CATEGORIES: usize = 12;
/// Twelve categories are two requests.
const UNITS: u64 = 1_200;
const KILLS: u64 = 10;

#[test]
fn ten_kills_leave_every_cell_right_and_ask_for_nothing_durable_again() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let log = tempfile::NamedTempFile::new().expect("a file");
    // 429s are few: each makes the rate control go slower for a while.
    let (sim, desk) = start(&format!(
        r#","log":{:?},"latency":{{"base_ms":20,"spread":0.5}},"faults":{{"rate_429":0.003,"rate_5xx":0.02,
            "rate_malformed":0.04,"rate_schema_break":0.04,"retry_after_ms":10,"calm_after":3}}"#,
        log.path()
    ));
    write_table(&desk, ROWS, CATEGORIES);
    let mut witness = Witness::default();
    for _ in 0..KILLS {
        let wanted = sim.count("executed") + random.u64(0..UNITS / (KILLS + 2));
        let mut run = desk.start(&SCORE);
        until("so many calls", || sim.count("executed") >= wanted || run.has_ended());
        run.kill();
        witness.look(&sim, &desk, |row| super::text(row as usize - 1));
    }
    assert!((witness.durable.len() as u64) < UNITS, "all was done before the last kill");
    let ran = desk.ok(&SCORE);
    witness.look(&sim, &desk, |row| super::text(row as usize - 1));
    assert_eq!(witness.durable.len() as u64, UNITS);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);

    let (status, stats) = (status(&desk), sim.stats());
    let [asked, lost] = [&status["units"]["asked"], &status["lost_calls"]].map(count);
    let [calls, unknown] = [&status["spent"]["calls"], &status["spent"]["unknown_calls"]].map(count);
    let bad = count(&stats["faults"]["malformed"]) + count(&stats["faults"]["schema_break"]);
    eprintln!("{UNITS} units, {bad} bad answers, {unknown} calls cut off, {lost} answers lost, {stats}");
    assert_eq!((unknown, lost), (witness.under_way.len() as u64, calls - asked), "{status}");
    assert!(asked <= UNITS + bad && count(&stats["executed"]) <= asked + lost + unknown, "{status}: {stats}");
    for (count, words) in [(unknown, "may have been billed"), (lost, "answered and paid for just before")] {
        assert_eq!(count > 0, ran.stdout.contains(words), "{count} {words}: {ran:?}");
    }
    assert!(
        ["status_5xx", "schema_break", "malformed"].iter().all(|kind| count(&stats["faults"][*kind]) > 0)
    );
}
