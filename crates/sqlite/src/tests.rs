use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;

use super::*;

const SCHEMA: Schema = Schema {
    version_table: "meta",
    version_key: "notes",
    migrations: &["CREATE TABLE notes (text TEXT UNIQUE)", "CREATE INDEX notes_text ON notes (text)"],
    is_alone: true,
};
const WRITE: WriteOptions =
    WriteOptions { volatile: false, flush_first: false, writes_deferred: false, urgent: false };

/// Books the notes of a group and writes them before its commit. Deferred notes come from outside.
#[derive(Clone, Default)]
struct Notes {
    deferred: Arc<Mutex<Vec<&'static str>>>,
}

struct Tx<'c> {
    connection: &'c Connection,
    own: Vec<&'static str>,
    kept: Vec<&'static str>,
}

impl Tx<'_> {
    fn book(&mut self, text: &'static str) {
        self.own.push(text);
    }
}

impl Session for Notes {
    type Error = FileError;
    type Reply = FileError;
    type Tx<'c> = Tx<'c>;
    type Committed = usize;
    const DEFERRED_EVERY: Duration = Duration::from_millis(1);

    fn begin<'c>(&self, connection: &'c Connection) -> Tx<'c> {
        Tx { connection, own: Vec::new(), kept: Vec::new() }
    }

    fn connection<'t>(tx: &'t Tx<'_>) -> &'t Connection {
        tx.connection
    }

    fn flush(tx: &mut Tx<'_>) -> FileResult<()> {
        tx.kept.drain(..).try_for_each(|text| put(tx.connection, text))
    }

    fn command_ended(tx: &mut Tx<'_>, kept: bool) {
        let own = std::mem::take(&mut tx.own);
        if kept {
            tx.kept.extend(own);
        }
    }

    fn finish(&self, mut tx: Tx<'_>, deferred: bool) -> FileResult<usize> {
        Self::flush(&mut tx)?;
        let waiting = self.deferred.lock().expect("no panic");
        let written = if deferred { waiting.len() } else { 0 };
        waiting.iter().take(written).try_for_each(|text| put(tx.connection, text))?;
        Ok(written)
    }

    fn committed(&mut self, written: usize) -> bool {
        self.deferred.lock().expect("no panic").drain(..written);
        true
    }

    fn has_deferred(&self) -> bool {
        !self.deferred.lock().expect("no panic").is_empty()
    }
}

fn put(connection: &Connection, text: &str) -> FileResult<()> {
    connection.prepare_cached("INSERT INTO notes (text) VALUES (?1)")?.execute([text])?;
    Ok(())
}

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("notes.db")
    }

    fn open(&self) -> SqliteFile<Notes> {
        self.open_with(Notes::default())
    }

    fn open_with(&self, notes: Notes) -> SqliteFile<Notes> {
        let options = FileOptions { durability: Durability::Relaxed, ..FileOptions::new(SCHEMA) };
        SqliteFile::open(&self.path(), &options, notes).expect("the file opens")
    }

    fn connection(&self) -> Connection {
        Connection::open(self.path()).expect("the file opens")
    }

    /// What opening is refused with.
    fn refusal(&self) -> FileErrorKind {
        let refused = SqliteFile::open(&self.path(), &FileOptions::new(SCHEMA), Notes::default());
        let error = refused.err().expect("the file is refused");
        assert!(error.to_string().starts_with(&format!("{}: ", self.path().display())), "{error}");
        error.kind
    }
}

async fn notes(file: &SqliteFile<Notes>) -> Vec<String> {
    let read = |connection: &Connection| {
        let mut statement = connection.prepare("SELECT text FROM notes ORDER BY rowid")?;
        Ok(statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
    };
    file.read(read).await.expect("it can be read")
}

async fn run(file: &SqliteFile<Notes>, sql: &'static str) -> FileResult<()> {
    file.write(WRITE, move |tx| Ok(tx.connection.execute_batch(sql)?)).await
}

type Work = Box<dyn FnMut(&mut Tx<'_>) -> FileResult<()> + Send>;

/// Runs commands in one group: the writer is held up until all are queued.
async fn together(file: &SqliteFile<Notes>, commands: Vec<Work>) -> Vec<FileResult<()>> {
    let (release, held) = mpsc::channel::<()>();
    let (entered, inside) = tokio::sync::oneshot::channel();
    let blocker = {
        let file = file.clone();
        let hold = move |_: &mut Tx<'_>| {
            let _ = entered.send(());
            let _ = held.recv();
            Ok(())
        };
        tokio::spawn(async move { file.write(WRITE, hold).await })
    };
    inside.await.expect("the writer is held up");
    let calls: Vec<_> = commands
        .into_iter()
        .map(|work| {
            let file = file.clone();
            tokio::spawn(async move { file.write_repeatable(WRITE, work).await })
        })
        .collect();
    // On one thread, tasks run in turn: when this goes on, each has queued its command.
    tokio::task::yield_now().await;
    drop(release);
    blocker.await.expect("no panic").expect("it is committed");
    let mut replies = Vec::new();
    for call in calls {
        replies.push(call.await.expect("no panic"));
    }
    replies
}

#[tokio::test]
async fn a_command_that_fails_undoes_only_itself() {
    let stage = Stage::new();
    let file = stage.open();
    let note = |text: &'static str, end: &'static str| -> Work {
        Box::new(move |tx| {
            tx.book(text);
            assert_ne!(end, "panic", "on purpose");
            put(tx.connection, end)
        })
    };
    let commands = vec![note("a", "1"), note("b", "1"), note("c", "panic"), note("d", "2")];
    let replies = together(&file, commands).await;
    assert_eq!(replies.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, true]);
    let kinds: Vec<_> = replies.into_iter().filter_map(Result::err).map(|error| error.kind).collect();
    assert_eq!(kinds, [FileErrorKind::Statement, FileErrorKind::Invalid]);
    assert_eq!(notes(&file).await, ["1", "2", "a", "d"], "what was booked goes with its command");
}

#[tokio::test]
async fn a_value_too_large_for_the_disk_does_not_fail_its_neighbours() {
    let stage = Stage::new();
    let file = stage.open();
    run(&file, "INSERT INTO notes (text) VALUES ('first')").await.expect("it is stored");
    run(&file, "PRAGMA max_page_count = 1").await.expect("it is limited to what it has");
    let note = |bytes: usize| -> Work { Box::new(move |tx| put(tx.connection, &"x".repeat(bytes))) };
    let replies = together(&file, vec![note(1), note(1_000_000), note(2)]).await;
    let kinds: Vec<_> = replies.into_iter().map(|reply| reply.err().map(|error| error.kind)).collect();
    assert_eq!(kinds, [None, Some(FileErrorKind::DiskFull), None]);
    assert_eq!(notes(&file).await, ["first", "x", "xx"]);
}

#[tokio::test]
async fn a_read_only_file_says_so_and_is_still_read() {
    let stage = Stage::new();
    let file = stage.open();
    run(&file, "INSERT INTO notes (text) VALUES ('a')").await.expect("it is stored");
    run(&file, "PRAGMA query_only = ON").await.expect("it is read-only now");
    let refused = run(&file, "DELETE FROM notes").await.expect_err("it is read-only");
    assert!(refused.kind == FileErrorKind::ReadOnly && refused.is_transient(), "{refused}");
    assert_eq!(notes(&file).await, ["a"]);
}

#[tokio::test]
async fn a_probe_answers_without_the_write_lock() {
    let stage = Stage::new();
    let file = stage.open();
    let other = stage.connection();
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock is free");
    let answer = file.write_unless(WRITE, |_| Ok(Some("nothing to do")), |_| Ok("done"));
    assert_eq!(answer.await.expect("it answers"), "nothing to do");
}

#[tokio::test]
async fn short_writes_commit_on_the_caller_s_thread() {
    let stage = Stage::new();
    let file = stage.open();
    let caller = std::thread::current().id();
    let here = file.write_here(WRITE, move |_| Ok(std::thread::current().id() == caller));
    assert!(here.await.expect("it answers"));
    let here = file.write(WRITE, move |_| Ok(std::thread::current().id() == caller));
    assert!(!here.await.expect("it answers"));
}

#[tokio::test]
async fn a_commit_is_told_to_watchers_of_both_handles() {
    let stage = Stage::new();
    let (one, other) = (stage.open(), stage.open());
    let (mut here, mut there) = (one.watch(), other.watch());
    run(&one, "INSERT INTO notes (text) VALUES ('a')").await.expect("it is stored");
    here.changed().await.expect("the file is open");
    there.changed().await.expect("the file is open");
    assert_eq!(notes(&other).await, ["a"]);
}

#[tokio::test]
async fn deferred_rows_are_written_without_a_command_and_at_the_end() {
    let stage = Stage::new();
    let deferred = Notes::default();
    let defer = |text| deferred.deferred.lock().expect("no panic").push(text);
    let file = stage.open_with(deferred.clone());
    let mut watch = file.watch();
    defer("a");
    file.wake();
    watch.changed().await.expect("the file is open");
    assert_eq!(notes(&file).await, ["a"]);
    defer("b");
    file.flush_deferred().await.expect("it is written");
    assert_eq!(notes(&file).await, ["a", "b"]);
    defer("c");
    drop(file);
    assert_eq!(notes(&stage.open()).await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_closed_file_lies_at_rest_and_is_private() {
    let stage = Stage::new();
    let file = stage.open();
    run(&file, "INSERT INTO notes (text) VALUES ('a')").await.expect("it is stored");
    assert_eq!(notes(&file).await, ["a"]);
    drop(file);
    let files: Vec<_> = fs::read_dir(stage.folder.path()).expect("a folder").flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let mode = files[0].metadata().expect("it exists").permissions().mode();
    assert_eq!(mode & 0o777, private::FILE_MODE);
}

#[tokio::test]
async fn a_database_in_memory_is_read_through_its_writer() {
    let file = SqliteFile::in_memory(&FileOptions::new(SCHEMA), Notes::default()).expect("memory opens");
    file.write(WRITE, |tx| put(tx.connection, "a")).await.expect("it is stored");
    assert_eq!(notes(&file).await, ["a"]);
    assert!(file.path().is_none());
    assert!(file.back_up(&Stage::new().path()).await.is_err(), "it has no second connection");
}

#[tokio::test]
async fn a_backup_is_whole_and_overwrites_nothing() {
    let stage = Stage::new();
    let file = stage.open();
    run(&file, "INSERT INTO notes (text) VALUES ('a')").await.expect("it is stored");
    let target = stage.folder.path().join("copy.db");
    file.back_up(&target).await.expect("it is copied");
    let copied: i64 = Connection::open(&target)
        .and_then(|copy| copy.query_row("SELECT count(*) FROM notes", [], |row| row.get(0)))
        .expect("it can be read");
    assert_eq!(copied, 1);
    assert_eq!(file.back_up(&target).await.expect_err("it exists").kind, FileErrorKind::Invalid);
}

#[test]
fn a_newer_schema_is_refused_with_both_versions() {
    let stage = Stage::new();
    drop(stage.open());
    stage.connection().execute("UPDATE meta SET value = 99", []).expect("it is updated");
    assert_eq!(stage.refusal(), FileErrorKind::Newer);
    let refused = SCHEMA.apply(&stage.connection()).expect_err("it is newer");
    for words in ["version 99", "up to 2", "newer longhaul"] {
        assert!(refused.message.contains(words), "{refused}");
    }
}

#[test]
fn an_older_file_gets_the_migrations_that_it_lacks() {
    let stage = Stage::new();
    let first = Schema { migrations: &SCHEMA.migrations[..1], ..SCHEMA };
    first.apply(&stage.connection()).expect("the first version");
    put(&stage.connection(), "a").expect("it is stored");
    drop(stage.open());
    assert_eq!(SCHEMA.version(&stage.connection()).expect("it answers"), Some(2));
    let kept: String =
        stage.connection().query_row("SELECT text FROM notes", [], |row| row.get(0)).expect("it is kept");
    assert_eq!(kept, "a");
}

#[test]
fn a_file_of_another_sort_is_refused_and_left_alone() {
    let stage = Stage::new();
    let letter = "Dear Sir or Madam, ".repeat(500);
    fs::write(stage.path(), &letter).expect("it can be written");
    assert_eq!(stage.refusal(), FileErrorKind::Corrupt);
    assert_eq!(fs::read_to_string(stage.path()).expect("it can be read"), letter);

    let stage = Stage::new();
    stage.connection().execute_batch("CREATE TABLE orders (id INTEGER)").expect("a table");
    assert_eq!(stage.refusal(), FileErrorKind::Invalid);
    fs::remove_file(stage.path()).expect("it can be removed");
    fs::create_dir(stage.path()).expect("a folder");
    assert_eq!(stage.refusal(), FileErrorKind::Unavailable);
}

#[test]
fn the_folder_of_a_new_file_is_created() {
    let stage = Stage::new();
    let open = |path: &str| {
        let path = stage.folder.path().join(path);
        SqliteFile::open(&path, &FileOptions::new(SCHEMA), Notes::default())
    };
    open("a/b/notes.db").map(drop).expect("it opens");
    fs::write(stage.folder.path().join("letter"), "").expect("a file");
    let refused = open("letter/notes.db").err().expect("no folder there");
    assert_eq!(refused.kind, FileErrorKind::Unavailable);
}

#[tokio::test]
async fn many_open_one_new_file_together() {
    let stage = Stage::new();
    let opened = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| stage.open())).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    for (file, text) in opened.iter().zip(["1", "2", "3", "4", "5", "6", "7", "8"]) {
        file.write(WRITE, move |tx| put(tx.connection, text)).await.expect("it is stored");
    }
    assert_eq!(notes(&stage.open()).await.len(), 8);
}
