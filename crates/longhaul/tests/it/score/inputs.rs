//! Mistakes are told with an exit code and a way out, before anything is sent.

use std::process::{Command, Stdio};

use longhaul_pipeline::table_files::testing::bomb;

use super::{start, write_table};
use crate::llm::sim::Desk;
use crate::place::Ran;

/// The address space of a process, in kibibytes. One cell of the bomb below alone would take three times as much.
const ADDRESS_SPACE_KIB: u64 = 1024 * 1024;

/// Runs the program where it cannot take more memory than this.
fn run_in_little_memory(desk: &Desk, args: &[&str]) -> Ran {
    let plain = desk.command(args);
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\""));
    command.arg(plain.get_program()).args(plain.get_args());
    command.current_dir(plain.get_current_dir().expect("a directory"));
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ran::from(command.stdin(Stdio::null()).output().expect("running longhaul"))
}

#[test]
fn a_workbook_that_unpacks_without_bound_is_refused_in_little_memory() {
    let (sim, desk) = start("");
    write_table(&desk, 3, 2);
    std::fs::write(desk.place.path("bomb.xlsx"), bomb(1024)).expect("writing a file");
    let score = ["--text-column", "text", "--rubric", "rubric.toml", "--out", "o.csv"];
    for args in [[&["score", "bomb.xlsx"], &score[..]].concat(), vec!["run", "bomb.xlsx"]] {
        let ran = run_in_little_memory(&desk, &args);
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
        assert!(
            ran.stderr.contains("a cell of more than 1 MiB") && ran.stderr.contains("save it as CSV"),
            "{ran:?}"
        );
    }
    // The same memory is enough for an ordinary file.
    let ran = run_in_little_memory(&desk, &[&["score", "table.csv"], &score[..]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sim.count("executed"), 3);
}

#[test]
fn wrong_input_is_refused_with_a_way_out() {
    let (sim, desk) = start("");
    write_table(&desk, 3, 2);
    desk.place.write("empty.toml", "category = []\n");
    desk.place.write("typo.toml", "[[category]]\nnam = \"x\"\n");
    desk.place.write("blank.csv", "text\n\n");
    desk.place.write("book.xlsx", "no workbook");
    desk.place.write("list.json", r#"{"type":"array"}"#);
    let table: [(&str, i32, &[&str]); 23] = [
        ("gone.csv --text-column text --rubric rubric.toml --out o.csv", 4, &["gone.csv", "hint:"]),
        (
            "table.doc --text-column text --rubric rubric.toml --out o.csv",
            2,
            &[".csv, .tsv, .jsonl or .xlsx"],
        ),
        (
            "table.csv --text-column nope --rubric rubric.toml --out o.csv",
            2,
            &["no column \"nope\"", "id, text"],
        ),
        ("table.csv --text-column text --out o.csv", 2, &["no categories", "--rubric"]),
        ("table.csv --rubric rubric.toml --out o.csv", 2, &["--text-column"]),
        ("table.csv --text-column text --rubric gone.toml --out o.csv", 4, &["gone.toml", "[[category]]"]),
        ("table.csv --text-column text --rubric empty.toml --out o.csv", 2, &["no category", "[[category]]"]),
        ("table.csv --text-column text --rubric typo.toml --out o.csv", 2, &["nam", "[[category]]"]),
        ("table.csv --text-column text --rubric rubric.toml --range 7 --out o.csv", 2, &["no range", "0..1"]),
        ("table.csv --text-column text --rubric rubric.toml --range 1..0 --out o.csv", 2, &["range", "0..1"]),
        ("table.csv --text-column text --rubric rubric.toml", 2, &["--out", "--in-place", "--sample 20"]),
        (
            "table.csv --text-column text --rubric rubric.toml --out o.pdf",
            2,
            &[".csv, .tsv, .jsonl or .xlsx"],
        ),
        ("table.csv --text-column text --rubric rubric.toml --out o.csv --chunk-rows 3", 2, &["50 and 5000"]),
        (
            "table.csv --text-column text --rubric rubric.toml --out o.csv --failed-share 2",
            2,
            &["--failed-share"],
        ),
        (
            "table.csv --text-column text --rubric rubric.toml --out o.csv --unit-retries 99",
            2,
            &["--unit-retries"],
        ),
        ("table.csv --text-column text --rubric rubric.toml --out o.csv --max-cost lots", 2, &["--max-cost"]),
        ("blank.csv --text-column text --rubric rubric.toml --out o.csv", 2, &["no row has a text"]),
        (
            "book.xlsx --text-column text --rubric rubric.toml --in-place",
            2,
            &["not written over", "another file"],
        ),
        ("book.xlsx --text-column text --rubric rubric.toml --out o.csv", 2, &["book.xlsx"]),
        ("table.csv --text-column text --rubric rubric.toml --out .", 2, &["is a directory"]),
        ("table.csv --text-column text --rubric . --out o.csv", 2, &["--rubric .", "directory"]),
        ("table.csv --text-column text --schema list.json --out o.csv", 2, &["object"]),
        (
            "sheets://some/Sheet1 --text-column text --rubric rubric.toml",
            5,
            &["--google-key", "service account"],
        ),
    ];
    for (args, code, words) in table {
        let args: Vec<&str> = ["score"].into_iter().chain(args.split(' ')).collect();
        desk.run(&args).fails(code, words);
    }
    for args in ["show sheet-none", "retry none", "cancel none --yes", "results none"] {
        let args: Vec<&str> = ["runs"].into_iter().chain(args.split(' ')).collect();
        desk.run(&args).fails(4, &["there is no run", args[2], "longhaul runs ls"]);
    }
    assert_eq!(sim.count("calls"), 0);
    assert!(!desk.place.path("o.csv").exists());
}

#[test]
fn a_dry_run_asks_nobody_and_keeps_nothing() {
    let (sim, desk) = start("");
    write_table(&desk, 50, 12);
    let args = [&super::SCORE[..], &["--dry-run", "--max-cost", "2"]].concat();
    let ran = desk.ok(&args);
    for words in ["600 cells in 100 requests", "50 rows; $", " to $", "stops before $2.00"] {
        assert!(ran.stdout.contains(words), "{words}: {ran:?}");
    }
    assert!(ran.stderr.contains("nothing was sent"), "{ran:?}");
    assert_eq!(desk.json(&["runs", "ls"])["items"].as_array().map(Vec::len), Some(0));
    assert_eq!(sim.count("calls"), 0);
}
