//! Copies made while work goes on, and the facts that doctor tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_queue::testing::bench::{START, done, id, job};
use longhaul_queue::{Error, Store};
use longhaul_stores::sqlite::{SqliteOptions, SqliteStore};

use crate::stage::{Stage, check_sound};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_made_while_writing_is_some_moment_of_the_original() {
    let stage = Stage::new();
    let store = stage.open();
    let stored = Arc::new(AtomicU64::new(0));
    let writer = {
        let (store, stored) = (Arc::clone(&store), Arc::clone(&stored));
        tokio::spawn(async move {
            for number in 1..=400 {
                store.insert(vec![job(number).process("p")], START).await.expect("it is stored");
                stored.store(number, Ordering::SeqCst);
            }
        })
    };
    let mut copies = Vec::new();
    while copies.len() < 3 || !writer.is_finished() && copies.len() < 8 {
        let target = stage.folder.join(format!("copy{}.db", copies.len()));
        let earliest = stored.load(Ordering::SeqCst);
        store.db().backup_to(&target).await.expect("a copy is made");
        // One more may be stored that its writer has not counted yet.
        copies.push((target, earliest, stored.load(Ordering::SeqCst) + 1));
    }
    writer.await.expect("the writer ends well");
    for (path, earliest, latest) in copies {
        let copy =
            SqliteStore::open(&path, SqliteOptions { create: false, ..stage.options() }).expect("it opens");
        check_sound(&copy).await;
        let count = copy.counts().await.expect("counts answers").first().map_or(0, |row| row.jobs);
        assert!((earliest..=latest).contains(&count), "{count} jobs, expected {earliest} to {latest}");
        // The jobs stored first, without a gap.
        let wanted = (1..=count).map(id).collect();
        assert_eq!(copy.get(wanted).await.expect("get answers").len() as u64, count);
    }
}

#[tokio::test]
async fn a_copy_goes_on_where_the_original_stood() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    bench.add([job(1), job(2).after(id(1)), job(3)]).await;
    bench.run(1, done("1")).await;
    bench.delete(&[1]).await;
    let target = stage.folder.join("copy.db");
    store.db().backup_to(&target).await.expect("a copy is made");
    let copy = Arc::new(SqliteStore::open(&target, stage.options()).expect("it opens"));
    let copied = stage.bench(&copy);
    assert_eq!(copied.snapshot().await, bench.snapshot().await);
    assert_eq!(copied.start(2).await.parents[0].result.as_ref().expect("a result").as_str(), "1");
    assert_eq!(copied.add_one(job(4)).await.seq, 4);
    bench.expect(&[(2, longhaul_queue::State::Ready)]).await;
}

#[tokio::test]
async fn a_copy_overwrites_nothing() {
    let stage = Stage::new();
    let store = stage.open();
    let target = stage.folder.join("precious");
    std::fs::write(&target, "precious").expect("a file");
    let error = store.db().backup_to(&target).await.expect_err("it exists");
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("precious"), "{error}");
    assert_eq!(std::fs::read_to_string(&target).expect("it can be read"), "precious");
}

#[tokio::test]
async fn check_tells_the_facts_of_the_file() {
    let stage = Stage::new();
    let store = stage.open();
    stage.bench(&store).add((1..=100).map(job)).await;
    let check = store.db().check().await.expect("check answers");
    assert_eq!((check.schema_version, check.journal_mode.as_str()), (3, "wal"));
    assert!(check.problems.is_empty(), "{:?}", check.problems);
    assert!(check.bytes > 100_000, "{} bytes", check.bytes);
}
