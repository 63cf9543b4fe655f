//! Files that cannot be read, places that cannot be written to.

use std::io::{self, Write};

use serde_json::json;

use super::super::place::Place;
use super::super::sha256;
use super::*;
use longhaul_pipeline::table_files::ROW_BYTES_MAX;
use longhaul_pipeline::table_files::xlsx::XLSX_BYTES_MAX;

fn reading(name: &str, content: impl AsRef<[u8]>) -> String {
    let desk = Desk::with(name, content);
    let opened = open(&desk.source, &desk.wanted());
    message(opened.and_then(|mut rows| all(rows.as_mut())))
}

#[test]
fn what_is_wrong_is_told_by_line_and_with_a_way_out() {
    let long = format!("text\n{}\n", "x".repeat(ROW_BYTES_MAX + 1));
    let open_quote = format!("text\nok\n\"x{}", "\n".repeat(ROW_BYTES_MAX + 1));
    for (name, content, said) in [
        (
            "a.csv",
            &b"text\nok\nf\xfcr\n"[..],
            &["line 3", "not UTF-8 at byte 2", "save the file as UTF-8"][..],
        ),
        ("a.csv", b"\xff\xfet\0e\0", &["line 1", "not UTF-8", "save the file as UTF-8"]),
        ("a.csv", b"text\n\"a\nb\"\nok\n\"never,\nclosed\n", &["line 5", "never closed", "close the quote"]),
        ("a.tsv", b"text\n\"never\tclosed\n", &["line 2", "never closed"]),
        ("a.csv", long.as_bytes(), &["line 2", "longer than 8388608 bytes", "shorten it"]),
        ("a.csv", open_quote.as_bytes(), &["line 3: a quoted field that begins here", "close the quote"]),
        (
            "a.jsonl",
            b"{\"text\":\"a\"}\n[1]\n",
            &["line 2", "not a JSON object", "each line must be an object"],
        ),
        ("a.jsonl", b"{\"text\":\"a\"}\n\n{\"text\":\n", &["line 3", "not a JSON object"]),
        ("a.jsonl", b"{\"text\":\"\\ud800\"}\n", &["line 1", "a text is wrong"]),
        ("a.jsonl", b"\"\xfc\"\n", &["line 1", "not UTF-8"]),
        ("a.xlsx", b"", &["cannot be read as a workbook", "save it as CSV"]),
        ("a.xlsx", b"text,n\n", &["cannot be read as a workbook", "save it as CSV"]),
    ] {
        let found = reading(name, content);
        for part in said {
            assert!(found.contains(part), "{name}: {found}");
        }
    }
}

#[test]
fn a_workbook_too_large_is_sent_to_csv() {
    let desk = Desk::with("a.xlsx", "");
    let file = fs::OpenOptions::new().write(true).open(desk.path("a.xlsx")).unwrap();
    file.set_len(XLSX_BYTES_MAX + 1).unwrap();
    let found = message(open(&desk.source, &[]));
    assert!(found.contains("more than 100 MiB") && found.contains("save it as CSV"), "{found}");
}

#[test]
fn what_is_no_file_is_not_read() {
    let desk = Desk::with("a.csv", "");
    fs::create_dir(desk.path("folder.csv")).unwrap();
    for (name, said) in [("missing.csv", "is the name right"), ("folder.csv", "is a folder")] {
        let found = message(open(&source(&desk.path(name)), &[]));
        assert!(found.contains(name) && found.contains(said), "{found}");
        assert!(message(sha256(&desk.path(name))).contains(said));
    }
    let device =
        Source::File { path: "/dev/null".into(), format: Format::Csv, sheet: None, sha256: String::new() };
    assert!(message(open(&device, &[])).contains("device or a pipe"));
}

#[test]
fn who_may_not_read_or_write_is_told_what_to_do() {
    // Made by hand, because root may do everything.
    let denied = io::Error::from(io::ErrorKind::PermissionDenied);
    let path = Path::new("/x/a.csv");
    let found = super::super::unreadable(path, &denied).to_string();
    assert!(found.contains("allow this user to read it"), "{found}");
    let found = Place::of(path).unwrap().unwritable(&denied).to_string();
    assert!(found.contains("a folder that this user may write to"), "{found}");
}

#[test]
fn a_place_that_is_none_is_refused() {
    let desk = Desk::with("a.csv", "text\na\n");
    fs::create_dir(desk.path("folder.csv")).unwrap();
    for (target, said) in [("folder.csv", "is a folder"), ("none/out.csv", "make its folder first")] {
        let found = message(desk.export(target, &mut Scores::default()));
        assert!(found.contains(said), "{found}");
    }
    assert_eq!(desk.names(), ["a.csv", "folder.csv"]);
}

#[test]
fn a_table_that_fails_half_way_leaves_the_old_file() {
    let desk = Desk::with("a.csv", "text,clarity,tone\na,,\n\"never closed\n");
    for target in ["out.csv", "out.jsonl", "out.xlsx", "a.csv"] {
        if target != "a.csv" {
            fs::write(desk.path(target), "old").unwrap();
        }
        let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(0.5)]);
        assert!(message(desk.export(target, &mut filled)).contains("line 3"));
    }
    assert_eq!(desk.names(), ["a.csv", "out.csv", "out.jsonl", "out.xlsx"]);
    assert!(["out.csv", "out.jsonl", "out.xlsx"].iter().all(|name| desk.text(name) == "old"));
    assert!(desk.text("a.csv").ends_with("never closed\n"));
}

#[test]
fn what_a_workbook_cannot_hold_is_sent_elsewhere() {
    let desk = Desk::with("a.csv", format!("text\n{}\n", "x".repeat(32_768)));
    let found = message(desk.export("out.xlsx", &mut Scores::default()));
    assert!(found.contains("row 2, column 1") && found.contains("write to .csv"), "{found}");
    assert_eq!(desk.names(), ["a.csv"]);
}

/// A disk with so much space.
struct Disk<'a> {
    writer: &'a mut (dyn Write + Send),
    left: usize,
}

impl Write for Disk<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.left);
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.left -= count;
        self.writer.write(&bytes[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    let desk = Desk::with("a.csv", "text,clarity\na,\nb,\n");
    let plan = desk.plan();
    for target in ["out.csv", "out.tsv", "out.jsonl", "out.xlsx"] {
        let path = desk.path(target);
        fs::write(&path, "old").unwrap();
        let format = Format::of_path(&path).unwrap();
        let wanted = desk.wanted();
        let job = Export {
            source: &desk.source,
            wanted: &wanted,
            target: (&path, format),
            plan: &plan,
            existing: Existing::Keep,
        };
        // After each byte of a small file; a workbook has some thousand, so not after each.
        let step = if format == Format::Xlsx { 500 } else { 1 };
        let mut failed = 0;
        for left in (0..).step_by(step) {
            let mut filled = Scores::default().row(1, "a", [json!(0.5), json!(0.5)]);
            let through =
                |writer: &mut (dyn Write + Send), work: export::Work<'_>| work(&mut Disk { writer, left });
            match export::export_through(&job, &mut filled, through) {
                Ok(_) => break,
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains("make space") && error.contains(target), "{error}");
                    assert_eq!(fs::read(&path).unwrap(), b"old", "{target} after {left} bytes");
                    failed += 1;
                }
            }
        }
        assert!(failed > 5, "{target} failed {failed} times");
        assert_ne!(fs::read(&path).unwrap(), b"old");
    }
    assert_eq!(desk.names(), ["a.csv", "out.csv", "out.jsonl", "out.tsv", "out.xlsx"]);
}
