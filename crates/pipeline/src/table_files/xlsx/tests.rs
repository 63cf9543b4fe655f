//! Workbooks that are made to exhaust the reader's memory.

use std::fs;
use std::io::Cursor;

use calamine::ExcelDateTimeType::{DateTime, TimeDelta};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::*;
use crate::table_files::testing::Parts;

/// What a refused workbook may cost. The unpacked parts below have 64 MiB, which the reader would hold four times.
const REFUSED_BYTES_MAX: u64 = 100 * MIB;
const MIB: u64 = 1024 * 1024;
const LARGE: usize = 64 * 1024 * 1024;

fn read(bytes: Vec<u8>) -> Result<Vec<Vec<String>>> {
    let mut reader = XlsxReader::open(Cursor::new(bytes), Path::new("a.xlsx"), None)?;
    let mut rows = Vec::new();
    while let Some(record) = reader.next_row()? {
        rows.push(record.cells.into_iter().map(Cell::into_text).collect());
    }
    Ok(rows)
}

/// The most memory that this process has had since [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn forget_peak() -> u64 {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    peak_bytes()
}

/// Refused with this text, at a price that is measured.
fn check(parts: &Parts, method: CompressionMethod, said: &str) {
    let packed = parts.packed(method);
    let before = forget_peak();
    let refused = read(packed).unwrap_err().0;
    let cost = peak_bytes().saturating_sub(before);
    assert!(refused.contains(said), "{refused}, not {said}");
    assert!(cost < REFUSED_BYTES_MAX, "{said}: {} MiB were taken", cost / MIB);
}

#[test]
fn a_workbook_is_read_as_long_as_it_is_small() {
    let rows = read(Parts::new().packed(CompressionMethod::Deflated)).unwrap();
    assert_eq!(rows, [["shared", "inline"]]);
}

/// One after the other: what is measured is the memory of the whole process.
#[test]
fn what_would_fill_the_memory_is_refused_before_it_is_held() {
    what_unpacks_without_bound();
    what_is_copied_or_promised();
}

fn what_unpacks_without_bound() {
    let cell = |text: &str| format!(r#"<row r="1"><c r="A1" t="inlineStr"><is>{text}</is></c></row>"#);
    let long = "x".repeat(LARGE);
    let runs = "<r><t>some text</t></r>".repeat(LARGE / 23);
    let attribute = format!(r#"<row a="{}"></row>"#, "><".repeat(LARGE / 2));
    let nested = "<a>".repeat(LARGE / 3);
    let texts = |count: usize| format!("<sst>{}</sst>", "<si/>".repeat(count));
    let deflated = CompressionMethod::Deflated;
    let ratio = "unpacks to more than 200 times its size";
    let parts = Parts::new;
    check(&parts().sheet(&cell(&format!("<t>{long}</t>"))), deflated, ratio);
    check(&parts().sheet(&cell(&runs)), deflated, "has a part");
    check(&parts().sheet(&attribute), deflated, "has a part");
    check(&parts().sheet(&"<row></row>".repeat(LARGE / 11)), deflated, ratio);
    check(&parts().with("xl/sharedStrings.xml", texts(LARGE / 5)), deflated, "more than 4000000 texts");
    check(&parts().with("xl/media/picture.png", long.clone()), deflated, ratio);
    // What does not pack well has no ratio to be known by.
    let stored = CompressionMethod::Stored;
    let large = "more than 16 MiB with a cell of more than 1 MiB";
    check(&parts().sheet(&cell(&format!("<t>{long}</t>"))), stored, large);
    check(&parts().sheet(&cell(&runs)), stored, large);
    check(&parts().sheet(&attribute), stored, large);
    check(&parts().sheet(&nested), stored, "tags nested too deeply");
    check(&parts().sheet(&"<c></is></c>".repeat(LARGE / 12)), stored, "tags that do not match");
    check(&parts().with("xl/media/picture.png", long.clone()), stored, large);
    check(&parts().with("xl/theme/theme1.xml", "<a></a>".repeat(LARGE / 7)), stored, "theme1.xml");
    check(&parts().with("xl/sharedStrings.xml", texts(4_000_001)), stored, "more than 4000000 texts");
}

fn what_is_copied_or_promised() {
    let deflated = CompressionMethod::Deflated;
    let parts = Parts::new;
    // Room for all of them would be made at once.
    let promise = r#"<sst uniqueCount="1000000000000"></sst>"#;
    check(&parts().with("xl/sharedStrings.xml", promise), deflated, "more than 4000000 texts");
    let code = format!(r#"<numFmt numFmtId="1" formatCode="{}"/>"#, "0".repeat(500_000));
    let formats = r#"<xf numFmtId="1"/>"#.repeat(1_000);
    let styles = format!("<styleSheet><numFmts>{code}</numFmts><cellXfs>{formats}</cellXfs></styleSheet>");
    check(&parts().with("xl/styles.xml", styles), deflated, "too many or too long formats");
    let sheets = r#"<sheet name="a" r:id="b"/>"#.repeat(5_000);
    check(&parts().with("xl/workbook.xml", sheets), deflated, "more than 4096 sheets");
    let address = format!(r#"<Relationship Id="b" Target="{}"/>"#, "x".repeat(100_000));
    check(&parts().with("xl/_rels/workbook.xml.rels", address), deflated, "an address of more than");
    // One long text in each cell of a row.
    let text = format!("<sst><si><t>{}</t></si></sst>", "x".repeat(900_000));
    let row = format!("<row>{}</row>", r#"<c t="s"><v>0</v></c>"#.repeat(16_000));
    check(&parts().with("xl/sharedStrings.xml", text).sheet(&row), deflated, "bytes in row 1");
}

#[test]
fn a_directory_of_very_many_parts_is_refused() {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for index in 0..10_001 {
        writer.start_file(format!("part{index}"), SimpleFileOptions::default()).unwrap();
    }
    let refused = read(writer.finish().unwrap().into_inner()).unwrap_err().0;
    assert!(refused.contains("more than 10000 parts"), "{refused}");
}

#[test]
fn dates_are_days_times_or_both() {
    for (days, kind, text) in [
        (45_943.0, DateTime, "2025-10-13"),
        (45_943.5, DateTime, "2025-10-13 12:00:00"),
        (0.25, DateTime, "06:00:00"),
        (1.5, TimeDelta, "36:00:00"),
    ] {
        assert_eq!(date_cell(&ExcelDateTime::new(days, kind, false), false).text(), text);
    }
}
