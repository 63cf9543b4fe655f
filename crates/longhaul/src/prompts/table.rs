//! Rows of a CSV or TSV file or of a workbook as prompts. The first row names the columns.

use std::path::Path;

use longhaul_llm::Endpoint;
use longhaul_pipeline::table_files::csv::{Splitter, ends_in_quotes};
use longhaul_pipeline::table_files::{Cell, Record, TableError, XlsxReader};

use super::json::{self, Wrong};
use super::lines::{HINT_LONG, LineReader, Next};
use super::source::Source;
use super::{Fault, Options, PROMPT, Problem, PromptLine, Template};
use crate::exit::{Code, Failure};

const HINT_QUOTE: &str = "close the quote; a quote inside of a quoted field is written twice";
const HINT_COUNT: &str = "quote fields that contain the separator";
const HINT_WORKBOOK: &str = "save the sheet as CSV; if the file is not a workbook, name its format: --format csv, tsv, jsonl, openai or text";
const HINT_CELLS: &str = "name every column in the first row, or clear the cells beside the table";
const HINT_COLUMN: &str =
    "name the column `prompt`, or say how columns make a prompt: --template 'Translate {{text}} to {{lang}}'";
/// The most columns of a table.
const COLUMNS_MAX: usize = 1_000;

/// A table: the names of its columns, and where its rows come from.
#[derive(Debug)]
pub(super) struct Table {
    names: Vec<String>,
    rows: Rows,
}

/// Where rows come from.
#[derive(Debug)]
enum Rows {
    /// Lines, which the caller reads.
    Lines { delimiter: u8, splitter: Box<Splitter> },
    /// A workbook, which reads itself.
    Workbook(XlsxReader),
}

/// A row: where it stands, from 1, and its fields.
type Row = (u64, Vec<String>);

impl Table {
    /// Reads the header of lines with this separator and makes sure that prompts can be made of it.
    pub(super) fn open(
        reader: &mut LineReader,
        delimiter: u8,
        template: Option<&Template>,
    ) -> Result<Self, Fault> {
        Self::begin(Rows::Lines { delimiter, splitter: Box::new(Splitter::new(delimiter)) }, reader, template)
    }

    /// The same of a workbook.
    pub(super) fn of_workbook(
        reader: &mut LineReader,
        source: &Source,
        options: &Options,
    ) -> Result<Self, Fault> {
        let opened = XlsxReader::open(source.cursor(), Path::new(source.name()), options.sheet.as_deref());
        Self::begin(Rows::Workbook(opened.map_err(unreadable)?), reader, options.template.as_ref())
    }

    fn begin(mut rows: Rows, reader: &mut LineReader, template: Option<&Template>) -> Result<Self, Fault> {
        let Some((line, names)) = rows.next(reader)? else { return Ok(Self { names: Vec::new(), rows }) };
        let names = names.into_iter().map(|name| name.trim().to_owned()).collect();
        let table = Self { names, rows };
        table.check(template).map_err(|(text, hint)| Problem::new(line, text, hint))?;
        Ok(table)
    }

    fn check(&self, template: Option<&Template>) -> Result<(), Wrong> {
        if self.names.len() > COLUMNS_MAX {
            return Err((format!("more than {COLUMNS_MAX} columns"), "leave columns away"));
        }
        let named = |name: &str| self.names.iter().any(|found| found == name);
        // Some programs leave the head of a column of numbers empty, so only names must differ.
        for (index, name) in self.names.iter().enumerate() {
            if !name.is_empty() && self.names[..index].contains(name) {
                return Err((
                    format!("the column {name:?} is there twice"),
                    "give every column its own name",
                ));
            }
        }
        let names = || self.names.iter().map(String::as_str);
        match template {
            Some(template) => match template.fields().find(|name| !named(name)) {
                Some(name) => Err(json::missing(name, names())),
                None => Ok(()),
            },
            None if named(PROMPT) => Ok(()),
            None => Err((format!("there is no column `{PROMPT}`, but {}", json::list(names())), HINT_COLUMN)),
        }
    }

    /// The next row that is not empty.
    pub(super) fn next(
        &mut self,
        reader: &mut LineReader,
        endpoint: Endpoint,
        template: Option<&Template>,
    ) -> Result<Option<PromptLine>, Fault> {
        while let Some((line, mut values)) = self.rows.next(reader)? {
            // Spreadsheets leave rows of separators behind.
            if values.iter().all(|value| value.trim().is_empty()) {
                continue;
            }
            if matches!(self.rows, Rows::Workbook(_)) && values.len() < self.names.len() {
                values.resize(self.names.len(), String::new());
            }
            if values.len() != self.names.len() {
                let text = format!(
                    "{} fields, and the header has {}: {}",
                    values.len(),
                    self.names.len(),
                    json::list(self.names.iter().map(String::as_str))
                );
                return Err(Problem::new(line, text, self.rows.hint_count()).into());
            }
            let columns: Vec<_> = self.names.iter().cloned().zip(values).collect();
            let row =
                row(&columns, endpoint, template).map_err(|(text, hint)| Problem::new(line, text, hint))?;
            return Ok(Some(PromptLine { line, columns: Some(columns), ..row }));
        }
        Ok(None)
    }
}

impl Rows {
    fn next(&mut self, reader: &mut LineReader) -> Result<Option<Row>, Fault> {
        match self {
            Self::Lines { delimiter, splitter } => {
                let Some((line, record)) = next_record(reader, *delimiter)? else { return Ok(None) };
                let fields = splitter.split(&record).map_err(|text| Problem::new(line, text, HINT_COUNT))?;
                Ok(Some((line, fields.map(str::to_owned).collect())))
            }
            Self::Workbook(workbook) => loop {
                let Some(record) = workbook.next_row().map_err(unreadable)? else { return Ok(None) };
                if record.used() > 0 {
                    return cells(record, reader.bytes_max()).map(Some);
                }
            },
        }
    }

    fn hint_count(&self) -> &'static str {
        match self {
            Self::Lines { .. } => HINT_COUNT,
            Self::Workbook(_) => HINT_CELLS,
        }
    }
}

/// The cells of a workbook's row as a person sees them.
fn cells(mut record: Record, bytes_max: usize) -> Result<Row, Fault> {
    let line = record.number + 1;
    record.cells.truncate(record.used());
    if record.cells.iter().map(Cell::text_bytes).sum::<usize>() > bytes_max {
        return Err(Problem::new(line, format!("longer than {bytes_max} bytes"), HINT_LONG).into());
    }
    Ok((line, record.cells.into_iter().map(Cell::into_text).collect()))
}

fn unreadable(error: TableError) -> Fault {
    Fault::Read(Failure::new(Code::Usage, error.0).hint(HINT_WORKBOOK).into())
}

fn row(
    columns: &[(String, String)],
    endpoint: Endpoint,
    template: Option<&Template>,
) -> Result<PromptLine, Wrong> {
    let value = |name: &str| columns.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    let given = |name: &str| value(name).filter(|value| !value.trim().is_empty());
    let custom_id = given("custom_id").or_else(|| given("id")).map(str::to_owned);
    if let Some(id) = &custom_id {
        json::check_id("id", id)?;
    }
    if let Some(template) = template {
        let prompt = template.fill(|name| value(name).map(str::to_owned));
        let names = columns.iter().map(|(name, _)| name.as_str());
        let prompt = prompt.map_err(|name| json::missing(&name, names))?;
        return Ok(json::of_text(custom_id, endpoint, &prompt));
    }
    let Some(prompt) = given(PROMPT) else {
        return Err((format!("the column `{PROMPT}` is empty"), "write a prompt, or take the row away"));
    };
    let line = json::of_text(custom_id, endpoint, prompt);
    Ok(match given("system") {
        Some(system) => json::with_system(line, system),
        None => line,
    })
}

/// The text of the next row, which may have line breaks in quotes, with the number of its first line.
fn next_record(reader: &mut LineReader, delimiter: u8) -> Result<Option<(u64, String)>, Fault> {
    let mut record = String::new();
    let first = loop {
        record.clear();
        match reader.append_line(&mut record)? {
            Next::Line(_) if record.trim().is_empty() => {}
            Next::Line(line) => break line,
            Next::End => return Ok(None),
        }
    };
    let mut quoted = ends_in_quotes(&record, delimiter, false);
    while quoted {
        let start = record.len();
        match reader.append_line(&mut record) {
            Ok(Next::Line(_)) => {}
            Ok(Next::End) => {
                let text = "a quote opens here and is never closed";
                return Err(Problem::new(first, text, HINT_QUOTE).last().into());
            }
            // Where the next row begins is unknown now.
            Err(Fault::Line(Problem { line, text, .. })) => {
                let text = format!("a quoted field that begins here goes on to line {line}: {text}");
                return Err(Problem::new(first, text, HINT_QUOTE).last().into());
            }
            Err(fault) => return Err(fault),
        }
        quoted = ends_in_quotes(&record[start..], delimiter, true);
    }
    record.truncate(record.trim_end_matches(['\r', '\n']).len());
    Ok(Some((first, record)))
}
