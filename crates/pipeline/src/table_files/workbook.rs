//! Writes a new workbook with values. Rows go through a file in a folder, so memory stays flat.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rust_xlsxwriter::{Format as CellFormat, Workbook, Worksheet, XlsxError};
use serde_json::Value;

use super::COLUMNS_MAX;
use super::cell::{Cell, DateKind, NUMBER_DIGITS_MAX, plain_number, value_text};
use super::xlsx::ROWS_MAX;

/// Most characters of a cell, by the format.
const CELL_CHARS_MAX: usize = 32_767;

/// Writes rows.
pub struct WorkbookWriter {
    workbook: Workbook,
    dates: Dates,
}

/// What a cell gets.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// Nothing.
    Empty,
    /// What another table has.
    Cell(&'a Cell),
    /// Of a format without types: it may be a number.
    Plain(&'a str),
    /// A text, also when it looks like a number.
    Text(&'a str),
    /// What a model said.
    Value(&'a Value),
}

struct Dates {
    day: CellFormat,
    time: CellFormat,
    both: CellFormat,
    duration: CellFormat,
}

impl WorkbookWriter {
    /// A workbook with one sheet. Its rows are in a file of `folder` until it is finished.
    pub fn new(folder: &Path, sheet: Option<&str>) -> io::Result<Self> {
        let mut workbook = Workbook::new();
        workbook.set_tempdir(folder).map_err(failed)?;
        let worksheet = workbook.add_worksheet_with_constant_memory().map_err(failed)?;
        if let Some(name) = sheet {
            worksheet.set_name(name).map_err(failed)?;
        }
        let format = |text: &str| CellFormat::new().set_num_format(text);
        let dates = Dates {
            day: format("yyyy-mm-dd"),
            time: format("hh:mm:ss"),
            both: format("yyyy-mm-dd hh:mm:ss"),
            duration: format("[h]:mm:ss"),
        };
        Ok(Self { workbook, dates })
    }

    /// Writes a row, by its number from 0. Numbers only rise.
    pub fn row<'a>(
        &mut self,
        number: u64,
        cells: impl ExactSizeIterator<Item = Content<'a>>,
    ) -> io::Result<()> {
        let width = cells.len();
        let row = u32::try_from(number).ok().filter(|row| *row < ROWS_MAX);
        let (Some(row), true) = (row, width <= COLUMNS_MAX) else {
            return Err(too_large(&format!(
                "a sheet has at most {ROWS_MAX} rows and {COLUMNS_MAX} columns, and this is row {} with {width}",
                number + 1
            )));
        };
        let Self { workbook, dates } = self;
        unpanicked(|| {
            let worksheet = workbook.worksheet_from_index(0).map_err(failed)?;
            for (column, content) in cells.enumerate() {
                write(worksheet, (row, column as u16), content, dates)?;
            }
            Ok(())
        })
    }

    /// Writes the whole workbook.
    pub fn finish(mut self, writer: &mut (dyn Write + Send)) -> io::Result<()> {
        unpanicked(|| self.workbook.save_to_writer(writer).map_err(failed))
    }
}

impl std::fmt::Debug for WorkbookWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("WorkbookWriter").finish_non_exhaustive()
    }
}

/// The crate panics when the file of its rows cannot be written, as on a full disk.
fn unpanicked(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "rows could not be kept in its folder on the way to the workbook";
        Err(io::Error::new(io::ErrorKind::StorageFull, text))
    })
}

type At = (u32, u16);

fn write(worksheet: &mut Worksheet, at: At, content: Content<'_>, dates: &Dates) -> io::Result<()> {
    match content {
        Content::Empty => Ok(()),
        Content::Cell(cell) => write_cell(worksheet, at, cell, dates),
        Content::Plain(text) => match plain_number(text) {
            Some(number) => write_number(worksheet, at, number),
            None => write_text(worksheet, at, text),
        },
        Content::Text(text) => write_text(worksheet, at, text),
        Content::Value(value) => write_value(worksheet, at, value),
    }
}

fn write_value(worksheet: &mut Worksheet, at: At, value: &Value) -> io::Result<()> {
    match (value, value.as_f64()) {
        (Value::Bool(value), _) => worksheet.write_boolean(at.0, at.1, *value).map(drop).map_err(failed),
        (_, Some(number)) => write_number(worksheet, at, number),
        (_, None) => write_text(worksheet, at, &value_text(value).unwrap_or_default()),
    }
}

fn write_cell(worksheet: &mut Worksheet, at: At, cell: &Cell, dates: &Dates) -> io::Result<()> {
    match cell {
        Cell::Empty => Ok(()),
        Cell::Plain(text) => write(worksheet, at, Content::Plain(text), dates),
        Cell::Text(text) => write_text(worksheet, at, text),
        Cell::Number(number) => write_number(worksheet, at, *number),
        Cell::Bool(value) => worksheet.write_boolean(at.0, at.1, *value).map(drop).map_err(failed),
        Cell::Date { serial, kind, .. } => {
            let format = match kind {
                DateKind::Day => &dates.day,
                DateKind::Time => &dates.time,
                DateKind::DayAndTime => &dates.both,
                DateKind::Duration => &dates.duration,
            };
            worksheet.write_number_with_format(at.0, at.1, *serial, format).map(drop).map_err(failed)
        }
        // As a number it would lose its last digits.
        Cell::Json(text) if is_long_integer(text) => write_text(worksheet, at, text),
        Cell::Json(text) => match serde_json::from_str(text) {
            Ok(value) => write_value(worksheet, at, &value),
            Err(_) => write_text(worksheet, at, text),
        },
    }
}

fn is_long_integer(text: &str) -> bool {
    text.len() > NUMBER_DIGITS_MAX && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit())
}

fn write_number(worksheet: &mut Worksheet, at: At, number: f64) -> io::Result<()> {
    worksheet.write_number(at.0, at.1, number).map(drop).map_err(failed)
}

/// Always as text: a value that begins with `=` is not a formula.
fn write_text(worksheet: &mut Worksheet, at: At, text: &str) -> io::Result<()> {
    let length = text.encode_utf16().count();
    if length > CELL_CHARS_MAX {
        return Err(too_large(&format!(
            "row {}, column {} has {length} characters, and a cell takes {CELL_CHARS_MAX}",
            at.0 + 1,
            at.1 + 1
        )));
    }
    if text.is_empty() {
        return Ok(());
    }
    worksheet.write_string(at.0, at.1, text).map(drop).map_err(failed)
}

fn too_large(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{text}; write to .csv or .jsonl instead"))
}

fn failed(error: XlsxError) -> io::Error {
    match error {
        XlsxError::IoError(error) | XlsxError::ZipError(zip::result::ZipError::Io(error)) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_on_a_full_disk_is_an_error() {
        let error = unpanicked(|| panic!("as the crate does")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn long_ids_stay_whole() {
        assert!(is_long_integer("12345678901234567") && is_long_integer("-1234567890123456"));
        assert!(!is_long_integer("123456789012345") && !is_long_integer("0.1234567890123456789"));
    }
}
