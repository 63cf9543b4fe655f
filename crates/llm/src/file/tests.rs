use std::fs;
use std::sync::mpsc;

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

    fn refusal(&self) -> FileError {
        let error = LlmFile::open(&self.path()).err().expect("the file is refused");
        assert!(error.to_string().starts_with(&format!("{}: ", self.path().display())), "{error}");
        error
    }
}

async fn run(file: &LlmFile, sql: &'static str) -> FileResult<()> {
    file.write(move |tx| Ok(tx.connection.execute_batch(sql)?)).await
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

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let stage = Stage::new();
    drop(stage.open());
    let newer = "UPDATE meta SET value = 99 WHERE key = 'schema_version'";
    stage.connection().execute(newer, []).expect("it is updated");
    let error = stage.refusal();
    assert_eq!(error.kind, FileErrorKind::Newer);
    for words in ["version 99", &format!("up to {SCHEMA_VERSION}"), "newer longhaul"] {
        assert!(error.message.contains(words), "{error}");
    }
}

#[tokio::test]
async fn a_file_of_an_older_version_is_brought_up_to_date_with_what_it_holds() {
    let stage = Stage::new();
    let old = stage.connection();
    old.execute_batch("CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID")
        .and_then(|()| old.execute_batch(MIGRATIONS[0]))
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

#[test]
fn a_file_of_another_sort_is_refused_and_left_alone() {
    let stage = Stage::new();
    let letter = "Dear Sir or Madam, ".repeat(500);
    fs::write(stage.path(), &letter).expect("it can be written");
    assert_eq!(stage.refusal().kind, FileErrorKind::Corrupt);
    assert_eq!(fs::read_to_string(stage.path()).expect("it can be read"), letter);

    let stage = Stage::new();
    stage.connection().execute_batch("CREATE TABLE orders (id INTEGER)").expect("a table");
    assert_eq!(stage.refusal().kind, FileErrorKind::Invalid);
    fs::remove_file(stage.path()).expect("it can be removed");
    fs::create_dir(stage.path()).expect("a folder");
    assert_eq!(stage.refusal().kind, FileErrorKind::Unavailable);
}

#[tokio::test]
async fn the_folder_of_a_new_file_is_made() {
    let stage = Stage::new();
    let file = LlmFile::open(&stage.folder.path().join("a/b/llm.db")).expect("it opens");
    file.put_learnt("a", &json!(1)).await.expect("it is kept");
    fs::write(stage.folder.path().join("letter"), "").expect("a file");
    let error = LlmFile::open(&stage.folder.path().join("letter/llm.db")).err().expect("no folder there");
    assert_eq!(error.kind, FileErrorKind::Unavailable);
}

#[tokio::test]
async fn many_open_one_new_file_together() {
    let stage = Stage::new();
    let opened = std::thread::scope(|scope| {
        let open = || scope.spawn(|| LlmFile::open(&stage.path()));
        let threads: Vec<_> = (0..8).map(|_| open()).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    for (number, file) in opened.into_iter().enumerate() {
        let file = file.expect("the file opens");
        file.put_learnt(&number.to_string(), &json!(1)).await.expect("it is kept");
    }
    assert_eq!(routes(&stage.open()).await, 8);
}

type Work<T> = Box<dyn FnMut(&mut Tx<'_>) -> FileResult<T> + Send>;

/// Runs commands in one group: the writer is held up until all are queued.
async fn together<T: Send + 'static>(file: &LlmFile, commands: Vec<Work<T>>) -> Vec<FileResult<T>> {
    let (release, held) = mpsc::channel::<()>();
    let (entered, inside) = tokio::sync::oneshot::channel();
    let blocker = {
        let file = file.clone();
        tokio::spawn(async move {
            let mut entered = Some(entered);
            let hold = move |_: &mut Tx<'_>| {
                let _ = entered.take().map(|entered| entered.send(()));
                let _ = held.recv();
                Ok(())
            };
            file.write(hold).await
        })
    };
    inside.await.expect("the writer is held up");
    let writes = commands.into_iter().map(|command| file.write(command));
    let release = async move { drop(release) };
    // Joined in order: each write is queued when it is first polled, and the release comes last.
    let (replies, ()) = futures_util::future::join(futures_util::future::join_all(writes), release).await;
    blocker.await.expect("no panic").expect("it is committed");
    replies
}

#[tokio::test]
async fn one_command_that_fails_undoes_only_itself() {
    let stage = Stage::new();
    let file = stage.open();
    let put = |route: &'static str, sql: &'static str| -> Work<()> {
        Box::new(move |tx| {
            tx.connection.execute("INSERT INTO learnt (route, json) VALUES (?1, '1')", [route])?;
            assert_ne!(sql, "panic", "a command panics");
            Ok(tx.connection.execute_batch(sql)?)
        })
    };
    let commands = vec![put("a", ""), put("b", "nonsense"), put("c", "panic"), put("d", "")];
    let replies = together(&file, commands).await;
    assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    for (route, kept) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        assert_eq!(file.get_learnt(route).await.expect("it answers").is_some(), kept, "{route}");
    }
}

#[tokio::test]
async fn a_full_disk_and_a_read_only_file_say_so() {
    let stage = Stage::new();
    let file = stage.open();
    file.put_learnt("a", &json!(1)).await.expect("it is kept");
    run(&file, "PRAGMA max_page_count = 1").await.expect("it is limited to what it has");
    let mut full = Ok(());
    for number in 0..100 {
        full = full.and(file.put_learnt(&number.to_string(), &json!("x".repeat(5_000))).await);
    }
    let error = full.expect_err("it is full");
    assert_eq!((error.kind, error.path.as_deref()), (FileErrorKind::DiskFull, Some(stage.path().as_path())));
    run(&file, "PRAGMA max_page_count = 100000").await.expect("there is room again");
    file.put_learnt("b", &json!("x".repeat(5_000))).await.expect("the writer is alive");

    run(&file, "PRAGMA query_only = ON").await.expect("it is read-only now");
    let error = file.put_learnt("c", &json!(1)).await.expect_err("it is read-only");
    assert_eq!(error.kind, FileErrorKind::ReadOnly);
    assert!(file.get_learnt("b").await.expect("it can be read").is_some());
}

#[tokio::test]
async fn a_value_too_large_for_the_disk_does_not_fail_its_neighbours() {
    let stage = Stage::new();
    let file = stage.open();
    run(&file, "INSERT INTO learnt (route, json) VALUES ('first', '1')").await.expect("it is kept");
    run(&file, "PRAGMA max_page_count = 1").await.expect("it is limited to what it has");
    let put = |route: &'static str, bytes: usize| -> Work<()> {
        Box::new(move |tx| {
            let put = "INSERT INTO learnt (route, json) VALUES (?1, ?2)";
            tx.connection.execute(put, (route, "x".repeat(bytes)))?;
            Ok(())
        })
    };
    let replies = together(&file, vec![put("a", 1), put("b", 1_000_000), put("c", 1)]).await;
    assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{replies:?}");
    assert_eq!(routes(&file).await, 3);
}
