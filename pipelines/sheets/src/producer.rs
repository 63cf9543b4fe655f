//! The first stage: reads the texts of a chunk and makes units of them. What has an answer is not made again; what is
//! known from the cache goes straight to the writer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longhaul_llm::cache::CacheMode;
use serde_json::Value;
use tokio::sync::mpsc;

use super::Result;
use super::pipeline::Shared;
use super::tables::{AnsweredBy, CacheKey, Chunk, KeptRow, OpenUnit, StoredSheet, UnitState};
use super::unit::{End, Settled, Unit};

/// Rows read at once.
const PAGE_ROWS: usize = 100;

/// Which units are wanted.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    /// Those of a chunk that have no answer; with `failed`, also those that failed before.
    Chunk {
        /// The chunk.
        chunk: Chunk,
        /// Whether what failed is tried again.
        failed: bool,
    },
    /// Those of the whole sheet that failed, or of one of its chunks.
    Failed {
        /// The only chunk.
        chunk: Option<u64>,
    },
    /// None: only answers that are not written yet.
    Nothing,
}

/// Where units go.
pub(super) struct Producer {
    pub(super) shared: Arc<Shared>,
    pub(super) invoke: mpsc::Sender<Unit>,
    pub(super) write: mpsc::Sender<Settled>,
    pub(super) produced: u64,
}

impl Producer {
    /// Makes all units, and says how many: the writer waits for as many.
    pub(super) async fn run(mut self, wanted: Wanted) {
        let made = match wanted {
            Wanted::Chunk { chunk, failed } => self.chunk(&chunk, failed).await,
            Wanted::Failed { chunk } => self.failed(chunk).await,
            Wanted::Nothing => Ok(()),
        };
        if let Err(error) = made {
            self.shared.stop.with_error(&error);
        }
        self.shared.expect(self.produced);
    }

    async fn chunk(&mut self, chunk: &Chunk, failed: bool) -> Result<()> {
        let (tables, seq) = (&self.shared.sheets.inner.tables, self.shared.sheet.stored.seq);
        let (mut first, last) = (chunk.first_row, chunk.last_row);
        let settled = tables.states(seq, (first, last)).await?;
        let settled: HashSet<(u64, u32)> = settled
            .into_iter()
            .filter(|(_, _, state)| !(failed && *state == UnitState::Failed))
            .map(|(row, block, _)| (row, block))
            .collect();
        let tables = tables.clone();
        loop {
            let rows = tables.rows(seq, (first, last), PAGE_ROWS).await?;
            let Some(end) = rows.last().map(|row| row.row) else { return Ok(()) };
            let sheet = Arc::clone(&self.shared.sheet);
            let units = rows.into_iter().flat_map(|row| units_of(chunk.chunk, row, &sheet.stored));
            let units = units.filter(|unit| !settled.contains(&(unit.row, unit.block))).collect();
            if !self.hand_out(units).await? {
                return Ok(());
            }
            first = end + 1;
        }
    }

    /// Goes through the chunks, since a unit knows its own, and takes what failed in each.
    async fn failed(&mut self, only: Option<u64>) -> Result<()> {
        let (tables, seq) = (self.shared.sheets.inner.tables.clone(), self.shared.sheet.stored.seq);
        let mut number = only.unwrap_or(0);
        loop {
            let chunks = tables.chunks(seq, number, PAGE_ROWS).await?;
            let Some(last) = chunks.last().map(|chunk| chunk.chunk) else { return Ok(()) };
            let wanted = |chunk: &&Chunk| chunk.failed > 0 && only.is_none_or(|only| chunk.chunk == only);
            for chunk in chunks.iter().filter(wanted) {
                if !self.failed_of(chunk).await? {
                    return Ok(());
                }
            }
            number = last + 1;
            if only.is_some() {
                return Ok(());
            }
        }
    }

    /// What failed in a chunk, a page at a time. False when the work was stopped.
    async fn failed_of(&mut self, chunk: &Chunk) -> Result<bool> {
        let (tables, seq) = (self.shared.sheets.inner.tables.clone(), self.shared.sheet.stored.seq);
        let (range, mut after) = ((chunk.first_row, chunk.last_row), None);
        loop {
            let failed = tables.open_units(seq, UnitState::Failed, range, after, PAGE_ROWS).await?;
            let Some(last) = failed.last().map(|unit| (unit.row, unit.block)) else { return Ok(true) };
            let texts = tables.rows_of(seq, failed.iter().map(|unit| unit.row).collect()).await?;
            let texts = texts.into_iter().map(|row| (row.row, (row.text.into(), row.filled.into())));
            let texts: HashMap<u64, (Arc<str>, Arc<[u32]>)> = texts.collect();
            let unit = |unit: &OpenUnit| {
                let what = texts.get(&unit.row)?.clone();
                Some(Unit::new(chunk.chunk, unit.row, unit.block, what))
            };
            let units = failed.iter().filter_map(unit).collect();
            if !self.hand_out(units).await? {
                return Ok(false);
            }
            after = Some(last);
        }
    }

    /// Hands units to the next stage, as fast as it takes them. False when the work was stopped.
    async fn hand_out(&mut self, units: Vec<Unit>) -> Result<bool> {
        let mut known = self.known(&units).await?;
        for mut unit in units {
            if self.shared.stop.is_set() {
                return Ok(false);
            }
            let cached = known.remove(&(unit.row, unit.block));
            self.produced += 1;
            let taken = match cached {
                Some((cells, by)) => {
                    let end = End::Scored { cells, by, cached: true, key: None };
                    self.write.send(Settled { unit, end }).await.is_ok()
                }
                None if self.shared.sheet.stored.settings.cache == CacheMode::Only => {
                    unit.went_wrong("no answer is known, and nobody is to be asked".to_owned());
                    self.write.send(Settled { unit, end: End::Failed }).await.is_ok()
                }
                None => self.invoke.send(unit).await.is_ok(),
            };
            if !taken {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers from the cache, by row and block, with who gave them. The fallback's are looked at when its turn comes, after
    /// the first model was asked; at once only where nobody is asked.
    async fn known(&self, units: &[Unit]) -> Result<Known> {
        let sheet = &self.shared.sheet;
        let (cache, fallback) = (sheet.stored.settings.cache, sheet.fallback.is_some());
        let turns: &[bool] = match cache {
            CacheMode::Off => &[],
            CacheMode::Only if fallback => &[false, true],
            _ => &[false],
        };
        let mut known = Known::new();
        for turn in turns {
            let open = units.iter().filter(|unit| !known.contains_key(&(unit.row, unit.block)));
            let open: Vec<(Unit, CacheKey)> = open
                .map(|unit| Unit { fallback: *turn, ..unit.clone() })
                .map(|unit| {
                    let key = sheet.prompt.key(&unit.text, unit.block, sheet.route_for(&unit));
                    (unit, key)
                })
                .collect();
            let now = self.shared.sheets.inner.queue.clock().now();
            let width = |unit: &Unit| sheet.stored.targets(unit.block).len();
            let keys = open.iter().map(|(unit, key)| (*key, width(unit))).collect();
            let found = self.shared.sheets.inner.tables.cached(keys, now).await?;
            found.note(&self.shared.gauges);
            for (unit, key) in open {
                if let Some(cells) = found.get(&key) {
                    known.insert((unit.row, unit.block), (cells.to_vec(), sheet.answered_by(&unit)));
                }
            }
        }
        Ok(known)
    }
}

/// Cells and who gave them, by row and block.
type Known = HashMap<(u64, u32), (Vec<Value>, AnsweredBy)>;

fn units_of(chunk: u64, row: KeptRow, sheet: &StoredSheet) -> Vec<Unit> {
    let what: (Arc<str>, Arc<[u32]>) = (row.text.into(), row.filled.into());
    let open = (0..sheet.blocks()).filter(|block| !sheet.is_filled(*block, &what.1));
    open.map(|block| Unit::new(chunk, row.row, block, what.clone())).collect()
}
