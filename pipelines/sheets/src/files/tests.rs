//! Files as a user has them: written, read, scored and written again.

mod bad;
mod random;
mod reading;
mod writing;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::super::layout::{Layout, Plan, Row};
use super::super::places::{Exported, Filled, FilledRow, Rows};
use super::super::settings::{Category, Existing, Format, Mode, Source};
use super::super::{Error, Result};
use super::{Export, export, open};

/// A folder with one file in it, and how it is scored.
struct Desk {
    folder: TempDir,
    source: Source,
    layout: Layout,
    categories: Vec<Category>,
    mode: Mode,
    existing: Existing,
}

impl Desk {
    /// A file with a column `text`, scored by `clarity` and `tone`.
    fn with(name: &str, content: impl AsRef<[u8]>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        Self {
            folder,
            source: source(&path),
            layout: Layout::Columns { text: "text".into() },
            categories: vec![category("clarity"), category("tone")],
            mode: Mode::Scores,
            existing: Existing::Keep,
        }
    }

    fn rationale(self) -> Self {
        Self { mode: Mode::Rationale, ..self }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn wanted(&self) -> Vec<String> {
        self.layout.wanted(&self.categories, &self.mode)
    }

    fn rows(&self) -> Vec<Row> {
        all(open(&self.source, &self.wanted()).unwrap().as_mut()).unwrap()
    }

    fn plan(&self) -> Plan {
        let mut rows = open(&self.source, &self.wanted()).unwrap();
        let mut heads = Vec::new();
        for _ in 0..self.layout.head_rows() {
            heads.extend(rows.next().unwrap());
        }
        self.layout.plan(&heads, &self.categories, &self.mode).unwrap()
    }

    fn export(&self, target: &str, filled: &mut dyn Filled) -> Result<Exported> {
        self.export_by(&self.plan(), target, filled)
    }

    fn export_by(&self, plan: &Plan, target: &str, filled: &mut dyn Filled) -> Result<Exported> {
        let path = self.path(target);
        let format = Format::of_path(&path)?;
        let (source, wanted) = (&self.source, &self.wanted());
        export(&Export { source, wanted, target: (&path, format), plan, existing: self.existing }, filled)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// No partial files were left.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn category(name: &str) -> Category {
    Category { name: name.into(), definition: String::new(), detail: String::new() }
}

fn source(path: &Path) -> Source {
    let format = Format::of_path(path).unwrap();
    Source::File { path: path.to_owned(), format, sheet: None, sha256: String::new() }
}

fn all(rows: &mut dyn Rows) -> Result<Vec<Row>> {
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(row);
    }
    Ok(found)
}

/// All cells of a file, whatever its format.
fn cells(path: &Path, wanted: &[&str]) -> Vec<Vec<String>> {
    let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
    let rows = all(open(&source(path), &wanted).unwrap().as_mut()).unwrap();
    rows.into_iter().map(|row| row.cells).collect()
}

/// Scores by row.
#[derive(Default)]
struct Scores(BTreeMap<u64, FilledRow>);

impl Scores {
    fn row(mut self, number: u64, text: &str, cells: impl IntoIterator<Item = Value>) -> Self {
        let cells = cells.into_iter().map(|value| (!value.is_null()).then_some(value)).collect();
        self.0.insert(number, FilledRow { text: text.to_owned(), cells, answered_by: Vec::new() });
        self
    }
}

impl Filled for Scores {
    fn row(&mut self, number: u64) -> Result<Option<FilledRow>> {
        Ok(self.0.get(&number).cloned())
    }
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it worked"),
        Err(Error::Table(text) | Error::Invalid(text)) => text,
        Err(other) => panic!("{other}"),
    }
}
