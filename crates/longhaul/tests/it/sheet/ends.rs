//! Ends that people bring about: Ctrl-C, cancel, and another try for what failed.

use std::io::Read as _;
use std::process::Stdio;

use super::{SCORE, all_right, count, durable, expected, right, start, status, stored, text, write_table};
use crate::llm::sim::Sim;
use crate::place::{Ran, read};
use crate::workers::{Process, interrupt, until};

const ROWS: usize = 100;
const CATEGORIES: usize = 12;
const UNITS: u64 = 200;

#[test]
fn ctrl_c_lets_calls_end_and_the_same_command_goes_on() {
    let (sim, desk) = start(r#","latency":{"base_ms":100}"#);
    write_table(&desk, ROWS, CATEGORIES);
    let run = Process(desk.command(&SCORE).spawn().expect("running longhaul"));
    until("some answers are stored", || durable(&desk).len() >= 10);
    interrupt(&run);
    let ran = Ran::from(end(run));
    ran.fails(130, &["draining", "nothing is lost", "go on with the same command"]);
    let stopped = status(&desk);
    assert!(sim.count("executed") < UNITS, "it was interrupted");
    assert_eq!(durable(&desk).len() as u64, sim.count("executed"), "all that was asked is kept: {stopped}");
    assert_eq!((&stopped["state"], &stopped["lost_calls"]), (&"running".into(), &0.into()), "{stopped}");
    desk.ok(&SCORE);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (UNITS, 0));
    assert_eq!(status(&desk)["spent"]["unknown_calls"], 0);
}

/// Waits for a program and reads what it said.
fn end(mut run: Process) -> std::process::Output {
    let mut said = [Vec::new(), Vec::new()];
    run.0.stdout.take().expect("piped").read_to_end(&mut said[0]).expect("reading");
    run.0.stderr.take().expect("piped").read_to_end(&mut said[1]).expect("reading");
    let [stdout, stderr] = said;
    std::process::Output { status: run.0.wait().expect("waiting"), stdout, stderr }
}

#[test]
fn a_cancelled_sheet_keeps_and_writes_what_was_scored() {
    let (sim, desk) = start(r#","latency":{"base_ms":100}"#);
    write_table(&desk, ROWS, CATEGORIES);
    let args = [&SCORE[..], &["--concurrency", "4"]].concat();
    let run = Process(desk.command(&args).stderr(Stdio::piped()).spawn().expect("running longhaul"));
    until("some answers are stored", || durable(&desk).len() >= 20);
    let id = stored(&desk).id;
    desk.run(&["sheet", "cancel", &id]).fails(2, &["--yes"]);
    let ran = desk.ok(&["sheet", "cancel", &id, "--yes"]);
    assert!(ran.stdout.contains("kept and written"), "{ran:?}");
    let ran = Ran::from(end(run));
    ran.fails(3, &["longhaul sheet retry"]);
    assert!(ran.stdout.contains("cancelled"), "{ran:?}");
    // Also the answers that were under way when it was cancelled.
    let scored = durable(&desk);
    assert_eq!(scored.len() as u64, sim.count("executed"));
    let sheet = stored(&desk);
    let cells = |row: usize| {
        let right = right(&sheet, &text(row)).into_iter().enumerate().map(|(target, value)| {
            let there = scored.contains(&(row as u64 + 1, u32::from(target >= 10)));
            there.then_some(value)
        });
        right.collect::<Vec<_>>()
    };
    let lines = (0..ROWS).map(|row| {
        let cells = cells(row).into_iter().map(|cell| cell.map_or_else(String::new, |cell| cell.to_string()));
        format!("{},{}\n", super::raw_row(row), cells.collect::<Vec<_>>().join(","))
    });
    let head = expected([], CATEGORIES);
    assert_eq!(read(&desk.place.path("scored.csv")), head + &lines.collect::<String>());
    // It can go on after all, and pays for nothing twice.
    desk.ok(&["sheet", "retry", &id]);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (UNITS, 0));
    desk.ok(&["sheet", "rm", &id, "--yes"]);
    desk.run(&["sheet", "status", &id]).fails(4, &["there is no sheet"]);
}

#[test]
fn retry_touches_exactly_what_failed() {
    for fill_rounds in ["1", "0"] {
        let (sim, desk) = start(r#","context_tokens":400"#);
        write_table(&desk, ROWS, CATEGORIES);
        // A few are too long for this model.
        let mut table = read(&desk.place.path("table.csv"));
        let long = |number: usize| format!("Long {number} {}", "word ".repeat(400));
        for number in 0..3 {
            table += &format!("x,{},,\n", long(number));
        }
        desk.place.write("table.csv", &table);
        let ran = desk.run(&[&SCORE[..], &["--fill-rounds", fill_rounds]].concat());
        ran.fails(3, &["longhaul sheet status", "longhaul sheet retry"]);
        assert!(ran.stdout.contains("6 of 206 units are blank"), "{ran:?}");
        assert!(ran.stdout.contains("units     200 of 206 answered"), "a blank is not an answer: {ran:?}");
        assert!(!ran.stderr.contains("job_id"), "no log among what people read: {ran:?}");
        let failed = status(&desk);
        assert_eq!(
            (&failed["units"]["failed"], &failed["state"]),
            (&6.into(), &"partly_failed".into()),
            "{failed}"
        );
        let reason = &failed["blanks"][0]["reason"];
        assert!(reason.as_str().is_some_and(|reason| reason.contains("sim-small")), "{failed}");
        assert_eq!(sim.count("executed"), UNITS);
        let port = sim.address().rsplit_once(':').expect("a port").1.to_owned();
        sim.stop();
        let roomy = Sim::start_at(&port, &["--options", &format!(r#"{{"seed":{}}}"#, super::SEED)]);
        let id = failed["id"].as_str().expect("an id");
        let ran = desk.ok(&["sheet", "retry", id, "--failed"]);
        assert!(ran.stderr.contains("6 units and 0 chunks are tried again, and nothing else"), "{ran:?}");
        assert_eq!((roomy.count("calls"), roomy.count("executed")), (6, 6), "fill rounds {fill_rounds}");
        let sheet = stored(&desk);
        let mut right_table = expected((0..ROWS).map(|row| Some(right(&sheet, &text(row)))), CATEGORIES);
        for number in 0..3 {
            let cells =
                right(&sheet, long(number).trim()).iter().map(ToString::to_string).collect::<Vec<_>>();
            right_table += &format!("x,{},,,{}\n", long(number), cells.join(","));
        }
        assert_eq!(read(&desk.place.path("scored.csv")), right_table);
        desk.run(&["sheet", "retry", id]).fails(4, &["nothing of", "failed"]);
        assert_eq!(count(&status(&desk)["units"]["failed"]), 0);
    }
}

#[test]
fn a_detached_sheet_is_scored_by_a_worker() {
    let (sim, desk) = start("");
    write_table(&desk, ROWS, CATEGORIES);
    let ran = desk.ok(&[&SCORE[..], &["--detach"]].concat());
    let id = ran.stdout.trim().to_owned();
    assert!(ran.stderr.contains("longhaul work") && id.starts_with("sheet-"), "{ran:?}");
    assert_eq!(sim.count("calls"), 0);
    desk.ok(&["work", "--drain"]);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    let shown = desk.ok(&["sheet", "status", &id]).stdout;
    assert!(shown.contains("chunk-0001") && shown.contains("completed"), "{shown}");
    desk.ok(&["sheet", "export", &id, "--out", "more.jsonl"]);
    assert_eq!(read(&desk.place.path("more.jsonl")).lines().count(), ROWS);
    assert_eq!(sim.count("executed"), UNITS);
}
