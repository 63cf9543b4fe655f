//! Writes a file again with its scores.

use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use super::super::layout::{HEAD_ROWS_MAX, Plan};
use super::super::places::{Exported, Filled, FilledRow};
use super::super::settings::{Existing, Format, Source};
use super::super::{Error, Result};
use super::columns::Columns;
use super::csv::{CsvOutput, CsvReader, Style};
use super::jsonl::{self, JsonlOutput};
use super::place::Place;
use super::reader;
use super::workbook::WorkbookOutput;
use longhaul_pipeline::table_files::Record;
use longhaul_pipeline::table_files::csv::{COMMA, TAB};

/// What is to be written, and where to.
#[derive(Debug, Clone, Copy)]
pub struct Export<'a> {
    /// The file that was scored; another one than the target, or the same.
    pub source: &'a Source,
    /// What it was opened with: the name of the text's column, then those of the targets. Empty for the layout with heads.
    pub wanted: &'a [String],
    /// Where to.
    pub target: (&'a Path, Format),
    /// Where everything was in the source.
    pub plan: &'a Plan,
    /// Whether a cell that has a value in the source keeps it.
    pub existing: Existing,
}

/// Reads the source again, row by row, and writes it with its scores to the target, which is replaced at once or, after
/// an error, stays as it was. A blank leaves a cell as it is, and a row that says something else by now is left alone.
///
/// Scores go to the columns that have their names, whether the plan knew them or an earlier export added them; the rest
/// is added behind the last column. From CSV to CSV, TSV to TSV and JSONL to JSONL everything else keeps its bytes, but
/// for a line end behind the last row. In a new workbook numbers and dates are what they were; formats, formulas and
/// further sheets are not kept.
pub fn export(job: &Export<'_>, filled: &mut dyn Filled) -> Result<Exported> {
    export_through(job, filled, |writer, work| work(writer))
}

/// What is done with the file that is being made.
pub(super) type Work<'a> = &'a mut dyn FnMut(&mut (dyn Write + Send)) -> Result<Exported>;

/// The same with something between, such as a disk that is full.
pub(super) fn export_through(
    job: &Export<'_>,
    filled: &mut dyn Filled,
    through: impl FnOnce(&mut (dyn Write + Send), Work<'_>) -> Result<Exported>,
) -> Result<Exported> {
    let table = Table::survey(job)?;
    let place = Place::of(job.target.0)?;
    place.replace(|writer| {
        through(writer, &mut |writer| {
            let mut output = table.output(job, &place, writer)?;
            let exported = table.write(job, &place, output.as_mut(), filled)?;
            output.finish().map_err(|error| place.unwritable(&error))?;
            Ok(exported)
        })
    })
}

/// Writes rows of one format.
pub(super) trait Output {
    /// The next row of the source with what is new in it.
    fn row(&mut self, record: &Record, fills: &Fills<'_>) -> io::Result<()>;

    /// Writes what is left.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// What is new in a row.
#[derive(Debug, Default)]
pub(super) struct Fills<'a> {
    /// By column.
    cells: Vec<(usize, Fill<'a>)>,
    /// As wide as a row has to be that has any cells.
    width: usize,
    /// It names columns.
    pub(super) is_head: bool,
}

/// What is new in a cell.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fill<'a> {
    /// The name of an added column.
    Head(&'a str),
    /// What the model said.
    Value(&'a Value),
}

impl<'a> Fills<'a> {
    pub(super) fn get(&self, column: usize) -> Option<&Fill<'a>> {
        let found = self.cells.binary_search_by_key(&column, |(column, _)| *column).ok()?;
        self.cells.get(found).map(|(_, fill)| fill)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, Fill<'a>)> {
        self.cells.iter().copied()
    }

    /// Cells of the row when it is written.
    pub(super) fn width(&self, record: &Record) -> usize {
        if record.cells.is_empty() && self.cells.is_empty() {
            return 0;
        }
        let last = self.cells.last().map_or(0, |(column, _)| column + 1);
        record.cells.len().max(last).max(self.width)
    }
}

/// The source as it is now.
struct Table {
    heads: Vec<Record>,
    columns: Columns,
    /// Fields of a JSONL source that are read.
    fields: Vec<String>,
}

impl Table {
    fn survey(job: &Export<'_>) -> Result<Self> {
        let &Export { source, wanted, target, plan, .. } = job;
        let Source::File { path, format, .. } = source else {
            return Err(Error::Invalid("a Google sheet is not exported by its file".to_owned()));
        };
        let fields = match (format, target.1) {
            (Format::Jsonl, Format::Jsonl) => wanted.to_vec(),
            // Fields become columns, so all of them must be known before the first row.
            (Format::Jsonl, Format::Csv | Format::Tsv | Format::Xlsx) => jsonl::fields(path)?,
            (Format::Csv | Format::Tsv | Format::Xlsx, _) => Vec::new(),
        };
        if plan.first_row > HEAD_ROWS_MAX {
            return Err(Error::Invalid(format!("more than {HEAD_ROWS_MAX} rows of heads")));
        }
        let mut reader = reader(source, &fields)?;
        let mut heads = Vec::new();
        for _ in 0..plan.first_row {
            heads.extend(reader.next()?);
        }
        let last = || {
            let mut last = 0;
            while let Some(record) = reader.next()? {
                last = last.max(record.used());
            }
            Ok(last)
        };
        let columns = Columns::find(plan, wanted.first(), &heads, last)?;
        Ok(Self { heads, columns, fields })
    }

    fn output<'w>(
        &self,
        job: &Export<'_>,
        place: &Place,
        writer: &'w mut (dyn Write + Send),
    ) -> Result<Box<dyn Output + 'w>> {
        let Source::File { path, format, sheet, .. } = job.source else {
            return Err(Error::Invalid("a Google sheet is not exported by its file".to_owned()));
        };
        let from = match format {
            Format::Csv => Some(COMMA),
            Format::Tsv => Some(TAB),
            Format::Jsonl | Format::Xlsx => None,
        };
        let delimited = |delimiter: u8| match from {
            Some(from) => Ok(Style { delimiter, ..CsvReader::style(path, from)? }),
            None => Ok::<_, Error>(Style { delimiter, marked: false, crlf: false }),
        };
        let targets = self.columns.targets.iter().map(|(column, _)| *column).collect();
        Ok(match job.target.1 {
            Format::Csv => Box::new(CsvOutput::new(writer, delimited(COMMA)?, from, targets)),
            Format::Tsv => Box::new(CsvOutput::new(writer, delimited(TAB)?, from, targets)),
            Format::Jsonl => {
                let names = self.columns.names(job.plan, &self.heads);
                Box::new(JsonlOutput::new(writer, names, targets, *format == Format::Jsonl))
            }
            Format::Xlsx => {
                let output = WorkbookOutput::new(writer, place.folder(), sheet.as_deref());
                Box::new(output.map_err(|error| place.unwritable(&error))?)
            }
        })
    }

    fn write(
        &self,
        job: &Export<'_>,
        place: &Place,
        output: &mut dyn Output,
        filled: &mut dyn Filled,
    ) -> Result<Exported> {
        let mut exported = Exported::default();
        let mut reader = reader(job.source, &self.fields)?;
        let padded = if self.columns.width > self.columns.added_from { self.columns.width } else { 0 };
        while let Some(record) = reader.next()? {
            if record.used() > self.columns.added_from && padded > 0 {
                return Err(Error::Table(format!(
                    "row {} of the source has grown while it was read: export again when nobody writes to it",
                    record.number + 1
                )));
            }
            let mut fills = Fills { width: padded, ..Fills::default() };
            let found;
            if record.number < job.plan.first_row {
                fills.is_head = true;
                fills.cells = self.heads_of(job.plan, &record);
            } else {
                exported.rows += 1;
                found = filled.row(record.number)?;
                match &found {
                    Some(row) if row.text.trim() == record.text(self.columns.text) => {
                        fills.cells = self.fills(&record, row, job.existing);
                        exported.cells += fills.cells.len() as u64;
                    }
                    Some(_) => exported.changed += 1,
                    None => {}
                }
            }
            output.row(&record, &fills).map_err(|error| place.unwritable(&error))?;
        }
        Ok(exported)
    }

    /// Names of added columns, in the row right above the texts.
    fn heads_of<'a>(&self, plan: &'a Plan, record: &Record) -> Vec<(usize, Fill<'a>)> {
        if record.number + 1 != plan.first_row {
            return Vec::new();
        }
        let added = self.columns.targets.iter().filter(|(column, _)| self.columns.is_new(*column));
        added.map(|(column, target)| (*column, Fill::Head(&plan.targets[*target].name))).collect()
    }

    fn fills<'a>(&self, record: &Record, row: &'a FilledRow, existing: Existing) -> Vec<(usize, Fill<'a>)> {
        let stays = |column: usize| match existing {
            Existing::Keep => record.cells.get(column).is_some_and(|cell| !cell.is_blank()),
            Existing::Overwrite => false,
        };
        let values = self.columns.targets.iter().filter_map(|(column, target)| {
            let value = row.cells.get(*target)?.as_ref().filter(|value| !value.is_null())?;
            Some((*column, Fill::Value(value)))
        });
        values.filter(|(column, _)| !stays(*column)).collect()
    }
}
