//! A table of aligned columns. Widths are display widths, so that CJK titles do not break the columns.

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

/// One field of a table.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    /// Text, made safe for a terminal.
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self { text: super::plain(text.as_ref()), style: Style::new(), right: false }
    }

    /// A number: aligned to the right.
    pub(crate) fn number(number: impl Into<u64>) -> Self {
        Self { right: true, ..Self::new(number.into().to_string()) }
    }

    /// A number with its unit, already written: aligned to the right.
    pub(crate) fn quantity(text: impl AsRef<str>) -> Self {
        Self { right: true, ..Self::new(text) }
    }

    /// Text, or a dash when there is none.
    pub(crate) fn optional(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new("–").style(Style::new().dimmed()), |text| Self::new(text))
    }

    /// In a style, where colours are on.
    pub(crate) fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

/// Rows under a header.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table as lines; nothing at all when it has no rows.
    pub(crate) fn render(&self, color: bool) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let header: Vec<Cell> =
            self.header.iter().map(|text| Cell::new(text).style(Style::new().bold())).collect();
        let lines = || std::iter::once(&header).chain(&self.rows);
        let width =
            |column: usize| lines().filter_map(|row| row.get(column)).map(|cell| cell.text.width()).max();
        let widths: Vec<usize> = (0..self.header.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in lines() {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let pad =
                    " ".repeat(widths.get(column).map_or(0, |width| width.saturating_sub(cell.text.width())));
                let text = super::paint(&cell.text, cell.style, color && cell.style != Style::new());
                let gap = if column == 0 { "" } else { "  " };
                line += &if cell.right { format!("{gap}{pad}{text}") } else { format!("{gap}{text}{pad}") };
            }
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}
