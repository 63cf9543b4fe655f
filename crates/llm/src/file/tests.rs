use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::*;

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("llm.db")
    }

    fn open(&self) -> LlmFile {
        LlmFile::open(&self.path()).expect("the file opens")
    }

    fn connection(&self) -> Connection {
        Connection::open(self.path()).expect("the file opens")
    }
}

async fn routes(file: &LlmFile) -> i64 {
    let count = |connection: &Connection| {
        Ok(connection.query_row("SELECT count(*) FROM learnt", [], |row| row.get(0))?)
    };
    file.read(count).await.expect("it can be read")
}

#[tokio::test]
async fn what_was_learnt_is_kept_and_bounded() {
    let stage = Stage::new();
    for file in [stage.open(), LlmFile::in_memory().expect("memory opens")] {
        assert_eq!(file.get_learnt("a").await.expect("it answers"), None);
        file.put_learnt("a", &json!({"rpm": 60})).await.expect("it is kept");
        file.put_learnt("b", &json!(1)).await.expect("it is kept");
        file.put_learnt("a", &json!({"rpm": 90})).await.expect("it is kept");
        assert_eq!(file.get_learnt("a").await.expect("it answers"), Some(json!({"rpm": 90})));
        let more = (0..999).map(|number| {
            let file = file.clone();
            async move { file.put_learnt(&format!("route {number}"), &json!(number)).await }
        });
        for kept in futures_util::future::join_all(more).await {
            kept.expect("it is kept");
        }
        assert_eq!(routes(&file).await, 1_000);
        assert_eq!(file.get_learnt("b").await.expect("it answers"), None, "written longest ago");
        assert!(file.get_learnt("a").await.expect("it answers").is_some());
        let large = file.put_learnt("c", &json!("x".repeat(100_000))).await.expect_err("it is too large");
        assert_eq!(large.kind, FileErrorKind::Invalid);
    }
    assert_eq!(routes(&stage.open()).await, 1_000);
}

#[tokio::test]
async fn a_file_that_is_closed_lies_at_rest() {
    let stage = Stage::new();
    let file = stage.open();
    file.put_learnt("a", &json!(1)).await.expect("it is kept");
    assert_eq!(routes(&file).await, 1);
    drop(file);
    let files: Vec<_> = fs::read_dir(stage.folder.path()).expect("a folder").collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

#[tokio::test]
async fn a_file_of_an_older_version_is_brought_up_to_date_with_what_it_holds() {
    let stage = Stage::new();
    let old = stage.connection();
    old.execute_batch("CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID")
        .and_then(|()| old.execute_batch(SCHEMA.migrations[0]))
        .and_then(|()| {
            old.execute_batch(
                "INSERT INTO meta (key, value) VALUES ('schema_version', 1);
                 INSERT INTO learnt (route, json) VALUES ('a', '1');
                 INSERT INTO calls (call, job, fence, state, requests, scopes, day, profile, model, changed_at)
                     VALUES ('old', 'j', 1, 0, 1, '', '2025-11-15', 'p', 'm', 1000),
                            ('batch', 'b', NULL, 0, 1, '', '2025-11-15', 'p', 'm', 1000)",
            )
        })
        .expect("a file of the first version");
    drop(old);
    let file = stage.open();
    assert_eq!(file.get_learnt("a").await.expect("it answers"), Some(json!(1)));
    let ledger = crate::ledger::Ledger::new(file);
    let hours = |hours: i64| 1_000 + hours * 3_600_000;
    assert_eq!(ledger.abandon_dead(hours(23)).await.expect("it answers"), 0, "its process may still live");
    assert_eq!(
        ledger.abandon_dead(hours(25)).await.expect("it answers"),
        1,
        "no call takes so long but a batch"
    );
}

#[tokio::test]
async fn a_damaged_file_is_named_with_what_its_loss_means() {
    let stage = Stage::new();
    fs::write(stage.path(), "Dear Sir or Madam, ".repeat(500)).expect("it can be written");
    let error = LlmFile::open(&stage.path()).err().expect("it is refused");
    assert_eq!(error.kind, FileErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}: ", stage.path().display())), "{text}");
    assert!(text.contains("move it away") && text.contains("spent is then unknown"), "{text}");
}

#[tokio::test]
async fn a_full_disk_is_an_outage_until_there_is_room() {
    let stage = Stage::new();
    let file = stage.open();
    let outage = file.outage();
    let limit = |pages: u32| {
        let sql = format!("PRAGMA max_page_count = {pages}");
        file.write(move |tx| Ok(tx.connection.execute_batch(&sql)?))
    };
    limit(1).await.expect("it is limited to what it has");
    let mut full = Ok(());
    for number in 0..100 {
        full = full.and(file.put_learnt(&number.to_string(), &json!("x".repeat(5_000))).await);
    }
    let error = full.expect_err("it is full");
    assert_eq!((error.kind, error.path.as_deref()), (FileErrorKind::DiskFull, Some(stage.path().as_path())));
    assert!(outage.borrow().is_some());
    limit(100_000).await.expect("there is room again");
    file.put_learnt("b", &json!("x".repeat(5_000))).await.expect("the writer is alive");
    assert!(outage.borrow().is_none());
}

#[tokio::test]
async fn what_is_counted_while_counts_are_written_is_not_lost() {
    let events = Events::default();
    events.add("a", Event::Cached, 2);
    let counts = events.waiting();
    events.add("a", Event::Cached, 3);
    events.add("b", Event::Retried, 1);
    events.written(counts);
    assert_eq!(events.waiting().into_values().sum::<u64>(), 4);
    events.written(events.waiting());
    assert!(events.is_empty());
}
