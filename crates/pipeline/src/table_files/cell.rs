//! A cell with what is known of its type, so that a number is one also in another format.

use std::borrow::Cow;

use serde_json::Value;

/// More digits than a spreadsheet program keeps: such an id is no number to it.
pub const NUMBER_DIGITS_MAX: usize = 15;
/// Characters that make a spreadsheet program take a text for a formula, the wide ones in East Asian versions.
const FORMULA_STARTS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
/// From here on numbers are written with an exponent, as spreadsheet programs show them.
const EXPONENT_FROM: f64 = 1e21;
const EXPONENT_BELOW: f64 = 1e-9;

/// A row with more than its texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its place in the table, from 0, heads counted.
    pub number: u64,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// Its text in the file, without the end of the line; none for a workbook and a head that is made up.
    pub original: Option<String>,
}

impl Record {
    /// A cell as text without spaces around it; one that is missing is empty.
    pub fn text(&self, column: usize) -> Cow<'_, str> {
        match self.cells.get(column).map(Cell::text) {
            Some(Cow::Borrowed(text)) => Cow::Borrowed(text.trim()),
            Some(Cow::Owned(text)) => Cow::Owned(text.trim().to_owned()),
            None => Cow::Borrowed(""),
        }
    }

    /// How many cells there are up to the last with something in it.
    pub fn used(&self) -> usize {
        self.cells.iter().rposition(|cell| !cell.is_blank()).map_or(0, |last| last + 1)
    }
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Nothing.
    Empty,
    /// Of a format without types: it may be a number.
    Plain(String),
    /// A text, also when it looks like a number.
    Text(String),
    /// A number.
    Number(f64),
    /// True or false.
    Bool(bool),
    /// A day or a time.
    Date {
        /// Days since the start of 1900.
        serial: f64,
        /// As a person sees it.
        text: String,
        /// What of it there is.
        kind: DateKind,
    },
    /// JSON that is no text.
    Json(String),
}

/// What of a date there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateKind {
    /// A day.
    Day,
    /// A time of day.
    Time,
    /// Both.
    DayAndTime,
    /// A time span.
    Duration,
}

impl Cell {
    /// As a person sees it.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Empty => Cow::Borrowed(""),
            Self::Plain(text) | Self::Text(text) | Self::Json(text) | Self::Date { text, .. } => {
                Cow::Borrowed(text)
            }
            Self::Number(number) => Cow::Owned(number_text(*number)),
            Self::Bool(true) => Cow::Borrowed("TRUE"),
            Self::Bool(false) => Cow::Borrowed("FALSE"),
        }
    }

    /// The same, without a copy.
    pub fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Text(text) | Self::Json(text) | Self::Date { text, .. } => text,
            Self::Empty | Self::Number(_) | Self::Bool(_) => self.text().into_owned(),
        }
    }

    /// As a field of CSV or TSV. A text is made harmless, unless it stood in such a file before: then it is its writer's.
    pub fn field(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => harmless(Cow::Borrowed(text)),
            Self::Empty
            | Self::Plain(_)
            | Self::Number(_)
            | Self::Bool(_)
            | Self::Date { .. }
            | Self::Json(_) => self.text(),
        }
    }

    /// Bytes of its text, as far as they are held.
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Plain(text) | Self::Text(text) | Self::Json(text) | Self::Date { text, .. } => text.len(),
            Self::Empty | Self::Number(_) | Self::Bool(_) => 0,
        }
    }

    /// Nothing but spaces.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Plain(text) | Self::Text(text) | Self::Json(text) | Self::Date { text, .. } => {
                text.trim().is_empty()
            }
            Self::Number(_) | Self::Bool(_) => false,
        }
    }
}

/// A number with the fifteen digits that spreadsheet programs show, an integer without a point.
pub fn number_text(number: f64) -> String {
    let shown = format!("{number:.*e}", NUMBER_DIGITS_MAX - 1).parse().unwrap_or(number);
    let size = shown.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if (EXPONENT_BELOW..EXPONENT_FROM).contains(&size) { format!("{shown}") } else { format!("{shown:E}") }
}

/// The number that a text is and nothing else: no zeros in front, no sign of plus, no more digits than are kept. What an
/// id or a telephone number looks like stays text.
pub fn plain_number(text: &str) -> Option<f64> {
    let body = text.strip_prefix('-').unwrap_or(text);
    let (whole, fraction) = body.split_once('.').unwrap_or((body, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = whole.len() > 1 && whole.starts_with('0');
    if !digits(whole) || !digits(fraction) || leading_zero || body.len() > NUMBER_DIGITS_MAX {
        return None;
    }
    text.parse().ok()
}

/// What a model said as the text of a cell; none for a blank.
pub fn value_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Some(Cow::Owned(value.to_string()))
        }
    }
}

/// A text so that no spreadsheet program runs it when it opens a CSV or TSV file: with a `'` before it, which such a
/// program does not show. A number stays one.
pub fn harmless(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.starts_with(FORMULA_STARTS) && plain_number(&text).is_none() {
        return Cow::Owned(format!("'{text}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_look_as_a_person_sees_them() {
        for (number, text) in [
            (1.0, "1"),
            (-3.0, "-3"),
            (0.0, "0"),
            (-0.0, "0"),
            (0.5, "0.5"),
            (0.1 + 0.2, "0.3"),
            (1e15, "1000000000000000"),
            (1e21, "1E21"),
            (1.5e-10, "1.5E-10"),
        ] {
            assert_eq!(number_text(number), text);
        }
    }

    #[test]
    fn only_what_is_surely_a_number_becomes_one() {
        for text in ["0", "7", "-7", "0.5", "-0.25", "123456789012345"] {
            assert_eq!(plain_number(text), text.parse().ok(), "{text}");
        }
        for text in ["", "-", "007", "+49", "1e5", "1.", ".5", "inf", "nan", "1,5", "1234567890123456", " 1"]
        {
            assert_eq!(plain_number(text), None, "{text}");
        }
    }

    #[test]
    fn a_models_text_never_is_a_formula() {
        for (text, safe) in [
            ("=1+1", "'=1+1"),
            ("+1", "'+1"),
            ("-1+cmd|x", "'-1+cmd|x"),
            ("- because", "'- because"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\n=1", "'\n=1"),
            ("＝1+1", "'＝1+1"),
            ("-5", "-5"),
            ("fine = good", "fine = good"),
            ("", ""),
        ] {
            assert_eq!(harmless(Cow::Borrowed(text)), safe);
        }
    }

    #[test]
    fn values_become_texts() {
        for (value, text) in [
            (json!(0.5), Some("0.5")),
            (json!(1), Some("1")),
            (json!("why"), Some("why")),
            (json!(true), Some("true")),
            (json!(["a", 1]), Some(r#"["a",1]"#)),
            (json!(null), None),
        ] {
            assert_eq!(value_text(&value).as_deref(), text);
        }
    }
}
