//! Scores into a sheet that people work in: look first, leave alone what they changed, write the rest with one call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;

use super::super::layout::{Layout, Plan, Row};
use super::super::places::{Fate, Sink, SinkError, SinkRow};
use super::super::settings::{Existing, GoogleSheet, Source};
use super::super::tables::StoredSheet;
use super::super::{Error, Result};
use super::a1::{Area, spans};
use super::cells;
use super::client::{Block, Google};
use super::columns::{Columns, head_row};
use super::errors::outage;
use super::patches::{self, Cells, REQUEST_BYTES_MAX};

/// Units written at once when no more wait.
pub const UNITS_AT_ONCE: usize = 50;
/// Units written at once at most: the models may be faster than 56 writes of 50 a minute.
pub const UNITS_AT_ONCE_MAX: usize = 2_000;
/// Rows, and columns, between those that are looked at, which are read along rather than asked for apart.
const GAP_ROWS: u64 = 20;
const GAP_COLUMNS: u64 = 2;
/// Looks at a sheet whose columns move under our eyes.
const LOOKS_MAX: usize = 4;

/// What a sink has to know of a sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkSetup {
    /// Where it is.
    pub sheet: GoogleSheet,
    /// How its columns are named.
    pub layout: Layout,
    /// Its columns.
    pub plan: Plan,
    /// What becomes of values that are there.
    pub existing: Existing,
}

impl SinkSetup {
    /// For a sheet that came from Google.
    pub fn of(stored: &StoredSheet) -> Result<Self> {
        let Source::Google(sheet) = &stored.settings.source else {
            return Err(Error::Invalid(format!("{} is no Google sheet", stored.id)));
        };
        Ok(Self {
            sheet: sheet.clone(),
            layout: stored.settings.layout.clone(),
            plan: stored.plan.clone(),
            existing: stored.settings.existing,
        })
    }
}

/// Writes to a Google sheet.
pub struct SheetsSink {
    google: Google,
    setup: SinkSetup,
    /// Where the columns were last. Only where to look first.
    columns: Mutex<Columns>,
    /// What a unit takes of a request, by the last write; 0 before the first.
    unit_bytes: AtomicUsize,
}

impl SheetsSink {
    /// To a sheet, by an account that may edit it.
    pub fn new(google: Google, setup: SinkSetup) -> Self {
        let columns = Mutex::new(Columns::planned(&setup.plan));
        Self { google, setup, columns, unit_bytes: AtomicUsize::new(0) }
    }
}

#[async_trait]
impl Sink for SheetsSink {
    async fn write(&self, rows: &[SinkRow]) -> Result<Vec<Fate>, SinkError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let _turn = self.google.turn().await;
        let view = self.look(rows).await?;
        let verdicts: Vec<Verdict> = rows.iter().map(|row| view.judge(row, self.setup.existing)).collect();
        let open = rows.iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Open);
        let open: Vec<&SinkRow> = open.map(|(row, _)| row).collect();
        if !open.is_empty() {
            self.put(&open, &view).await?;
        }
        Ok(verdicts.into_iter().map(Verdict::fate).collect())
    }

    fn units_at_once(&self, waiting: usize) -> usize {
        let fit = REQUEST_BYTES_MAX / self.unit_bytes.load(Ordering::Relaxed).max(1);
        waiting.clamp(UNITS_AT_ONCE, fit.clamp(UNITS_AT_ONCE, UNITS_AT_ONCE_MAX))
    }
}

impl SheetsSink {
    /// Reads heads, texts and targets where they were last, and once more if they have moved.
    async fn look(&self, rows: &[SinkRow]) -> Result<View, SinkError> {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for _ in 0..LOOKS_MAX {
            let mut view = self.view(rows, columns).await?;
            let found = Columns::found(&self.setup.layout, &self.setup.plan, &view.head, &view.columns)?;
            if found == view.columns {
                self.check_text_column(rows, &mut view).await?;
                self.keep(&view.columns);
                return Ok(view);
            }
            columns = found;
        }
        Err(outage("the columns of the sheet are being moved".to_owned(), None))
    }

    async fn view(&self, rows: &[SinkRow], columns: Columns) -> Result<View, SinkError> {
        let head_row = head_row(&self.setup.layout);
        let targets: BTreeSet<usize> = rows.iter().flat_map(|row| &row.cells).map(|cell| cell.0).collect();
        let wanted = targets.iter().filter_map(|target| *columns.targets.get(*target)?);
        let wanted: BTreeSet<u64> = wanted.chain([columns.text]).map(|column| column as u64).collect();
        let mut areas = vec![Area::Rows(head_row..head_row + 1)];
        for rows in row_spans(rows) {
            areas.extend(spans(wanted.iter().copied(), GAP_COLUMNS).into_iter().map(|columns| Area::Cells {
                rows: rows.clone(),
                columns: columns.start as usize..columns.end as usize,
            }));
        }
        let mut blocks = self.google.read(&self.setup.sheet, &areas).await?;
        let heads = blocks.swap_remove(0).values.into_iter().next().unwrap_or_default();
        let heads = heads.iter().map(|head| cells::text(head).into_owned()).collect();
        Ok(View { columns, head: Row { number: head_row, cells: heads }, blocks })
    }

    /// A text's column that has no name is known by its texts. If none of them is where it was, all columns are read.
    async fn check_text_column(&self, rows: &[SinkRow], view: &mut View) -> Result<(), SinkError> {
        let has_name = matches!(self.setup.layout, Layout::Columns { .. });
        if has_name || rows.iter().any(|row| view.says(row, view.columns.text)) {
            return Ok(());
        }
        let areas: Vec<Area> = row_spans(rows).into_iter().map(Area::Rows).collect();
        view.blocks = self.google.read(&self.setup.sheet, &areas).await?;
        let width = view.blocks.iter().flat_map(|block| &block.values).map(Vec::len).max().unwrap_or(0);
        let matches = |column: usize| rows.iter().filter(|row| view.says(row, column)).count();
        let candidates =
            (0..width).map(|column| (matches(column), column.abs_diff(view.columns.text), column));
        let best = candidates
            .filter(|(count, ..)| *count > 0)
            .max_by_key(|(count, far, _)| (*count, usize::MAX - far));
        if let Some((_, _, column)) = best {
            view.columns.text = column;
        }
        Ok(())
    }

    fn keep(&self, columns: &Columns) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clone_from(columns);
    }

    /// Writes rows that may be written, and the heads of columns that are not there yet.
    async fn put(&self, rows: &[&SinkRow], view: &View) -> Result<(), SinkError> {
        let (columns, mut cells) = self.with_heads(rows, view).await?;
        for row in rows {
            for (target, value) in row.cells.iter().filter(|cell| !cells::is_blank(&cell.1)) {
                let column = columns.targets.get(*target).copied().flatten().ok_or_else(|| {
                    SinkError::Refused(format!(
                        "row {} has a score for a column that is not planned",
                        row.number + 1
                    ))
                })?;
                cells.insert((row.number, column), cells::sent(value));
            }
        }
        let patches = patches::merged(cells);
        self.unit_bytes.store(patches::bytes(&patches).div_ceil(rows.len()), Ordering::Relaxed);
        for request in patches::requests(patches) {
            self.google.write(&self.setup.sheet, &request).await?;
        }
        self.keep(&columns);
        Ok(())
    }

    /// Finds places for columns that are not there yet: behind the last that has a head, or anything at all.
    async fn with_heads(&self, rows: &[&SinkRow], view: &View) -> Result<(Columns, Cells), SinkError> {
        let mut columns = view.columns.clone();
        let mut heads = BTreeMap::new();
        let needs = |target: usize| columns.targets.get(target).is_some_and(Option::is_none);
        if !rows.iter().flat_map(|row| &row.cells).any(|(target, _)| needs(*target)) {
            return Ok((columns, heads));
        }
        let missing = columns.targets.iter().filter(|column| column.is_none()).count();
        let size = self.google.size(&self.setup.sheet).await?;
        let filled = (0..view.head.cells.len()).filter(|column| !view.head.cell(*column).is_empty());
        let mut next = filled.max().map_or(0, |last| last + 1).max(columns.text + 1);
        if next < size.columns {
            let rest = self.google.read(&self.setup.sheet, &[Area::Columns(next..size.columns)]).await?;
            next += rest.iter().flat_map(|block| &block.values).map(Vec::len).max().unwrap_or(0);
        }
        if next + missing > size.columns {
            self.google.append_columns(&size, next + missing - size.columns).await?;
        }
        for (column, target) in columns.targets.iter_mut().zip(&self.setup.plan.targets) {
            if column.is_none() {
                heads.insert((view.head.number, next), Value::String(target.name.clone()));
                *column = Some(next);
                next += 1;
            }
        }
        Ok((columns, heads))
    }
}

fn row_spans(rows: &[SinkRow]) -> Vec<std::ops::Range<u64>> {
    let numbers: BTreeSet<u64> = rows.iter().map(|row| row.number).collect();
    spans(numbers, GAP_ROWS)
}

/// What the sheet says just before it is written.
struct View {
    columns: Columns,
    head: Row,
    blocks: Vec<Block>,
}

/// What is to be done with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It can be written.
    Open,
    /// It was: an acknowledgement was lost.
    There,
    /// A person was here.
    Edited,
}

impl Verdict {
    fn fate(self) -> Fate {
        match self {
            Self::Open | Self::There => Fate::Written,
            Self::Edited => Fate::Edited,
        }
    }
}

impl View {
    fn cell(&self, row: u64, column: usize) -> &Value {
        let block = self.blocks.iter().find(|block| block.area.holds(row, column));
        block.and_then(|block| block.cell(row, column)).unwrap_or(&Value::Null)
    }

    /// Whether a column has the text that was scored.
    fn says(&self, row: &SinkRow, column: usize) -> bool {
        cells::text(self.cell(row.number, column)).trim() == row.text.trim()
    }

    fn judge(&self, row: &SinkRow, existing: Existing) -> Verdict {
        if !self.says(row, self.columns.text) {
            return Verdict::Edited;
        }
        let mut verdict = Verdict::There;
        for (target, value) in row.cells.iter().filter(|cell| !cells::is_blank(&cell.1)) {
            let column = self.columns.targets.get(*target).copied().flatten();
            let found = column.map_or(&Value::Null, |column| self.cell(row.number, column));
            if cells::same(found, &cells::sent(value)) {
                continue;
            }
            match existing {
                Existing::Keep if !cells::is_blank(found) => return Verdict::Edited,
                Existing::Keep | Existing::Overwrite => verdict = Verdict::Open,
            }
        }
        verdict
    }
}
