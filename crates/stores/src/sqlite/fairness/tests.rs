//! What a claim costs, in statements and in SQLite's own steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_queue::job::{JobId, NewJob};
use longhaul_queue::store::{ClaimRequest, QueueChange};
use longhaul_queue::{Claimed, Json};
use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::sqlite::{Db, SqliteOptions, claim, insert, settings};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn job(number: u64, key: &str) -> NewJob {
    let job = NewJob::new("work", Json::trusted("1")).id(JobId::generate(NOW, u128::from(number) << 56));
    if key.is_empty() { job } else { job.fair_key(key) }
}

/// Jobs of these keys, so many of each.
fn of_keys(keys: &[String], each: u64) -> Vec<NewJob> {
    let numbered = keys.iter().flat_map(|key| (0..each).map(move |_| key)).zip(1..);
    numbered.map(|(key, number)| job(number, key)).collect()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key {number:04}")).collect()
}

fn request(limit: usize) -> ClaimRequest {
    ClaimRequest {
        queues: vec!["default".to_owned()],
        kinds: None,
        worker: "w".into(),
        limit,
        suspects_max: 1,
        lease_for: Duration::from_secs(60),
        now: NOW,
    }
}

/// How often each statement of a transaction was run, and the steps of all.
struct Cost {
    runs: BTreeMap<&'static str, i32>,
    steps: i32,
}

struct File {
    path: PathBuf,
    _folder: TempDir,
}

impl File {
    fn with(jobs: Vec<NewJob>, change: &QueueChange) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("test.db");
        drop(Db::open(&path, SqliteOptions::default()).expect("the store opens"));
        within(&path, |tx| {
            settings::set_queue(tx, change).expect("a change");
            insert::insert(tx, jobs, NOW).expect("valid jobs");
        });
        Self { path, _folder: folder }
    }

    fn claim(&self, limit: usize) -> (Vec<Claimed>, Cost) {
        within(&self.path, |tx| claim::claim(tx, &request(limit)).expect("claim answers"))
    }
}

/// Runs `work` in a transaction on a connection of its own, whose statements are new.
fn within<T>(path: &Path, work: impl FnOnce(&mut Tx<'_>) -> T) -> (T, Cost) {
    let connection = Connection::open(path).expect("it opens");
    connection.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let mut tx = Tx::new(&connection, NOW);
    let value = work(&mut tx);
    let costs = tx.costs();
    let cost = Cost {
        steps: costs.iter().map(|(_, _, steps)| steps).sum(),
        runs: costs.into_iter().map(|(sql, runs, _)| (sql, runs)).collect(),
    };
    tx.keep_changes(true);
    tx.finish().expect("counters are written");
    drop(tx);
    connection.execute_batch("COMMIT").expect("it is written");
    (value, cost)
}

fn per_key(limit: u32) -> QueueChange {
    QueueChange {
        name: "default".to_owned(),
        max_running_per_key: Some(Some(limit)),
        ..QueueChange::default()
    }
}

fn nothing_set() -> QueueChange {
    QueueChange { name: "default".to_owned(), ..QueueChange::default() }
}

/// The settings, the kinds, the heads of jobs and of suspects, and two statements a job.
#[test]
fn without_keys_a_claim_runs_no_statement_more() {
    let file = File::with((1..=9).map(|number| job(number, "")).collect(), &nothing_set());
    let (claimed, cost) = file.claim(5);
    assert_eq!(claimed.len(), 5);
    let mut runs: Vec<i32> = cost.runs.values().copied().collect();
    runs.sort_unstable();
    assert_eq!(runs, [1, 1, 2, 5, 5], "{:#?}", cost.runs);
    assert_eq!(cost.runs.get(claim::HEADS), Some(&2));
}

#[test]
fn without_keys_an_enqueue_runs_no_statement_more() {
    let file = File::with(Vec::new(), &nothing_set());
    let jobs = (1..=3).map(|number| job(number, "")).collect();
    let (_, cost) = within(&file.path, |tx| insert::insert(tx, jobs, NOW).expect("valid jobs"));
    let mut runs: Vec<i32> = cost.runs.values().copied().collect();
    runs.sort_unstable();
    assert_eq!(runs, [1, 3], "the place of the first, and a row each: {:#?}", cost.runs);
}

#[test]
fn a_claim_by_turns_costs_the_same_whatever_the_backlog() {
    let cost = |each| {
        let file = File::with(of_keys(&names(5), each), &per_key(100));
        let (claimed, cost) = file.claim(20);
        assert_eq!(claimed.len(), 20);
        cost
    };
    let (short, long) = (cost(8), cost(2_000));
    assert_eq!(short.runs, long.runs);
    assert_eq!(short.steps, long.steps);
}

#[test]
fn a_claim_meets_no_more_keys_than_it_serves() {
    let cost = |keys| {
        let file = File::with(of_keys(&names(keys), 2), &per_key(100));
        let (claimed, cost) = file.claim(5);
        assert_eq!(claimed.len(), 5);
        cost
    };
    let (few, many) = (cost(6), cost(1_000));
    assert_eq!(few.runs, many.runs);
    assert_eq!(few.steps, many.steps);
}

#[test]
fn a_key_at_its_limit_costs_a_seek() {
    let steps = |each| {
        let file = File::with(of_keys(&names(50), each), &per_key(1));
        assert_eq!(file.claim(100).0.len(), 50);
        let (claimed, cost) = file.claim(100);
        assert_eq!(claimed.len(), 0);
        assert_eq!(cost.runs.get(RUNNING), Some(&1));
        // One for each key, and one for the end, with its suspects; then again from the beginning up to the last.
        assert!(cost.runs[NEXT_KEY] <= 50 + 4, "{:#?}", cost.runs);
        cost.steps
    };
    assert_eq!(steps(2), steps(200));
}

#[test]
fn ageing_costs_a_seek_for_each_priority_in_use() {
    let ageing = QueueChange { ageing: Some(Some(Duration::from_secs(60))), ..nothing_set() };
    let cost = |each: u64| {
        let with_priority = |number: u64| job(number, "").priority(i32::try_from(number % 4).unwrap_or(0));
        let file = File::with((1..=4 * each).map(with_priority).collect(), &ageing);
        let (claimed, cost) = file.claim(3);
        assert_eq!(claimed.len(), 3);
        cost
    };
    let (short, long) = (cost(5), cost(1_000));
    assert_eq!(short.runs[NEXT_LEVEL], 4 + 2, "four priorities, and the end of jobs and of suspects");
    assert_eq!((short.runs, short.steps), (long.runs, long.steps));
}
