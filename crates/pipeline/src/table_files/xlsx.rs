//! Reads a sheet of a workbook row by row. The shared strings of a workbook are kept in memory; `bounds` checks the size of
//! everything that is kept beforehand.

mod bounds;
#[cfg(test)]
mod tests;

use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use calamine::{DataRef, ExcelDateTime, Reader as _, SheetType, Xlsx, XlsxError};

use self::bounds::Refused;
use super::cell::{Cell, DateKind, Record};
use super::{COLUMNS_MAX, ROW_BYTES_MAX, TableError};

pub use self::bounds::{XLSX_BYTES_MAX, XLSX_TEXT_BYTES_MAX, XLSX_UNPACKED_BYTES_MAX};

/// Most rows of a sheet, by the format.
pub const ROWS_MAX: u32 = 1_048_576;
/// Rows that are read before they are asked for: as many, or as many bytes and one row more.
const ROWS_AHEAD: usize = 64;
const BYTES_AHEAD: usize = 256 * 1024;
/// Days between the starts of the two calendars of workbooks.
const DAYS_TO_1904: f64 = 1_462.0;
const DAY_SECONDS: f64 = 86_400.0;
const HINT: &str = "save it as CSV";
const DAMAGED: &str = "cannot be read as a workbook: open it in a spreadsheet program and save it as CSV";

type Result<T, E = TableError> = std::result::Result<T, E>;

/// Reads rows. The crate lends its cells out of the workbook, so both live on a thread, which hands over rows and ends
/// when the receiver is gone.
#[derive(Debug)]
pub struct XlsxReader {
    pages: Receiver<Result<Page>>,
    page: std::vec::IntoIter<Record>,
    path: PathBuf,
    is_over: bool,
}

/// Some rows; none at the end of the sheet.
type Page = Vec<Record>;

impl XlsxReader {
    /// Reads a sheet of a workbook, the first by default. `path` is what errors call it.
    pub fn open<R>(mut file: R, path: &Path, sheet: Option<&str>) -> Result<Self>
    where
        R: Read + Seek + Send + 'static,
    {
        bounds::check(&mut file).map_err(|refused| match refused {
            Refused::Damaged(why) => wrong(path, &format!("{DAMAGED} ({why})")),
            Refused::TooLarge(what) => wrong(path, &format!("{what}, too large for a workbook: {HINT}")),
        })?;
        let damaged = |error: XlsxError| wrong(path, &format!("{DAMAGED} ({error})"));
        let workbook = Xlsx::new(BufReader::new(file)).map_err(damaged)?;
        let name = sheet_name(&workbook, sheet).map_err(|text| wrong(path, &text))?;
        // One page waits while the next is made.
        let (sender, pages) = sync_channel(1);
        let place = path.to_owned();
        let work = move || {
            let end = send_rows(workbook, &name, &place, &sender);
            // Nobody is left to tell when the receiver is gone.
            let _ = sender.send(end.map(|()| Page::new()));
        };
        let started = thread::Builder::new().name("longhaul-xlsx".to_owned()).spawn(work);
        started.map_err(|error| wrong(path, &format!("cannot be read: {error}")))?;
        Ok(Self { pages, page: Page::new().into_iter(), path: path.to_owned(), is_over: false })
    }

    /// The next row; empty ones are read too, so that numbers are right.
    pub fn next_row(&mut self) -> Result<Option<Record>> {
        if let Some(record) = self.page.next() {
            return Ok(Some(record));
        }
        if self.is_over {
            return Ok(None);
        }
        // A thread that ends without a word has met a file that the crate did not expect.
        let page = self.pages.recv().unwrap_or_else(|_| Err(wrong(&self.path, DAMAGED)));
        self.is_over = !matches!(&page, Ok(page) if !page.is_empty());
        self.page = page?.into_iter();
        Ok(self.page.next())
    }
}

fn wrong(path: &Path, text: &str) -> TableError {
    TableError(format!("{} {text}", path.display()))
}

fn sheet_name<R: Read + Seek>(workbook: &Xlsx<BufReader<R>>, wanted: Option<&str>) -> Result<String, String> {
    let sheets = workbook.sheets_metadata().iter().filter(|sheet| sheet.typ == SheetType::WorkSheet);
    let names: Vec<&str> = sheets.map(|sheet| sheet.name.as_str()).collect();
    let found = match wanted {
        Some(wanted) => names.iter().find(|name| **name == wanted),
        None => names.first(),
    };
    match (found, wanted) {
        (Some(name), _) => Ok((*name).to_owned()),
        (None, Some(wanted)) => Err(format!("has no sheet {wanted:?}; its sheets are: {}", names.join(", "))),
        (None, None) => Err("has no sheets".to_owned()),
    }
}

fn send_rows<R: Read + Seek>(
    mut workbook: Xlsx<BufReader<R>>,
    name: &str,
    path: &Path,
    sender: &SyncSender<Result<Page>>,
) -> Result<()> {
    let damaged = |error: XlsxError| wrong(path, &format!("{DAMAGED} ({error})"));
    let is_1904 = workbook.has_1904_epoch();
    let mut cells = workbook.worksheet_cells_reader(name).map_err(damaged)?;
    let mut record = empty(0);
    let (mut page, mut page_bytes, mut row_bytes) = (Page::new(), 0, 0);
    while let Some(found) = cells.next_cell().map_err(damaged)? {
        let (row, column) = found.get_position();
        let column = column as usize;
        if row >= ROWS_MAX || column >= COLUMNS_MAX || u64::from(row) < record.number {
            return Err(wrong(path, DAMAGED));
        }
        while record.number < u64::from(row) {
            let next = empty(record.number + 1);
            page_bytes += size_of_val(&record.cells[..]) + std::mem::take(&mut row_bytes);
            page.push(std::mem::replace(&mut record, next));
            if page.len() >= ROWS_AHEAD || page_bytes >= BYTES_AHEAD {
                page_bytes = 0;
                if sender.send(Ok(std::mem::take(&mut page))).is_err() {
                    return Ok(());
                }
            }
        }
        let cell = cell(found.get_value(), is_1904);
        if cell == Cell::Empty {
            continue;
        }
        // Many cells may name one long text.
        row_bytes += cell.text_bytes();
        if row_bytes > ROW_BYTES_MAX {
            let text = format!("has more than {ROW_BYTES_MAX} bytes in row {}: shorten its texts", row + 1);
            return Err(wrong(path, &text));
        }
        if record.cells.len() <= column {
            record.cells.resize(column + 1, Cell::Empty);
        }
        record.cells[column] = cell;
    }
    if record.number > 0 || !record.cells.is_empty() {
        page.push(record);
    }
    if !page.is_empty() {
        // Nobody takes it any more when this fails.
        let _ = sender.send(Ok(page));
    }
    Ok(())
}

fn empty(number: u64) -> Record {
    Record { number, cells: Vec::new(), original: None }
}

fn cell(value: &DataRef<'_>, is_1904: bool) -> Cell {
    match value {
        DataRef::Empty => Cell::Empty,
        DataRef::Int(number) => Cell::Number(*number as f64),
        DataRef::Float(number) => Cell::Number(*number),
        DataRef::String(text) | DataRef::DateTimeIso(text) | DataRef::DurationIso(text) => {
            Cell::Text(text.clone())
        }
        DataRef::SharedString(text) => Cell::Text((*text).to_owned()),
        DataRef::Bool(value) => Cell::Bool(*value),
        DataRef::DateTime(date) => date_cell(date, is_1904),
        DataRef::Error(error) => Cell::Text(error.to_string()),
    }
}

fn date_cell(date: &ExcelDateTime, is_1904: bool) -> Cell {
    let days = date.as_f64();
    if date.is_duration() {
        let seconds = (days * DAY_SECONDS).round().max(0.0) as u64;
        let text = format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        return Cell::Date { serial: days, text, kind: DateKind::Duration };
    }
    let (year, month, day, hour, minute, second, _) = date.to_ymd_hms_milli();
    let day = format!("{year:04}-{month:02}-{day:02}");
    let time = format!("{hour:02}:{minute:02}:{second:02}");
    let (text, kind) = match (days < 1.0, time == "00:00:00") {
        (true, _) => (time, DateKind::Time),
        (false, true) => (day, DateKind::Day),
        (false, false) => (format!("{day} {time}"), DateKind::DayAndTime),
    };
    let serial = if is_1904 && kind != DateKind::Time { days + DAYS_TO_1904 } else { days };
    Cell::Date { serial, text, kind }
}
