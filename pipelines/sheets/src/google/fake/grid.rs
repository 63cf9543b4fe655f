//! A sheet in memory, and the names of its cells.

use std::ops::Range;

use serde_json::Value;

/// A sheet.
pub(super) struct Grid {
    pub(super) title: String,
    pub(super) gid: i64,
    pub(super) row_count: usize,
    pub(super) column_count: usize,
    values: Vec<Vec<Value>>,
}

impl Grid {
    pub(super) fn new(title: &str, gid: i64, values: Vec<Vec<Value>>) -> Self {
        let column_count = values.iter().map(Vec::len).max().unwrap_or(0);
        Self { title: title.to_owned(), gid, row_count: values.len(), column_count, values }
    }

    pub(super) fn cell(&self, row: usize, column: usize) -> Value {
        self.values.get(row).and_then(|row| row.get(column)).cloned().unwrap_or_default()
    }

    /// Sets a cell as RAW does: `null` leaves it, an empty text empties it.
    pub(super) fn set(&mut self, row: usize, column: usize, value: Value) {
        if value.is_null() {
            return;
        }
        if self.values.len() <= row {
            self.values.resize(row + 1, Vec::new());
        }
        let cells = &mut self.values[row];
        if cells.len() <= column {
            cells.resize(column + 1, Value::Null);
        }
        cells[column] = if value == "" { Value::Null } else { value };
    }

    /// Values of some cells as the API gives them: what is empty at the ends is left out, a hole is an empty text.
    pub(super) fn read(&self, rows: Range<usize>, columns: Range<usize>) -> Vec<Vec<Value>> {
        let blank = |value: &Value| value.is_null() || *value == "";
        let mut found: Vec<Vec<Value>> = Vec::new();
        for row in rows {
            let cells = self.values.get(row).map(Vec::as_slice).unwrap_or_default();
            let cells = cells.get(columns.start..columns.end.min(cells.len())).unwrap_or_default();
            let end = cells.iter().rposition(|value| !blank(value)).map_or(0, |last| last + 1);
            let given = |value: &Value| if blank(value) { Value::from("") } else { value.clone() };
            found.push(cells[..end].iter().map(given).collect());
        }
        let filled = found.iter().rposition(|row| !row.is_empty()).map_or(0, |last| last + 1);
        found.truncate(filled);
        found
    }

    pub(super) fn insert_column(&mut self, before: usize) {
        for row in self.values.iter_mut().filter(|row| row.len() > before) {
            row.insert(before, Value::Null);
        }
        self.column_count += 1;
    }

    pub(super) fn move_column(&mut self, from: usize, to: usize) {
        for row in &mut self.values {
            row.resize(row.len().max(from.max(to) + 1), Value::Null);
            let value = row.remove(from);
            row.insert(to, value);
        }
    }

    pub(super) fn insert_row(&mut self, before: usize) {
        self.values.resize(self.values.len().max(before), Vec::new());
        self.values.insert(before, Vec::new());
        self.row_count += 1;
    }

    pub(super) fn delete_row(&mut self, row: usize) {
        if row < self.values.len() {
            self.values.remove(row);
        }
        self.row_count = self.row_count.saturating_sub(1);
    }
}

/// A name of cells, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) title: String,
    /// From 0, ends left out; all rows, if it names none.
    pub(super) rows: Option<Range<usize>>,
    pub(super) columns: Option<Range<usize>>,
}

/// Takes `'A title'!B2:D9` apart, as well as `'A title'!2:9` and `'A title'!B:D`.
pub(super) fn named(name: &str) -> Option<Named> {
    let (title, cells) = name.strip_prefix('\'')?.rsplit_once("'!")?;
    let (from, to) = cells.split_once(':')?;
    let ((first_column, first_row), (last_column, last_row)) = (cell(from)?, cell(to)?);
    let both = |first: Option<usize>, last: Option<usize>| match (first, last) {
        (Some(first), Some(last)) if first <= last => Some(Some(first - 1..last)),
        (None, None) => Some(None),
        _ => None,
    };
    Some(Named {
        title: title.replace("''", "'"),
        rows: both(first_row, last_row)?,
        columns: both(first_column, last_column)?,
    })
}

/// Column and row of a cell's name, each from 1, each if it is there.
fn cell(name: &str) -> Option<(Option<usize>, Option<usize>)> {
    let end = name.find(|letter: char| !letter.is_ascii_uppercase()).unwrap_or(name.len());
    let (letters, digits) = name.split_at(end);
    let number = |sum: usize, letter: u8| sum * 26 + usize::from(letter - b'A') + 1;
    let column = (!letters.is_empty()).then(|| letters.bytes().fold(0, number));
    let row = if digits.is_empty() { None } else { Some(digits.parse().ok().filter(|row| *row > 0)?) };
    Some((column, row))
}

#[cfg(test)]
mod tests {
    use super::super::super::a1::Area;
    use super::*;

    #[test]
    fn names_are_understood_as_they_are_made() {
        for title in ["Sheet1", "Bob's", "a'!b", "ü !"] {
            let cells = Area::Cells { rows: 4..9, columns: 26..30 };
            for (area, rows, columns) in [
                (cells, Some(4..9), Some(26..30)),
                (Area::Rows(0..1), Some(0..1), None),
                (Area::Columns(701..703), None, Some(701..703)),
            ] {
                let want = Named { title: title.to_owned(), rows, columns };
                assert_eq!(named(&area.name(title)), Some(want), "{area:?}");
            }
        }
        for wrong in ["Sheet1!A1:A1", "'S'!", "'S'!A0:A1", "'S'!A1:B", "'S'!B1:A1", "'S'!a1:b1"] {
            assert_eq!(named(wrong), None, "{wrong}");
        }
    }
}
