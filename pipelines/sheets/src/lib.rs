//! Sheets: a table of texts and a list of categories go in, every cell gets its score.
//!
//! **Kinds.** `score.chunk` scores some hundred rows; its result says how it went. `score.sheet` holds the sheet's settings, waits for
//! all chunks, fills what is still blank and writes the file.
//!
//! **Flow.** A sheet is a process with a queue of its own. The [`scheduler`] reads the table, keeps its texts in the data
//! store and enqueues a chunk for each 500 of them. A chunk is a [`pipeline`]: the [`producer`] makes units (a row and a
//! block of categories), the [`invoker`] asks the model, the [`validation`] judges the answer, the [`writer`] stores it
//! and hands it to the sink. [`finish`] ends the sheet.
//!
//! **Decisions.**
//! - Texts are copied when the sheet is made. So a chunk needs no file, every format has the same way, and an edit
//!   during the run is seen: a row that says something else by the time of writing is left alone.
//! - An answer is durable in the data store as soon as it is valid, and is never asked for again. Done means written: for
//!   a file that is the data store, from which the file is exported whole; for a Google sheet it is the acknowledged write.
//! - Stages end by counting: a chunk is over when each of its units is settled. What has to be asked again goes through
//!   a lane of its own, so nothing is lost behind an end mark and no stage waits for itself.
//! - The rate of calls is the rate control's business. The number of invokers is a cap on top of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use longhaul_llm::Llm;
use longhaul_pipeline::pipeline::{About, Listener, Metric, Part, Pipeline, Results, Retry};
use longhaul_pipeline::{FailedUnit, Run, RunId, Standing};
use longhaul_queue::{Queue, Worker};
use longhaul_stores::sqlite::Db;
use serde_json::Value;

pub mod chunk;
pub mod estimate;
pub mod files;
pub mod finish;
pub mod gauges;
pub mod google;
mod invoker;
pub mod layout;
mod live;
pub mod manage;
mod pipeline;
pub mod places;
mod producer;
pub mod prompt;
pub mod scheduler;
pub mod settings;
pub mod sheet;
pub mod status;
pub mod tables;
mod unit;
mod validation;
mod writer;

pub use layout::{Layout, Plan};
pub use scheduler::ChunkScheduler;
pub use settings::SheetSettings;
pub use status::Details;

use gauges::Gauges;
use live::LiveSheet;
use places::{Pages, Sink};
use settings::GoogleSheet;
use tables::{Chunk, StoredSheet, Tables};

/// The names of this pipeline.
pub const ABOUT: About = About {
    name: "sheets",
    prefix: "sheet-",
    kind_prefix: "score.",
    queues: &[],
    manifest: finish::KIND,
    unit: "unit",
};

/// What is missing where no account was named.
const NO_KEY: &str = "no key for Google Sheets is set: name the key file of a service account in google.key_file, or with --google-key";

/// Sheets kept in memory; beyond it all are read again.
const LIVE_SHEETS_MAX: usize = 100;

/// What can go wrong before a job can say so itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue or the data store refused.
    #[error(transparent)]
    Queue(#[from] longhaul_queue::Error),
    /// The models' side refused.
    #[error(transparent)]
    Llm(#[from] longhaul_llm::Error),
    /// There is no run of this name.
    #[error("there is no run {0}: it was never started, or was removed")]
    NoRun(String),
    /// The caller's mistake.
    #[error("{0}")]
    Invalid(String),
    /// A table that cannot be read or written.
    #[error("{0}")]
    Table(String),
    /// A sheet elsewhere that cannot be reached or written.
    #[error(transparent)]
    Sink(#[from] places::SinkError),
}

impl From<longhaul_pipeline::table_files::TableError> for Error {
    fn from(error: longhaul_pipeline::table_files::TableError) -> Self {
        Self::Table(error.0)
    }
}

impl From<longhaul_pipeline::Error> for Error {
    fn from(error: longhaul_pipeline::Error) -> Self {
        match error {
            longhaul_pipeline::Error::Queue(error) => Self::Queue(error),
            longhaul_pipeline::Error::Llm(error) => Self::Llm(error),
            longhaul_pipeline::Error::NoRun(name) => Self::NoRun(name),
            longhaul_pipeline::Error::Invalid(text) => Self::Invalid(text),
            longhaul_pipeline::Error::Place(text) => Self::Table(text),
        }
    }
}

impl From<Error> for longhaul_pipeline::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Queue(error) => Self::Queue(error),
            Error::Llm(error) => Self::Llm(error),
            Error::NoRun(name) => Self::NoRun(name),
            Error::Invalid(text) => Self::Invalid(text),
            Error::Table(text) => Self::Place(text),
            Error::Sink(error) => Self::Place(error.to_string()),
        }
    }
}

/// A result of this pipeline.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where sheets that are not files are. The binary knows how to get in.
#[async_trait]
pub trait Places: Send + Sync {
    /// Reads a sheet.
    async fn pages(&self, sheet: &GoogleSheet) -> Result<Arc<dyn Pages>>;

    /// Takes the scores of a sheet as they come. One for all of its chunks.
    async fn sink(&self, sheet: &StoredSheet) -> Result<Arc<dyn Sink>>;
}

/// No place but files.
#[async_trait]
impl Places for () {
    async fn pages(&self, _: &GoogleSheet) -> Result<Arc<dyn Pages>> {
        Err(Error::Invalid(NO_KEY.to_owned()))
    }

    async fn sink(&self, _: &StoredSheet) -> Result<Arc<dyn Sink>> {
        Err(Error::Invalid(NO_KEY.to_owned()))
    }
}

/// The pipeline: what its handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Sheets {
    inner: Arc<Inner>,
}

/// What is given to the pipeline from outside.
pub struct Parts {
    /// Where sheets that are not files are.
    pub places: Arc<dyn Places>,
    /// Hears of ends and holds.
    pub listener: Arc<dyn Listener>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { places: Arc::new(()), listener: Arc::new(()) }
    }
}

struct Inner {
    queue: Queue,
    llm: Llm,
    tables: Tables,
    places: Arc<dyn Places>,
    gauges: Arc<Gauges>,
    listener: Arc<dyn Listener>,
    /// Sheets by name, read once. What may be said anew, where scores go and how often blanks are gone over, is read again at the end.
    live: Mutex<HashMap<String, Arc<LiveSheet>>>,
}

impl Sheets {
    /// The pipeline on a queue, the models and the data store.
    pub async fn open(queue: Queue, llm: Llm, data: Db, parts: Parts) -> Result<Self> {
        let tables = Tables::open(data).await?;
        let (gauges, live) = (Arc::default(), Mutex::default());
        let Parts { places, listener } = parts;
        Ok(Self { inner: Arc::new(Inner { queue, llm, tables, places, gauges, listener, live }) })
    }

    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    /// The models.
    pub fn llm(&self) -> &Llm {
        &self.inner.llm
    }

    /// What is kept.
    pub fn tables(&self) -> &Tables {
        &self.inner.tables
    }

    /// What the stages of this process are doing.
    pub fn gauges(&self) -> &Gauges {
        &self.inner.gauges
    }

    /// A sheet with what it needs to work.
    async fn live(&self, id: &str) -> Result<Arc<LiveSheet>> {
        if let Some(live) = self.known().get(id) {
            return Ok(Arc::clone(live));
        }
        let live = Arc::new(LiveSheet::of(self, self.inner.tables.get(id).await?).await?);
        let mut known = self.known();
        if known.len() >= LIVE_SHEETS_MAX {
            known.clear();
        }
        // Somebody else may have been faster: there is one sink for all.
        Ok(Arc::clone(known.entry(id.to_owned()).or_insert(live)))
    }

    fn forget(&self, id: &RunId) {
        self.known().remove(id.as_str());
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Arc<LiveSheet>>> {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn chunk(&self, sheet: &StoredSheet, number: u64) -> Result<Chunk> {
        let found = self.inner.tables.chunks(sheet.seq, number, 1).await?.pop();
        found.filter(|chunk| chunk.chunk == number).ok_or_else(|| Error::NoRun(sheet.id.clone()))
    }
}

#[async_trait]
impl Pipeline for Sheets {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn register(&self, worker: &mut Worker) {
        let sheets = self.clone();
        worker.handle_with(chunk::KIND, chunk::options(), move |context, payload| {
            chunk::run(sheets.clone(), context, payload)
        });
        let sheets = self.clone();
        worker.handle_with(finish::KIND, finish::options(), move |context, payload| {
            finish::run(sheets.clone(), context, payload)
        });
    }

    fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    fn llm(&self) -> Option<&Llm> {
        Some(&self.inner.llm)
    }

    async fn standing(&self, run: &Run) -> longhaul_pipeline::Result<Standing> {
        Ok(status::standing(self, run).await?)
    }

    async fn cancel(&self, run: &Run) -> longhaul_pipeline::Result<u64> {
        Ok(manage::cancel(self, &run.id).await?)
    }

    async fn resume(&self, run: &Run) -> longhaul_pipeline::Result<u64> {
        Ok(manage::resume(self, &run.id).await?)
    }

    async fn retry(&self, run: &Run, which: Retry) -> longhaul_pipeline::Result<u64> {
        Ok(manage::retry(self, &run.id, which).await?)
    }

    async fn remove(&self, run: &Run) -> longhaul_pipeline::Result<u64> {
        Ok(manage::remove(self, &run.id).await?)
    }

    async fn settings(&self, run: &Run) -> longhaul_pipeline::Result<Value> {
        Ok(self.inner.tables.get(run.id.as_str()).await?.settings.shown()?)
    }

    fn results_are_answers(&self) -> bool {
        true
    }

    async fn parts(&self, run: &Run, first: u64, limit: usize) -> longhaul_pipeline::Result<Vec<Part>> {
        let sheet = self.inner.tables.get(run.id.as_str()).await?;
        Ok(status::parts(self, &sheet, first, limit).await?)
    }

    async fn results(&self, run: &Run, after: i64, limit: usize) -> longhaul_pipeline::Result<Results> {
        let sheet = self.inner.tables.get(run.id.as_str()).await?;
        Ok(manage::results(self, &sheet, after, limit).await?)
    }

    async fn failures(&self, run: &Run, limit: usize) -> longhaul_pipeline::Result<Vec<FailedUnit>> {
        let sheet = self.inner.tables.get(run.id.as_str()).await?;
        Ok(manage::failures(self, &sheet, limit).await?)
    }

    fn metrics(&self) -> Vec<Metric> {
        self.inner.gauges.metrics()
    }
}
