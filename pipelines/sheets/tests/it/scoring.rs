//! Sheets scored in process: real workers, a simulated provider, jobs and texts in a SQLite file, and a sheet in the
//! test's hand that is read and written as a Google sheet would be.

use longhaul_pipeline::testing::{Double, MODEL, PROFILE, PausedClock, SEED, llm_options, options};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use longhaul_llm::cache::CacheMode;
use longhaul_llm::{Llm, LlmFile, Scope, Totals};
use longhaul_pipeline::{Found, Hold, Pipeline as _, RunId, RunState};
use longhaul_queue::testing::{Started, soon};
use longhaul_queue::{Clock as _, Engine, EngineStore, Queue, QueueShare, State, Store, Timestamp, Worker};
use longhaul_sheets::layout::Row;
use longhaul_sheets::places::{Fate, Pages, Sink, SinkError, SinkRow};
use longhaul_sheets::settings::{Category, Existing, GoogleSheet, Mode, ModelName, Source, Target, Work};
use longhaul_sheets::status::{AnsweredUnits, ChunkCounts};
use longhaul_sheets::tables::StoredSheet;
use longhaul_sheets::{
    ChunkScheduler, Details, Layout, Parts, Places, Result, SheetSettings, Sheets, estimate, prompt,
};
use longhaul_sim::{Faults, SimCore, SimOptions, answer_key};
use longhaul_stores::sqlite::{Db, Durability, SqliteOptions, SqliteStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A sheet that remembers who wrote what.
#[derive(Default)]
pub(crate) struct Grid {
    state: Mutex<GridState>,
    pub(crate) written: Notify,
}

#[derive(Default)]
pub(crate) struct GridState {
    pub(crate) rows: Vec<Vec<String>>,
    /// Cells that were written, by row and target.
    pub(crate) cells: HashMap<(u64, usize), Value>,
    /// Times and sizes of writes that were taken.
    pub(crate) writes: Vec<(Instant, usize)>,
    /// Until when no write is taken.
    pub(crate) down_until: Option<Instant>,
    /// No write is taken, and why.
    pub(crate) refused: Option<String>,
    /// Writes hang.
    pub(crate) hangs: bool,
    pub(crate) tries: u64,
}

impl Grid {
    pub(crate) fn state(&self) -> MutexGuard<'_, GridState> {
        self.state.lock().unwrap()
    }
}

#[async_trait]
impl Pages for Grid {
    async fn rows(&self, first: u64, count: u64) -> Result<Vec<Row>> {
        let state = self.state();
        let rows = state.rows.iter().enumerate().skip(first as usize).take(count as usize);
        Ok(rows.map(|(number, cells)| Row { number: number as u64, cells: cells.clone() }).collect())
    }
}

#[async_trait]
impl Sink for Grid {
    async fn write(&self, rows: &[SinkRow]) -> Result<Vec<Fate>, SinkError> {
        let hangs = {
            let mut state = self.state();
            state.tries += 1;
            state.hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        let mut state = self.state();
        if let Some(why) = &state.refused {
            return Err(SinkError::Refused(why.clone()));
        }
        if state.down_until.is_some_and(|until| Instant::now() < until) {
            return Err(SinkError::Outage { message: "503 from the sheet".to_owned(), retry_after: None });
        }
        let mut fates = Vec::new();
        for row in rows {
            let now = state.rows[row.number as usize][0].clone();
            if now != row.text {
                fates.push(Fate::Edited);
                continue;
            }
            for (target, value) in &row.cells {
                state.cells.insert((row.number, *target), value.clone());
            }
            fates.push(Fate::Written);
        }
        state.writes.push((Instant::now(), rows.len()));
        drop(state);
        self.written.notify_waiters();
        Ok(fates)
    }

    fn units_at_once(&self, _: usize) -> usize {
        50
    }
}

struct Here(Arc<Grid>);

#[async_trait]
impl Places for Here {
    async fn pages(&self, _: &GoogleSheet) -> Result<Arc<dyn Pages>> {
        Ok(Arc::clone(&self.0) as Arc<dyn Pages>)
    }

    async fn sink(&self, _: &StoredSheet) -> Result<Arc<dyn Sink>> {
        Ok(Arc::clone(&self.0) as Arc<dyn Sink>)
    }
}

/// What outlives a process.
pub(crate) struct Desk {
    /// Goes with the desk.
    _folder: tempfile::TempDir,
    store: Arc<SqliteStore>,
    pub(crate) core: Arc<SimCore>,
    pub(crate) double: Double,
    pub(crate) grid: Arc<Grid>,
    pub(crate) sheets: Sheets,
    pub(crate) clock: PausedClock,
    file: LlmFile,
}

impl Desk {
    pub(crate) async fn new(faults: Faults, texts: &[String]) -> Self {
        Self::with(SimOptions { faults, ..SimOptions::default() }, texts).await
    }

    /// The provider takes one key only.
    pub(crate) async fn with_key(key: &str, texts: &[String]) -> Self {
        Self::with(SimOptions { require_key: Some(key.to_owned()), ..SimOptions::default() }, texts).await
    }

    async fn with(sim: SimOptions, texts: &[String]) -> Self {
        let clock = PausedClock::start();
        let folder = tempfile::tempdir().unwrap();
        let sqlite = SqliteOptions {
            durability: Durability::Relaxed,
            clock: Arc::new(clock),
            ..SqliteOptions::default()
        };
        let store = Arc::new(SqliteStore::open(&folder.path().join("jobs.db"), sqlite).unwrap());
        let core = SimCore::with_clock(SimOptions { seed: SEED, ..sim }, Arc::new(clock)).unwrap();
        let double = Double::new(Arc::clone(&core));
        let file = LlmFile::in_memory().unwrap();
        let grid = Arc::new(Grid::default());
        grid.state().rows = std::iter::once(vec!["text".to_owned()])
            .chain(texts.iter().map(|text| vec![text.clone()]))
            .collect();
        let sheets = process(&store, &file, &double, &grid, clock).await;
        Self { _folder: folder, store, core, double, grid, sheets, clock, file }
    }

    pub(crate) fn db(&self) -> &Db {
        self.store.db()
    }

    pub(crate) async fn make(&self, settings: &SheetSettings) -> RunId {
        ChunkScheduler::make(&self.sheets, settings.clone()).await.unwrap()
    }

    /// Starts a worker of a new process.
    pub(crate) async fn work(&self, id: &RunId) -> Started {
        let sheets = process(&self.store, &self.file, &self.double, &self.grid, self.clock).await;
        let queues = vec![QueueShare { name: id.to_string(), weight: Some(1) }];
        let engine = Engine::new(Arc::clone(&self.store) as Arc<dyn EngineStore>);
        let mut worker = Worker::new(
            engine.with_clock(Arc::new(self.clock)),
            longhaul_queue::WorkerOptions { queues, poll: Duration::from_millis(50), ..options() },
        );
        sheets.register(&mut worker);
        Started::new(worker)
    }

    /// Kills a worker and lets its leases run out.
    pub(crate) async fn kill(&self, worker: Started) {
        worker.kill().await;
        let later = self.clock.now() + 2 * longhaul_pipeline::testing::LEASE;
        self.store.rescue_expired(later, 1000).await.unwrap();
        self.store.promote_due(later + longhaul_pipeline::testing::LEASE, 1000).await.unwrap();
    }

    pub(crate) async fn sheet(&self, id: &RunId) -> StoredSheet {
        self.sheets.tables().get(id.as_str()).await.unwrap()
    }

    pub(crate) async fn status(&self, id: &RunId) -> Status {
        Status::of(&self.found(id).await.status().await.unwrap())
    }

    /// The run as a person has it.
    pub(crate) async fn found(&self, id: &RunId) -> Found {
        let run = longhaul_pipeline::Run::get(self.sheets.queue(), id).await.unwrap();
        Found { pipeline: Arc::new(self.sheets.clone()), run }
    }

    pub(crate) async fn chunks(&self, id: &RunId) -> Vec<ChunkStatus> {
        let found = self.found(id).await;
        let parts = found.pipeline.parts(&found.run, 0, 10).await.unwrap();
        let chunk = |part: longhaul_pipeline::Part| {
            let mut fields = part.details;
            fields.insert("name".to_owned(), json!(part.name));
            fields.insert("state".to_owned(), json!(part.state));
            serde_json::from_value(fields.into()).unwrap()
        };
        parts.into_iter().map(chunk).collect()
    }

    /// Waits until a sheet is as wanted.
    pub(crate) async fn until(&self, id: &RunId, wanted: impl Fn(&Status) -> bool) -> Status {
        let mut changes = self.store.watch();
        soon(async {
            loop {
                changes.mark_unchanged();
                let status = self.status(id).await;
                if wanted(&status) {
                    return status;
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), changes.changed()).await;
            }
        })
        .await
    }

    pub(crate) async fn ended(&self, id: &RunId) -> Status {
        self.until(id, Status::is_over).await
    }

    /// Makes a sheet and works on it to its end.
    pub(crate) async fn score(&self, settings: &SheetSettings) -> (RunId, Status) {
        let id = self.make(settings).await;
        let worker = self.work(&id).await;
        let status = self.ended(&id).await;
        worker.drain().await;
        (id, status)
    }

    pub(crate) async fn spent(&self, id: &RunId) -> Totals {
        self.sheets.llm().ledger().totals(&Scope::run(id.as_str())).await.unwrap()
    }

    /// Every cell of the grid says what the simulator's own answer key says; cells of `blank` rows are not there.
    pub(crate) async fn all_right(&self, id: &RunId, blank: &[u64]) {
        let sheet = self.sheet(id).await;
        let state = self.grid.state();
        let mut cells = 0;
        for (number, row) in state.rows.iter().enumerate().skip(1).filter(|(_, row)| !row[0].is_empty()) {
            let number = number as u64;
            for block in (0..sheet.blocks()).filter(|_| !blank.contains(&number)) {
                for (target, value) in sheet.targets(block).zip(right(&sheet, &row[0], block)) {
                    assert_eq!(
                        state.cells.get(&(number, target)),
                        Some(&value),
                        "row {number}, target {target}"
                    );
                    cells += 1;
                }
            }
        }
        assert_eq!(state.cells.len(), cells, "nothing else was written");
    }
}

/// The right cells of a text and a block.
pub(crate) fn right(sheet: &StoredSheet, text: &str, block: u32) -> Vec<Value> {
    let key = answer_key(SEED, &prompt::request(sheet, text, block));
    let answer: Value = serde_json::from_str(&key).unwrap();
    let scores = answer["scores"].as_array().unwrap();
    let round = |value: &Value| json!((value.as_f64().unwrap() * 100.0).round() / 100.0 + 0.0);
    scores.iter().map(round).collect()
}

async fn process(
    store: &Arc<SqliteStore>,
    file: &LlmFile,
    double: &Double,
    grid: &Arc<Grid>,
    clock: PausedClock,
) -> Sheets {
    let queue = Queue::new(Arc::clone(store) as Arc<dyn Store>).with_clock(Arc::new(clock));
    let places = Arc::new(Here(Arc::clone(grid)));
    let parts = Parts { places, ..Parts::default() };
    Sheets::open(queue, Llm::new(llm_options(file, double.clone(), clock)), store.db().clone(), parts)
        .await
        .unwrap()
}

/// The status of a sheet, as flat as assertions like it.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) state: RunState,
    pub(crate) held: Option<Hold>,
    pub(crate) units: Units,
    pub(crate) chunks: ChunkCounts,
    pub(crate) answered_by: Vec<AnsweredUnits>,
    pub(crate) eta_seconds: Option<u64>,
    pub(crate) updated_at: Timestamp,
    pub(crate) exported: bool,
    is_over: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Units {
    pub(crate) total: u64,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    pub(crate) rows: u64,
    pub(crate) processed_rows: u64,
    pub(crate) scored: u64,
    pub(crate) written: u64,
    pub(crate) edited: u64,
    pub(crate) cached: u64,
    pub(crate) asked: u64,
}

/// A chunk as it is shown. Chunks and rows count from 1.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct ChunkStatus {
    pub(crate) name: String,
    pub(crate) chunk: u64,
    pub(crate) state: State,
    pub(crate) first_row: u64,
    pub(crate) last_row: u64,
    pub(crate) rows: u64,
    pub(crate) failed: u64,
    pub(crate) asked: u64,
    pub(crate) by_fallback: u64,
    pub(crate) processed_rows: u64,
    pub(crate) updated_at: Timestamp,
    pub(crate) retries: u32,
    pub(crate) last_error: Option<String>,
}

impl Status {
    fn of(status: &longhaul_pipeline::Status) -> Self {
        let details = Details::of(status).unwrap();
        let (is_over, counts, units) = (status.is_over(), details.counts, status.standing.units);
        Self {
            state: status.standing.state,
            held: status.standing.hold,
            units: Units {
                total: units.total,
                answered: units.done,
                failed: units.failed,
                rows: counts.rows,
                processed_rows: counts.processed_rows,
                scored: counts.scored,
                written: counts.written,
                edited: counts.edited,
                cached: counts.cached,
                asked: counts.asked,
            },
            chunks: details.chunks,
            answered_by: details.answered_by,
            eta_seconds: status.standing.eta_seconds,
            updated_at: details.updated_at,
            exported: details.exported.is_some(),
            is_over,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }
}

pub(crate) fn texts(count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("Review {number}: the delivery was late but the product is fine"))
        .collect()
}

/// Twelve categories make two blocks.
pub(crate) fn settings() -> SheetSettings {
    let category = |number: u32| Category {
        name: format!("cat{number}"),
        definition: format!("how much it is about topic {number}"),
        detail: String::new(),
    };
    SheetSettings {
        source: Source::Google(GoogleSheet { spreadsheet: "s1".into(), sheet: "Sheet1".into() }),
        target: Target::InPlace,
        layout: Layout::Columns { text: "text".into() },
        mode: Mode::Scores,
        categories: (1..=12).map(category).collect(),
        instructions: None,
        range: (0.0, 1.0),
        max_tokens: None,
        model: ModelName { profile: PROFILE.into(), model: MODEL.into() },
        fallback: None,
        existing: Existing::Keep,
        limit: None,
        work: Work { chunk_rows: 50, ..Work::default() },
        cache: CacheMode::Auto,
        tags: Vec::new(),
        estimate_usd: None,
        estimate_max_usd: None,
        raw_estimate_usd: None,
    }
}

#[tokio::test(start_paused = true)]
async fn every_cell_is_right_on_a_bad_day() {
    let faults = Faults {
        rate_429: 0.05,
        rate_5xx: 0.05,
        rate_malformed: 0.05,
        rate_schema_break: 0.1,
        rate_fenced: 0.05,
        rate_truncated: 0.02,
        retry_after_ms: 5,
        ..Faults::default()
    };
    let desk = Desk::new(faults, &texts(230)).await;
    let (id, status) = desk.score(&settings()).await;
    assert_eq!(
        (status.state, status.units.written, status.units.total),
        (RunState::Completed, 460, 460),
        "{status:?}"
    );
    assert_eq!((status.chunks.total, status.chunks.completed, status.units.rows), (5, 5, 230));
    desk.all_right(&id, &[]).await;
    let (stats, spent) = (desk.core.stats(), desk.spent(&id).await);
    assert!(
        ["malformed", "schema_break", "truncated", "throttled"].iter().all(|kind| stats.faults[*kind] > 0)
    );
    // Some that are malformed can be mended without asking again.
    assert!(spent.repaired > 20 && spent.throttled > 0, "{spent:?}");
    assert_eq!(
        stats.executed,
        460 + spent.repaired,
        "one answer a unit, and one for each that could not be used"
    );
    assert_eq!((spent.calls, status.units.asked), (stats.executed, stats.executed));
    assert_eq!((spent.open_calls, spent.unknown_calls), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn one_thousand_five_hundred_rows_are_three_chunks() {
    let mut rows = texts(1_500);
    rows.insert(700, "  ".to_owned());
    let desk = Desk::new(Faults::default(), &rows).await;
    let id = desk.make(&SheetSettings { work: Work::default(), ..settings() }).await;
    let chunks = desk.chunks(&id).await;
    let found: Vec<_> =
        chunks.iter().map(|chunk| (chunk.name.as_str(), chunk.first_row, chunk.rows)).collect();
    assert_eq!(found, [("chunk-0001", 2, 500), ("chunk-0002", 502, 500), ("chunk-0003", 1003, 500)]);
    assert_eq!(chunks[1].last_row, 1002, "a row without a text does not count");
}

#[tokio::test(start_paused = true)]
async fn making_a_sheet_again_goes_on_with_it() {
    let desk = Desk::new(Faults::default(), &texts(120)).await;
    let (id, status) = desk.score(&settings()).await;
    let again =
        desk.make(&SheetSettings { work: Work { concurrency: 5, ..settings().work }, ..settings() }).await;
    assert_eq!((&id, status.state), (&again, RunState::Completed));
    assert_eq!(desk.core.stats().executed, 240);
    desk.found(&id).await.remove().await.unwrap();
    let left = desk.db().read(|connection| {
        let count = |table: &str| {
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0))
        };
        Ok(["score_sheets", "score_chunks", "score_rows", "score_units", "lh_jobs"]
            .map(|table| count(table).unwrap()))
    });
    assert_eq!(left.await.unwrap(), [0; 5]);
    // What is known is not paid for again, also in another sheet.
    let (_, status) = desk.score(&settings()).await;
    assert_eq!((status.units.cached, status.units.asked, desk.core.stats().executed), (240, 0, 240));
}

#[tokio::test(start_paused = true)]
async fn an_estimate_is_a_range_and_after_a_sample_within_a_hundredth() {
    let rows: Vec<String> = texts(400).into_iter().zip(0..).map(|(text, n)| text.repeat(n % 7 + 1)).collect();
    let desk = Desk::new(Faults::default(), &rows).await;
    let off = |estimated: u64, spent: u64| (estimated as f64 / spent as f64 - 1.0).abs();
    let sampled = |limit: Option<u64>| SheetSettings { limit, cache: CacheMode::Off, ..settings() };
    let mut before = Vec::new();
    for limit in [Some(20), None] {
        let mut settings = sampled(limit);
        let estimate = estimate::estimate(&desk.sheets, &settings).await.unwrap();
        settings.raw_estimate_usd = estimate.raw_cost_usd;
        let (id, status) = desk.score(&settings).await;
        assert_eq!((estimate.units, status.state), (status.units.total, RunState::Completed));
        let (cost, spent) = (estimate.cost().unwrap(), desk.spent(&id).await.cost);
        assert!(limit.is_none() || cost.contains(spent) && !cost.is_exact(), "{cost} for {spent}");
        before.push((estimate.measured_calls, off(cost.low.0, spent.0), cost.is_exact()));
    }
    assert_eq!((before[0].0, before[1].0), (0, 40), "{before:?}");
    assert!(before[1].1 < 0.01 && before[1].2, "{before:?}");
}

#[tokio::test(start_paused = true)]
async fn cells_that_have_a_value_are_kept_and_not_paid_for() {
    let desk = Desk::new(Faults::default(), &texts(3)).await;
    {
        let mut state = desk.grid.state();
        state.rows[0].push("cat1".to_owned());
        state.rows[2].push("0.5".to_owned());
    }
    let settings = SheetSettings { work: Work { block_categories: 1, ..settings().work }, ..settings() };
    let (_, status) = desk.score(&settings).await;
    assert_eq!((status.units.total, status.units.written), (35, 35));
    assert!(!desk.grid.state().cells.contains_key(&(2, 0)));
    let anew = SheetSettings { existing: Existing::Overwrite, cache: CacheMode::Off, ..settings };
    let (_, status) = desk.score(&anew).await;
    assert_eq!(status.units.total, 36);
}
