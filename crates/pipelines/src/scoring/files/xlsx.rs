//! Reads a sheet of a workbook cell by cell. The list of a workbook's texts is held in memory, therefore the limits.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use calamine::{DataRef, ExcelDateTime, Reader as _, SheetType, Xlsx, XlsxError};

use super::super::Result;
use super::cell::{Cell, DateKind, Record};
use super::{Reader, open_file, unreadable, wrong};

/// Largest workbook that is read.
pub const XLSX_BYTES_MAX: u64 = 100 * 1024 * 1024;
/// Most bytes of a workbook's texts, unpacked: they are held in memory.
pub const XLSX_TEXT_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Most rows and columns of a sheet, by the format.
pub(super) const ROWS_MAX: u32 = 1_048_576;
pub(super) const COLUMNS_MAX: u32 = 16_384;
/// Where the texts of all cells are.
const TEXTS: &str = "sharedStrings.xml";
/// Rows that are read before they are asked for.
const ROWS_AHEAD: usize = 64;
/// Days between the starts of the two calendars of workbooks.
const DAYS_TO_1904: f64 = 1_462.0;
const DAY_SECONDS: f64 = 86_400.0;
const HINT: &str = "save it as CSV";
const DAMAGED: &str = "cannot be read as a workbook: open it in a spreadsheet program and save it as CSV";

/// Reads rows. The crate lends its cells out of the workbook, so both live on a thread, which hands over rows and ends
/// when nobody takes them.
pub(super) struct XlsxReader {
    rows: Receiver<Result<Option<Record>>>,
    path: PathBuf,
    is_over: bool,
}

impl XlsxReader {
    pub(super) fn open(path: &Path, sheet: Option<&str>) -> Result<Self> {
        let mut file = BufReader::new(open_file(path)?);
        check_size(path, &mut file)?;
        let damaged = |error: XlsxError| wrong(path, &format!("{DAMAGED} ({error})"));
        let workbook = Xlsx::new(file).map_err(damaged)?;
        let name = sheet_name(&workbook, sheet).map_err(|text| wrong(path, &text))?;
        let (sender, rows) = sync_channel(ROWS_AHEAD);
        let place = path.to_owned();
        let work = move || {
            let end = send_rows(workbook, &name, &place, &sender);
            // Nobody is left to tell when the receiver is gone.
            let _ = sender.send(end.map(|()| None));
        };
        let started = thread::Builder::new().name("longhaul-xlsx".to_owned()).spawn(work);
        started.map_err(|error| unreadable(path, &error))?;
        Ok(Self { rows, path: path.to_owned(), is_over: false })
    }
}

impl Reader for XlsxReader {
    fn next(&mut self) -> Result<Option<Record>> {
        if self.is_over {
            return Ok(None);
        }
        // A thread that ends without a word has met a file that the crate did not expect.
        let next = self.rows.recv().unwrap_or_else(|_| Err(wrong(&self.path, DAMAGED)));
        self.is_over = !matches!(next, Ok(Some(_)));
        next
    }
}

fn check_size(path: &Path, file: &mut BufReader<File>) -> Result<()> {
    let cannot = |error: std::io::Error| unreadable(path, &error);
    let bytes = file.get_ref().metadata().map_err(cannot)?.len();
    let refuse = |what: &str, max: u64| {
        Err(wrong(
            path,
            &format!("{what} more than {} MiB, too large for a workbook: {HINT}", max / 1024 / 1024),
        ))
    };
    if bytes > XLSX_BYTES_MAX {
        return refuse("has", XLSX_BYTES_MAX);
    }
    let damaged = |error: zip::result::ZipError| wrong(path, &format!("{DAMAGED} ({error})"));
    let mut archive = zip::ZipArchive::new(&mut *file).map_err(damaged)?;
    for index in 0..archive.len() {
        let part = archive.by_index_raw(index).map_err(damaged)?;
        if part.name().map_err(damaged)?.ends_with(TEXTS) && part.size() > XLSX_TEXT_BYTES_MAX {
            return refuse("has texts of", XLSX_TEXT_BYTES_MAX);
        }
    }
    drop(archive);
    file.rewind().map_err(cannot)
}

fn sheet_name(workbook: &Xlsx<BufReader<File>>, wanted: Option<&str>) -> Result<String, String> {
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

fn send_rows(
    mut workbook: Xlsx<BufReader<File>>,
    name: &str,
    path: &Path,
    sender: &SyncSender<Result<Option<Record>>>,
) -> Result<()> {
    let damaged = |error: XlsxError| wrong(path, &format!("{DAMAGED} ({error})"));
    let is_1904 = workbook.has_1904_epoch();
    let mut cells = workbook.worksheet_cells_reader(name).map_err(damaged)?;
    let mut record = empty(0);
    while let Some(found) = cells.next_cell().map_err(damaged)? {
        let (row, column) = found.get_position();
        if row >= ROWS_MAX || column >= COLUMNS_MAX || u64::from(row) < record.number {
            return Err(wrong(path, DAMAGED));
        }
        while record.number < u64::from(row) {
            let next = empty(record.number + 1);
            if sender.send(Ok(Some(std::mem::replace(&mut record, next)))).is_err() {
                return Ok(());
            }
        }
        let cell = cell(found.get_value(), is_1904);
        if cell == Cell::Empty {
            continue;
        }
        let column = column as usize;
        if record.cells.len() <= column {
            record.cells.resize(column + 1, Cell::Empty);
        }
        record.cells[column] = cell;
    }
    if record.number > 0 || !record.cells.is_empty() {
        // Nobody takes it any more when this fails.
        let _ = sender.send(Ok(Some(record)));
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

#[cfg(test)]
mod tests {
    use calamine::ExcelDateTimeType::{DateTime, TimeDelta};

    use super::*;

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
}
