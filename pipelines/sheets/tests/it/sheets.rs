//! Google sheets, against a server that speaks the real API: who may come in, what is read, what is written where, and what
//! people do to a sheet meanwhile.

mod access;
mod edits;
mod outages;
mod writing;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use longhaul_queue::{Clock, Timestamp};
use longhaul_sheets::google::fake::FakeSheets;
use longhaul_sheets::google::{Google, GoogleOptions, SheetsSink, SinkSetup};
use longhaul_sheets::layout::{Layout, Plan, Row};
use longhaul_sheets::places::{Fate, Sink as _, SinkError, SinkRow};
use longhaul_sheets::settings::{Category, Existing, GoogleSheet, Mode};
use longhaul_sheets::tables::Tables;
use longhaul_stores::sqlite::{Db, SqliteOptions};
use serde_json::Value;
use tempfile::TempDir;

/// A clock that leaps: whoever sleeps is where it wanted to be at once. Nothing else moves it.
struct LeapingClock(Mutex<Timestamp>);

impl LeapingClock {
    fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = *now + by;
    }
}

#[async_trait]
impl Clock for LeapingClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    async fn sleep_until(&self, until: Timestamp) {
        let mut now = self.0.lock().unwrap();
        *now = until.max(*now);
    }
}

/// The server, a data store and a client.
struct Stage {
    fake: FakeSheets,
    clock: Arc<LeapingClock>,
    folder: TempDir,
    tables: Tables,
    google: Google,
}

impl Stage {
    async fn new() -> Self {
        let clock = Arc::new(LeapingClock(Mutex::new(Timestamp::from_millis(1_800_000_000_000))));
        let fake = FakeSheets::start_at(Arc::clone(&clock) as Arc<dyn Clock>).await.unwrap();
        let folder = TempDir::new().unwrap();
        let tables = tables(&folder, "data.db").await;
        let options = fake.options(folder.path()).unwrap();
        let google = Google::new(&options, tables.clone(), Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
        Self { fake, clock, folder, tables, google }
    }

    /// Another client, as another process would have it.
    fn google(&self, change: impl FnOnce(&mut GoogleOptions)) -> Google {
        let mut options = self.fake.options(self.folder.path()).unwrap();
        change(&mut options);
        Google::new(&options, self.tables.clone(), Arc::clone(&self.clock) as Arc<dyn Clock>).unwrap()
    }

    /// A client that counts its calls elsewhere.
    async fn stranger(&self) -> Google {
        let options = self.fake.options(self.folder.path()).unwrap();
        let tables = tables(&self.folder, "other.db").await;
        Google::new(&options, tables, Arc::clone(&self.clock) as Arc<dyn Clock>).unwrap()
    }

    /// A sheet with a column `text` and others, a row for each text, and room for a few columns more.
    fn texts(&self, heads: &[&str], texts: &[&str]) -> GoogleSheet {
        let head = heads.iter().map(|head| Value::from(*head)).collect();
        let rows = texts.iter().map(|text| vec![Value::from(*text)]);
        let sheet = self.fake.add_sheet(TITLE, std::iter::once(head).chain(rows));
        self.fake.grow(TITLE, 0, 6);
        sheet
    }

    fn sink(&self, sheet: &GoogleSheet, categories: &[&str]) -> SheetsSink {
        self.sink_with(sheet, categories, Existing::Keep)
    }

    fn sink_with(&self, sheet: &GoogleSheet, categories: &[&str], existing: Existing) -> SheetsSink {
        let setup = self.setup(sheet, &Layout::Columns { text: "text".to_owned() }, categories, existing);
        SheetsSink::new(self.google.clone(), setup)
    }

    fn setup(&self, sheet: &GoogleSheet, layout: &Layout, names: &[&str], existing: Existing) -> SinkSetup {
        let category = |name: &&str| Category {
            name: (*name).to_owned(),
            definition: String::new(),
            detail: String::new(),
        };
        let categories: Vec<Category> = names.iter().map(category).collect();
        let plan: Plan = layout.plan(&self.head(layout), &categories, &Mode::Scores).unwrap();
        SinkSetup { sheet: sheet.clone(), layout: layout.clone(), plan, existing }
    }

    fn head(&self, layout: &Layout) -> Vec<Row> {
        let values = self.fake.values(TITLE);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let rows = (0..layout.head_rows()).zip(values);
        rows.map(|(number, cells)| Row { number, cells: cells.iter().map(text).collect() }).collect()
    }

    /// The sheet as lines of cells.
    fn lines(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let line = |row: &Vec<Value>| row.iter().map(text).collect::<Vec<_>>().join("|");
        self.fake.values(TITLE).iter().map(line).collect()
    }
}

async fn tables(folder: &TempDir, name: &str) -> Tables {
    let db = Db::open(&folder.path().join(name), SqliteOptions::default()).unwrap();
    Tables::open(db).await.unwrap()
}

const TITLE: &str = "Bob's sheet";

/// Scores of a row, for the first targets of the plan.
fn row(number: u64, text: &str, scores: &[f64]) -> SinkRow {
    let cells = scores.iter().enumerate().map(|(target, score)| (target, Value::from(*score)));
    SinkRow { number, text: text.to_owned(), cells: cells.collect() }
}

async fn write(sink: &SheetsSink, rows: &[SinkRow]) -> Vec<Fate> {
    sink.write(rows).await.unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, SinkError>) -> String {
    match result {
        Err(SinkError::Refused(text)) => text,
        other => panic!("not refused: {other:?}"),
    }
}

fn outage<T: std::fmt::Debug>(result: Result<T, SinkError>) -> (String, Option<Duration>) {
    match result {
        Err(SinkError::Outage { message, retry_after }) => (message, retry_after),
        other => panic!("no outage: {other:?}"),
    }
}
