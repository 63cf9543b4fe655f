//! Files that are no store, or no longer a sound one, and files from another time.

use std::fs;
use std::io::{Seek, SeekFrom, Write};

use longhaul_queue::testing::bench::{done, id, job};
use longhaul_queue::{
    Engine, EngineStore as _, Error, Failure, JobContext, Shutdown, Store, Worker, WorkerOptions,
};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

use crate::stage::Stage;

fn refusal(stage: &Stage) -> Error {
    stage.try_open().err().expect("the file is refused")
}

fn check_corrupt(error: &Error, stage: &Stage) {
    assert!(matches!(error, Error::Corrupt(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&stage.path().display().to_string()), "{text}");
    assert!(text.contains("longhaul restore"), "it says what to do: {text}");
}

/// Overwrites a part of the file.
fn scribble(stage: &Stage, from: u64, bytes: usize) {
    let mut file = fs::OpenOptions::new().write(true).open(stage.path()).expect("the file opens");
    file.seek(SeekFrom::Start(from)).expect("it is long enough");
    file.write_all(&vec![0xA5; bytes]).expect("it can be written");
}

#[test]
fn a_file_of_another_sort_is_refused_and_left_alone() {
    let stage = Stage::new();
    let letter = "Dear Sir or Madam, ".repeat(500);
    fs::write(stage.path(), &letter).expect("it can be written");
    check_corrupt(&refusal(&stage), &stage);
    assert_eq!(fs::read_to_string(stage.path()).expect("it can be read"), letter);
}

#[tokio::test]
async fn a_store_without_its_header_is_refused() {
    let stage = Stage::new();
    stage.bench(&stage.open()).add([job(1)]).await;
    scribble(&stage, 0, 100);
    check_corrupt(&refusal(&stage), &stage);
}

#[tokio::test]
async fn a_damaged_page_is_reported_and_the_rest_goes_on() {
    let stage = Stage::new();
    let bench = stage.bench(&stage.open());
    bench.add((1..=200).map(job)).await;
    bench.store.seal("p".into(), false, bench.now()).await.expect("seal answers");
    drop(bench);
    let page = |sql| stage.connection().query_row(sql, [], |row| row.get::<_, u64>(0)).expect("a number");
    let size = page("PRAGMA page_size");
    let root = page("SELECT rootpage FROM sqlite_schema WHERE name = 'lh_jobs'");
    scribble(&stage, (root - 1) * size, usize::try_from(size).expect("a page is small"));

    let store = stage.open();
    let bench = stage.bench(&store);
    let corrupt = |error: Error| assert!(matches!(error, Error::Corrupt(_)), "{error:?}");
    corrupt(bench.try_add([job(201)]).await.expect_err("jobs cannot be written"));
    corrupt(store.claim(bench.request()).await.expect_err("jobs cannot be read"));
    corrupt(store.get(vec![id(1)]).await.expect_err("jobs cannot be read"));
    assert_eq!(store.processes(None, 9).await.expect("other tables can")[0].id, "p".into());
    store.seal("q".into(), false, bench.now()).await.expect("the writer is alive");
    let problems = store.db().check().await.expect("check answers").problems;
    assert!(!problems.is_empty(), "SQLite sees the damage");
}

/// Makes a page that SQLite takes for an index without entries.
fn empty_index(stage: &Stage, index: &str) {
    let connection = stage.connection();
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u64>(0)).expect("a number");
    let size = number("PRAGMA page_size");
    let root = number(&format!("SELECT rootpage FROM sqlite_schema WHERE name = '{index}'"));
    drop(connection);
    let mut file = fs::OpenOptions::new().write(true).open(stage.path()).expect("the file opens");
    let mut page = vec![0; usize::try_from(size).expect("a page is small")];
    page[0] = 10;
    page[5..7].copy_from_slice(&u16::try_from(size).expect("a page is small").to_be_bytes());
    file.seek(SeekFrom::Start((root - 1) * size)).expect("it is long enough");
    file.write_all(&page).expect("it can be written");
}

#[tokio::test]
async fn a_worker_that_waits_for_jobs_nobody_can_claim_finds_the_damage_and_ends() {
    let stage = Stage::new();
    stage.bench(&stage.open()).add((1..=5).map(job)).await;
    empty_index(&stage, "lh_jobs_ready");
    let options =
        SqliteOptions { clock: std::sync::Arc::new(longhaul_queue::SystemClock), ..stage.options() };
    let store = std::sync::Arc::new(SqliteStore::open(&stage.path(), options).expect("it looks sound"));
    let poll = std::time::Duration::from_millis(100);
    let options = WorkerOptions { until_empty: true, maintenance: None, poll, ..WorkerOptions::default() };
    let mut worker = Worker::new(Engine::new(store), options);
    worker.handle("work", |_: JobContext, _: serde_json::Value| async { Ok::<_, Failure>(()) });
    let ended = worker.run(Shutdown::new()).await;
    let Err(Error::Corrupt(text)) = ended else { panic!("{ended:?}") };
    for words in ["test.db", "lh_jobs_ready", "longhaul restore"] {
        assert!(text.contains(words), "{words:?} is missing in {text:?}");
    }
}

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let stage = Stage::new();
    drop(stage.open());
    let newer = "UPDATE lh_meta SET value = 99 WHERE key = 'schema_version'";
    stage.connection().execute(newer, []).expect("it is updated");
    let error = refusal(&stage);
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    let text = error.to_string();
    for words in ["version 99", "up to 3", "newer longhaul", &stage.path().display().to_string()] {
        assert!(text.contains(words), "{words:?} is missing in {text:?}");
    }
}

#[test]
fn a_missing_file_is_not_made_unless_asked() {
    let stage = Stage::new();
    let options = SqliteOptions { create: false, ..stage.options() };
    let error = SqliteStore::open(&stage.path(), options).err().expect("there is no file");
    assert!(matches!(error, Error::NotFound(_)), "{error:?}");
    assert!(error.to_string().contains(&stage.path().display().to_string()), "{error}");
    assert!(!stage.path().exists());
}

#[test]
fn a_folder_in_the_place_of_a_file_is_refused_by_name() {
    let stage = Stage::new();
    fs::create_dir(stage.path()).expect("a folder");
    let inside = stage.path().join("not-a-folder");
    fs::write(&inside, "").expect("a file");
    for path in [stage.path(), inside.join("test.db")] {
        let error = SqliteStore::open(&path, stage.options()).err().expect("it cannot be opened");
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(error.to_string().contains(&stage.path().display().to_string()), "{error}");
    }
}

#[tokio::test]
async fn the_folder_of_a_new_file_is_made() {
    let stage = Stage::new();
    let path = stage.folder.join("a/b/c.db");
    let store = SqliteStore::open(&path, stage.options()).expect("the store opens");
    store.insert(vec![job(1)], longhaul_queue::testing::bench::START).await.expect("it is stored");
}

#[tokio::test]
async fn tables_of_an_application_are_left_alone() {
    let stage = Stage::new();
    let own = "CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7)";
    stage.connection().execute_batch(own).expect("a table");
    let bench = stage.bench(&stage.open());
    bench.add([job(1)]).await;
    bench.run(1, done("1")).await;
    let order: i64 =
        stage.connection().query_row("SELECT id FROM orders", [], |row| row.get(0)).expect("a row");
    assert_eq!(order, 7);
}
