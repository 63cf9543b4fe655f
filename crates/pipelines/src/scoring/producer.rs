//! The first stage: reads the texts of a chunk and makes units of them. What has an answer is not made again; what is
//! known from the cache goes straight to the writer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longhaul_llm::cache::CacheMode;
use tokio::sync::mpsc;

use super::Result;
use super::pipeline::Shared;
use super::tables::{CacheKey, Chunk, KeptRow, StoredSheet, UnitState};
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
    /// Those of the whole sheet that failed.
    Failed,
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
            Wanted::Failed => self.failed().await,
        };
        if let Err(error) = made {
            self.shared.stop.with_error(&error);
        }
        self.shared.expect(self.produced);
    }

    async fn chunk(&mut self, chunk: &Chunk, failed: bool) -> Result<()> {
        let (tables, seq) = (&self.shared.scoring.inner.tables, self.shared.sheet.stored.seq);
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
    async fn failed(&mut self) -> Result<()> {
        let (tables, seq) = (self.shared.scoring.inner.tables.clone(), self.shared.sheet.stored.seq);
        let mut number = 0;
        loop {
            let chunks = tables.chunks(seq, number, PAGE_ROWS).await?;
            let Some(last) = chunks.last().map(|chunk| chunk.chunk) else { return Ok(()) };
            for chunk in chunks.iter().filter(|chunk| chunk.failed > 0) {
                let range = (chunk.first_row, chunk.last_row);
                let failed = tables.open_units(seq, UnitState::Failed, range, None, usize::MAX >> 1).await?;
                let mut texts: HashMap<u64, (Arc<str>, Arc<[u32]>)> = HashMap::new();
                let mut units = Vec::new();
                for unit in failed {
                    if let std::collections::hash_map::Entry::Vacant(place) = texts.entry(unit.row)
                        && let Some(row) = tables.rows(seq, (unit.row, unit.row), 1).await?.pop()
                    {
                        place.insert((row.text.into(), row.filled.into()));
                    }
                    if let Some(text) = texts.get(&unit.row) {
                        units.push(Unit::new(chunk.chunk, unit.row, unit.block, text.clone()));
                    }
                }
                if !self.hand_out(units).await? {
                    return Ok(());
                }
            }
            number = last + 1;
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
                Some((cells, model)) => {
                    unit.tries = 0;
                    self.shared.gauges.cache_hits.add(1);
                    let end = End::Scored { cells, model, cached: true, key: None };
                    self.write.send(Settled { unit, end }).await.is_ok()
                }
                None => {
                    self.shared.gauges.cache_misses.add(1);
                    self.invoke.send(unit).await.is_ok()
                }
            };
            if !taken {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Answers from the cache, by row and block.
    async fn known(&self, units: &[Unit]) -> Result<HashMap<(u64, u32), (Vec<serde_json::Value>, String)>> {
        let sheet = &self.shared.sheet;
        if sheet.stored.settings.cache == CacheMode::Off {
            return Ok(HashMap::new());
        }
        let key = |unit: &Unit| sheet.prompt.key(&unit.text, unit.block, &sheet.route);
        let keys: Vec<CacheKey> = units.iter().map(key).collect();
        let now = self.shared.scoring.inner.queue.clock().now();
        let found = self.shared.scoring.inner.tables.cached(keys.clone(), now).await?;
        let known = units.iter().zip(keys).filter_map(|(unit, key)| {
            let cached = found.get(&key)?;
            // An answer of another shape is no answer.
            (cached.cells.len() == sheet.stored.targets(unit.block).len())
                .then(|| ((unit.row, unit.block), (cached.cells.clone(), cached.model.clone())))
        });
        Ok(known.collect())
    }
}

fn units_of(chunk: u64, row: KeptRow, sheet: &StoredSheet) -> Vec<Unit> {
    let what: (Arc<str>, Arc<[u32]>) = (row.text.into(), row.filled.into());
    let open = (0..sheet.blocks()).filter(|block| !sheet.is_filled(*block, &what.1));
    open.map(|block| Unit::new(chunk, row.row, block, what.clone())).collect()
}
