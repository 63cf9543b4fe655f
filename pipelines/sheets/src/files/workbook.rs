//! Writes a table with its scores as a new workbook.

use std::io::{self, Write};
use std::path::Path;

use super::export::{Fill, Fills, Output};
use longhaul_pipeline::table_files::workbook::Content;
use longhaul_pipeline::table_files::{Record, WorkbookWriter};

/// Writes rows.
pub(super) struct WorkbookOutput<'a> {
    writer: &'a mut (dyn Write + Send),
    workbook: WorkbookWriter,
}

impl<'a> WorkbookOutput<'a> {
    pub(super) fn new(
        writer: &'a mut (dyn Write + Send),
        folder: &Path,
        sheet: Option<&str>,
    ) -> io::Result<Self> {
        Ok(Self { writer, workbook: WorkbookWriter::new(folder, sheet)? })
    }
}

impl Output for WorkbookOutput<'_> {
    fn row(&mut self, record: &Record, fills: &Fills<'_>) -> io::Result<()> {
        let content = |column: usize| match (fills.get(column), record.cells.get(column)) {
            (Some(Fill::Head(name)), _) => Content::Text(name),
            (Some(Fill::Value(value)), _) => Content::Value(value),
            (None, Some(cell)) => Content::Cell(cell),
            (None, None) => Content::Empty,
        };
        self.workbook.row(record.number, (0..fills.width(record)).map(content))
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        self.workbook.finish(self.writer)
    }
}
