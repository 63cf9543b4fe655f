//! How SQLite carries out the statements that must stay flat however many jobs are stored: by the index meant for
//! them, without walking the table and without sorting.

use rusqlite::{Connection, OpenFlags, Row};

use super::list_plan::Index;
use super::{Db, SqliteOptions, claim, fairness, list_plan, read, sweep, workers};

/// A file with the tables, and a connection of its own beside the store.
fn beside_a_store(look: impl FnOnce(&Connection)) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("test.db");
    let _db = Db::open(&path, SqliteOptions::default()).expect("the store opens");
    look(&Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("it opens beside"));
}

/// Rows of an EXPLAIN. Parameters stay NULL: a plan must not depend on values.
fn explain<T>(connection: &Connection, sql: &str, read: impl Fn(&Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
    let mut statement = connection.prepare(sql).expect("it is SQL");
    statement.raw_query().mapped(|row| read(row)).collect::<rusqlite::Result<_>>().expect("it is explained")
}

/// Checks the plan's first step, and that nothing is walked or sorted.
fn check(sql: &str, first: &str) {
    beside_a_store(|connection| {
        let steps = explain(connection, &format!("EXPLAIN QUERY PLAN {sql}"), |row| row.get::<_, String>(3));
        assert_eq!(steps[0], first, "of {steps:?}");
        let flat = |step: &String| !step.contains("SCAN") && !step.contains("TEMP B-TREE");
        assert!(steps.iter().all(flat), "{steps:?}");
    });
}

#[test]
fn a_claim_finds_its_jobs_by_its_index() {
    let first = "SEARCH lh_jobs USING INDEX lh_jobs_ready (queue=? AND kind=? AND suspect=?)";
    check(claim::HEADS, first);
}

#[test]
fn turns_find_keys_and_jobs_by_their_index() {
    let of_kind = "queue=? AND kind=? AND suspect=?";
    let table = [
        (fairness::NEXT_KEY, "lh_jobs_turns", " AND fair_key>?"),
        (fairness::NEXT_LEVEL, "lh_jobs_ready", " AND priority>?"),
        (fairness::NEXT_LEVEL_OF_KEY, "lh_jobs_turns", " AND fair_key=? AND priority>?"),
        (
            fairness::HEADS_OF_KEY,
            "lh_jobs_turns",
            " AND fair_key=? AND (priority,run_at)>(?,?) AND priority<?",
        ),
        (fairness::HEADS, "lh_jobs_ready", " AND (priority,run_at)>(?,?) AND priority<?"),
    ];
    for (sql, index, range) in table {
        check(sql, &format!("SEARCH lh_jobs USING INDEX {index} ({of_kind}{range})"));
    }
    check(fairness::RUNNING, "SEARCH lh_jobs USING COVERING INDEX lh_jobs_running (queue=? AND fair_key>?)");
}

/// The plan does not tell, because the index is partial; the program does: no column is read by the table's cursor,
/// which is the first that is opened.
#[test]
fn jobs_are_looked_for_without_reading_their_rows() {
    let statements = [
        claim::HEADS,
        fairness::HEADS,
        fairness::HEADS_OF_KEY,
        fairness::NEXT_KEY,
        fairness::NEXT_LEVEL,
        list_plan::READY,
    ];
    for sql in statements {
        beside_a_store(|connection| {
            let step = |row: &Row<'_>| Ok((row.get::<_, String>(1)?, row.get::<_, i64>(2)?));
            let steps = explain(connection, &format!("EXPLAIN {sql}"), step);
            let opened: Vec<_> = steps.iter().filter(|(step, _)| step == "OpenRead").collect();
            let index = opened.last().expect("an index is opened").1;
            assert!(opened.len() <= 2, "{sql}: {steps:?}");
            let mut columns = steps.iter().filter(|(step, _)| step == "Column");
            assert!(columns.all(|(_, cursor)| *cursor == index), "{sql}: {steps:?}");
        });
    }
}

#[test]
fn a_sweep_finds_what_is_due_by_its_index() {
    check(sweep::DUE, "SEARCH lh_jobs USING INDEX lh_jobs_due (state=? AND due_at>? AND due_at<?)");
}

#[test]
fn jobs_of_the_dead_are_found_among_those_that_run() {
    check(workers::RUNNING, "SEARCH lh_jobs USING INDEX lh_jobs_due (state=? AND due_at>?)");
}

#[test]
fn a_page_of_results_goes_by_the_process() {
    check(read::RESULTS, "SEARCH j USING INDEX lh_jobs_process (process=? AND rowid>?)");
}

#[test]
fn a_list_goes_along_its_index() {
    for (index, first) in [
        (Index::Jobs, "SEARCH j USING INTEGER PRIMARY KEY (rowid~?)"),
        (Index::Process, "SEARCH j USING INDEX lh_jobs_process (process=? AND rowid~?)"),
        (Index::Tag, "SEARCH t USING PRIMARY KEY (tag=? AND seq~?)"),
        (Index::Failed, "SEARCH j USING INDEX lh_jobs_ended_badly (state=? AND rowid~?)"),
        (Index::Cancelled, "SEARCH j USING INDEX lh_jobs_ended_badly (state=? AND rowid~?)"),
        (Index::EndedBadly, "MERGE (UNION ALL)"),
    ] {
        for (newest_first, beyond) in [(false, ">"), (true, "<")] {
            check(list_plan::walk_sql(index, newest_first), &first.replace('~', beyond));
        }
    }
}

#[test]
fn few_jobs_are_found_by_the_index_of_their_state_or_id() {
    check(list_plan::IDS, "SEARCH lh_jobs USING COVERING INDEX lh_jobs_id (id>? AND id<?)");
    check(list_plan::READY, "SEARCH lh_jobs USING INDEX lh_jobs_ready (queue=? AND kind=?)");
    check(
        list_plan::READY_WITH_KEY,
        "SEARCH lh_jobs USING COVERING INDEX lh_jobs_turns (queue=? AND kind=?)",
    );
    check(list_plan::DUE, "SEARCH lh_jobs USING COVERING INDEX lh_jobs_due (state=? AND due_at>?)");
    check(list_plan::ENDED_BADLY, "SEARCH lh_jobs USING COVERING INDEX lh_jobs_ended_badly (state=?)");
    check(list_plan::PARKED, "SEARCH lh_parks USING COVERING INDEX lh_parks_key (key>?)");
}
