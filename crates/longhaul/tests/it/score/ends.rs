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
    assert_eq!(
        (&stopped["state"], &stopped["details"]["lost_calls"]),
        (&"running".into(), &0.into()),
        "{stopped}"
    );
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
fn a_paused_sheet_stops_in_the_middle_of_a_chunk_and_goes_on_from_there() {
    let (sim, desk) = start(r#","latency":{"base_ms":100}"#);
    write_table(&desk, ROWS, CATEGORIES);
    let args = [&SCORE[..], &["--concurrency", "4"]].concat();
    let mut run = Process(desk.command(&args).stderr(Stdio::piped()).spawn().expect("running longhaul"));
    until("some answers are stored", || durable(&desk).len() >= 10);
    let id = stored(&desk).id;
    desk.ok(&["runs", "pause", &id]);
    let running = ["jobs", "ls", "--process", &id, "--state", "running"];
    until("the chunk is given back", || desk.run(&running).code == Some(4));
    let asked = sim.count("executed");
    assert!(asked < UNITS / 2, "most of its one chunk is left: {asked}");
    let paused = status(&desk);
    assert_eq!((&paused["state"], count(&paused["units"]["done"])), (&"paused".into(), asked), "{paused}");
    run.kill();
    desk.ok(&["runs", "resume", &id]);
    desk.ok(&["work", "--drain"]);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (UNITS, 0));
}

#[test]
fn a_cancelled_sheet_keeps_and_writes_what_was_scored() {
    let (sim, desk) = start(r#","latency":{"base_ms":100}"#);
    write_table(&desk, ROWS, CATEGORIES);
    let args = [&SCORE[..], &["--concurrency", "4"]].concat();
    let run = Process(desk.command(&args).stderr(Stdio::piped()).spawn().expect("running longhaul"));
    until("some answers are stored", || durable(&desk).len() >= 20);
    let id = stored(&desk).id;
    desk.run(&["runs", "cancel", &id]).fails(2, &["--yes"]);
    let ran = desk.ok(&["runs", "cancel", &id, "--yes"]);
    assert!(ran.stdout.contains("is cancelled, what was done is kept"), "{ran:?}");
    let ran = Ran::from(end(run));
    ran.fails(3, &["longhaul runs retry"]);
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
    desk.ok(&["runs", "retry", &id]);
    desk.ok(&["work", "--drain"]);
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);
    assert_eq!((sim.count("executed"), sim.count("paid_twice")), (UNITS, 0));
    desk.ok(&["runs", "rm", &id, "--yes"]);
    desk.run(&["runs", "show", &id]).fails(4, &["there is no run"]);
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
        ran.fails(3, &["longhaul runs show", "longhaul runs retry"]);
        assert!(ran.stdout.contains("6 of 206 units are blank"), "{ran:?}");
        assert!(ran.stdout.contains("200 of 206 done · 6 failed"), "a blank is not an answer: {ran:?}");
        assert!(!ran.stderr.contains("job_id"), "no log among what people read: {ran:?}");
        let failed = status(&desk);
        assert_eq!(
            (&failed["units"]["failed"], &failed["state"]),
            (&6.into(), &"partly_failed".into()),
            "{failed}"
        );
        let reason = &failed["failures"][0]["reason"];
        assert!(reason.as_str().is_some_and(|reason| reason.contains("sim-small")), "{failed}");
        let shown = desk.ok(&["runs", "show", failed["id"].as_str().expect("an id")]).stdout;
        assert_eq!(shown.matches("\nfailed: row ").count(), 6, "{shown}");
        assert_eq!(sim.count("executed"), UNITS);
        let port = sim.address().rsplit_once(':').expect("a port").1.to_owned();
        sim.stop();
        let roomy = Sim::start_at(&port, &["--options", &format!(r#"{{"seed":{}}}"#, super::SEED)]);
        let id = failed["id"].as_str().expect("an id");
        let ran = desk.ok(&["runs", "retry", id]);
        assert!(ran.stdout.contains("to be tried again: 6 units of sheet-"), "{ran:?}");
        assert!(ran.stderr.contains("longhaul work --drain"), "{ran:?}");
        assert_eq!(roomy.count("calls"), 0, "a worker does it");
        desk.ok(&["work", "--drain"]);
        assert_eq!((roomy.count("calls"), roomy.count("executed")), (6, 6), "fill rounds {fill_rounds}");
        let sheet = stored(&desk);
        let mut right_table = expected((0..ROWS).map(|row| Some(right(&sheet, &text(row)))), CATEGORIES);
        for number in 0..3 {
            let cells =
                right(&sheet, long(number).trim()).iter().map(ToString::to_string).collect::<Vec<_>>();
            right_table += &format!("x,{},,,{}\n", long(number), cells.join(","));
        }
        assert_eq!(read(&desk.place.path("scored.csv")), right_table);
        desk.run(&["runs", "retry", id]).fails(4, &["no unit of", "failed"]);
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
    let shown = desk.ok(&["runs", "show", &id]).stdout;
    assert!(shown.contains("chunk-0001") && shown.contains("completed"), "{shown}");
    assert!(shown.contains("100 rows, 1,200 cells filled"), "what its file came to: {shown}");
    desk.ok(&["runs", "results", &id, "--out", "more.jsonl"]);
    assert_eq!(read(&desk.place.path("more.jsonl")).lines().count(), ROWS);
    assert_eq!(sim.count("executed"), UNITS);
}

/// The verbs for runs do with a sheet what they do with prompts.
#[test]
fn a_sheet_is_listed_paused_resumed_and_waited_for_as_any_run() {
    let (sim, desk) = start("");
    write_table(&desk, ROWS, CATEGORIES);
    desk.place.write("prompts.txt", "one\ntwo\n");
    let sheet = desk.ok(&[&SCORE[..], &["--detach", "--chunk-rows", "50"]].concat()).stdout.trim().to_owned();
    let prompts = desk.ok(&["run", "prompts.txt", "--detach"]).stdout.trim().to_owned();
    let listed = |more: &[&str]| {
        let runs = desk.json(&[&["runs", "ls"], more].concat());
        let runs = runs["items"].as_array().expect("a list").iter();
        runs.map(|run| run["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), [&*prompts, &*sheet], "newest first");
    assert_eq!(listed(&["--limit", "1"]), [&*prompts]);
    assert_eq!(listed(&["--pipeline", "sheets"]), [&*sheet]);
    assert_eq!(listed(&["--pipeline", "prompts"]), [&*prompts]);
    desk.run(&["runs", "ls", "--pipeline", "nope"]).fails(2, &["--pipeline", "prompts, sheets"]);

    let short = sheet.strip_prefix("sheet-").expect("the prefix");
    desk.ok(&["runs", "pause", short]);
    let paused = status(&desk);
    assert_eq!((&paused["state"], &paused["units"]["total"]), (&"paused".into(), &UNITS.into()), "{paused}");
    desk.ok(&["work", "--drain"]);
    assert_eq!(sim.count("executed"), 2, "only the prompts");
    desk.run(&["runs", "wait", &sheet, "--timeout", "100ms"]).fails(124, &["timed out", "paused"]);
    desk.ok(&["runs", "resume", &sheet]);
    desk.ok(&["work", "--drain"]);
    let waited = desk.json(&["runs", "wait", &sheet]);
    assert_eq!(
        (&waited["state"], &waited["units"]["done"]),
        (&"completed".into(), &UNITS.into()),
        "{waited}"
    );
    all_right(&desk, "scored.csv", ROWS, CATEGORIES);

    let shown = desk.ok(&["runs", "show", &sheet, "--parts", "1"]).stdout;
    assert!(shown.contains("chunk-0001") && !shown.contains("chunk-0002"), "{shown}");
    assert!(shown.contains("… and more"), "{shown}");
    let chunk = &status(&desk)["parts"][1]["details"];
    assert_eq!(
        (&chunk["chunk"], &chunk["first_row"], &chunk["last_row"]),
        (&2.into(), &52.into(), &101.into())
    );
    desk.run(&["runs", "results", &sheet, "--errors", "e.csv"]).fails(2, &["--errors", "longhaul runs show"]);
    let next = desk.json(&["runs", "ls", "--limit", "1"])["next"].as_str().expect("a cursor").to_owned();
    assert_eq!(listed(&["--cursor", &next]), [&*sheet], "after the first page");
    desk.ok(&["runs", "results", &sheet, "--out", "copy.csv", "--consume"]);
    assert_eq!(read(&desk.place.path("copy.csv")), read(&desk.place.path("scored.csv")));
    assert_eq!(listed(&["--pipeline", "sheets"]), Vec::<String>::new());
    assert!(desk.place.path("scored.csv").exists(), "files stay");
}

/// A process that is a sheet has more than jobs: its texts and scores go with it, and cancelling it writes its table.
#[test]
fn a_sheet_is_cancelled_and_consumed_as_a_process_too() {
    let (sim, desk) = start("");
    write_table(&desk, 3, 2);
    let id = desk.ok(&[&SCORE[..], &["--detach"]].concat()).stdout.trim().to_owned();
    desk.run(&["consume", &id]).fails(1, &["unfinished"]);
    let cancelled = desk.json(&["process", "cancel", &id, "--yes"]);
    assert!(cancelled["changed"].as_u64() > Some(0), "{cancelled}");
    assert_eq!(status(&desk)["state"], "cancelled");
    assert!(desk.json(&["consume", &id])["changed"].as_u64() > Some(0));
    desk.run(&["runs", "show", &id]).fails(4, &["there is no run"]);
    let database = rusqlite::Connection::open(desk.place.path(".longhaul/longhaul.db")).expect("a database");
    for table in ["score_sheets", "score_rows", "score_units"] {
        let count = format!("SELECT count(*) FROM {table}");
        let left: i64 = database.query_row(&count, [], |row| row.get(0)).expect("a count");
        assert_eq!(left, 0, "{table}");
    }
    assert_eq!(sim.count("calls"), 0);
}

#[test]
fn one_chunk_is_tried_again_alone() {
    let (sim, desk) = start(r#","context_tokens":400"#);
    write_table(&desk, ROWS, CATEGORIES);
    let long = |number: usize| format!("Long {number} {}", "word ".repeat(400));
    // One that is too long for this model in each of two chunks.
    let (head, rows) = {
        let table = read(&desk.place.path("table.csv"));
        let (head, rows) = table.split_once('\n').expect("a head");
        (head.to_owned(), rows.to_owned())
    };
    desk.place.write("table.csv", &format!("{head}\nx,{},,\n{rows}x,{},,\n", long(0), long(1)));
    let ran = desk.run(&[&SCORE[..], &["--chunk-rows", "60"]].concat());
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let id = stored(&desk).id;
    assert_eq!(count(&status(&desk)["units"]["failed"]), 4);
    let port = sim.address().rsplit_once(':').expect("a port").1.to_owned();
    sim.stop();
    let roomy = Sim::start_at(&port, &["--options", &format!(r#"{{"seed":{}}}"#, super::SEED)]);
    desk.run(&["runs", "retry", &id, "--part", "0"]).fails(2, &["counts from 1"]);
    desk.run(&["runs", "retry", &id, "--part", "9"]).fails(2, &["no chunk 9"]);
    let ran = desk.ok(&["runs", "retry", &id, "--part", "2"]);
    assert!(ran.stdout.contains("to be tried again: 2 units"), "{ran:?}");
    desk.run(&["work", "--drain"]);
    let left = status(&desk);
    assert_eq!((roomy.count("executed"), &left["units"]["failed"]), (2, &2.into()), "{left}");
    assert_eq!(left["failures"][0]["unit"], "row 2, block 1", "that of the first chunk: {left}");
}
