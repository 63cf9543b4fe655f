//! What the tests of the database file share: a folder, a clock that stands still, and stores on the same file.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul_queue::testing::Bench;
use longhaul_queue::testing::bench::START;
use longhaul_queue::testing::invariants;
use longhaul_queue::{ManualClock, Result};
use longhaul_stores::sqlite::{Durability, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
    /// Removes the folder, unless it is somebody else's.
    _guard: Option<TempDir>,
    pub(crate) clock: Arc<ManualClock>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let guard = tempfile::tempdir().expect("a temporary folder");
        let stage = Self::at(guard.path().to_owned());
        Self { _guard: Some(guard), ..stage }
    }

    /// On somebody else's folder.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder, _guard: None, clock: Arc::new(ManualClock::new(START)) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("test.db")
    }

    /// `Relaxed`, because most tests check rules, not disks.
    pub(crate) fn options(&self) -> SqliteOptions {
        let clock = Arc::clone(&self.clock) as _;
        SqliteOptions { durability: Durability::Relaxed, clock, ..SqliteOptions::default() }
    }

    pub(crate) fn try_open(&self) -> Result<SqliteStore> {
        SqliteStore::open(&self.path(), self.options())
    }

    pub(crate) fn open(&self) -> Arc<SqliteStore> {
        Arc::new(self.try_open().expect("the store opens"))
    }

    pub(crate) fn bench(&self, store: &Arc<SqliteStore>) -> Bench {
        Bench::new(Arc::clone(store) as _).timed_by(Arc::clone(&self.clock))
    }

    /// The file as SQLite sees it, beside or without a store.
    pub(crate) fn connection(&self) -> Connection {
        Connection::open(self.path()).expect("the file opens")
    }
}

/// Checks that everything stored fits together.
pub(crate) async fn check_sound(store: &SqliteStore) {
    invariants::check(store).await.expect("what is stored fits together");
    let problems = store.db().check().await.expect("check answers").problems;
    assert!(problems.is_empty(), "{problems:?}");
}

/// Runs one statement on the writing connection.
pub(crate) async fn on_writer(store: &SqliteStore, sql: &'static str) -> i64 {
    let run = move |tx: &mut longhaul_stores::sqlite::Transaction<'_, '_>| {
        Ok(tx.connection().query_row(sql, [], |row| row.get(0))?)
    };
    store.db().transaction(run).await.expect("the writer answers")
}

/// Keeps the writer busy until the guard is dropped, so that what is called meanwhile becomes one group.
pub(crate) struct Standstill {
    _release: std::sync::mpsc::Sender<()>,
}

impl Standstill {
    pub(crate) async fn of(store: &Arc<SqliteStore>) -> Self {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let hold = move |_: &mut longhaul_stores::sqlite::Transaction<'_, '_>| {
                let _ = begun.send(());
                // Ends with an error when the guard goes.
                let _ = wait.recv();
                Ok(())
            };
            store.db().transaction(hold).await.expect("the writer answers");
        });
        has_begun.await.expect("the writer has begun");
        Self { _release: release }
    }
}

/// Starts calls while the writer stands still, so that they share one transaction, and returns their replies.
pub(crate) async fn together<T: Send + 'static>(
    store: &Arc<SqliteStore>,
    calls: Vec<impl Future<Output = Result<T>> + Send + 'static>,
) -> Vec<Result<T>> {
    let standstill = Standstill::of(store).await;
    let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    // On a runtime of one thread every task has handed in its command when this one has its turn again.
    tokio::task::yield_now().await;
    drop(standstill);
    let mut replies = Vec::with_capacity(tasks.len());
    for task in tasks {
        replies.push(task.await.expect("no call panics"));
    }
    replies
}
