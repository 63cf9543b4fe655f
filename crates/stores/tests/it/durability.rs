//! What survives what.

use std::process::ExitStatus;
use std::str::FromStr;

use longhaul_queue::testing::bench::{done, id, job, json};
use longhaul_queue::{State, Store};
use longhaul_sqlite::child;
use longhaul_stores::sqlite::{Durability, SqliteOptions, SqliteStore};

use crate::stage::{Stage, check_sound, on_writer};

const LEVELS: [(&str, i64); 2] = [("fsync", 2), ("relaxed", 1)];

fn open(stage: &Stage, level: &str) -> SqliteStore {
    let durability = Durability::from_str(level).expect("a level");
    SqliteStore::open(&stage.path(), SqliteOptions { durability, ..stage.options() })
        .expect("the store opens")
}

/// A process that dies in the moment after its settlement was answered; nothing is closed, flushed or dropped.
#[tokio::test]
async fn what_was_answered_survives_the_death_of_the_process() {
    if let Some((level, folder)) = child::role() {
        let stage = Stage::at(folder);
        let store = std::sync::Arc::new(open(&stage, &level));
        let bench = stage.bench(&store);
        bench.add([job(1), job(2).after(id(1)), job(3)]).await;
        bench.run(1, done(r#""precious""#)).await;
        std::process::abort();
    }
    for (level, _) in LEVELS {
        let stage = Stage::new();
        let name = "durability::what_was_answered_survives_the_death_of_the_process";
        let output = child::command(name, level, &stage.folder).output().expect("it starts");
        assert!(died(output.status), "{}", String::from_utf8_lossy(&output.stderr));
        let store = stage.open();
        let bench = stage.bench(&store);
        assert_eq!(bench.detail(1).await.result, Some(json(r#""precious""#)), "{level}");
        bench.expect(&[(1, State::Succeeded), (2, State::Ready), (3, State::Ready)]).await;
        check_sound(&store).await;
    }
}

/// Whether it died at once, rather than failed as a test does.
fn died(status: ExitStatus) -> bool {
    #[cfg(unix)]
    let by_signal = status.code().is_none();
    #[cfg(not(unix))]
    let by_signal = status.code() != Some(101);
    by_signal && !status.success()
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_one_file_at_rest() {
    for (level, _) in LEVELS {
        let stage = Stage::new();
        let store = std::sync::Arc::new(open(&stage, level));
        let bench = stage.bench(&store);
        bench.add([job(1)]).await;
        bench.run(1, done("7")).await;
        let before = bench.snapshot().await;
        drop((bench, store));
        let files: Vec<_> = std::fs::read_dir(&stage.folder).expect("a folder").collect();
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(stage.bench(&stage.open()).snapshot().await, before);
    }
}

#[tokio::test]
async fn a_durable_commit_waits_for_the_disk() {
    for (level, synchronous) in LEVELS {
        let stage = Stage::new();
        let store = open(&stage, level);
        assert_eq!(on_writer(&store, "PRAGMA synchronous").await, synchronous, "{level}");
        // A claim needs no fsync of its own, and the next durable commit does again.
        store.insert(vec![job(1)], longhaul_queue::testing::bench::START).await.expect("it is stored");
        let bench = stage.bench(&std::sync::Arc::new(store.clone()));
        bench.start(1).await;
        assert_eq!(on_writer(&store, "PRAGMA synchronous").await, synchronous, "{level}");
    }
}

/// Nobody pauses for SQLite's checkpoints, and yet the log is used from its start again.
#[tokio::test]
async fn a_log_that_is_written_on_and_on_stays_short() {
    let stage = Stage::new();
    let bench = stage.bench(&stage.open());
    for number in 1..=6_000 {
        bench.add([job(number)]).await;
    }
    let log = std::fs::metadata(stage.folder.join("test.db-wal")).expect("it has a log").len();
    assert!((1_000_000..40_000_000).contains(&log), "{log} bytes of about 110 million that were written");
}
