//! What is asked of a text, and the formats that tables come and go in.

use longhaul_sheets::prompt;
use longhaul_sim::answer_key;
use serde_json::{Value, json};

use super::{SCORE, SEED, all_right, right, start, stored, text, write_rubric, write_table};
use crate::llm::sim::Desk;
use crate::place::read;

fn texts(rows: usize) -> impl Iterator<Item = Value> {
    (0..rows).map(|row| json!({ "text": text(row), "n": row, "nested": { "a": [1, null] } }))
}

fn write_jsonl(desk: &Desk, rows: usize) {
    let lines = texts(rows).map(|row| format!("{row}\n"));
    desk.place.write("table.jsonl", &lines.collect::<String>());
}

/// Each score has its reason beside it.
#[test]
fn rationales_stand_beside_their_scores() {
    let (sim, desk) = start(r#","faults":{"rate_schema_break":0.3,"calm_after":2}"#);
    write_jsonl(&desk, 20);
    write_rubric(&desk, 3);
    let args = ["score", "table.jsonl", "--text-column", "text", "--rubric", "rubric.toml"];
    desk.ok(&[&args[..], &["--rationale", "--out", "scored.jsonl"]].concat());
    let sheet = stored(&desk);
    let names: Vec<&str> = sheet.plan.targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names.len(), 6, "{names:?}");
    for (mut row, found) in texts(20).zip(desk.answers("scored.jsonl")) {
        let cells = right(&sheet, row["text"].as_str().expect("a text"));
        for (name, cell) in names.iter().zip(cells) {
            row[*name] = cell;
        }
        assert_eq!(found, row);
    }
    assert!(sim.count("executed") > 20, "some were of another shape");
}

#[test]
fn fields_of_a_schema_become_columns() {
    let (_sim, desk) = start(r#","faults":{"rate_schema_break":0.3,"calm_after":2}"#);
    write_table(&desk, 20, 1);
    let args = ["score", "table.csv", "--text-column", "text", "--schema", "schema.json", "--out", "s.tsv"];
    desk.ok(&args);
    let (sheet, found) = (stored(&desk), read(&desk.place.path("s.tsv")));
    let mut reader = csv::ReaderBuilder::new().delimiter(b'\t').from_reader(found.as_bytes());
    assert_eq!(reader.headers().expect("a head").iter().skip(4).collect::<Vec<_>>(), ["label", "n"]);
    let mut rows = 0;
    for (row, record) in reader.records().enumerate() {
        let record = record.expect("a row");
        let key = answer_key(SEED, &prompt::request(&sheet, &text(row), 0));
        let key: Value = serde_json::from_str(&key).expect("JSON");
        assert_eq!((&record[1], &record[2], &record[3]), (&*text(row), "line\nand ö", " kept "));
        assert_eq!((&record[4], record[5].parse().ok()), (key["label"].as_str().unwrap(), key["n"].as_i64()));
        rows += 1;
    }
    assert_eq!(rows, 20);
}

/// From CSV to a workbook, from the workbook to JSON lines, from these to CSV: the scores of one text are the same.
#[test]
fn tables_come_and_go_in_every_format() {
    let (sim, desk) = start("");
    write_table(&desk, 20, 12);
    let score = |from: &str, to: &str| {
        desk.ok(&["score", from, "--text-column", "text", "--rubric", "rubric.toml", "--out", to])
    };
    score("table.csv", "scored.xlsx");
    assert_eq!(sim.count("executed"), 40);
    // Its scores are there already: they are kept, and not paid for.
    score("scored.xlsx", "scored.jsonl");
    score("scored.jsonl", "scored.tsv");
    score("scored.tsv", "again.csv");
    assert_eq!(sim.count("executed"), 40);
    let sheet = stored(&desk);
    let (lines, tsv) = (desk.answers("scored.jsonl"), read(&desk.place.path("again.csv")));
    let mut again = csv::Reader::from_reader(tsv.as_bytes());
    for ((row, line), record) in lines.iter().enumerate().zip(again.records()) {
        let (cells, record) = (right(&sheet, &text(row)), record.expect("a row"));
        assert_eq!((&line["text"], &line["other"]), (&text(row).into(), &" kept ".into()));
        for (target, cell) in cells.iter().enumerate() {
            let number = |value: &str| value.parse::<f64>().expect("a number");
            assert_eq!(
                number(&line[super::name(target)].to_string().replace('"', "")),
                cell.as_f64().unwrap()
            );
            assert_eq!(number(&record[4 + target]), cell.as_f64().unwrap());
        }
    }
    assert_eq!((lines.len(), tsv.matches("Review").count()), (20, 20));
}

#[test]
fn a_table_in_place_is_written_at_once_and_only_its_blanks_are_paid_for() {
    let (sim, desk) = start("");
    write_table(&desk, 60, 12);
    let args = [&SCORE[..6], &["--in-place"]].concat();
    desk.ok(&args);
    all_right(&desk, "table.csv", 60, 12);
    assert_eq!(sim.count("executed"), 120);
    // Again: nothing is blank.
    let ran = desk.ok(&args);
    assert!(ran.stderr.contains("have all their cells already"), "{ran:?}");
    all_right(&desk, "table.csv", 60, 12);
    assert_eq!(sim.count("executed"), 120);
}

/// The document's own layout: names, definitions and details above their columns.
#[test]
fn categories_may_stand_in_the_table_itself() {
    let (sim, desk) = start("");
    let mut table = "title,,,,\n,,,joy,anger\n,,,how glad,how angry\n,,,,shouting\n".to_owned();
    for row in 0..5 {
        table += &format!("{row},x,text {row},,\n");
    }
    desk.place.write("sheet.csv", &table);
    desk.ok(&["score", "sheet.csv", "--layout", "sheet", "--out", "scored.csv"]);
    let sheet = stored(&desk);
    let found = read(&desk.place.path("scored.csv"));
    for (row, line) in found.lines().skip(4).enumerate() {
        let cells = right(&sheet, &format!("text {row}"));
        assert_eq!(line, format!("{row},x,text {row},{},{}", cells[0], cells[1]));
    }
    assert_eq!((found.lines().count(), sim.count("executed")), (9, 5));
}
