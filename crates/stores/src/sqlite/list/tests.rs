//! A walk with tiny bounds comes to the same as one without.

use longhaul_queue::store::{Filter, Store as _};
use longhaul_queue::{Json, NewJob, Timestamp};

use super::*;
use crate::sqlite::{SqliteOptions, SqliteStore};

/// Sixty jobs in two queues: every seventh tagged and of a process, some cancelled, some deleted.
async fn stocked(path: &std::path::Path) -> SqliteStore {
    let store = SqliteStore::open(path, SqliteOptions::default()).expect("the store opens");
    let now = Timestamp::from_millis(1_800_000_000_000);
    let job = |number: u64| {
        let payload = format!(r#"{{"n":{number},"user":{{"id":{}}}}}"#, number % 10);
        let id = JobId::generate(now, u128::from(number) << 56);
        let job = NewJob::new("work", Json::parse(&payload).expect("JSON")).id(id);
        let job = job.queue(if number.is_multiple_of(2) { "even" } else { "odd" });
        if number.is_multiple_of(7) { job.tag("red").process("p") } else { job }
    };
    let inserted = store.insert((1..=60).map(job).collect(), now).await.expect("valid jobs");
    let every = |step: usize| inserted.iter().step_by(step).map(|job| job.id).collect::<Vec<_>>();
    store.cancel(every(4), now).await.expect("jobs that wait");
    store.delete(every(12)).await.expect("cancelled jobs");
    store
}

async fn walked(store: &SqliteStore, filter: &Filter, newest_first: bool, bounds: Bounds) -> Vec<i64> {
    let (mut met, mut cursor, mut pages) = (Vec::new(), None, 0);
    loop {
        let request = ListRequest { filter: filter.clone(), newest_first, cursor, limit: 4 };
        let page = store.db().read(move |connection| list_within(connection, &request, bounds)).await;
        let page = page.expect("list answers");
        assert_eq!(page.partial, page.next.is_some() && page.items.len() < 4);
        met.extend(page.items.iter().map(|job| job.seq));
        pages += 1;
        assert!(pages <= 200, "each page gets further");
        cursor = page.next;
        if cursor.is_none() {
            return met;
        }
    }
}

#[tokio::test]
async fn a_bounded_walk_meets_the_same_jobs_over_more_pages() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = stocked(&folder.path().join("test.db")).await;
    let tiny = [
        Bounds { rows_max: 1, ..BOUNDS },
        Bounds { rows_max: 5, few_max: 0, ..BOUNDS },
        Bounds { texts_max: 3, few_max: 8, ..BOUNDS },
        Bounds { bytes_max: 40, few_max: 0, ..BOUNDS },
    ];
    for (search, count) in [
        ("", 55),
        ("queue:even", 30),
        ("queue:odd state:cancelled", 10),
        ("state:ready", 45),
        ("state:ready tag:red", 6),
        ("process:p", 7),
        ("process:p state:cancelled", 1),
        ("process:p state:failed", 0),
        ("process:nobody", 0),
        ("user.id:3", 5),
        ("id:01", 55),
        ("id:ff", 0),
        ("queue:nobody", 0),
        ("state:failed", 0),
        ("state:cancelled,failed", 10),
        ("\"n\\\":4\"", 10),
        ("nowhere", 0),
    ] {
        let filter = Filter::parse(search).expect("a search");
        for newest_first in [false, true] {
            let expected = walked(&store, &filter, newest_first, BOUNDS).await;
            assert_eq!(expected.len(), count, "{search}");
            for bounds in tiny {
                let met = walked(&store, &filter, newest_first, bounds).await;
                assert_eq!(met, expected, "{search} {newest_first} {bounds:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_page_that_reached_its_bound_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = stocked(&folder.path().join("test.db")).await;
    let filter = Filter { search: vec!["nowhere".to_owned()], ..Filter::default() };
    let request = ListRequest { filter, limit: 10, ..ListRequest::default() };
    let bounds = Bounds { rows_max: 20, ..BOUNDS };
    let page = store.db().read(move |connection| list_within(connection, &request, bounds)).await;
    let page = page.expect("list answers");
    assert_eq!((page.items.len(), page.partial), (0, true));
    assert_eq!(page.next, Some(22), "the twentieth that is left");
}
