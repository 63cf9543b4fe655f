//! The last stage: makes what became of units durable, hands answers to the sink, and knows when the work is over: when as many
//! units have arrived as were made.
//!
//! Storing does not wait for the sink. An answer is safe as soon as it is here; a sink that is down only holds up what is
//! written to it, until too much waits.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::warn;

use super::Result;
use super::pipeline::{Shared, Stop};
use super::places::{Fate, Sink, SinkError, SinkRow};
use super::tables::{UnitEnd, UnitRow, UnitState};
use super::unit::{End, Settled};

/// Units stored in one transaction.
const SAVE_AT_ONCE: usize = 200;
/// Longest wait of an answer for the sink.
pub(super) const FLUSH_EVERY: Duration = Duration::from_secs(2);
/// Tries of a write, and the wait after the first, doubled each time.
pub(super) const WRITE_TRIES: u32 = 5;
const WRITE_WAIT: Duration = Duration::from_millis(500);
/// Answers that may wait for the sink before no more are taken in.
const WAITING_MAX: usize = 5_000;
/// Answers of earlier runs that are fetched at once.
const BACKLOG_PAGE: usize = 1_000;

/// An answer that waits for the sink.
#[derive(Debug, Clone)]
struct Waiting {
    chunk: u64,
    row: u64,
    block: u32,
    text: Arc<str>,
    filled: Arc<[u32]>,
    /// First of its targets.
    target: usize,
    cells: Vec<Value>,
    since: Instant,
}

/// What one write came to.
type Flushed = (Vec<Waiting>, Result<Vec<Fate>, SinkError>);
type Flushing = Pin<Box<dyn Future<Output = Flushed> + Send>>;

/// Which rows' older answers are written too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backlog {
    /// Rows.
    pub(super) rows: (u64, u64),
    after: Option<(u64, u32)>,
    empty: bool,
}

impl Backlog {
    pub(super) fn of(rows: (u64, u64)) -> Self {
        Self { rows, after: None, empty: false }
    }
}

/// The stage.
pub(super) struct Writer {
    shared: Arc<Shared>,
    incoming: mpsc::Receiver<Settled>,
    expected: watch::Receiver<Option<u64>>,
    backlog: Backlog,
    received: u64,
    waiting: Vec<Waiting>,
    flushing: Option<Flushing>,
    last_flush: Instant,
    ended: Ended,
}

/// What became of the units of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) scored: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
    pub(super) edited: u64,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        incoming: mpsc::Receiver<Settled>,
        expected: watch::Receiver<Option<u64>>,
        rows: (u64, u64),
    ) -> Self {
        let mut backlog = Backlog::of(rows);
        backlog.empty = shared.sheet.sink.is_none();
        Self {
            shared,
            incoming,
            expected,
            backlog,
            received: 0,
            waiting: Vec::new(),
            flushing: None,
            last_flush: Instant::now(),
            ended: Ended::default(),
        }
    }

    /// Runs until all units that were made have arrived and are where they belong.
    pub(super) async fn run(mut self) -> Result<Ended> {
        let mut batch = Vec::with_capacity(SAVE_AT_ONCE);
        loop {
            self.fetch_backlog().await?;
            let all_here = *self.expected.borrow_and_update() == Some(self.received);
            self.begin_flush(all_here);
            let over = self.waiting.is_empty() && self.backlog.empty || self.shared.stop.is_set();
            if all_here && over && self.flushing.is_none() {
                return Ok(self.ended);
            }
            // What is stored in this run must not be taken for the backlog. Once the work is stopped nothing is flushed any more, and
            // units that were dropped must come in for the count to come out.
            let room = self.shared.stop.is_set() || (self.waiting.len() < WAITING_MAX && self.backlog.empty);
            let due = self.last_flush + FLUSH_EVERY;
            let idle = !self.waiting.is_empty() && self.flushing.is_none() && !self.shared.stop.is_set();
            self.shared.gauges.writer_queue.set((self.incoming.len() + self.waiting.len()) as u64);
            tokio::select! {
                count = self.incoming.recv_many(&mut batch, SAVE_AT_ONCE), if !all_here && room => match count {
                    0 => self.shared.stop.set(Stop::Broken("a stage ended before its units did".to_owned())),
                    _ => self.store(&mut batch).await?,
                },
                _ = self.expected.changed(), if !all_here => {}
                flushed = flushed(&mut self.flushing) => self.end_flush(flushed).await?,
                () = tokio::time::sleep_until(due), if idle => {}
                () = self.shared.stop.broken() => return Ok(self.ended),
            }
        }
    }

    /// Makes what became of units durable.
    async fn store(&mut self, batch: &mut Vec<Settled>) -> Result<()> {
        self.received += batch.len() as u64;
        let has_sink = self.shared.sheet.sink.is_some();
        let mut rows = Vec::with_capacity(batch.len());
        for settled in batch.drain(..) {
            match &settled.end {
                End::Scored { .. } => self.ended.scored += 1,
                End::Failed => self.ended.failed += 1,
                End::Dropped => self.ended.dropped += 1,
            }
            let what = (Arc::clone(&settled.unit.text), Arc::clone(&settled.unit.filled));
            let row_units = self.shared.sheet.stored.row_units(&what.1);
            let Some(row) = settled.row(row_units, !has_sink) else { continue };
            if let (UnitEnd::Scored(scored), true) = (&row.end, has_sink) {
                self.wait((row.chunk, row.row, row.block), what, scored.cells.clone());
            }
            rows.push(row);
        }
        let now = self.shared.sheets.inner.queue.clock().now();
        if !rows.is_empty() {
            let kept = |row: &&UnitRow| matches!(&row.end, UnitEnd::Scored(scored) if scored.key.is_some());
            self.shared.gauges.cache_written.add(rows.iter().filter(kept).count() as u64);
            self.shared.sheets.inner.tables.settle(self.shared.sheet.stored.seq, rows, now).await?;
        }
        self.shared.report(self.ended, self.lag());
        Ok(())
    }

    fn wait(
        &mut self,
        (chunk, row, block): (u64, u64, u32),
        (text, filled): (Arc<str>, Arc<[u32]>),
        cells: Vec<Value>,
    ) {
        let target = self.shared.sheet.stored.targets(block).start;
        self.waiting.push(Waiting { chunk, row, block, text, filled, target, cells, since: Instant::now() });
    }

    /// Answers of earlier runs that were not written yet go first, a page at a time.
    async fn fetch_backlog(&mut self) -> Result<()> {
        if self.backlog.empty || !self.waiting.is_empty() || self.shared.stop.is_set() {
            return Ok(());
        }
        let (tables, seq) = (&self.shared.sheets.inner.tables, self.shared.sheet.stored.seq);
        let Backlog { rows, after, .. } = self.backlog;
        let units = tables.open_units(seq, UnitState::Scored, rows, after, BACKLOG_PAGE).await?;
        self.backlog.empty = units.len() < BACKLOG_PAGE;
        self.backlog.after = units.last().map(|unit| (unit.row, unit.block)).or(after);
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Ok(()) };
        let texts = tables.rows_of(seq, units.iter().map(|unit| unit.row).collect()).await?;
        let texts = texts.into_iter().map(|row| (row.row, (row.text.into(), row.filled.into())));
        let texts: HashMap<u64, (Arc<str>, Arc<[u32]>)> = texts.collect();
        let chunk_of = self.shared.chunks_of(first.row, last.row).await?;
        for unit in units {
            let Some(what) = texts.get(&unit.row).cloned() else { continue };
            let chunk = chunk_of.iter().find(|chunk| (chunk.first_row..=chunk.last_row).contains(&unit.row));
            let Some(chunk) = chunk.map(|chunk| chunk.chunk) else { continue };
            self.wait((chunk, unit.row, unit.block), what, unit.cells);
        }
        Ok(())
    }

    /// Begins to write when enough waits, when it waits long enough, or when nothing more will come.
    fn begin_flush(&mut self, all_here: bool) {
        let Some(sink) = &self.shared.sheet.sink else { return };
        let told = self.shared.stop.is_set();
        if self.waiting.is_empty() || self.flushing.is_some() || told {
            return;
        }
        let many = sink.units_at_once(self.waiting.len()).max(1);
        if self.waiting.len() < many && self.last_flush.elapsed() < FLUSH_EVERY && !all_here {
            return;
        }
        let units: Vec<Waiting> = self.waiting.drain(..many.min(self.waiting.len())).collect();
        self.flushing = Some(Box::pin(flush(Arc::clone(sink), Arc::clone(&self.shared), units)));
    }

    async fn end_flush(&mut self, (units, written): Flushed) -> Result<()> {
        self.flushing = None;
        self.last_flush = Instant::now();
        match written {
            Ok(fates) => {
                let places: HashMap<u64, Fate> =
                    rows_of(&units).into_iter().map(|row| row.number).zip(fates).collect();
                let fate = |unit: &Waiting| places.get(&unit.row).copied().unwrap_or(Fate::Edited);
                self.ended.edited += units.iter().filter(|unit| fate(unit) == Fate::Edited).count() as u64;
                let units = units.iter().map(|unit| (unit.chunk, unit.row, unit.block, fate(unit))).collect();
                let now = self.shared.sheets.inner.queue.clock().now();
                self.shared.sheets.inner.tables.wrote(self.shared.sheet.stored.seq, units, now).await?;
                self.shared.report(self.ended, self.lag());
            }
            Err(error) => {
                warn!(%error, units = units.len(), "answers could not be written; they are kept");
                self.shared.stop.set(match error {
                    SinkError::Outage { message, .. } => Stop::Sink(message),
                    SinkError::Refused(why) => Stop::Refused(why),
                });
            }
        }
        Ok(())
    }

    /// How long the oldest answer waits.
    fn lag(&self) -> Duration {
        self.waiting.iter().map(|unit| unit.since.elapsed()).max().unwrap_or_default()
    }
}

/// The end of the write under way; never, where there is none.
async fn flushed(flushing: &mut Option<Flushing>) -> Flushed {
    match flushing {
        Some(flushing) => flushing.await,
        None => std::future::pending().await,
    }
}

/// Writes units, again and again while time may heal what is wrong.
async fn flush(sink: Arc<dyn Sink>, shared: Arc<Shared>, units: Vec<Waiting>) -> Flushed {
    let rows = rows_of(&units);
    let mut tries = 0;
    loop {
        let error = match sink.write(&rows).await {
            Ok(fates) => return (units, Ok(fates)),
            Err(error) => error,
        };
        tries += 1;
        let SinkError::Outage { retry_after, .. } = &error else { return (units, Err(error)) };
        if tries >= WRITE_TRIES || shared.stop.is_set() {
            return (units, Err(error));
        }
        let wait = WRITE_WAIT.saturating_mul(1 << (tries - 1)).max(retry_after.unwrap_or_default());
        warn!(%error, tries, "writing answers failed, trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.stop.reached() => {}
        }
    }
}

/// Units by row, in the order of rows. Blanks are left out, and cells that keep what they had.
fn rows_of(units: &[Waiting]) -> Vec<SinkRow> {
    let mut rows: Vec<SinkRow> = Vec::new();
    let mut units: Vec<&Waiting> = units.iter().collect();
    units.sort_by_key(|unit| (unit.row, unit.block));
    for unit in units {
        let kept = |target: usize| unit.filled.iter().any(|filled| *filled as usize == target);
        let cells = unit.cells.iter().enumerate().map(|(at, value)| (at + unit.target, value.clone()));
        let cells = cells.filter(|(target, value)| !value.is_null() && !kept(*target));
        match rows.last_mut() {
            Some(row) if row.number == unit.row => row.cells.extend(cells),
            _ => rows.push(SinkRow { number: unit.row, text: unit.text.to_string(), cells: cells.collect() }),
        }
    }
    rows
}
