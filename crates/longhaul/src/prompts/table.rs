//! Rows of a CSV or TSV file as prompts. The first row names the columns. The crate csv takes a row apart; where it ends
//! is found here, because a quote that is never closed must not make one prompt of the rest of the file.

use std::io::{self, Read};

use longhaul_llm::Endpoint;

use super::json::{self, Wrong};
use super::lines::{LineReader, Next};
use super::{Fault, PROMPT, Problem, PromptLine, Template};

const HINT_QUOTE: &str = "close the quote; a quote inside of a quoted field is written twice";
const HINT_COUNT: &str = "quote fields that contain the separator";
const HINT_COLUMN: &str =
    "name the column `prompt`, or say how columns make a prompt: --template 'Translate {{text}} to {{lang}}'";
/// The most columns of a table.
const COLUMNS_MAX: usize = 1_000;

/// The columns of a table.
#[derive(Debug)]
pub(super) struct Table {
    delimiter: u8,
    names: Vec<String>,
    splitter: Splitter,
}

impl Table {
    /// Reads the header and makes sure that prompts can be made of it.
    pub(super) fn open(
        reader: &mut LineReader,
        delimiter: u8,
        template: Option<&Template>,
    ) -> Result<Self, Fault> {
        let mut splitter = Splitter::new(delimiter);
        let Some((line, record)) = next_record(reader, delimiter)? else {
            return Ok(Self { delimiter, names: Vec::new(), splitter });
        };
        let names = splitter.split(&record).map_err(|text| Problem::new(line, text, HINT_COUNT))?;
        let names = names.into_iter().map(|name| name.trim().to_owned()).collect();
        let table = Self { delimiter, names, splitter };
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
        while let Some((line, record)) = next_record(reader, self.delimiter)? {
            let values = self.splitter.split(&record).map_err(|text| Problem::new(line, text, HINT_COUNT))?;
            // Spreadsheets leave rows of separators behind.
            if values.iter().all(|value| value.trim().is_empty()) {
                continue;
            }
            if values.len() != self.names.len() {
                let text = format!(
                    "{} fields, and the header has {}: {}",
                    values.len(),
                    self.names.len(),
                    json::list(self.names.iter().map(String::as_str))
                );
                return Err(Problem::new(line, text, HINT_COUNT).into());
            }
            let columns: Vec<_> = self.names.iter().cloned().zip(values).collect();
            let row =
                row(&columns, endpoint, template).map_err(|(text, hint)| Problem::new(line, text, hint))?;
            return Ok(Some(PromptLine { line, columns: Some(columns), ..row }));
        }
        Ok(None)
    }
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

/// Whether a quoted field goes on after this line. A quote counts only at the start of a field, as it does in the crate
/// csv: `5" pipe` has none that opens.
fn ends_in_quotes(line: &str, delimiter: u8, mut quoted: bool) -> bool {
    let mut at_start = !quoted;
    let mut bytes = line.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            // Two quotes are one in the text.
            b'"' if quoted && bytes.peek() == Some(&b'"') => drop(bytes.next()),
            b'"' if quoted => quoted = false,
            b'"' if at_start => quoted = true,
            _ => {}
        }
        at_start = !quoted && byte == delimiter;
    }
    quoted
}

/// Takes rows apart. The reader of the crate csv is kept, because making one costs far more than reading a row.
#[derive(Debug)]
struct Splitter {
    reader: csv::Reader<Feed>,
    fields: csv::StringRecord,
}

impl Splitter {
    fn new(delimiter: u8) -> Self {
        let mut builder = csv::ReaderBuilder::new();
        let reader =
            builder.has_headers(false).flexible(true).delimiter(delimiter).from_reader(Feed::default());
        Self { reader, fields: csv::StringRecord::new() }
    }

    /// The fields of a whole row. With the line end behind it the reader does not ask for more, so it never meets an end
    /// of its input, after which it would not go on.
    fn split(&mut self, record: &str) -> Result<Vec<String>, String> {
        let feed = self.reader.get_mut();
        feed.bytes.clear();
        feed.bytes.extend_from_slice(record.as_bytes());
        feed.bytes.push(b'\n');
        feed.read = 0;
        match self.reader.read_record(&mut self.fields) {
            Ok(true) => Ok(self.fields.iter().map(str::to_owned).collect()),
            Ok(false) => Err("the row cannot be taken apart".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// One row at a time as the input of a reader.
#[derive(Debug, Default)]
struct Feed {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (&self.bytes[self.read..]).read(buffer)?;
        self.read += count;
        Ok(count)
    }
}
