//! Records: small values that processes share.

use crate::store::Record;
use crate::testing::Bench;
use crate::testing::bench::json;

pub(super) async fn a_record_is_written_by_who_knows_its_version(bench: &Bench) {
    let store = &bench.store;
    let put = async |name: &str, expected, value| {
        store.put_record(name.to_owned(), expected, json(value)).await.expect("put_record answers")
    };
    let get = async |name: &str| store.record(name.to_owned()).await.expect("record answers");
    assert_eq!(get("leader").await, None);
    assert!(!put("leader", 1, "\"nobody\"").await, "there is no version 1");
    assert!(put("leader", 0, "\"a\"").await);
    assert!(!put("leader", 0, "\"b\"").await, "it is there already");
    assert!(put("leader", 1, "{\"who\": \"b\"}").await);
    assert!(!put("leader", 1, "\"late\"").await);
    assert_eq!(get("leader").await, Some(Record { version: 2, value: json("{\"who\": \"b\"}") }));
    assert_eq!(get("other").await, None);
}

pub(super) async fn a_record_wakes_nobody(bench: &Bench) {
    let mut watch = bench.store.watch();
    watch.mark_unchanged();
    assert!(bench.store.put_record("r".to_owned(), 0, json("1")).await.expect("put_record answers"));
    let events = bench.store.events(None, 10).await.expect("events answers").events;
    assert_eq!(events.len(), 0);
    assert!(!watch.has_changed().expect("the store is there"), "nobody has to look");
    assert_eq!(bench.store.record("r".to_owned()).await.expect("record answers").map(|r| r.version), Some(1));
}
