//! Random cells go through every format and come back.

use serde_json::json;

use super::*;
use longhaul_pipeline::table_files::harmless;

const PIECES: [&str; 22] = [
    "a",
    "word",
    " ",
    ",",
    "\t",
    "\"",
    "\"\"",
    "\n",
    "\r\n",
    "\r",
    "日本語",
    "🦀",
    "é",
    "=",
    "'",
    ";",
    "\\",
    "{",
    "_x0041_",
    "\u{1}",
    "<&>",
    "0.5",
];

fn random_text(random: &mut fastrand::Rng) -> String {
    (0..random.usize(0..6)).map(|_| PIECES[random.usize(0..PIECES.len())]).collect()
}

#[test]
fn random_cells_survive_every_format() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        let rows: Vec<[String; 3]> = (0..random.usize(1..12))
            .map(|number| {
                [number.to_string(), format!("t{}", random_text(&mut random)), random_text(&mut random)]
            })
            .collect();
        round(&rows, &mut random);
    }
}

/// From JSONL, which says all of it, through two formats to a table with the scores.
fn round(rows: &[[String; 3]], random: &mut fastrand::Rng) {
    let lines = rows.iter().map(|[id, text, note]| json!({"id": id, "text": text, "note": note}).to_string());
    let content = lines.collect::<Vec<_>>().join("\n");
    let mut desk = Desk::with("a.jsonl", content);
    let formats = ["csv", "tsv", "jsonl", "xlsx"];
    let mut name = String::from("a.jsonl");
    for step in 0..2 {
        let next = format!("{step}.{}", formats[random.usize(0..formats.len())]);
        desk.export(&next, &mut Scores::default()).unwrap();
        desk.source = source(&desk.path(&next));
        name = next;
    }
    let mut filled = Scores::default();
    for (row, [_, text, _]) in (1..).zip(rows) {
        filled = filled.row(row, text, [json!(0.5), json!(null)]);
    }
    for format in formats {
        let target = format!("out.{format}");
        let exported = desk.export(&target, &mut filled).unwrap();
        let way = format!("{name} to {target}: {rows:?}");
        assert_eq!((exported.rows, exported.changed), (rows.len() as u64, 0), "{way}");
        assert_eq!(exported.cells, rows.len() as u64, "{way}");
        let columns = ["id", "text", "note", "clarity"];
        let mut found = cells(&desk.path(&target), &columns);
        let heads = found.remove(0);
        assert_eq!(found.len(), rows.len(), "{way}");
        for (row, [id, text, note]) in found.iter().zip(rows) {
            let cell = |name: &str| {
                let column = heads.iter().position(|head| head == name).unwrap();
                row.get(column).map_or("", String::as_str)
            };
            assert_eq!([cell("id"), cell("text")], [id, text], "{way}");
            // What looks like a formula may have been made harmless on the way.
            let found = cell("note");
            assert!(found == note || found == harmless(note.into()), "{found:?}: {way}");
            assert_eq!(cell("clarity"), "0.5", "{way}");
        }
    }
}
