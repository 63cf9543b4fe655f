//! What is read of good files.

use super::*;

#[test]
fn rows_of_csv_and_tsv() {
    for (name, content, expected) in [
        ("a.csv", "text,n\nhello,1\n", &[&["text", "n"][..], &["hello", "1"]][..]),
        ("bom.csv", "\u{feff}text\r\nhello\r\n", &[&["text"], &["hello"]]),
        (
            "break.csv",
            "text,n\n\"two\nlines\",1\nb,2\n",
            &[&["text", "n"], &["two\nlines", "1"], &["b", "2"]],
        ),
        ("quote.csv", "text\n\"say \"\"hi\"\"\"\n5\" pipe\n", &[&["text"], &["say \"hi\""], &["5\" pipe"]]),
        ("ragged.csv", "text,n\na\nb,1,2\n", &[&["text", "n"], &["a"], &["b", "1", "2"]]),
        ("blank.csv", "text\n\nhello\n\n", &[&["text"], &[], &["hello"], &[]]),
        ("noend.csv", "text\nhello", &[&["text"], &["hello"]]),
        ("return.csv", "text,n\na\rb,1\nc,2\n", &[&["text", "n"], &["a\rb", "1"], &["c", "2"]]),
        ("a.tsv", "text\tn\na,b\t1\n", &[&["text", "n"], &["a,b", "1"]]),
        ("empty.csv", "", &[]),
    ] {
        let desk = Desk::with(name, content);
        let rows = desk.rows();
        let found: Vec<Vec<&str>> =
            rows.iter().map(|row| row.cells.iter().map(String::as_str).collect()).collect();
        assert_eq!(found, expected, "{name}");
        assert!(rows.iter().zip(0..).all(|(row, number)| row.number == number), "{name}");
    }
}

#[test]
fn lines_of_jsonl_are_rows_below_a_head() {
    let desk = Desk::with(
        "a.jsonl",
        "{\"id\":7,\"text\":\"hello\",\"tone\":0.5}\n\n{\"clarity\":null,\"text\":[1, 2]}\n",
    );
    let rows = desk.rows();
    let found: Vec<_> = rows.iter().map(|row| (row.number, row.cells.join("|"))).collect();
    let expected = [(0, "text|clarity|tone"), (1, "hello||0.5"), (2, ""), (3, "[1, 2]||")];
    assert_eq!(found, expected.map(|(number, text)| (number, text.to_owned())));
}

#[test]
fn a_workbook_is_read_as_a_person_sees_it() {
    use rust_xlsxwriter::{Format as CellFormat, Workbook};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.xlsx");
    let mut workbook = Workbook::new();
    workbook.add_worksheet().set_name("First").unwrap().write_string(0, 0, "text").unwrap();
    let sheet = workbook.add_worksheet().set_name("Second").unwrap();
    let date = CellFormat::new().set_num_format("yyyy-mm-dd");
    sheet.write_string(0, 0, "text").unwrap();
    sheet.write_number(2, 0, 5).unwrap();
    sheet.write_number(2, 1, 0.25).unwrap();
    sheet.write_boolean(2, 2, true).unwrap();
    sheet.write_number_with_format(2, 4, 45_943, &date).unwrap();
    workbook.save(&path).unwrap();
    assert_eq!(cells(&path, &[]), [["text"]]);

    let named = |sheet: &str| Source::File {
        path: path.clone(),
        format: Format::Xlsx,
        sheet: Some(sheet.to_owned()),
        sha256: String::new(),
    };
    let rows = all(open(&named("Second"), &[]).unwrap().as_mut()).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.number, row.cells.join("|"))).collect();
    let expected = [(0, "text"), (1, ""), (2, "5|0.25|TRUE||2025-10-13")];
    assert_eq!(found, expected.map(|(number, text)| (number, text.to_owned())));

    let error = message(open(&named("Third"), &[]));
    assert!(error.contains("no sheet \"Third\"") && error.contains("First, Second"), "{error}");
    // A reader that is left early leaves no thread that waits for it.
    drop(open(&named("Second"), &[]).unwrap());
}

#[test]
fn the_digest_is_of_the_bytes() {
    let desk = Desk::with("a.csv", "abc");
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(super::super::sha256(&desk.path("a.csv")).unwrap(), expected);
}
