//! One outcome as lines of each form. Nothing here writes.

use std::borrow::Cow;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use longhaul_llm::wire::openai;
use longhaul_llm::{Endpoint, NanoUsd};
use longhaul_pipeline::table_files::harmless;
use longhaul_pipeline::table_files::workbook::Content;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Answer, ErrorInfo, Item, Outcome};
use crate::prompts;

/// The column of answers that are not taken apart.
const ANSWER: &str = "answer";
/// The column of vectors.
const EMBEDDING: &str = "embedding";
/// The column that says why there is no answer.
const ERROR: &str = "error";

/// A line of our own form.
pub(super) fn jsonl(item: &Item, outcome: &Outcome) -> Result<String> {
    #[derive(Serialize)]
    struct Line<'a, T> {
        id: Option<&'a str>,
        index: u64,
        #[serde(flatten)]
        rest: T,
    }
    #[derive(Serialize)]
    struct Good<'a> {
        answer: Value,
        stop: &'a str,
        model: &'a str,
        usage: &'a Value,
        cost_usd: Option<NanoUsd>,
        cached: bool,
    }
    #[derive(Serialize)]
    struct Embedded<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        embedding: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        embeddings: Option<Value>,
        model: &'a str,
        usage: &'a Value,
        cost_usd: Option<NanoUsd>,
        cached: bool,
    }
    #[derive(Serialize)]
    struct Bad<'a> {
        error: &'a ErrorInfo,
    }
    let (id, index) = (item.custom_id.as_deref(), item.index);
    let line = match outcome {
        Outcome::Answer(answer) => {
            let Answer { stop, model, usage, cached, vectors, .. } = &**answer;
            let (cost_usd, cached) = (answer.cost_usd, *cached);
            let value = value_of(answer);
            if vectors.is_empty() {
                let rest = Good { answer: value, stop, model, usage, cost_usd, cached };
                serde_json::to_string(&Line { id, index, rest })
            } else {
                let (embedding, embeddings) =
                    if vectors.len() == 1 { (Some(value), None) } else { (None, Some(value)) };
                let rest = Embedded { embedding, embeddings, model, usage, cost_usd, cached };
                serde_json::to_string(&Line { id, index, rest })
            }
        }
        Outcome::Error(error) => serde_json::to_string(&Line { id, index, rest: Bad { error } }),
    };
    Ok(line.context("writing an answer as JSON")? + "\n")
}

/// A line as the OpenAI batch API gives it.
pub(super) fn openai(item: &Item, outcome: &Outcome) -> Result<String> {
    #[derive(Serialize)]
    struct Line<'a> {
        id: String,
        custom_id: Option<&'a str>,
        response: Value,
        error: Value,
    }
    let id = format!("batch_req_{}", item.index);
    let (response, error) = match outcome {
        Outcome::Answer(answer) => {
            let body = if answer.vectors.is_empty() { completion(item, answer) } else { embeddings(answer) };
            (json!({"status_code": 200, "request_id": id, "body": body}), Value::Null)
        }
        Outcome::Error(ErrorInfo { class, message }) => {
            (Value::Null, json!({"code": class, "message": message}))
        }
    };
    let line = Line { id, custom_id: item.custom_id.as_deref(), response, error };
    Ok(serde_json::to_string(&line).context("writing an answer as JSON")? + "\n")
}

fn embeddings(answer: &Answer) -> Value {
    let usage = serde_json::from_value(answer.usage.clone()).unwrap_or_default();
    openai::vectors_to_json(&answer.model, &answer.vectors, &usage, answer.encoding_format)
}

fn completion(item: &Item, answer: &Answer) -> Value {
    let mut message = json!({"role": "assistant", "content": answer.text, "refusal": null});
    if !answer.tool_calls.is_empty() {
        let calls = answer.tool_calls.iter().map(|call| {
            let function = json!({"name": call["name"], "arguments": call["arguments"]});
            json!({"id": call["id"], "type": "function", "function": function})
        });
        message["tool_calls"] = calls.collect();
    }
    // An answer that was cut off must not look whole, so a word that is new here stays as it is.
    let finish_reason = match answer.stop.as_str() {
        "end" => "stop",
        "refused" => "content_filter",
        other => other,
    };
    let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason});
    json!({
        "id": format!("chatcmpl-{}", item.index),
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [choice],
        "usage": openai_usage(&answer.usage),
    })
}

/// Our classes of tokens exclude each other; theirs contain one another.
fn openai_usage(usage: &Value) -> Value {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
    let input = count("fresh_in") + count("cache_write") + count("cache_read");
    let output = count("out") + count("reasoning");
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": count("cache_read")},
        "completion_tokens_details": {"reasoning_tokens": count("reasoning")},
    })
}

/// The columns of answers in a table.
#[derive(Debug)]
pub(super) struct Columns {
    /// A column for each, where there is a schema.
    properties: Vec<String>,
    /// The only one, where there is none.
    answer: &'static str,
    /// Whether the prompt's own columns come from CSV or TSV.
    plain: bool,
}

impl Columns {
    pub(super) fn new(endpoint: Endpoint, properties: Vec<String>, input: prompts::Form) -> Self {
        let answer = match endpoint {
            Endpoint::Chat => ANSWER,
            Endpoint::Embeddings => EMBEDDING,
        };
        let plain = matches!(input, prompts::Form::Csv | prompts::Form::Tsv);
        Self { properties, answer, plain }
    }
}

/// A field of a table.
#[derive(Debug)]
pub(super) enum Field {
    /// What is known of the prompt; whether it stays as it was in a CSV or TSV file.
    Known(String, bool),
    /// Our own words.
    Text(String),
    /// What the model said.
    Value(Value),
}

impl Field {
    /// In CSV and TSV.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Known(text, true) => Cow::Borrowed(text),
            Self::Known(text, false) | Self::Text(text) | Self::Value(Value::String(text)) => {
                harmless(Cow::Borrowed(text))
            }
            Self::Value(value) => Cow::Owned(field_of(Some(value))),
        }
    }

    /// In a workbook.
    pub(super) fn content(&self) -> Content<'_> {
        match self {
            Self::Known(text, _) => Content::Plain(text),
            Self::Text(text) => Content::Text(text),
            Self::Value(value) => Content::Value(value),
        }
    }
}

/// The names of a table's columns.
pub(super) fn names(item: &Item, columns: &Columns) -> Vec<Field> {
    let Columns { properties, answer, plain } = columns;
    let mut names: Vec<String> = known_columns(item).into_iter().map(|(name, _)| name).collect();
    let known = names.len();
    let answers =
        if properties.is_empty() { vec![*answer] } else { properties.iter().map(String::as_str).collect() };
    for name in answers.into_iter().chain([ERROR]) {
        names.push(fresh_name(name, &names));
    }
    let plain = *plain && item.columns.is_some();
    let name = |(at, name)| if at < known { Field::Known(name, plain) } else { Field::Text(name) };
    names.into_iter().enumerate().map(name).collect()
}

/// The fields of a row.
pub(super) fn fields(item: &Item, outcome: &Outcome, columns: &Columns) -> Vec<Field> {
    let Columns { properties, plain, .. } = columns;
    let plain = *plain && item.columns.is_some();
    let known = known_columns(item).into_iter().map(|(_, value)| Field::Known(value, plain));
    let mut fields: Vec<Field> = known.collect();
    match outcome {
        Outcome::Answer(answer) => {
            let mut value = value_of(answer);
            if properties.is_empty() {
                fields.push(Field::Value(value));
            } else {
                fields.extend(
                    properties
                        .iter()
                        .map(|name| Field::Value(value.get_mut(name).map_or(Value::Null, Value::take))),
                );
            }
            fields.push(Field::Text(String::new()));
        }
        Outcome::Error(error) => {
            fields.extend(properties.iter().skip(1).map(|_| Field::Value(Value::Null)));
            fields.push(Field::Value(Value::Null));
            fields.push(Field::Text(error.to_string()));
        }
    }
    fields
}

/// A row of a table as a line, after the header if it is the first.
pub(super) fn rows(
    item: &Item,
    outcome: &Outcome,
    columns: &Columns,
    delimiter: u8,
    first: bool,
) -> Result<String> {
    let names = if first { row(&names(item, columns), delimiter)? } else { String::new() };
    Ok(names + &row(&fields(item, outcome, columns), delimiter)?)
}

/// What is known of a prompt that came from no table: its place, its name, and itself.
fn known_columns(item: &Item) -> Vec<(String, String)> {
    item.columns.clone().unwrap_or_else(|| {
        let (id, prompt) = (item.custom_id.clone(), item.prompt.clone());
        let columns = [("index", Some(item.index.to_string())), ("id", id), ("prompt", prompt)];
        columns.map(|(name, value)| (name.to_owned(), value.unwrap_or_default())).into()
    })
}

/// A name that no column has yet: a table of answers may be asked about again.
fn fresh_name(name: &str, taken: &[String]) -> String {
    let mut fresh = name.to_owned();
    let mut number = 2;
    while taken.contains(&fresh) {
        fresh = format!("{name}_{number}");
        number += 1;
    }
    fresh
}

fn row(fields: &[Field], delimiter: u8) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(Vec::new());
    writer.write_record(fields.iter().map(|field| field.text().into_owned())).context("writing a row")?;
    let bytes = writer.into_inner().map_err(csv::IntoInnerError::into_error).context("writing a row")?;
    String::from_utf8(bytes).context("writing a row")
}

/// The answer, followed by a line end.
pub(super) fn text(outcome: &Outcome, escaped: bool) -> String {
    let answer = match outcome {
        Outcome::Answer(answer) if answer.vectors.is_empty() => answer.text.clone(),
        Outcome::Answer(answer) => field_of(Some(&value_of(answer))),
        Outcome::Error(_) => String::new(),
    };
    let mut line = String::with_capacity(answer.len() + 1);
    for letter in answer.chars() {
        match letter {
            '\\' if escaped => line += "\\\\",
            '\n' if escaped => line += "\\n",
            '\r' if escaped => line += "\\r",
            letter => line.push(letter),
        }
    }
    // Writing to a String cannot fail.
    let _ = writeln!(line);
    line
}

/// The value where a schema was asked for, else the text; of embeddings the vector, or a list of them.
fn value_of(answer: &Answer) -> Value {
    let vector = |vector: &Vec<f32>| openai::vector_to_json(vector, answer.encoding_format);
    match &answer.vectors[..] {
        [] => {}
        [only] => return vector(only),
        several => return several.iter().map(vector).collect(),
    }
    answer.json.clone().unwrap_or_else(|| Value::String(answer.text.clone()))
}

/// A value as a field of a table: texts bare, nothing for what is not there, the rest as JSON.
fn field_of(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}
