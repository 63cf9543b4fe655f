//! Workbooks made by hand, part by part, for tests that hand over what no spreadsheet program writes.

use std::io::{Cursor, Write as _};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const SHEET: &str = "xl/worksheets/sheet1.xml";

/// The parts of a workbook by name. It is read if nothing is changed.
#[derive(Debug)]
pub struct Parts(Vec<(&'static str, Vec<u8>)>);

impl Default for Parts {
    fn default() -> Self {
        Self::new()
    }
}

impl Parts {
    /// A workbook with a row of two cells.
    pub fn new() -> Self {
        let relation = |id: &str, kind: &str, target: &str| {
            format!(
                r#"<Relationships><Relationship Id="{id}" Type="http://x/relationships/{kind}" Target="{target}"/></Relationships>"#
            )
        };
        let parts = Self(Vec::new());
        parts
            .with("_rels/.rels", relation("a", "officeDocument", "xl/workbook.xml"))
            .with("xl/workbook.xml", r#"<workbook><sheets><sheet name="one" r:id="b"/></sheets></workbook>"#)
            .with("xl/_rels/workbook.xml.rels", relation("b", "worksheet", "worksheets/sheet1.xml"))
            .with("xl/sharedStrings.xml", "<sst uniqueCount=\"1\"><si><t>shared</t></si></sst>")
            .with("xl/styles.xml", r#"<styleSheet><cellXfs><xf numFmtId="0"/></cellXfs></styleSheet>"#)
            .sheet(r#"<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="inlineStr"><is><t>inline</t></is></c></row>"#)
    }

    /// Another content of a part.
    #[must_use]
    pub fn with(mut self, name: &'static str, content: impl Into<Vec<u8>>) -> Self {
        self.0.retain(|(found, _)| *found != name);
        self.0.push((name, content.into()));
        self
    }

    /// Other rows.
    #[must_use]
    pub fn sheet(self, rows: &str) -> Self {
        let content = format!("<worksheet><sheetData>{rows}</sheetData></worksheet>");
        self.with(SHEET, content)
    }

    /// The archive.
    pub fn packed(&self, method: CompressionMethod) -> Vec<u8> {
        self.begun(method).finish().expect("an archive in memory").into_inner()
    }

    fn begun(&self, method: CompressionMethod) -> ZipWriter<Cursor<Vec<u8>>> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in &self.0 {
            let options = SimpleFileOptions::default().compression_method(method);
            writer.start_file(*name, options).expect("an archive in memory");
            writer.write_all(content).expect("an archive in memory");
        }
        writer
    }
}

/// A workbook of a few hundred kilobytes with one cell of this many mebibytes.
pub fn bomb(mebibytes: usize) -> Vec<u8> {
    let mut parts = Parts::new();
    parts.0.retain(|(name, _)| *name != SHEET);
    let mut writer = parts.begun(CompressionMethod::Deflated);
    let piece = vec![b'x'; 1024 * 1024];
    let cell: &[u8] = br#"<worksheet><sheetData><row r="1"><c r="A1" t="inlineStr"><is><t>"#;
    writer.start_file(SHEET, SimpleFileOptions::default()).expect("an archive in memory");
    writer.write_all(cell).expect("an archive in memory");
    for _ in 0..mebibytes {
        writer.write_all(&piece).expect("an archive in memory");
    }
    writer.write_all(b"</t></is></c></row></sheetData></worksheet>").expect("an archive in memory");
    writer.finish().expect("an archive in memory").into_inner()
}
