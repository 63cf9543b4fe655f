//! A file from before fair keys opens and goes on.

use longhaul_queue::testing::bench::{LEASE_FOR, START, done, id, job};
use longhaul_queue::{JobId, State, Store};
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

fn version_1() -> Stage {
    let stage = Stage::new();
    let file = stage.connection();
    file.execute_batch(
        "CREATE TABLE lh_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
         INSERT INTO lh_meta (key, value) VALUES ('schema_version', 1);",
    )
    .expect("a table");
    file.execute_batch(FIRST_TABLES).expect("the first tables");
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
    assert_eq!(store.db().check().await.expect("check answers").schema_version, 2);
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
