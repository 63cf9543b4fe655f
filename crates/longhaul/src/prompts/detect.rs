//! Which form a file has: what the caller says, then what its name says, then what its first line looks like. JSON that
//! is damaged is never taken for text: a prompt a line of it would cost money and help nobody.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::lines::{LineReader, Next};
use super::source::Source;
use super::{Fault, Form, Format, Options, PROMPT, refused};
use crate::exit::{Code, Failure};

/// The form of a file with what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) form: Form,
    /// What separates columns, where the form is a table.
    pub(super) delimiter: Option<u8>,
}

impl Shape {
    fn table(form: Form, delimiter: u8) -> Self {
        Self { form, delimiter: Some(delimiter) }
    }

    fn lines(form: Form) -> Self {
        Self { form, delimiter: None }
    }
}

/// Finds out the shape, and whether the options go with it.
pub(super) fn shape(path: &Path, source: &Source, options: &Options) -> Result<Shape> {
    if source.is_zip()? {
        return match options.format {
            Format::Auto | Format::Xlsx => Ok(Shape::lines(Form::Xlsx)),
            _ => Err(Failure::new(
                Code::Usage,
                format!("{} is a zip archive, as workbooks are", source.name()),
            )
            .hint("omit --format to read its first sheet")
            .into()),
        };
    }
    refuse_sheet(source, options)?;
    let first = first_line(source, options)?;
    let format = if options.format == Format::Auto { by_name(path) } else { options.format };
    let shape = match format {
        Format::Openai => Shape::lines(Form::Openai),
        // The caller's word counts; a name ending tells only that it is JSON.
        Format::Jsonl if options.format == Format::Auto => json_shape(&first),
        Format::Jsonl => Shape::lines(Form::Jsonl),
        Format::Csv => Shape::table(Form::Csv, comma_or_semicolon(&first)),
        Format::Tsv => Shape::table(Form::Tsv, b'\t'),
        Format::Text => Shape::lines(Form::Text),
        Format::Xlsx => return Err(no_workbook(source).into()),
        Format::Auto => by_content(&first, source, options)?,
    };
    if shape.form == Form::Openai && options.template.is_some() {
        let text =
            format!("{} has requests that are complete, so --template has nothing to fill", source.name());
        return Err(Failure::new(Code::Usage, text)
            .hint("omit --template; for lines with your own fields use --format jsonl")
            .into());
    }
    Ok(shape)
}

fn no_workbook(source: &Source) -> Failure {
    Failure::new(
        Code::Usage,
        format!("{} is not a workbook: it does not begin like a zip archive", source.name()),
    )
    .hint("name its format: --format csv, tsv, jsonl, openai or text")
}

fn refuse_sheet(source: &Source, options: &Options) -> Result<()> {
    match &options.sheet {
        Some(sheet) => Err(Failure::new(
            Code::Usage,
            format!("{} is not a workbook, so it has no sheet {sheet:?}", source.name()),
        )
        .hint("omit --sheet")
        .into()),
        None => Ok(()),
    }
}

fn by_name(path: &Path) -> Format {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "jsonl" | "ndjson" | "json" => Format::Jsonl,
        "csv" => Format::Csv,
        "tsv" | "tab" => Format::Tsv,
        "txt" | "text" => Format::Text,
        "xlsx" => Format::Xlsx,
        _ => Format::Auto,
    }
}

/// The first line that is not blank; empty where there is none.
fn first_line(source: &Source, options: &Options) -> Result<String> {
    let mut text = String::new();
    match LineReader::new(source.reader()?, options.line_bytes_max).next_line(&mut text) {
        Ok(Next::Line(_) | Next::End) => Ok(text),
        Err(Fault::Line(problem)) => Err(refused(source, &problem).into()),
        Err(Fault::Read(error)) => Err(error),
    }
}

fn by_content(first: &str, source: &Source, options: &Options) -> Result<Shape> {
    let start = first.trim_start();
    let value = serde_json::from_str::<Value>(first).ok();
    if start.starts_with('{') || value.as_ref().is_some_and(Value::is_string) {
        return Ok(json_shape(first));
    }
    if start == "[" || value.as_ref().is_some_and(Value::is_array) {
        return Err(Failure::new(Code::Usage, format!("{} is one JSON list", source.name()))
            .hint("write one value a line: jq -c '.[]' FILE | longhaul run -; prompts that begin with [ are read with --format text")
            .into());
    }
    let wanted: Vec<&str> = match &options.template {
        Some(template) => template.fields().collect(),
        None => vec![PROMPT],
    };
    // A sentence has commas too: it is a header only if it names what is needed, beside something else.
    let is_header = |delimiter: &u8| {
        let names: Vec<&str> =
            first.split(char::from(*delimiter)).map(|name| name.trim().trim_matches('"')).collect();
        names.len() > 1 && wanted.iter().all(|name| names.contains(name))
    };
    Ok(match [b'\t', b',', b';'].iter().find(|delimiter| is_header(delimiter)) {
        Some(b'\t') => Shape::table(Form::Tsv, b'\t'),
        Some(delimiter) => Shape::table(Form::Csv, *delimiter),
        None => Shape::lines(Form::Text),
    })
}

/// A batch line has its request in `body`.
fn json_shape(first: &str) -> Shape {
    let line = serde_json::from_str::<Value>(first).unwrap_or_default();
    let names_batch = ["custom_id", "url", "method"].iter().any(|name| line.get(name).is_some());
    let is_batch = names_batch && line.get("body").is_some_and(Value::is_object);
    Shape::lines(if is_batch { Form::Openai } else { Form::Jsonl })
}

/// Spreadsheets of half the world separate by semicolon and call it CSV all the same.
fn comma_or_semicolon(header: &str) -> u8 {
    if !header.contains(',') && header.contains(';') { b';' } else { b',' }
}
