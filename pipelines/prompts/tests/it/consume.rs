//! What is left of a run when its results were read: nothing.

use longhaul_pipeline::testing::options;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_llm::LlmFile;
use longhaul_prompts::{Mode, Run, manage};
use longhaul_queue::{State, WorkerOptions};
use longhaul_sim::{BatchOptions, SimOptions};
use longhaul_stores::sqlite::{Durability, SqliteOptions, SqliteStore};
use rusqlite::Connection;
use serde_json::json;

use crate::stage::{Stage, prompts, settings, work};

/// Tables that tell of what was, by design, and are bounded: by days, by workers, by a number of events; and the leases that
/// processes share, which are a record each.
const HISTORY: [&str; 5] = ["lh_meta", "lh_ledger", "lh_events", "lh_workers", "lh_records"];

/// Rows by table, without those that have none.
fn rows(file: &Path) -> Vec<(String, i64)> {
    let connection = Connection::open(file).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
    let mut names = connection.prepare(sql).unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let count = |name: &String| {
        // Counters at zero go with the next sweep that has something to do.
        let some = if name == "lh_counts" { "WHERE jobs <> 0" } else { "" };
        let sql = format!("SELECT count(*) FROM {name} {some}");
        connection.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let counted = names.iter().map(|name| (name.clone(), count(name)));
    counted.filter(|(name, rows)| *rows > 0 && !HISTORY.contains(&name.as_str())).collect()
}

/// The ring of events is full after ten thousand, which would take too long here: as if it were small.
fn forget_events(file: &Path) {
    let sql = "DELETE FROM lh_events WHERE id < (SELECT max(id) FROM lh_events)";
    Connection::open(file).unwrap().execute(sql, []).unwrap();
}

/// Pages of a file: those that hold something, but for the ring of events, and all.
#[derive(Debug, Clone, Copy)]
struct Pages {
    used: i64,
    all: i64,
}

fn pages(file: &Path) -> Pages {
    let connection = Connection::open(file).unwrap();
    let read = |sql: &str| connection.query_row(sql, [], |row| row.get(0)).unwrap();
    Pages {
        used: read("SELECT count(*) FROM dbstat WHERE name <> 'lh_events'"),
        all: read("PRAGMA page_count"),
    }
}

/// A batch that takes milliseconds: this goes by the machine's time, as the file does.
fn quick() -> SimOptions {
    let batch = BatchOptions { time_scale: 100_000.0, rate_line_failed: 0.1, ..BatchOptions::default() };
    SimOptions { batch, ..SimOptions::default() }
}

#[tokio::test]
async fn consume_leaves_no_row_and_the_file_does_not_grow() {
    for mode in [Mode::Sync, Mode::Batch] {
        let folder = tempfile::tempdir().unwrap();
        let (jobs, spending) = (folder.path().join("jobs.db"), folder.path().join("llm.db"));
        let sqlite = SqliteOptions { durability: Durability::Relaxed, ..SqliteOptions::default() };
        let store = Arc::new(SqliteStore::open(&jobs, SqliteOptions { create: true, ..sqlite }).unwrap());
        let stage = Stage::with_file(store, LlmFile::open(&spending).unwrap(), quick());
        let requests = prompts(100);
        let settings = settings(mode, "consumed");
        let mut grown = Vec::new();
        for _ in 0..20 {
            let run = stage.submit(&settings, &requests).await;
            stage.found(&run).await.pause().await.unwrap();
            stage.found(&run).await.resume().await.unwrap();
            let poll = Duration::from_millis(20);
            let worker =
                work((&stage.engine(), &stage.pipeline), &[&run], WorkerOptions { poll, ..options() });
            stage.ended(&run).await;
            stage.all_right(&run, &settings, &requests).await;
            assert!(stage.spent(&run).await.calls >= 100);
            assert_eq!(stage.found(&run).await.remove().await.unwrap(), 101, "the requests and the run");
            worker.drain().await;
            assert_eq!(rows(&jobs), [], "{mode}");
            assert_eq!(stage.spent(&run).await.calls, 0, "its part of the ledger is forgotten");
            assert!(Run::find(stage.pipeline.queue(), &run).await.unwrap().is_none());
            forget_events(&jobs);
            grown.push((pages(&jobs), pages(&spending)));
        }
        // Nothing is left behind: each round ends with as many pages in use as the first. The file itself is as large
        // as the round that needed most at once, which depends on how its commits fell together.
        let (first, last) = (grown[0], grown[19]);
        assert!(grown.iter().all(|(jobs, _)| jobs.used == first.0.used), "{mode}: {grown:?}");
        assert!(grown.iter().all(|(_, spending)| spending.used <= first.1.used), "{mode}: {grown:?}");
        assert!(last.0.all < 2 * first.0.all && last.1.all == first.1.all, "{mode}: {grown:?}");
        let left = rows(&spending);
        let left: Vec<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
        assert!(!left.contains(&"parts") && !left.contains(&"calls"), "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn consume_is_refused_while_requests_are_unfinished_and_needs_no_worker_at_the_end() {
    let stage = Stage::new(SimOptions::default());
    let settings = settings(Mode::Sync, "unfinished");
    let run = stage.submit(&settings, &prompts(3)).await;
    let refused = stage.found(&run).await.remove().await.unwrap_err().to_string();
    assert!(refused.contains("3 unfinished"), "{refused}");
    assert_eq!(stage.process(&run).await.total(), 3);
    // Nobody runs the run's last word any more.
    manage::cancel(&stage.pipeline, &run).await.unwrap();
    assert_eq!(stage.found(&run).await.remove().await.unwrap(), 4);
    assert!(stage.store.process(run.process()).await.unwrap().is_none());
    assert!(stage.store.counts().await.unwrap().iter().all(|count| count.jobs == 0));
}

#[tokio::test(start_paused = true)]
async fn a_run_may_be_submitted_anew_after_it_was_consumed() {
    let stage = Stage::new(SimOptions::default());
    let (settings, requests) = (settings(Mode::Batch, "anew"), prompts(8));
    for round in 1..=2 {
        let run = stage.submit(&settings, &requests).await;
        let worker = stage.work(&[&run]);
        stage.ended(&run).await;
        stage.all_right(&run, &settings, &requests).await;
        worker.drain().await;
        assert_eq!(stage.stats().batches_created, round, "it is a new batch, not the old one");
        assert_eq!(stage.spent(&run).await.calls, 8);
        stage.found(&run).await.remove().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn failed_requests_are_put_back_and_asked_alone() {
    for mode in [Mode::Sync, Mode::Batch] {
        let batch = BatchOptions { lines_missing: 3, ..BatchOptions::default() };
        let stage = Stage::new(SimOptions { batch, context_tokens: None, ..SimOptions::default() });
        let settings = settings(mode, "retried");
        let mut requests = prompts(20);
        if mode == Mode::Sync {
            requests[4].body["messages"] = json!("none");
        }
        let run = stage.submit(&settings, &requests).await;
        let worker = stage.work(&[&run]);
        stage.ended(&run).await;
        let failed = stage.progress(&run).await.failed;
        assert_eq!(failed, if mode == Mode::Sync { 1 } else { 3 });
        assert_eq!(manage::retry(&stage.pipeline, &run).await.unwrap(), failed);
        stage.ended(&run).await;
        worker.drain().await;
        match mode {
            Mode::Sync => assert_eq!(stage.results(&run).await[4].state, State::Failed, "it is still wrong"),
            Mode::Batch => {
                stage.all_right(&run, &settings, &requests).await;
                assert_eq!((stage.stats().batches_created, stage.stats().calls), (1, 3));
            }
        }
        assert_eq!(stage.found(&run).await.remove().await.unwrap(), 21);
    }
}
