//! The prompts of a run, read from a file or from stdin: OpenAI batch lines, plain JSONL, CSV, TSV, XLSX or text. Every form
//! becomes an OpenAI-like body, so nothing behind this module knows of files; what the run itself sets (model, system
//! text, limits) is not put in here.
//!
//! A file is read twice, line by line: [`PromptFile::check`] finds every fault before anything is stored, then
//! [`PromptFile::lines`] hands the prompts out. Both block, so an async caller runs them on a thread of their own.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use longhaul_llm::Endpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::{Code, Failure};

mod check;
mod detect;
mod ids;
mod json;
mod lines;
mod pick;
mod source;
mod table;
mod template;

pub(crate) use pick::{Pick, Picked};
pub(crate) use template::Template;

use self::check::{Checker, Problems};
use self::detect::Shape;
use self::lines::{LineReader, Next};
use self::source::Source;
use self::table::Table;

/// The name of the only field of a bare line, and of the column that is the prompt where there is no template.
const PROMPT: &str = "prompt";

/// The form that the caller says a file has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By the file's name, then by its first line.
    #[default]
    Auto,
    /// Lines for the OpenAI batch API.
    Openai,
    /// One JSON text or object a line.
    Jsonl,
    /// Comma- or semicolon-separated, with a header.
    Csv,
    /// Tab-separated, with a header.
    Tsv,
    /// A workbook with a header.
    Xlsx,
    /// One prompt a line.
    Text,
}

/// The form that a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// Lines for the OpenAI batch API.
    Openai,
    /// One JSON text or object a line.
    Jsonl,
    /// Comma- or semicolon-separated, with a header.
    Csv,
    /// Tab-separated, with a header.
    Tsv,
    /// A workbook with a header.
    Xlsx,
    /// One prompt a line.
    Text,
}

impl Form {
    const ALL: [Self; 6] = [Self::Openai, Self::Jsonl, Self::Csv, Self::Tsv, Self::Xlsx, Self::Text];

    /// Its name where a run remembers it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Xlsx => "xlsx",
            Self::Text => "text",
        }
    }

    /// Whether its rows have columns.
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Xlsx)
    }

    /// The form of a name; lines of JSON where it is unknown.
    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|form| form.as_str() == name).unwrap_or(Self::Jsonl)
    }
}

/// How to read a file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The form, where the caller knows it.
    pub(crate) format: Format,
    /// Makes a prompt of the fields of a line.
    pub(crate) template: Option<Template>,
    /// What lines that do not say so themselves are for.
    pub(crate) endpoint: Endpoint,
    /// Which sheet of a workbook; the first by default.
    pub(crate) sheet: Option<String>,
    /// Longest line, or row of a table, in bytes.
    pub(crate) line_bytes_max: usize,
}

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PromptLine {
    /// Where it stands in the file, from 1; a row of a table stands where it begins.
    pub(crate) line: u64,
    /// The caller's name for it.
    pub(crate) custom_id: Option<String>,
    /// What the body is for.
    pub(crate) endpoint: Endpoint,
    /// An OpenAI-like request without the defaults of the run.
    pub(crate) body: Value,
    /// All columns of a table's row in their order, for an output that carries them on.
    pub(crate) columns: Option<Vec<(String, String)>>,
}

/// What the first pass found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// The form that was read.
    pub(crate) form: Form,
    /// What separates columns, where the form is a table.
    pub(crate) delimiter: Option<u8>,
    /// Prompts.
    pub(crate) prompts: u64,
    /// What all of them are for.
    pub(crate) endpoint: Endpoint,
    /// Size of the content.
    pub(crate) bytes: u64,
    /// Digest of the content, in hexadecimal: the same content resumes the same run.
    pub(crate) sha256: String,
    /// Prompts that name no model of their own; with one of them the run has to name it.
    pub(crate) without_model: u64,
    /// Fields beyond the known ones that go to the provider as they are; at most 20 are named.
    pub(crate) extra_fields: BTreeSet<String>,
    /// Ids that came twice, in the forms where that is no fault.
    pub(crate) duplicates: Option<Duplicates>,
}

/// Ids that came twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Duplicates {
    /// How many lines repeat an id.
    pub(crate) count: u64,
    /// The first of them.
    pub(crate) id: String,
    /// The lines that the first id stands on.
    pub(crate) lines: (u64, u64),
}

/// A line that cannot be used.
#[derive(Debug)]
struct Problem {
    line: u64,
    text: String,
    hint: &'static str,
    /// Nothing can be read after it.
    last: bool,
}

impl Problem {
    fn new(line: u64, text: impl Into<String>, hint: &'static str) -> Self {
        Self { line, text: text.into(), hint, last: false }
    }

    fn last(mut self) -> Self {
        self.last = true;
        self
    }
}

/// A file of prompts whose form is known.
#[derive(Debug)]
pub(crate) struct PromptFile {
    source: Source,
    shape: Shape,
    options: Options,
    pick: Pick,
}

impl PromptFile {
    /// Opens a file, or stdin for `-`. What cannot be read twice is copied to a temporary file first.
    pub(crate) fn open(path: &Path, options: Options) -> Result<Self> {
        let source = Source::open(path)?;
        let shape = detect::shape(path, &source, &options)?;
        Ok(Self { source, shape, options, pick: Pick::default() })
    }

    /// Reads everything once, stores nothing, and refuses the file if a line of it cannot be used.
    pub(crate) fn check(&self) -> Result<Summary> {
        let mut lines = self.read()?;
        let mut checker = Checker::new(self.shape, self.options.endpoint);
        let mut problems = Problems::default();
        while let Some(next) = lines.advance().transpose() {
            match next.and_then(|prompt| checker.take(&prompt)) {
                Ok(()) => {}
                Err(Fault::Line(problem)) => {
                    let last = problem.last;
                    problems.push(problem);
                    if last {
                        break;
                    }
                }
                Err(Fault::Read(error)) => return Err(error),
            }
        }
        problems.refuse(&self.source)?;
        if self.shape.form == Form::Xlsx {
            lines.reader.skip_all()?;
        }
        self.source.unchanged()?;
        let (bytes, sha256) = lines.reader.digest();
        checker.summary(&self.source, bytes, sha256)
    }

    /// The form of the file.
    pub(crate) fn form(&self) -> Form {
        self.shape.form
    }

    /// What separates columns, where the form is a table.
    pub(crate) fn delimiter(&self) -> Option<u8> {
        self.shape.delimiter
    }

    /// The sheet of a workbook that was asked for.
    pub(crate) fn sheet(&self) -> Option<&str> {
        self.options.sheet.as_deref()
    }

    /// What makes prompts of fields.
    pub(crate) fn template(&self) -> Option<&Template> {
        self.options.template.as_ref()
    }

    /// The prompts in the order of the file, one at a time: those that are picked.
    pub(crate) fn lines(&self) -> Result<Picked<'_>> {
        Ok(Picked::new(self.read()?, self.pick))
    }

    /// Hands out a part of the prompts only.
    pub(crate) fn picking(self, pick: Pick) -> Self {
        Self { pick, ..self }
    }

    fn read(&self) -> Result<Lines<'_>> {
        let mut reader = LineReader::new(self.source.reader()?, self.options.line_bytes_max);
        let template = self.options.template.as_ref();
        let rows = match (self.shape.form, self.shape.delimiter) {
            (Form::Xlsx, _) => Some(Table::of_workbook(&mut reader, &self.source, &self.options)),
            (_, Some(delimiter)) => Some(Table::open(&mut reader, delimiter, template)),
            (_, None) => None,
        };
        let rows = rows.transpose().map_err(|fault| match fault {
            Fault::Line(problem) => refused(&self.source, &problem).into(),
            Fault::Read(error) => error,
        })?;
        Ok(Lines { prompts: self, reader, rows, ended: false })
    }
}

/// Why the next line cannot be had.
#[derive(Debug)]
enum Fault {
    Line(Problem),
    Read(anyhow::Error),
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self::Line(problem)
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Read(error)
    }
}

/// The prompts of a file, one at a time. Ends after the first error.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    prompts: &'a PromptFile,
    reader: LineReader,
    rows: Option<Table>,
    ended: bool,
}

impl Iterator for Lines<'_> {
    type Item = Result<PromptLine>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let source = &self.prompts.source;
        let next = match self.advance() {
            Ok(Some(prompt)) => return Some(Ok(prompt)),
            // The first pass has seen other lines if the file was written to in between.
            Ok(None) => source.unchanged().err(),
            Err(Fault::Line(problem)) => Some(refused(source, &problem).into()),
            Err(Fault::Read(error)) => Some(error),
        };
        self.ended = true;
        next.map(Err)
    }
}

impl Lines<'_> {
    fn advance(&mut self) -> Result<Option<PromptLine>, Fault> {
        let template = self.prompts.options.template.as_ref();
        if let Some(rows) = &mut self.rows {
            return rows.next(&mut self.reader, self.prompts.options.endpoint, template);
        }
        let mut text = String::new();
        let line = match self.reader.next_line(&mut text)? {
            Next::Line(line) => line,
            Next::End => return Ok(None),
        };
        let endpoint = self.prompts.options.endpoint;
        let read = match self.prompts.shape.form {
            Form::Openai => json::openai_line(&text),
            Form::Jsonl => json::plain_line(&text, endpoint, template),
            Form::Text | Form::Csv | Form::Tsv | Form::Xlsx => json::bare_line(&text, endpoint, template),
        };
        let (text, hint) = match read {
            Ok(parsed) => return Ok(Some(PromptLine { line, ..parsed })),
            Err(problem) => problem,
        };
        Err(Problem::new(line, text, hint).into())
    }
}

fn refused(source: &Source, problem: &Problem) -> Failure {
    let text = format!("{} line {}: {}", source.name(), problem.line, problem.text);
    Failure::new(Code::Usage, text).hint(problem.hint)
}

#[cfg(test)]
mod tests;
