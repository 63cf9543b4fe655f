//! Names of cells as Google writes them: `'My sheet'!B2:D9`. Here rows and columns count from 0, there from 1 and A.

use std::ops::Range;

/// Some cells of a sheet; ends are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Area {
    /// Whole rows.
    Rows(Range<u64>),
    /// Whole columns.
    Columns(Range<usize>),
    /// A rectangle.
    Cells {
        /// Its rows.
        rows: Range<u64>,
        /// Its columns.
        columns: Range<usize>,
    },
}

impl Area {
    /// Its name in a sheet.
    pub(super) fn name(&self, title: &str) -> String {
        let title = quoted(title);
        match self {
            Self::Rows(rows) => format!("{title}!{}:{}", rows.start + 1, rows.end),
            Self::Columns(columns) => {
                format!("{title}!{}:{}", letters(columns.start), letters(last(columns)))
            }
            Self::Cells { rows, columns } => {
                let (from, to) = (letters(columns.start), letters(last(columns)));
                format!("{title}!{from}{}:{to}{}", rows.start + 1, rows.end)
            }
        }
    }

    /// Row and column of its first cell.
    pub(super) fn start(&self) -> (u64, usize) {
        match self {
            Self::Rows(rows) => (rows.start, 0),
            Self::Columns(columns) => (0, columns.start),
            Self::Cells { rows, columns } => (rows.start, columns.start),
        }
    }

    /// Whether a cell is in it.
    pub(super) fn holds(&self, row: u64, column: usize) -> bool {
        match self {
            Self::Rows(rows) => rows.contains(&row),
            Self::Columns(columns) => columns.contains(&column),
            Self::Cells { rows, columns } => rows.contains(&row) && columns.contains(&column),
        }
    }

    /// The part of it that a sheet of this size has, if any.
    pub(super) fn within(&self, (row_count, column_count): (u64, usize)) -> Option<Self> {
        let rows = |rows: &Range<u64>| rows.start..rows.end.min(row_count);
        let columns = |columns: &Range<usize>| columns.start..columns.end.min(column_count);
        let part = match self {
            Self::Rows(old) => Self::Rows(rows(old)),
            Self::Columns(old) => Self::Columns(columns(old)),
            Self::Cells { rows: old_rows, columns: old_columns } => {
                Self::Cells { rows: rows(old_rows), columns: columns(old_columns) }
            }
        };
        (!part.is_empty()).then_some(part)
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Rows(rows) => rows.is_empty(),
            Self::Columns(columns) => columns.is_empty(),
            Self::Cells { rows, columns } => rows.is_empty() || columns.is_empty(),
        }
    }
}

fn last(columns: &Range<usize>) -> usize {
    columns.end.saturating_sub(1).max(columns.start)
}

/// Always in quotes: a title such as `A1` would be taken for a cell.
pub(super) fn quoted(title: &str) -> String {
    format!("'{}'", title.replace('\'', "''"))
}

/// The letters of a column: A for 0, AA for 26.
pub(super) fn letters(column: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = column + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b'A' + u8::try_from(rest % 26).unwrap_or_default()));
        rest /= 26;
    }
    letters.iter().rev().collect()
}

/// Few spans that hold all of some rising numbers; gaps of this size are not worth a span.
pub(super) fn spans(numbers: impl IntoIterator<Item = u64>, gap: u64) -> Vec<Range<u64>> {
    let mut spans: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match spans.last_mut() {
            Some(span) if number <= span.end + gap => span.end = span.end.max(number + 1),
            _ => spans.push(number..number + 1),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_letters() {
        for (column, want) in [
            (0, "A"),
            (1, "B"),
            (25, "Z"),
            (26, "AA"),
            (51, "AZ"),
            (52, "BA"),
            (701, "ZZ"),
            (702, "AAA"),
            (18_277, "ZZZ"),
        ] {
            assert_eq!(letters(column), want, "{column}");
        }
    }

    #[test]
    fn areas_have_names() {
        let cells = |rows, columns| Area::Cells { rows, columns };
        for (title, area, want) in [
            ("Sheet1", cells(0..1, 0..1), "'Sheet1'!A1:A1"),
            ("Sheet1", cells(4..54, 3..13), "'Sheet1'!D5:M54"),
            ("Bob's", Area::Rows(0..1), "'Bob''s'!1:1"),
            ("''", Area::Rows(1..4), "''''''!2:4"),
            ("A1", Area::Columns(5..26), "'A1'!F:Z"),
            ("Größe 1!", Area::Rows(9..10), "'Größe 1!'!10:10"),
        ] {
            assert_eq!(area.name(title), want);
        }
    }

    #[test]
    fn what_lies_beyond_the_sheet_is_cut_off() {
        assert_eq!(Area::Rows(5..20).within((10, 3)), Some(Area::Rows(5..10)));
        assert_eq!(Area::Rows(10..20).within((10, 3)), None);
        assert_eq!(Area::Columns(3..9).within((10, 3)), None);
        let cells = Area::Cells { rows: 8..12, columns: 1..9 };
        assert_eq!(cells.within((10, 3)), Some(Area::Cells { rows: 8..10, columns: 1..3 }));
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of spans that has one")]
    fn near_rows_share_a_span() {
        assert_eq!(spans([1, 2, 3], 0), [1..4]);
        assert_eq!(spans([1, 3, 9], 1), [1..4, 9..10]);
        assert_eq!(spans([5, 5, 6], 0), [5..7]);
        assert_eq!(spans([], 9), []);
    }
}
