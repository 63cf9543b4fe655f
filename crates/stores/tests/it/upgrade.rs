//! A file from before fair keys opens and goes on; one from before the first release is refused and left alone.

use longhaul_queue::testing::bench::{LEASE_FOR, START, done, id, job};
use longhaul_queue::{Error, JobId, State, Store};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

use crate::stage::{Stage, check_sound};

const FIRST_TABLES: &str = include_str!("../../src/sqlite/migrations/0001_jobs.sql");

/// The bit of `lh_jobs.flags` that tells of a row in `lh_results`.
const HAS_RESULT: i64 = 1 << 7;

/// A job as version 1 stored it: payload in its row, no options.
fn put(file: &Connection, number: u64, state: State) {
    let id: JobId = id(number);
    let running = state == State::Running;
    let (fence, started_at) =
        if state == State::Ready { (0, None) } else { (1, Some(START.as_millis() - 1_000)) };
    let due_at = running.then(|| (START + LEASE_FOR).as_millis());
    file.execute(
        "INSERT INTO lh_jobs (seq, id, queue, kind, state, priority, run_at, fence, flags, attempt, crashes, throttles,
             continues, parks, waits_for, cancel, created_at, started_at, finished_at, worker, due_at, payload)
         VALUES (?1, ?2, 'default', 'work', ?3, 0, ?4, ?5, ?10, 0, 0, 0, 0, 0, 0, 0, ?4, ?6, ?7, ?8, ?9, '1')",
        rusqlite::params![
            number,
            id.as_bytes(),
            state as i64,
            START.as_millis(),
            fence,
            started_at,
            state.is_terminal().then_some(START.as_millis()),
            started_at.map(|_| "w0"),
            due_at,
            if state.is_terminal() { HAS_RESULT } else { 0 },
        ],
    )
    .expect("version 1 has these columns");
    if state.is_terminal() {
        file.execute("INSERT INTO lh_results (seq, result) VALUES (?1, '4')", [number])
            .expect("version 1 has these columns");
    }
    file.execute(
        "INSERT INTO lh_counts (queue, state, kind, jobs) VALUES ('default', ?1, 'work', 1)
         ON CONFLICT DO UPDATE SET jobs = jobs + 1",
        [state as i64],
    )
    .expect("version 1 has these columns");
}

/// A file that says it is of version 1, with these tables.
fn file_with(tables: &str) -> Stage {
    let stage = Stage::new();
    let file = stage.connection();
    file.execute_batch(
        "CREATE TABLE lh_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         INSERT INTO lh_meta (key, value) VALUES ('schema_version', 1);",
    )
    .expect("a table");
    file.execute_batch(tables).expect("the first tables");
    stage
}

/// The tables of version 1 as the last build before payloads stood in the job's row made them.
fn early_tables() -> String {
    let payload = "VIRTUAL,
    -- Last, so that nothing else is read past them. Both are NULL when they are in lh_bodies.
    options     TEXT,                       -- JobOptions as JSON; NULL when all are at their default
    payload     TEXT
)";
    assert!(FIRST_TABLES.contains(payload), "the file that this is made of never changes");
    FIRST_TABLES.replacen(payload, "VIRTUAL\n)", 1)
}

fn version_1() -> Stage {
    let stage = file_with(FIRST_TABLES);
    let file = stage.connection();
    for (number, state) in (1..).zip([State::Ready, State::Ready, State::Running, State::Succeeded]) {
        put(&file, number, state);
    }
    file.execute("INSERT INTO lh_queues (name, paused, max_running) VALUES ('default', 0, 7)", [])
        .expect("version 1 has these columns");
    stage
}

#[tokio::test]
async fn a_file_of_version_1_goes_on() {
    let stage = version_1();
    let store = stage.open();
    let bench = stage.bench(&store);
    assert_eq!(store.db().check().await.expect("check answers").schema_version, 3);
    check_sound(&store).await;
    bench.expect(&[(1, State::Ready), (3, State::Running), (4, State::Succeeded)]).await;
    let queue = store.queues().await.expect("queues answers").remove(0);
    assert_eq!(
        (queue.settings.max_running, queue.settings.max_running_per_key, queue.settings.ageing),
        (Some(7), None, None)
    );

    // What was ready runs, also beside jobs with keys; what ran is rescued when its lease ends.
    bench.add([job(6).fair_key("a"), job(7).fair_key("a")]).await;
    let claimed = bench.claim(3).await;
    let ids: Vec<JobId> = claimed.iter().map(|claimed| claimed.job.id).collect();
    assert_eq!(ids, [id(6), id(1), id(7)]);
    for claimed in &claimed {
        bench.settle(claimed, done("1")).await;
    }
    bench.pass(LEASE_FOR);
    assert_eq!(bench.rescue().await.changed, 1);
    bench.run(2, done("1")).await;
    assert_eq!(bench.delete(&[1, 2, 4, 6, 7]).await.deleted, 5);
    check_sound(&store).await;
}

#[test]
fn a_file_of_version_1_may_be_opened_by_many_at_once() {
    let stage = version_1();
    let ready = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                ready.wait();
                stage.open();
            });
        }
    });
}

#[test]
fn a_file_of_an_early_build_is_refused_and_left_alone() {
    // A build in between may have marked such a file as version 2.
    for version in [1, 2] {
        let stage = file_with(&early_tables());
        stage
            .connection()
            .execute("UPDATE lh_meta SET value = ?1 WHERE key = 'schema_version'", [version])
            .expect("it is updated");
        let before = std::fs::read(stage.path()).expect("it can be read");
        for create in [true, false] {
            let options = SqliteOptions { create, ..stage.options() };
            let error = SqliteStore::open(&stage.path(), options).err().expect("it is refused");
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            let text = error.to_string();
            let path = stage.path().display().to_string();
            for words in [path.as_str(), "an early build wrote", "nothing in it was changed", "--store"] {
                assert!(text.contains(words), "{words:?} is missing in {text:?}");
            }
        }
        assert_eq!(std::fs::read(stage.path()).expect("it can be read"), before, "version {version}");
        assert_eq!(std::fs::read_dir(&stage.folder).expect("a folder").count(), 1, "no file beside it");
    }
}
