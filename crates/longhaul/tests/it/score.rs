//! Sheets scored by the real binary over real sockets: `longhaul score` in one process, `longhaul sim serve` in another. Every
//! cell is compared with the simulator's own answer key.

mod crash;
mod ends;
mod google;
mod inputs;
mod modes;
mod money;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use longhaul_sheets::prompt;
use longhaul_sheets::tables::{StoredSheet, Tables};
use longhaul_sim::{answer_key, request_key};
use longhaul_stores::sqlite::{Db, SqliteOptions};
use serde_json::{Value, json};

use crate::llm::sim::{Desk, Sim};
use crate::place::read;

/// Of the simulator's answers.
const SEED: u64 = 77;
const SCORE: [&str; 8] =
    ["score", "table.csv", "--text-column", "text", "--rubric", "rubric.toml", "--out", "scored.csv"];

/// A simulator with more options as JSON, and a place whose profile leads to it.
fn start(options: &str) -> (Sim, Desk) {
    let sim = Sim::with(&format!(r#"{{"seed":{SEED}{options}}}"#));
    let desk = Desk::at(&sim, 0);
    (sim, desk)
}

/// A text that needs quotes, as do its neighbours.
fn text(number: usize) -> String {
    format!("Review {number}: late, but \"fine\"")
}

/// Rows of a CSV file as they stand there: quotes where they are not needed, breaks of lines, leading zeros.
fn raw_row(number: usize) -> String {
    format!("{number:04},\"{}\",\"line\nand ö\",\" kept \"", text(number).replace('"', "\"\""))
}

/// Writes `table.csv` and a rubric with so many categories.
fn write_table(desk: &Desk, rows: usize, categories: usize) {
    let mut table = "\"id\",text,note,other\n".to_owned();
    for number in 0..rows {
        table += &raw_row(number);
        table.push('\n');
    }
    desk.place.write("table.csv", &table);
    write_rubric(desk, categories);
}

fn write_rubric(desk: &Desk, categories: usize) {
    let mut rubric = String::new();
    for number in 0..categories {
        let name = name(number);
        writeln!(rubric, "[[category]]\nname = \"{name}\"\ndefinition = \"how much of {name} it is\"\n")
            .expect("writing to a string");
    }
    desk.place.write("rubric.toml", &rubric);
}

fn name(category: usize) -> String {
    format!("cat{category}")
}

/// What the file must be, to the byte; a row whose cells are `None` has blanks.
fn expected(cells: impl IntoIterator<Item = Option<Vec<Value>>>, categories: usize) -> String {
    let mut table = "\"id\",text,note,other".to_owned();
    for category in 0..categories {
        write!(table, ",{}", name(category)).expect("writing to a string");
    }
    table.push('\n');
    for (number, cells) in cells.into_iter().enumerate() {
        table += &raw_row(number);
        match cells {
            Some(cells) => cells.iter().for_each(|cell| write!(table, ",{cell}").expect("writing")),
            None => table.extend(std::iter::repeat_n(',', categories)),
        }
        table.push('\n');
    }
    table
}

/// Demands that a file is the table with all of its scores.
fn all_right(desk: &Desk, file: &str, rows: usize, categories: usize) {
    let sheet = stored(desk);
    let cells = (0..rows).map(|row| Some(right(&sheet, &text(row))));
    assert_eq!(read(&desk.place.path(file)), expected(cells, categories));
}

/// The newest sheet, as it is stored.
fn stored(desk: &Desk) -> StoredSheet {
    let path = desk.place.path(".longhaul/longhaul.db");
    let look = async move {
        let db = Db::open(&path, SqliteOptions::default()).expect("the data store");
        let tables = Tables::open(db).await.expect("its tables");
        tables.list(1).await.expect("sheets").pop().expect("a sheet")
    };
    // A thread of its own: some tests run on a runtime, which takes no other.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    std::thread::spawn(move || runtime.block_on(look)).join().expect("a sheet")
}

/// The right cells of a text, by the simulator's own key.
fn right(sheet: &StoredSheet, text: &str) -> Vec<Value> {
    let answer = |block: u32| {
        let key = answer_key(SEED, &prompt::request(sheet, text, block));
        serde_json::from_str::<Value>(&key).expect("JSON")["scores"].as_array().expect("scores").clone()
    };
    let round = |value: &Value| json!((value.as_f64().expect("a number") * 100.0).round() / 100.0 + 0.0);
    let entry = |entry: Value| match entry.get("reason") {
        Some(reason) => vec![round(&entry["score"]), reason.clone()],
        None => vec![round(&entry)],
    };
    (0..sheet.blocks()).flat_map(answer).flat_map(entry).collect()
}

/// How often each request was executed, by its name in the simulator's log.
fn executed(sim: &Sim) -> HashMap<String, u64> {
    let mut times = HashMap::new();
    for entry in sim.log() {
        *times.entry(entry["request"].as_str().expect("a name").to_owned()).or_insert(0) += 1;
    }
    times
}

/// Rows and blocks that have an answer on disk.
fn durable(desk: &Desk) -> Vec<(u64, u32)> {
    let sql = "SELECT row, block FROM score_units WHERE cells IS NOT NULL";
    rows(desk, ".longhaul/longhaul.db", sql, |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Calls that are booked and not settled, by their names.
fn open_calls(desk: &Desk) -> Vec<String> {
    rows(desk, ".longhaul/llm.db", "SELECT call FROM calls WHERE state = 0", |row| row.get(0))
}

/// What a file says right now; nothing if it is not there yet.
fn rows<T>(
    desk: &Desk,
    file: &str,
    sql: &str,
    read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Vec<T> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let Ok(file) = rusqlite::Connection::open_with_flags(desk.place.path(file), flags) else {
        return Vec::new();
    };
    let Ok(mut statement) = file.prepare(sql) else { return Vec::new() };
    let found = statement.query_map([], |row| read(row)).expect("a query");
    found.collect::<Result<_, _>>().expect("rows")
}

/// What was seen when no process was at work.
#[derive(Default)]
struct Witness {
    /// Answers on disk, and how often they had been asked for when they were first seen there.
    durable: HashMap<(u64, u32), u64>,
    /// Calls that were under way at a kill. A process that dies early leaves those of the one before as they are.
    under_way: HashSet<String>,
}

impl Witness {
    /// Looks, and demands that nothing was asked again that was on disk before. `text` is that of a row.
    fn look(&mut self, sim: &Sim, desk: &Desk, text: impl Fn(u64) -> String) {
        self.under_way.extend(open_calls(desk));
        let durable = durable(desk);
        if durable.is_empty() {
            return;
        }
        let (sheet, times) = (stored(desk), executed(sim));
        for (row, block) in durable {
            let name = request_key(&prompt::request(&sheet, &text(row), block));
            let asked = times.get(&name).copied().unwrap_or(0);
            assert!(asked > 0, "row {row}, block {block} has an answer that nobody gave");
            let known = *self.durable.entry((row, block)).or_insert(asked);
            assert_eq!(asked, known, "row {row}, block {block} was asked again after its answer was durable");
        }
    }
}

/// What `runs show` says of the newest sheet.
fn status(desk: &Desk) -> Value {
    let newest = desk.json(&["runs", "ls", "--pipeline", "sheets", "--limit", "1"]);
    desk.json(&["runs", "show", newest["items"][0]["id"].as_str().expect("a sheet")])
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}
