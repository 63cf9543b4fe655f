//! The answers of a run, written to a file or to stdout in the order of the prompts. A file appears whole or not at all:
//! it is written beside its place and renamed when the last answer is in, so a reader never sees half of it, and who
//! runs again replaces it instead of adding to it.
//!
//! | Form | Line | A prompt that failed |
//! |---|---|---|
//! | JSONL | `{"id","index","answer","stop","model","usage","cost_usd","cached"}` | `{"id","index","error"}`; in the errors file if there is one |
//! | JSONL of embeddings | the same with `embedding` instead of `answer` and `stop`; `embeddings` where a request has several | the same |
//! | OpenAI batch | `{"id","custom_id","response","error"}` | the same; in the errors file if there is one |
//! | CSV, TSV, XLSX | the columns of the prompt, or `index`, `id` and `prompt` where it came from no table; `answer` or a column a property, `error` | keeps its row, and is in the errors file too |
//! | text | the answer; in a file `\` and line ends in it are written as `\\`, `\n` and `\r`, so that line n answers prompt n | an empty line, and is in the errors file too |
//!
//! In CSV and TSV no answer, error or id is a formula, by the rule of all tables
//! ([`table_files`](longhaul_pipeline::table_files)); columns of a CSV or TSV file are written as they were there.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use longhaul_llm::wire::openai::VectorForm;
use longhaul_llm::{Class, Endpoint, NanoUsd};
use longhaul_pipeline::table_files::WorkbookWriter;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::{Code, Failure};
use crate::output::Format;
use crate::outputs::{self, Places};
use crate::prompts;

mod render;
mod sink;

use self::render::Columns;
pub(crate) use self::sink::Sink;

/// Ends of names whose forms are not written.
const FOREIGN: [&str; 7] = ["xls", "xlsm", "xlsb", "ods", "parquet", "gz", "zip"];

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON object a line.
    Jsonl,
    /// Output lines of the OpenAI batch API.
    Openai,
    /// A table with a header.
    Table {
        /// What separates columns.
        delimiter: u8,
    },
    /// The same table as a workbook.
    Workbook,
    /// The answers alone.
    Text {
        /// Whether each answer is held on one line.
        escaped: bool,
    },
}

impl Form {
    /// The form that the output's name asks for, else that of the input.
    pub(crate) fn choose(out: &Path, input: prompts::Form, delimiter: Option<u8>) -> Self {
        let json = Self::json(input);
        let extension = out.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => json,
            // Who separates by semicolon reads with a program that expects it.
            "csv" => Self::Table { delimiter: delimiter.filter(|byte| *byte == b';').unwrap_or(b',') },
            "tsv" | "tab" => Self::Table { delimiter: b'\t' },
            "xlsx" => Self::Workbook,
            "txt" | "text" => Self::Text { escaped: true },
            _ => match (input, delimiter) {
                (prompts::Form::Csv | prompts::Form::Tsv | prompts::Form::Xlsx, delimiter) => {
                    Self::Table { delimiter: delimiter.unwrap_or(b',') }
                }
                (prompts::Form::Text, _) => Self::Text { escaped: out != Path::new("-") },
                (prompts::Form::Openai | prompts::Form::Jsonl, _) => json,
            },
        }
    }

    /// JSON lines, in OpenAI's form where the input had it.
    pub(crate) fn json(input: prompts::Form) -> Self {
        if input == prompts::Form::Openai { Self::Openai } else { Self::Jsonl }
    }

    /// Whether it has columns.
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table { .. } | Self::Workbook)
    }
}

/// Where answers go, and how.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// A file, or `-` for stdout.
    pub(crate) out: PathBuf,
    /// A file for prompts that failed, as JSON lines.
    pub(crate) errors: Option<PathBuf>,
    /// How they are written.
    pub(crate) form: Form,
    /// The top-level properties of the answers' schema: a column each in a table. Empty where answers are text.
    pub(crate) properties: Vec<String>,
    /// What answers are: it names their column.
    pub(crate) endpoint: Endpoint,
    /// What the prompts came from: columns of a CSV or TSV file stay as they were there.
    pub(crate) input: prompts::Form,
}

/// Which prompt an answer is for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Item {
    /// The place of the prompt among all, from 0.
    pub(crate) index: u64,
    /// The caller's name for it.
    pub(crate) custom_id: Option<String>,
    /// The columns of its row, where it came from a table.
    pub(crate) columns: Option<Vec<(String, String)>>,
    /// What was asked, where it came from no table.
    pub(crate) prompt: Option<String>,
}

/// What a request asks, for people: the last words of its user, or the text to embed.
pub(crate) fn prompt_of(body: &Value) -> Option<String> {
    let text = |content: &Value| match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            Some(texts.join("\n"))
        }
        _ => None,
    };
    match body.get("messages").and_then(Value::as_array) {
        Some(messages) => text(messages.iter().rfind(|message| message["role"] == "user")?.get("content")?),
        None => text(body.get("input")?),
    }
}

/// What became of a prompt.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Outcome {
    /// It failed.
    Error(ErrorInfo),
    /// It was answered.
    Answer(Box<Answer>),
}

/// Why a prompt has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ErrorInfo {
    /// The kind of error, for programs.
    pub(crate) class: String,
    /// What happened, for people.
    pub(crate) message: String,
}

impl ErrorInfo {
    /// From the text of a failed request: `class (HTTP 400): message`. Other texts are of `otherwise`, such as a state.
    pub(crate) fn of_text(text: &str, otherwise: &str) -> Self {
        let (head, message) = text.split_once(": ").unwrap_or((text, ""));
        let (class, status) = head.split_once(' ').unwrap_or((head, ""));
        if !Class::ALL.iter().any(|known| known.as_str() == class) {
            return Self { class: otherwise.to_owned(), message: text.to_owned() };
        }
        let status = status.trim_matches(['(', ')']);
        let message = if status.is_empty() { message.to_owned() } else { format!("{status}: {message}") };
        Self { class: class.to_owned(), message }
    }
}

impl fmt::Display for ErrorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message == self.class {
            true => f.write_str(&self.class),
            false => write!(f, "{}: {}", self.class, self.message),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Answer {
    /// The text.
    pub(crate) text: String,
    /// The text as a value, where a schema was asked for.
    #[serde(default)]
    pub(crate) json: Option<Value>,
    /// Why it ended: `end`, `length`, `tool_calls` or `refused`.
    pub(crate) stop: String,
    /// Who answered.
    pub(crate) model: String,
    /// Tokens in disjoint classes.
    #[serde(default)]
    pub(crate) usage: Value,
    /// What it cost; unknown where the price is.
    #[serde(default)]
    pub(crate) cost_usd: Option<NanoUsd>,
    /// Whether it came from the cache.
    #[serde(default)]
    pub(crate) cached: bool,
    /// Calls of tools: `id`, `name` and `arguments` each.
    #[serde(default)]
    pub(crate) tool_calls: Vec<Value>,
    /// Vectors, where texts were embedded.
    #[serde(default, with = "longhaul_llm::types::compact")]
    pub(crate) vectors: Vec<Vec<f32>>,
    /// How they are wanted.
    #[serde(default)]
    pub(crate) encoding_format: VectorForm,
    /// When it was given, in seconds since 1970.
    #[serde(default)]
    pub(crate) created: i64,
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Prompts with an answer.
    pub(crate) answers: u64,
    /// Prompts that failed.
    pub(crate) errors: u64,
}

/// A workbook that is being written.
#[derive(Debug)]
struct Workbook {
    writer: WorkbookWriter,
    rows: u64,
}

/// Writes answers. Nothing is in its place before [`Answers::finish`]; stdout is written as answers come.
#[derive(Debug)]
pub(crate) struct Answers {
    form: Form,
    columns: Columns,
    /// Rows on their way to a workbook.
    workbook: Option<Workbook>,
    out: Sink,
    errors: Option<Sink>,
    /// The index of the last prompt that was written.
    last: Option<u64>,
    written: Written,
}

impl Answers {
    /// Makes sure that the places can be written to.
    pub(crate) fn create(options: Options) -> Result<Self> {
        outputs::refuse_same(&[("--out", Some(&options.out)), ("--errors", options.errors.as_deref())])?;
        refuse_foreign(&options.out)?;
        let out = Sink::open(&options.out)?;
        let workbook = match options.form {
            Form::Workbook => Some(Workbook { writer: workbook_at(&options.out)?, rows: 0 }),
            Form::Jsonl | Form::Openai | Form::Table { .. } | Form::Text { .. } => None,
        };
        Ok(Self {
            form: options.form,
            columns: Columns::new(options.endpoint, options.properties, options.input),
            workbook,
            out,
            errors: options.errors.as_deref().map(Sink::open).transpose()?,
            last: None,
            written: Written::default(),
        })
    }

    /// Whether prompts stand beside their answers.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.form, Form::Table { .. })
    }

    /// Writes what became of the next prompt.
    pub(crate) fn write(&mut self, item: &Item, outcome: &Outcome) -> Result<()> {
        // The order is the contract, and an answer that comes twice would shift every line after it.
        if self.last.is_some_and(|last| item.index <= last) {
            bail!("the answer to prompt {} came after that to a later one; this is a bug", item.index);
        }
        let first = self.last.is_none();
        self.last = Some(item.index);
        match outcome {
            Outcome::Answer(_) => self.written.answers += 1,
            Outcome::Error(_) => self.written.errors += 1,
        }
        let lines = match self.form {
            Form::Workbook => {
                self.write_row(item, outcome, first)?;
                String::new()
            }
            Form::Jsonl => return self.write_line(outcome, &render::jsonl(item, outcome)?),
            Form::Openai => return self.write_line(outcome, &render::openai(item, outcome)?),
            Form::Table { delimiter } => render::rows(item, outcome, &self.columns, delimiter, first)?,
            Form::Text { escaped } => render::text(outcome, escaped),
        };
        self.out.write(&lines)?;
        match (outcome, &mut self.errors) {
            (Outcome::Error(_), Some(errors)) => errors.write(&render::jsonl(item, outcome)?),
            (Outcome::Answer(_), _) | (Outcome::Error(_), None) => Ok(()),
        }
    }

    fn write_row(&mut self, item: &Item, outcome: &Outcome, first: bool) -> Result<()> {
        let Some(Workbook { writer, rows }) = &mut self.workbook else { return Ok(()) };
        let fields = render::fields(item, outcome, &self.columns);
        let names = if first { render::names(item, &self.columns) } else { Vec::new() };
        for row in
            [(first, &names), (true, &fields)].into_iter().filter_map(|(wanted, row)| wanted.then_some(row))
        {
            writer.row(*rows, row.iter().map(render::Field::content)).context("writing the workbook")?;
            *rows += 1;
        }
        Ok(())
    }

    /// Failed prompts stand among the answers unless they have a file of their own.
    fn write_line(&mut self, outcome: &Outcome, line: &str) -> Result<()> {
        match (outcome, &mut self.errors) {
            (Outcome::Error(_), Some(errors)) => errors.write(line),
            (Outcome::Answer(_), _) | (Outcome::Error(_), None) => self.out.write(line),
        }
    }

    /// Puts the files in their places. The errors come first: who sees the answers can rely on them.
    pub(crate) fn finish(mut self) -> Result<Written> {
        if let Some(Workbook { writer, .. }) = self.workbook.take() {
            writer.finish(self.out.bytes()).context("writing the workbook")?;
        }
        if let Some(errors) = self.errors {
            errors.finish()?;
        }
        self.out.finish()?;
        Ok(self.written)
    }
}

/// Whether these places can be written to: asked before answers are paid for.
pub(crate) fn check_places(places: &Places<'_>) -> Result<()> {
    outputs::refuse_same(places)?;
    places
        .iter()
        .filter(|(option, _)| *option == "--out")
        .filter_map(|(_, path)| *path)
        .try_for_each(refuse_foreign)?;
    places.iter().filter_map(|(_, path)| *path).try_for_each(Sink::check)
}

/// Where results go that were to go here: to stdout without a word, and nowhere if nothing is to be printed.
pub(crate) fn place_of(format: Format, out: Option<&Path>) -> &Path {
    let printed = if format == Format::None { "/dev/null" } else { "-" };
    out.unwrap_or(Path::new(printed))
}

/// Rows of a workbook are kept in a file beside it until all of them are known.
fn workbook_at(out: &Path) -> Result<WorkbookWriter> {
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    WorkbookWriter::new(folder, None).with_context(|| format!("writing {}", out.display()))
}

/// Refuses names of formats that are not written here: a file with such a name and other content would be useless.
fn refuse_foreign(out: &Path) -> Result<()> {
    let extension = out.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !FOREIGN.contains(&extension.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::new(Code::Usage, format!("{}: answers cannot be written as .{extension}", out.display()))
        .hint("name a file that ends in .xlsx, .csv, .tsv, .jsonl or .txt")
        .into())
}

#[cfg(test)]
mod tests;
