//! A Google Sheets of one's own, for tests: the real API for the calls that are made, over a real socket, with the quota,
//! the bad days and the people who edit while a sheet is scored.
//!
//! It knows one service account, whose key [`FakeSheets::key_file`] writes, and one spreadsheet, [`SPREADSHEET`].

mod faults;
mod grid;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_queue::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::super::settings::GoogleSheet;
use super::super::{Error, Result};
use super::{CallKind, GoogleOptions, ServiceKey};
use faults::Faults;
pub use faults::SheetsFault;
use grid::Grid;

/// The one spreadsheet that there is.
pub const SPREADSHEET: &str = "1FakeSpreadsheet_of-tests";
/// The account that may edit it.
pub const EMAIL: &str = "scorer@tests.iam.gserviceaccount.com";
/// Calls of a kind that a user may make in a minute.
pub const QUOTA: usize = 60;
const QUOTA_WINDOW: Duration = Duration::from_secs(60);
/// How long a token holds.
const TOKEN_SECONDS: u64 = 3600;
const KEY: &str = include_str!("fake/key.pem");
const OTHER_KEY: &str = include_str!("fake/other-key.pem");

/// A running server. Dropping it stops it.
pub struct FakeSheets {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

/// Who may do what with the spreadsheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The account may edit it.
    Editor,
    /// It may look at it.
    Viewer,
    /// It may not even look.
    Nobody,
}

struct State {
    clock: Arc<dyn Clock>,
    sheets: Vec<Grid>,
    sharing: Sharing,
    faults: Faults,
    /// Tokens that were given out, and when they end.
    tokens: Vec<(String, Timestamp)>,
    tokens_given: usize,
    /// When calls were let in, reads and writes apart.
    calls: [Vec<Timestamp>; 2],
    /// Calls beyond the quota.
    beyond: usize,
}

impl FakeSheets {
    /// Listens on a free port of this machine, by the machine's clock.
    pub async fn start() -> io::Result<Self> {
        Self::start_at(Arc::new(SystemClock)).await
    }

    /// The same by another clock: quota and tokens go by it.
    pub async fn start_at(clock: Arc<dyn Clock>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            clock,
            sheets: Vec::new(),
            sharing: Sharing::Editor,
            faults: Faults::default(),
            tokens: Vec::new(),
            tokens_given: 0,
            calls: [Vec::new(), Vec::new()],
            beyond: 0,
        }));
        let router = wire::router(Arc::clone(&state), format!("http://{address}/token"));
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the fake of Google Sheets ended");
            }
        });
        Ok(Self { address, state, task })
    }

    /// Its address, to be used as base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes the key of the account to a folder, as Google hands it out; its tokens come from this server.
    pub fn key_file(&self, folder: &Path) -> io::Result<PathBuf> {
        self.write_key(folder, "google-key.json", KEY)
    }

    /// A key that this server does not know.
    pub fn wrong_key_file(&self, folder: &Path) -> io::Result<PathBuf> {
        self.write_key(folder, "wrong-google-key.json", OTHER_KEY)
    }

    fn write_key(&self, folder: &Path, name: &str, pem: &str) -> io::Result<PathBuf> {
        let path = folder.join(name);
        let token_uri = format!("{}/token", self.url());
        let key = json!({
            "type": "service_account", "client_email": EMAIL, "private_key_id": "1", "private_key": pem,
            "token_uri": token_uri,
        });
        std::fs::write(&path, key.to_string())?;
        Ok(path)
    }

    /// Options for the account and this server.
    pub fn options(&self, folder: &Path) -> Result<GoogleOptions> {
        let file = self.key_file(folder).map_err(|error| Error::Table(error.to_string()))?;
        Ok(GoogleOptions { base_url: Some(self.url()), ..GoogleOptions::new(ServiceKey::read(&file)?) })
    }

    /// Adds a sheet with some values; it has room for exactly these.
    pub fn add_sheet<T: Into<Value>>(
        &self,
        title: &str,
        rows: impl IntoIterator<Item = Vec<T>>,
    ) -> GoogleSheet {
        let values = rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect();
        let mut state = self.state();
        let gid = i64::try_from(state.sheets.len()).unwrap_or_default() * 1_001;
        state.sheets.push(Grid::new(title, gid, values));
        GoogleSheet { spreadsheet: SPREADSHEET.to_owned(), sheet: title.to_owned() }
    }

    /// Says who may do what.
    pub fn share(&self, sharing: Sharing) {
        self.state().sharing = sharing;
    }

    /// All tokens end, as if somebody had taken them back.
    pub fn end_tokens(&self) {
        self.state().tokens.clear();
    }

    /// How many tokens were given out.
    pub fn tokens_given(&self) -> usize {
        self.state().tokens_given
    }

    /// The nth call of a kind from now, the next being 1, goes wrong.
    pub fn fail_at(&self, kind: CallKind, nth: u64, fault: SheetsFault) {
        self.state().faults.at(kind, nth, fault);
    }

    /// Part of the calls of a kind go wrong, the same ones for the same seed.
    pub fn fail_some(&self, kind: CallKind, part: f64, fault: SheetsFault, seed: u64) {
        self.state().faults.some(kind, part, fault, seed);
    }

    /// Nothing goes wrong any more.
    pub fn fail_no_more(&self) {
        self.state().faults = Faults::default();
    }

    /// Calls that were let in.
    pub fn calls(&self, kind: CallKind) -> usize {
        self.state().calls[kind as usize].len()
    }

    /// When calls were let in.
    pub fn call_times(&self, kind: CallKind) -> Vec<Timestamp> {
        self.state().calls[kind as usize].clone()
    }

    /// Most calls of a kind in any 60 seconds.
    pub fn busiest_minute(&self, kind: CallKind) -> usize {
        let times = self.call_times(kind);
        let within = |start: &Timestamp| {
            times.iter().filter(|time| *time >= start && time.since(*start) < QUOTA_WINDOW).count()
        };
        times.iter().map(within).max().unwrap_or(0)
    }

    /// Calls beyond the quota; they were answered with 429.
    pub fn beyond_quota(&self) -> usize {
        self.state().beyond
    }

    /// A cell; row and column from 0.
    pub fn cell(&self, title: &str, row: usize, column: usize) -> Value {
        self.edit(title, |grid| grid.cell(row, column))
    }

    /// All cells, without the blank ones at the ends.
    pub fn values(&self, title: &str) -> Vec<Vec<Value>> {
        self.edit(title, |grid| grid.read(0..grid.row_count, 0..grid.column_count))
    }

    /// A person types something.
    pub fn set(&self, title: &str, (row, column): (usize, usize), value: impl Into<Value>) {
        self.edit(title, |grid| grid.set(row, column, value.into()));
    }

    /// A person inserts an empty column before another.
    pub fn insert_column(&self, title: &str, before: usize) {
        self.edit(title, |grid| grid.insert_column(before));
    }

    /// A person moves a column.
    pub fn move_column(&self, title: &str, from: usize, to: usize) {
        self.edit(title, |grid| grid.move_column(from, to));
    }

    /// A person inserts an empty row before another.
    pub fn insert_row(&self, title: &str, before: usize) {
        self.edit(title, |grid| grid.insert_row(before));
    }

    /// A person deletes a row.
    pub fn delete_row(&self, title: &str, row: usize) {
        self.edit(title, |grid| grid.delete_row(row));
    }

    /// A person makes room for more rows and columns.
    pub fn grow(&self, title: &str, rows: usize, columns: usize) {
        self.edit(title, |grid| {
            grid.row_count += rows;
            grid.column_count += columns;
        });
    }

    /// A person gives a sheet another title.
    pub fn rename(&self, title: &str, new: &str) {
        self.edit(title, |grid| new.clone_into(&mut grid.title));
    }

    fn edit<T: Default>(&self, title: &str, work: impl FnOnce(&mut Grid) -> T) -> T {
        let mut state = self.state();
        let grid = state.sheets.iter_mut().find(|grid| grid.title == title);
        grid.map(work).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for FakeSheets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Lets a call in, or counts that it came too early.
    fn admit(&mut self, kind: CallKind) -> bool {
        let now = self.clock.now();
        let calls = &mut self.calls[kind as usize];
        let recent = calls.iter().rev().take_while(|time| now.since(**time) < QUOTA_WINDOW).count();
        if recent >= QUOTA {
            self.beyond += 1;
            return false;
        }
        calls.push(now);
        true
    }

    fn holds(&self, token: &str) -> bool {
        let now = self.clock.now();
        self.tokens.iter().any(|(known, until)| known == token && now < *until)
    }
}
