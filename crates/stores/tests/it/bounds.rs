//! What a caller may hand in: values up to their limit and not beyond, and only JSON.

use std::sync::Arc;

use longhaul_queue::limits::{Limits, VALUE_BYTES_DEFAULT, VALUE_BYTES_MAX};
use longhaul_queue::testing::bench::{done, invalid, job};
use longhaul_queue::{Json, NewJob, Queue, State};

use crate::stage::{Stage, check_sound};

/// A JSON string of exactly so many bytes.
fn text_of(bytes: usize) -> Json {
    Json::of(&"x".repeat(bytes - 2)).expect("a string is JSON")
}

#[tokio::test]
async fn a_payload_of_exactly_the_limit_comes_back_whole() {
    for bytes in [VALUE_BYTES_DEFAULT, VALUE_BYTES_MAX] {
        let stage = Stage::new();
        let store = stage.open();
        let queue = Queue::new(Arc::clone(&store) as _).with_limits(Limits { value_bytes_max: bytes });
        let payload = text_of(bytes);
        assert_eq!(payload.len(), bytes);
        let enqueued = queue.enqueue(NewJob::new("work", payload.clone())).await.expect("it is accepted");
        let bench = stage.bench(&store);
        let claimed = bench.claim(1).await.remove(0);
        assert!(claimed.job.id == enqueued.id && claimed.payload == payload, "it comes back whole");
        bench.settle(&claimed, done(payload.as_str())).await;
        let detail = queue.get(enqueued.id).await.expect("it is stored");
        assert!(detail.job.state == State::Succeeded && detail.result == Some(payload), "so does a result");
        check_sound(&store).await;
    }
}

#[tokio::test]
async fn a_payload_over_the_limit_is_refused_with_its_size_and_the_limit() {
    let stage = Stage::new();
    let store = stage.open();
    let queue = Queue::new(Arc::clone(&store) as _);
    let large = NewJob::new("work", text_of(VALUE_BYTES_DEFAULT + 1));
    let text = invalid(queue.enqueue_many(vec![job(1), large.clone()]).await);
    assert!(text.contains("1000001") && text.contains("1000000"), "{text}");
    let text = invalid(store.db().transaction(|tx| tx.enqueue(vec![job(2), large])).await);
    assert!(text.contains("1000001"), "{text}");
    assert_eq!(
        store.db().read(|db| Ok(db.query_row("SELECT count(*) FROM lh_jobs", [], |row| row.get(0))?)).await,
        Ok(0_i64)
    );
}

#[test]
fn what_is_not_json_cannot_be_made_a_payload() {
    for text in ["", "{", "{\"a\": }", "nul", "1 2", "'single'"] {
        let problem = invalid(Json::parse(text));
        assert!(problem.contains("JSON"), "{problem}");
        let job =
            serde_json::from_str::<NewJob>(&format!(r#"{{"queue":"q","kind":"work","payload":{text}}}"#));
        assert!(job.is_err(), "{text:?} was accepted");
    }
}

#[tokio::test]
async fn text_of_every_sort_comes_back_as_it_was() {
    let stage = Stage::new();
    let bench = stage.bench(&stage.open());
    let texts =
        ["\"\\u0000\"", "\"Grüße, 世界 🚀\"", "{ \"a\" : 1.0 }", "\"'; DROP TABLE lh_jobs; --\"", "1e400"];
    for (number, text) in (1..).zip(texts) {
        let payload = Json::parse(text).expect("it is JSON");
        bench.add([NewJob { payload: payload.clone(), ..job(number) }]).await;
        let claimed = bench.start(number).await;
        assert_eq!(claimed.payload, payload);
        bench.settle(&claimed, done(text)).await;
        assert_eq!(bench.detail(number).await.result, Some(payload));
    }
}

#[tokio::test]
async fn a_payload_beside_the_jobs_row_goes_with_it() {
    let stage = Stage::new();
    let store = stage.open();
    let bench = stage.bench(&store);
    let beside = || stage.connection().query_row("SELECT count(*) FROM lh_bodies", [], |row| row.get(0));
    bench.add([NewJob { payload: text_of(200), ..job(1) }]).await;
    assert_eq!(beside(), Ok(0_i64));
    bench.add([NewJob { payload: text_of(2_000), ..job(2) }]).await;
    assert_eq!(beside(), Ok(1));
    bench.add((3..=20).map(job)).await;
    assert_eq!(beside(), Ok(19));
    let numbers: Vec<u64> = (1..=20).collect();
    for number in &numbers {
        bench.run(*number, done("1")).await;
    }
    assert_eq!(bench.delete(&numbers).await.deleted, 20);
    assert_eq!(beside(), Ok(0));
}
