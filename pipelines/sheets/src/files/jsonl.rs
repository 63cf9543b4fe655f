//! JSONL: an object a line. Its head is made up of the fields that are asked for, and a line keeps its text when it is
//! written again.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::{Error, Result};
use super::Reader;
use super::export::{Fill, Fills, Output};
use super::lines::{Lines, trim_end};
use longhaul_pipeline::table_files::cell::plain_number;
use longhaul_pipeline::table_files::{Cell, Record};

/// Most fields that become columns.
const FIELDS_MAX: usize = 10_000;
const HINT_OBJECT: &str = r#"each line must be an object such as {"text": "..."}"#;

/// Reads lines as rows.
pub(super) struct JsonlReader {
    lines: Lines,
    names: Vec<String>,
    number: u64,
}

impl JsonlReader {
    pub(super) fn open(path: &Path, names: Vec<String>) -> Result<Self> {
        if names.is_empty() {
            return Err(Error::Invalid(
                "JSONL has no rows of heads: name the field with the text by --text-column".to_owned(),
            ));
        }
        Ok(Self { lines: Lines::open(path)?, names, number: 0 })
    }
}

impl Reader for JsonlReader {
    fn next(&mut self) -> Result<Option<Record>> {
        let number = self.number;
        if number == 0 {
            self.number = 1;
            let cells = self.names.iter().map(|name| Cell::Text(name.clone())).collect();
            return Ok(Some(Record { number, cells, original: None }));
        }
        let mut text = String::new();
        let Some(line) = self.lines.append(&mut text)? else { return Ok(None) };
        self.number += 1;
        trim_end(&mut text);
        if text.trim().is_empty() {
            return Ok(Some(Record { number, cells: Vec::new(), original: Some(text) }));
        }
        let cells = cells(&text, &self.names).map_err(|error| self.lines.wrong(line, &error, HINT_OBJECT))?;
        Ok(Some(Record { number, cells, original: Some(text) }))
    }
}

/// The fields of all lines, in the order in which they turn up.
pub(super) fn fields(path: &Path) -> Result<Vec<String>> {
    let mut lines = Lines::open(path)?;
    let mut names: Vec<String> = Vec::new();
    let mut known = std::collections::HashSet::new();
    let mut text = String::new();
    while let Some(line) = lines.append(&mut text)? {
        if !text.trim().is_empty() {
            let fields = parse(&text).map_err(|error| lines.wrong(line, &error, HINT_OBJECT))?;
            for (name, _) in fields.0 {
                if known.insert(name.clone()) {
                    names.push(name);
                }
            }
        }
        if names.len() > FIELDS_MAX {
            let text = format!("more than {FIELDS_MAX} different fields");
            return Err(lines.wrong(line, &text, "write to .jsonl instead, where fields are no columns"));
        }
        text.clear();
    }
    if names.is_empty() {
        return Err(Error::Table(format!("{} has no lines with fields", path.display())));
    }
    Ok(names)
}

fn cells(text: &str, names: &[String]) -> Result<Vec<Cell>, String> {
    let fields = parse(text)?;
    names.iter().map(|name| fields.get(name).map_or(Ok(Cell::Empty), cell)).collect()
}

fn cell(value: &RawValue) -> Result<Cell, String> {
    match value.get() {
        "null" => Ok(Cell::Empty),
        text if text.starts_with('"') => {
            serde_json::from_str(text).map(Cell::Text).map_err(|error| format!("a text is wrong: {error}"))
        }
        text => Ok(Cell::Json(text.to_owned())),
    }
}

fn parse(text: &str) -> Result<Fields<'_>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

/// The fields of a line in their order, with the text of their values.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    /// The last counts when a name is there twice, as it does for others.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().rev().find(|(found, _)| found == name).map(|(_, value)| *value)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Collect).map(Self)
    }
}

/// Writes an object a line.
pub(super) struct JsonlOutput<'a> {
    writer: &'a mut (dyn Write + Send),
    /// Of columns.
    names: Vec<String>,
    /// Columns of scores.
    targets: Vec<usize>,
    from_jsonl: bool,
}

impl<'a> JsonlOutput<'a> {
    pub(super) fn new(
        writer: &'a mut (dyn Write + Send),
        names: Vec<String>,
        targets: Vec<usize>,
        from_jsonl: bool,
    ) -> Self {
        Self { writer, names, targets, from_jsonl }
    }

    fn name(&self, column: usize) -> String {
        self.names.get(column).cloned().unwrap_or_else(|| format!("column {}", column + 1))
    }

    /// A row of a table as an object. A score that is blank has no field.
    fn object(&self, record: &Record, fills: &Fills<'_>) -> String {
        let mut text = String::from("{");
        for column in 0..fills.width(record).max(self.names.len()) {
            let is_target = self.targets.contains(&column);
            let value = match (fills.get(column), record.cells.get(column)) {
                (Some(fill), _) => fill_json(*fill),
                (None, Some(cell)) if is_target && cell.is_blank() => continue,
                (None, Some(cell)) => cell_json(cell, is_target),
                (None, None) if is_target || column >= self.names.len() => continue,
                (None, None) => r#""""#.to_owned(),
            };
            push_field(&mut text, &self.name(column), &value);
        }
        text.push('}');
        text
    }
}

impl Output for JsonlOutput<'_> {
    fn row(&mut self, record: &Record, fills: &Fills<'_>) -> io::Result<()> {
        if fills.is_head {
            return Ok(());
        }
        let mut line = match &record.original {
            Some(text) if self.from_jsonl => {
                let fills: Vec<_> =
                    fills.iter().map(|(column, fill)| (self.name(column), fill_json(fill))).collect();
                edited(text, &fills).map_err(io::Error::other)?
            }
            // A row without anything is nothing to say.
            _ if record.used() == 0 => return Ok(()),
            _ => self.object(record, fills),
        };
        line.push('\n');
        self.writer.write_all(line.as_bytes())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

/// A line with some fields set: replaced where they stand, else behind the last.
fn edited(line: &str, fills: &[(String, String)]) -> Result<String, String> {
    if fills.is_empty() {
        return Ok(line.to_owned());
    }
    let fields = parse(line)?;
    let place = |value: &RawValue| value.get().as_ptr() as usize - line.as_ptr() as usize;
    let mut replaced: Vec<(usize, usize, &str)> = Vec::new();
    let mut added = String::new();
    for (name, value) in fills {
        match fields.get(name) {
            Some(old) => replaced.push((place(old), old.get().len(), value)),
            None => {
                added.push_str(if fields.0.is_empty() && added.is_empty() { "" } else { ", " });
                added.push_str(&format!("{}: {value}", Value::from(name.as_str())));
            }
        }
    }
    let end = line.rfind('}').unwrap_or(line.len());
    // Right behind the last value, so that spaces before the brace stay before it.
    let behind = fields.0.last().map_or(end, |(_, value)| place(value) + value.get().len());
    replaced.push((behind, 0, &added));
    replaced.sort_unstable();
    let mut text = String::with_capacity(line.len() + added.len());
    let mut done = 0;
    for (start, len, value) in replaced {
        text.push_str(&line[done..start]);
        text.push_str(value);
        done = start + len;
    }
    text.push_str(&line[done..]);
    Ok(text)
}

fn push_field(text: &mut String, name: &str, value: &str) {
    if text.len() > 1 {
        text.push_str(", ");
    }
    text.push_str(&format!("{}: {value}", Value::from(name)));
}

fn fill_json(fill: Fill<'_>) -> String {
    match fill {
        Fill::Head(name) => Value::from(name).to_string(),
        Fill::Value(value) => value.to_string(),
    }
}

/// A score of a file without types is a number like the ones beside it.
fn cell_json(cell: &Cell, is_target: bool) -> String {
    match cell {
        Cell::Plain(text) if is_target && plain_number(text.trim()).is_some() => text.trim().to_owned(),
        Cell::Empty | Cell::Plain(_) | Cell::Text(_) | Cell::Date { .. } => {
            Value::from(cell.text()).to_string()
        }
        Cell::Number(_) => cell.text().into_owned(),
        Cell::Bool(value) => value.to_string(),
        Cell::Json(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_all_that_is_not_set() {
        let set = |line: &str, fills: &[(&str, &str)]| {
            let fills: Vec<_> =
                fills.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            edited(line, &fills).unwrap()
        };
        for (line, fills, expected) in [
            (r#"{"z":1,"a":2}"#, &[("s", "0.5")][..], r#"{"z":1,"a":2, "s": 0.5}"#),
            (r#"{"z": 1, "s": null, "a": 2 }"#, &[("s", "0.5")], r#"{"z": 1, "s": 0.5, "a": 2 }"#),
            (r#"{ "z" : 1.50 }  "#, &[("s", "1"), ("t", "\"x\"")], r#"{ "z" : 1.50, "s": 1, "t": "x" }  "#),
            ("{}", &[("s", "1"), ("t", "2")], r#"{"s": 1, "t": 2}"#),
            (r#"{"s":1,"s":2}"#, &[("s", "3")], r#"{"s":1,"s":3}"#),
            (r#"{"s":1,"t":2}"#, &[("t", "4"), ("s", "3")], r#"{"s":3,"t":4}"#),
            (r#"{"t":"}","s":1}"#, &[("s", "3"), ("u", "5")], r#"{"t":"}","s":3, "u": 5}"#),
            (r#"{"日":"\u00e9"}"#, &[("日", "1")], r#"{"日":1}"#),
            (r#"{"a":1}"#, &[], r#"{"a":1}"#),
        ] {
            assert_eq!(set(line, fills), expected);
        }
    }

    #[test]
    fn a_field_is_text_or_json() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let line = r#"{"a":"x\n\"y\"","b":1.50,"c":{"k":[1]},"d":null}"#;
        let texts: Vec<_> = cells(line, &names).unwrap().into_iter().map(Cell::into_text).collect();
        assert_eq!(texts, ["x\n\"y\"", "1.50", r#"{"k":[1]}"#, "", ""]);
    }
}
