//! What becomes of a file when its scores are written.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::*;

const TABLE: &str = "id,text,tone\n1,\"hello, you\",\n2,bye,0.9\n3,,\n";

fn scores() -> Scores {
    Scores::default().row(1, "hello, you", [json!(0.25), json!(0.5)]).row(2, "bye", [json!(1), json!(null)])
}

#[test]
fn scores_stand_beside_what_was_there() {
    let desk = Desk::with("a.csv", TABLE);
    let exported = desk.export("out.csv", &mut scores()).unwrap();
    assert_eq!(exported, Exported { rows: 3, cells: 3, changed: 0 });
    let expected = "id,text,tone,clarity\n1,\"hello, you\",0.5,0.25\n2,bye,0.9,1\n3,,,\n";
    assert_eq!(desk.text("out.csv"), expected);
    assert_eq!(desk.text("a.csv"), TABLE);
    assert_eq!(desk.names(), ["a.csv", "out.csv"]);
}

#[test]
fn each_format_becomes_each_other() {
    let columns = ["id", "text", "tone", "clarity"];
    let expected = [
        columns.to_vec(),
        vec!["1", "hello, you", "0.5", "0.25"],
        vec!["2", "bye", "0.9", "1"],
        vec!["3", "", "", ""],
    ];
    let first = Desk::with("a.csv", TABLE);
    for from in ["csv", "tsv", "jsonl", "xlsx"] {
        // The same table in the first format, without any scores.
        let name = format!("a.{from}");
        first.export(&format!("b.{from}"), &mut Scores::default()).unwrap();
        let desk = Desk::with(&name, fs::read(first.path(&format!("b.{from}"))).unwrap());
        for to in ["csv", "tsv", "jsonl", "xlsx"] {
            let target = format!("out.{to}");
            let exported = desk.export(&target, &mut scores()).unwrap();
            assert_eq!(exported, Exported { rows: 3, cells: 3, changed: 0 }, "{from} to {to}");
            let mut found = cells(&desk.path(&target), &columns);
            // A table of JSONL has its columns in the order of their first line.
            let order: Vec<_> =
                columns.map(|name| found[0].iter().position(|head| head == name).unwrap()).to_vec();
            for row in &mut found {
                row.resize(columns.len(), String::new());
                *row = order.iter().map(|column| row[*column].clone()).collect();
            }
            assert_eq!(found, expected, "{from} to {to}");
        }
    }
}

#[test]
fn jsonl_keeps_its_lines() {
    let desk = Desk::with(
        "a.jsonl",
        "{\"z\":1.50,\"text\":\"a\",\"b\":{\"y\":1,\"x\":2}}\n\n{\"tone\": \"\", \"text\": \"b\"}\n",
    );
    let mut filled =
        Scores::default().row(1, "a", [json!(0.5), json!(null)]).row(3, "b", [json!(1), json!(0.25)]);
    let exported = desk.export("out.jsonl", &mut filled).unwrap();
    assert_eq!(exported, Exported { rows: 3, cells: 3, changed: 0 });
    let expected = "{\"z\":1.50,\"text\":\"a\",\"b\":{\"y\":1,\"x\":2}, \"clarity\": 0.5}\n\n\
                    {\"tone\": 0.25, \"text\": \"b\", \"clarity\": 1}\n";
    assert_eq!(desk.text("out.jsonl"), expected);
}

#[test]
fn numbers_are_numbers_in_json() {
    let desk = Desk::with("a.csv", "zip,text,tone\n01234,a,0.9\n");
    desk.export("out.jsonl", &mut Scores::default().row(1, "a", [json!(0.5)])).unwrap();
    let expected = "{\"zip\": \"01234\", \"text\": \"a\", \"tone\": 0.9, \"clarity\": 0.5}\n";
    assert_eq!(desk.text("out.jsonl"), expected);
}

#[test]
fn a_workbook_has_numbers_dates_and_texts_as_they_were() {
    use calamine::{Data, Reader as _};
    let desk = Desk::with("a.csv", "zip,n,text\n007,7,=1+1\n");
    let desk = desk.rationale();
    let cells = [json!(0.5), json!("=HYPERLINK(\"http://x\")")];
    desk.export("out.xlsx", &mut Scores::default().row(1, "=1+1", cells)).unwrap();
    let mut workbook: calamine::Xlsx<_> = calamine::open_workbook(desk.path("out.xlsx")).unwrap();
    let range = workbook.worksheet_range_at(0).unwrap().unwrap();
    let row: Vec<_> = range.rows().nth(1).unwrap().to_vec();
    let text = |text: &str| Data::String(text.to_owned());
    let expected =
        [text("007"), Data::Float(7.0), text("=1+1"), Data::Float(0.5), text("=HYPERLINK(\"http://x\")")];
    assert_eq!(row[..5], expected);
    assert!(workbook.worksheet_formula("Sheet1").unwrap().is_empty());
}

#[test]
fn a_date_of_a_workbook_stays_one() {
    use rust_xlsxwriter::{Format as CellFormat, Workbook};
    let desk = Desk::with("a.xlsx", "");
    let mut workbook = Workbook::new();
    let sheet = workbook.add_worksheet();
    sheet.write_row(0, 0, ["text", "day"]).unwrap().write_string(1, 0, "a").unwrap();
    let date = CellFormat::new().set_num_format("dd.mm.yyyy");
    sheet.write_number_with_format(1, 1, 45_943, &date).unwrap();
    workbook.save(desk.path("a.xlsx")).unwrap();
    desk.export("out.xlsx", &mut Scores::default()).unwrap();
    assert_eq!(cells(&desk.path("out.xlsx"), &[])[1], ["a", "2025-10-13"]);
    desk.export("out.csv", &mut Scores::default()).unwrap();
    assert_eq!(desk.text("out.csv"), "text,day,clarity,tone\na,2025-10-13,,\n");
}

#[test]
fn what_a_model_wrote_is_no_formula() {
    let desk = Desk::with("a.csv", "text\n=mine\n").rationale();
    let cells = [json!(-0.5), json!("=cmd|x"), json!("-1"), json!("@a,b")];
    desk.export("out.csv", &mut Scores::default().row(1, "=mine", cells)).unwrap();
    // What the user wrote is the user's business.
    let expected = "text,clarity,clarity reason,tone,tone reason\n=mine,-0.5,'=cmd|x,-1,\"'@a,b\"\n";
    assert_eq!(desk.text("out.csv"), expected);
}

#[test]
fn what_a_model_wrote_earlier_is_no_formula_either() {
    let line = "{\"text\":\"=mine\",\"clarity reason\":\"=cmd|x\"}\n";
    let desk = Desk::with("a.jsonl", line).rationale();
    desk.export("out.csv", &mut Scores::default()).unwrap();
    let expected = "text,clarity reason,clarity,tone,tone reason\n'=mine,'=cmd|x,,,\n";
    assert_eq!(desk.text("out.csv"), expected);
}

#[test]
fn an_edited_row_is_left_alone() {
    let desk = Desk::with("a.csv", "text,tone\n old ,\nedited,0.1\n");
    let mut filled =
        Scores::default().row(1, "old", [json!(0.5), json!(0.5)]).row(2, "before", [json!(0.5), json!(0.5)]);
    let exported = desk.export("a.csv", &mut filled).unwrap();
    assert_eq!(exported, Exported { rows: 2, cells: 2, changed: 1 });
    assert_eq!(desk.text("a.csv"), "text,tone,clarity\n old ,0.5,0.5\nedited,0.1,\n");
}

#[test]
fn existing_cells_stay_unless_asked_for() {
    let mut desk = Desk::with("a.csv", "text,clarity,tone\na,0.1,\n");
    let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(0.6)]);
    assert_eq!(desk.export("kept.csv", &mut filled).unwrap().cells, 1);
    assert_eq!(desk.text("kept.csv"), "text,clarity,tone\na,0.1,0.6\n");
    desk.existing = Existing::Overwrite;
    assert_eq!(desk.export("over.csv", &mut filled).unwrap().cells, 2);
    assert_eq!(desk.text("over.csv"), "text,clarity,tone\na,0.5,0.6\n");
}

#[test]
fn a_second_export_in_place_adds_no_columns() {
    let desk = Desk::with("a.csv", "text\na\n");
    let plan = desk.plan();
    let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(null)]);
    desk.export_by(&plan, "a.csv", &mut filled).unwrap();
    assert_eq!(desk.text("a.csv"), "text,clarity,tone\na,0.5,\n");
    let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(0.6)]);
    desk.export_by(&plan, "a.csv", &mut filled).unwrap();
    assert_eq!(desk.text("a.csv"), "text,clarity,tone\na,0.5,0.6\n");
}

#[test]
fn a_moved_column_is_found_again() {
    let desk = Desk::with("a.csv", "text,tone\na,\n");
    let plan = desk.plan();
    fs::write(desk.path("a.csv"), "new,tone,id,text\n,,7,a\n").unwrap();
    let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(0.6)]);
    let exported = desk.export_by(&plan, "a.csv", &mut filled).unwrap();
    assert_eq!(exported, Exported { rows: 1, cells: 2, changed: 0 });
    assert_eq!(desk.text("a.csv"), "new,tone,id,text,clarity\n,0.6,7,a,0.5\n");
}

#[test]
fn added_columns_stand_behind_the_longest_row() {
    let desk = Desk::with("a.csv", "text\na,x,,\nb\n\n");
    let mut filled = Scores::default().row(2, "b", [json!(0.5), json!(1)]);
    desk.export("out.csv", &mut filled).unwrap();
    assert_eq!(desk.text("out.csv"), "text,,clarity,tone\na,x,,\nb,,0.5,1\n\n");
}

#[test]
fn untouched_cells_keep_their_bytes() {
    let content = "\u{feff}\"text\",\"n\",tone\r\n\"a\",\"1\", \r\n\"b \"\"x\"\"\nc\",2,\"\"\r\n";
    let desk = Desk::with("a.csv", content);
    let mut filled = Scores::default().row(1, "a", [json!(null), json!(0.5)]);
    let mut plan = desk.plan();
    plan.targets.remove(0);
    plan.targets[0].column = Some(2);
    filled.0.get_mut(&1).unwrap().cells.remove(0);
    desk.export_by(&plan, "out.csv", &mut filled).unwrap();
    assert_eq!(desk.text("out.csv"), content.replace("\"1\", ", "\"1\",0.5"));
}

#[test]
fn the_layout_with_heads_keeps_them() {
    let content = ",,,\n,,text,clarity\n,,,is it clear\n,,,\n,,a,\n,,b,0.1\n";
    let mut desk = Desk::with("a.csv", content);
    desk.layout = Layout::sheet();
    let mut filled = Scores::default().row(4, "a", [json!(0.5)]);
    let exported = desk.export("out.csv", &mut filled).unwrap();
    assert_eq!(exported, Exported { rows: 2, cells: 1, changed: 0 });
    assert_eq!(desk.text("out.csv"), content.replace(",,a,", ",,a,0.5"));
    desk.export("out.jsonl", &mut filled).unwrap();
    let expected = "{\"column 1\": \"\", \"column 2\": \"\", \"text\": \"a\", \"clarity\": 0.5}\n\
                    {\"column 1\": \"\", \"column 2\": \"\", \"text\": \"b\", \"clarity\": 0.1}\n";
    assert_eq!(desk.text("out.jsonl"), expected);
}

#[test]
fn a_target_keeps_its_mode_and_its_link() {
    let desk = Desk::with("a.csv", TABLE);
    fs::write(desk.path("real.csv"), "old").unwrap();
    fs::set_permissions(desk.path("real.csv"), fs::Permissions::from_mode(0o640)).unwrap();
    for (link, to) in [("link.csv", "real.csv"), ("dangling.csv", "new.csv")] {
        std::os::unix::fs::symlink(to, desk.path(link)).unwrap();
        desk.export(link, &mut scores()).unwrap();
        assert!(fs::symlink_metadata(desk.path(link)).unwrap().is_symlink(), "{link}");
        assert!(desk.text(to).starts_with("id,text,tone,clarity\n"), "{to}");
    }
    assert_eq!(fs::metadata(desk.path("real.csv")).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(desk.names(), ["a.csv", "dangling.csv", "link.csv", "new.csv", "real.csv"]);
}

/// Scores without a table of them.
struct Half;

impl Filled for Half {
    fn row(&mut self, number: u64) -> Result<Option<FilledRow>> {
        let cells = vec![Some(json!(0.5)), Some(json!(0.25))];
        Ok(Some(FilledRow { text: format!("text {number}"), cells, answered_by: Vec::new() }))
    }
}

#[test]
fn many_rows_go_through_one_by_one() {
    const ROWS: u64 = 200_000;
    let mut content = String::from("id,text\n");
    for number in 1..=ROWS {
        content.push_str(&format!("{number},text {number}\n"));
    }
    let desk = Desk::with("a.csv", &content);
    let exported = desk.export("out.csv", &mut Half).unwrap();
    assert_eq!(exported, Exported { rows: ROWS, cells: 2 * ROWS, changed: 0 });
    let found = fs::read(desk.path("out.csv")).unwrap();
    assert_eq!(found.iter().filter(|byte| **byte == b'\n').count() as u64, ROWS + 1);
    assert!(found.ends_with(b"200000,text 200000,0.5,0.25\n"));
}

#[test]
fn a_text_that_was_no_formula_becomes_none_in_another_format() {
    let desk = Desk::with("a.jsonl", "{\"=head\":\"x\",\"text\":\"=1+1\",\"n\":-5}\n");
    let desk = Desk { categories: vec![category("=score")], ..desk };
    let mut filled = Scores::default().row(1, "=1+1", [json!(-1e-7)]);
    desk.export("out.csv", &mut filled).unwrap();
    assert_eq!(desk.text("out.csv"), "'=head,text,n,'=score\nx,'=1+1,-5,-1e-7\n");
    // Through a workbook, which has a type for texts.
    desk.export("out.xlsx", &mut filled).unwrap();
    let book = Desk { source: source(&desk.path("out.xlsx")), ..desk };
    book.export("again.tsv", &mut Scores::default()).unwrap();
    assert!(book.text("again.tsv").contains("x\t'=1+1\t-5\t"), "{}", book.text("again.tsv"));
    // In CSV it was one before: it is left to its writer, and the column of the score is found again.
    let csv = Desk::with("a.csv", "text,'=score\n=1+1,\n");
    let csv = Desk { categories: vec![category("=score")], ..csv };
    csv.export("out.csv", &mut Scores::default().row(1, "=1+1", [json!("=2")])).unwrap();
    assert_eq!(csv.text("out.csv"), "text,'=score\n=1+1,'=2\n");
}
