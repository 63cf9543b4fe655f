//! ChunkScheduler: reads a table once, keeps its texts, and enqueues a chunk for each few hundred of them. Repeatable at
//! any point: what is kept and enqueued already is left alone.

use std::sync::Arc;

use longhaul_pipeline::RunId;
use longhaul_queue::store::QueueChange;
use tokio::sync::mpsc;

use super::layout::{Plan, Row};
use super::places::{Pages, Rows};
use super::settings::{Existing, SheetSettings, Source};
use super::sheet;
use super::tables::{Chunk, KeptRow, StoredSheet};
use super::{Error, Result, Sheets, chunk, files};

/// Rows read from a sheet elsewhere at once.
const PAGE_ROWS: u64 = 2_000;
/// Bytes of a text; a longer one is refused with its row.
const TEXT_BYTES_MAX: usize = 1_000_000;
/// Bytes of texts in one chunk, beyond which it is cut.
const CHUNK_BYTES_MAX: usize = 16_000_000;

/// A table that is read from its first row on.
pub(super) enum Table {
    /// A file, read by a thread of its own.
    File(mpsc::Receiver<Result<Row>>),
    /// A sheet elsewhere.
    Pages { pages: Arc<dyn Pages>, next: u64, page: std::collections::VecDeque<Row>, over: bool },
}

/// Rows that are read ahead of their use.
const ROWS_AHEAD: usize = 1_000;

impl Table {
    pub(super) async fn open(sheets: &Sheets, settings: &SheetSettings) -> Result<Self> {
        match &settings.source {
            Source::File { .. } => {
                let source = settings.source.clone();
                let wanted = settings.layout.wanted(&settings.categories, &settings.mode);
                let (rows, ahead) = mpsc::channel(ROWS_AHEAD);
                tokio::task::spawn_blocking(move || read(&source, &wanted, &rows));
                Ok(Self::File(ahead))
            }
            Source::Google(google) => {
                let pages = sheets.inner.places.pages(google).await?;
                Ok(Self::Pages { pages, next: 0, page: Default::default(), over: false })
            }
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Row>> {
        match self {
            Self::File(ahead) => ahead.recv().await.transpose(),
            Self::Pages { pages, next, page, over } => {
                if page.is_empty() && !*over {
                    let rows = pages.rows(*next, PAGE_ROWS).await?;
                    *over = (rows.len() as u64) < PAGE_ROWS;
                    *next += PAGE_ROWS;
                    page.extend(rows);
                }
                Ok(page.pop_front())
            }
        }
    }

    /// The rows above the texts.
    pub(super) async fn head(&mut self, settings: &SheetSettings) -> Result<Vec<Row>> {
        let mut head = Vec::new();
        while (head.len() as u64) < settings.layout.head_rows() {
            match self.next().await? {
                Some(row) => head.push(row),
                None => break,
            }
        }
        Ok(head)
    }
}

/// Reads a file to its end, or until nobody wants more.
fn read(source: &Source, wanted: &[String], rows: &mpsc::Sender<Result<Row>>) {
    let mut table: Box<dyn Rows> = match files::open(source, wanted) {
        Ok(table) => table,
        Err(error) => return drop(rows.blocking_send(Err(error))),
    };
    loop {
        let row = match table.next() {
            Ok(Some(row)) => Ok(row),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let failed = row.is_err();
        if rows.blocking_send(row).is_err() || failed {
            return;
        }
    }
}

/// Cuts a table into chunks.
pub struct ChunkScheduler {
    sheets: Sheets,
    id: RunId,
    sheet: StoredSheet,
    next: u64,
    rows: Vec<KeptRow>,
    bytes: usize,
    units: u64,
    /// Rows that had all their cells before.
    complete: u64,
    active: u64,
    /// Last row of chunks that are kept already.
    kept_to: Option<u64>,
}

impl ChunkScheduler {
    /// Makes a sheet, or goes on with one of the same table and settings.
    pub async fn make(sheets: &Sheets, settings: SheetSettings) -> Result<RunId> {
        settings.check()?;
        for model in std::iter::once(&settings.model).chain(&settings.fallback) {
            sheets.inner.llm.route(&model.profile, &model.model).await?;
        }
        let id = settings.run_id()?;
        let mut table = Table::open(sheets, &settings).await?;
        let head = table.head(&settings).await?;
        let plan = settings.layout.plan(&head, &settings.categories, &settings.mode)?;
        let (tables, queue) = (&sheets.inner.tables, &sheets.inner.queue);
        // One that is there already goes on as it began.
        let known = tables.find(id.as_str()).await?;
        if known.as_ref().is_some_and(|sheet| sheet.read_whole) {
            return Ok(id);
        }
        let settings = known.map_or(settings, |sheet| sheet.settings);
        queue.open_process(id.process()).await?;
        queue.set_queue(limit(&id, settings.work.parallel_chunks)).await?;
        // Before anything is kept: a run is known by its manifest, and can be removed from here on.
        queue.enqueue(sheet::manifest(&id, &settings)?).await?;
        tables.make(id.as_str(), &settings, &plan, queue.clock().now()).await?;
        let sheet = tables.get(id.as_str()).await?;
        let scheduler = Self {
            sheets: sheets.clone(),
            id: id.clone(),
            sheet,
            next: 0,
            rows: Vec::new(),
            bytes: 0,
            units: 0,
            complete: 0,
            active: 0,
            kept_to: None,
        };
        scheduler.after_what_is_kept().await?.cut(&mut table).await?;
        Ok(id)
    }

    /// Goes on behind the last chunk that is kept: a sheet that somebody edits meanwhile must not be cut anew.
    async fn after_what_is_kept(mut self) -> Result<Self> {
        let kept = self.sheets.inner.tables.totals(self.sheet.seq).await?;
        if let Some(last) = kept.chunk.checked_sub(1) {
            let last = self.sheets.chunk(&self.sheet, last).await?;
            // Its job may be missing, if this ended between the two.
            let job = chunk::new_job(&self.id, &last, self.sheet.settings.work.chunk_retries)?;
            self.sheets.inner.queue.enqueue(job).await?;
            (self.next, self.active, self.kept_to) = (kept.chunk, kept.rows, Some(kept.last_row));
        }
        Ok(self)
    }

    async fn cut(mut self, table: &mut Table) -> Result<()> {
        let limit = self.sheet.settings.limit.unwrap_or(u64::MAX);
        while self.active < limit
            && let Some(row) = table.next().await?
        {
            if self.kept_to.is_some_and(|kept_to| row.number <= kept_to) {
                continue;
            }
            self.add(&row)?;
            if self.rows.len() as u64 >= self.sheet.settings.work.chunk_rows || self.bytes >= CHUNK_BYTES_MAX
            {
                self.store().await?;
            }
        }
        self.store().await?;
        if self.active == 0 {
            self.sheets.forget_unmade(&self.id, self.sheet.seq).await?;
            return Err(Error::Invalid("no row has a text: there is nothing to score".to_owned()));
        }
        self.sheets.inner.queue.seal(self.id.process()).await?;
        self.sheets.inner.tables.set_read_whole(self.sheet.seq).await
    }

    /// Takes a row in, if it has a text.
    fn add(&mut self, row: &Row) -> Result<()> {
        let text = text_of(row, &self.sheet.plan)?;
        if text.is_empty() {
            return Ok(());
        }
        let filled = filled(row, &self.sheet);
        self.active += 1;
        let units = self.sheet.row_units(&filled);
        self.units += u64::from(units);
        self.complete += u64::from(units == 0);
        self.bytes += text.len();
        self.rows.push(KeptRow { row: row.number, text: text.to_owned(), filled });
        Ok(())
    }

    /// Keeps a chunk and enqueues its job. In this order: a job finds its texts.
    async fn store(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(()) };
        let chunk = Chunk {
            chunk: self.next,
            first_row: first.row,
            last_row: last.row,
            rows: rows.len() as u64,
            processed_rows: std::mem::take(&mut self.complete),
            units: std::mem::take(&mut self.units),
            updated_at: self.sheets.inner.queue.clock().now(),
            ..Chunk::default()
        };
        self.bytes = 0;
        self.next += 1;
        let job = chunk::new_job(&self.id, &chunk, self.sheet.settings.work.chunk_retries)?;
        self.sheets.inner.tables.keep(self.sheet.seq, chunk, rows).await?;
        self.sheets.inner.queue.enqueue(job).await?;
        Ok(())
    }
}

/// The text of a row, refused where it is too long.
pub(super) fn text_of<'a>(row: &'a Row, plan: &Plan) -> Result<&'a str> {
    let text = row.cell(plan.text_column);
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::Invalid(format!(
            "row {}: the text has {} bytes, and {TEXT_BYTES_MAX} are the most; shorten it or leave it out",
            row.number + 1,
            text.len()
        )));
    }
    Ok(text)
}

/// Targets of a row that have a value already, and keep it.
pub(super) fn filled(row: &Row, sheet: &StoredSheet) -> Vec<u32> {
    if sheet.settings.existing == Existing::Overwrite {
        return Vec::new();
    }
    let has = |target: usize| {
        let column = sheet.plan.targets.get(target).and_then(|target| target.column);
        column.is_some_and(|column| !row.cell(column).is_empty())
    };
    let targets = (0..sheet.plan.targets.len()).filter(|target| has(*target));
    targets.filter_map(|target| u32::try_from(target).ok()).collect()
}

fn limit(id: &RunId, parallel: u32) -> QueueChange {
    let name = id.as_str().to_owned();
    QueueChange { name, max_running: Some(Some(parallel)), ..QueueChange::default() }
}

/// The plan of a table, without anything being kept. For estimates, and to find mistakes early.
pub(super) async fn preview(sheets: &Sheets, settings: &SheetSettings) -> Result<(Plan, Table)> {
    settings.check()?;
    let mut table = Table::open(sheets, settings).await?;
    let head = table.head(settings).await?;
    let plan = settings.layout.plan(&head, &settings.categories, &settings.mode)?;
    Ok((plan, table))
}
