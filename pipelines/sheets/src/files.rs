//! Tables in files of this machine that are scored: CSV, TSV, JSONL and XLSX, read row by row and written whole. Everything
//! here blocks: call it off the runtime. Nothing here knows of jobs, models or the data store. What other pipelines need of
//! such files too is in [`longhaul_pipeline::table_files`].
//!
//! **Reading.** A file is never in memory: a row is at most [`ROW_BYTES_MAX`](longhaul_pipeline::table_files::ROW_BYTES_MAX) long. A
//! workbook keeps its texts in one list, which is held whole, so its size has limits.
//!
//! **Writing.** [`export`] goes through the source once more and puts scores beside what is there. The new file stands
//! beside the old one until it is whole and on disk, and then takes its place.
//! - What was not scored stays as it was, in CSV and TSV with its quotes, in JSONL with its spaces and order.
//! - A text that a spreadsheet program would run as a formula gets a `'` before it in CSV and TSV, unless it comes from such a
//!   file and is not the model's.
//! - A workbook is a new one, with values. Formats, formulas and further sheets of the original are not in it.

mod columns;
mod csv;
mod export;
mod jsonl;
mod lines;
mod place;
#[cfg(test)]
mod tests;
mod workbook;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::layout::Row;
use super::places::Rows;
use super::settings::{Format, Source};
use super::{Error, Result};
use longhaul_pipeline::table_files::csv::{COMMA, TAB};
use longhaul_pipeline::table_files::{Cell, Record, XlsxReader};

pub use export::{Export, export};

const HASH_BUFFER_BYTES: usize = 256 * 1024;

/// Opens a file of a sheet. `wanted` names the fields of JSONL, which become columns in this order; other formats have
/// all their columns.
pub fn open(source: &Source, wanted: &[String]) -> Result<Box<dyn Rows>> {
    Ok(Box::new(Texts(reader(source, wanted)?)))
}

/// SHA-256 of a file's bytes, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = open_file(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hasher.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(unreadable(path, &error)),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads a table with more than its texts, for writing it again.
trait Reader: Send {
    fn next(&mut self) -> Result<Option<Record>>;
}

fn reader(source: &Source, fields: &[String]) -> Result<Box<dyn Reader>> {
    let Source::File { path, format, sheet, .. } = source else {
        return Err(Error::Invalid("a Google sheet is not read as a file".to_owned()));
    };
    Ok(match format {
        Format::Csv => Box::new(csv::CsvReader::open(path, COMMA)?),
        Format::Tsv => Box::new(csv::CsvReader::open(path, TAB)?),
        Format::Jsonl => Box::new(jsonl::JsonlReader::open(path, fields.to_vec())?),
        Format::Xlsx => Box::new(XlsxReader::open(open_file(path)?, path, sheet.as_deref())?),
    })
}

impl Reader for XlsxReader {
    fn next(&mut self) -> Result<Option<Record>> {
        Ok(self.next_row()?)
    }
}

/// Only the texts.
struct Texts(Box<dyn Reader>);

impl Rows for Texts {
    fn next(&mut self) -> Result<Option<Row>> {
        let record = self.0.next()?;
        Ok(record.map(|Record { number, cells, .. }| Row {
            number,
            cells: cells.into_iter().map(Cell::into_text).collect(),
        }))
    }
}

/// Only real files: a pipe could not be read a second time.
fn open_file(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let about = file.metadata().map_err(|error| unreadable(path, &error))?;
    if about.is_dir() {
        return Err(wrong(path, "is a folder: name a file in it"));
    }
    if !about.is_file() {
        return Err(wrong(
            path,
            "is no file but a device or a pipe, which cannot be read twice: save it first",
        ));
    }
    Ok(file)
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; is the name right, and is it on this machine?",
        io::ErrorKind::PermissionDenied => "; allow this user to read it",
        _ => "",
    };
    wrong(path, &format!("cannot be read: {error}{hint}"))
}

fn wrong(path: &Path, text: &str) -> Error {
    Error::Table(format!("{} {text}", path.display()))
}
