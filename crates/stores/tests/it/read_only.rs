//! A file that may be read and not written. Tests often run as root, to whom permissions mean nothing; so the part
//! that meets them runs in a child process as nobody.
#![cfg(unix)]

use longhaul_queue::testing::bench::{START, id, job};
use longhaul_queue::{Error, Store};
use longhaul_sqlite::child::{self, run_unprivileged, set_mode};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

use crate::stage::Stage;

fn unavailable<T>(reply: Result<T, Error>, words: &str) {
    match reply {
        Err(Error::Unavailable(text)) => assert!(text.contains(words), "{text}"),
        Err(other) => panic!("expected Unavailable, got {other:?}"),
        Ok(_) => panic!("expected Unavailable, got success"),
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    if let Some((_, folder)) = child::role() {
        let options = || SqliteOptions { create: true, ..SqliteOptions::default() };
        unavailable(SqliteStore::open(&folder.join("new.db"), options()), "new.db");
        unavailable(SqliteStore::open(&folder.join("deeper/new.db"), options()), "deeper");
        return;
    }
    let stage = Stage::new();
    set_mode(&stage.folder, 0o555);
    run_unprivileged("read_only::a_folder_that_cannot_be_written_is_named", "child", &stage.folder);
    set_mode(&stage.folder, 0o755);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_says_so_and_stays_as_it_was() {
    if let Some((_, folder)) = child::role() {
        // Who wants to write is told at once; who only asks is answered.
        let file = folder.join("test.db");
        unavailable(SqliteStore::open(&file, SqliteOptions::default()), "read-only");
        let options = SqliteOptions { create: false, ..SqliteOptions::default() };
        let store = match SqliteStore::open(&file, options) {
            Ok(store) => store,
            Err(error) => panic!("{error}"),
        };
        unavailable(store.insert(vec![job(2)], START).await, "read-only");
        unavailable(store.cancel(vec![id(1)], START).await, "read-only");
        assert_eq!(store.counts().await.expect("reading goes on")[0].jobs, 1);
        return;
    }
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1)]).await;
    let before = bench.snapshot().await;
    drop((bench, store));
    set_mode(&stage.path(), 0o444);
    // Readers of a write-ahead log need a place for its index.
    set_mode(&stage.folder, 0o777);
    run_unprivileged(
        "read_only::a_file_that_cannot_be_written_says_so_and_stays_as_it_was",
        "child",
        &stage.folder,
    );
    set_mode(&stage.path(), 0o644);
    assert_eq!(stage.bench(&stage.open()).snapshot().await, before);
}

#[tokio::test]
async fn a_file_in_a_folder_that_cannot_be_written_says_so() {
    if let Some((_, folder)) = child::role() {
        let opened = SqliteStore::open(&folder.join("test.db"), SqliteOptions::default());
        unavailable(opened, "test.db");
        return;
    }
    let stage = Stage::new();
    stage.bench(&stage.open()).add([job(1)]).await;
    set_mode(&stage.folder, 0o555);
    run_unprivileged("read_only::a_file_in_a_folder_that_cannot_be_written_says_so", "child", &stage.folder);
    set_mode(&stage.folder, 0o755);
}
