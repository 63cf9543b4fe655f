//! What callers are told: refusals name the thing and what to do.

use std::time::Duration;

use longhaul_queue::job::ProcessId;
use longhaul_queue::limits::{Limits, VALUE_BYTES_MAX};
use longhaul_queue::retry::{Backoff, RETRY_LIST_MAX};
use longhaul_queue::state::Park;
use longhaul_queue::store::Signal;
use longhaul_queue::testing::Started;
use longhaul_queue::{Error, Failure, JobContext, Json, KindOptions, NewJob, Outcome, RetryPolicy, State};

use crate::stage::{Answer, Stage};

#[tokio::test]
async fn open_process_is_not_consumed_before_its_seal() {
    let stage = Stage::new();
    let process = ProcessId::from("p");
    stage.queue.open_process(process.clone()).await.unwrap();
    let id = stage.enqueue_job(NewJob::new("job", Json::null()).process("p")).await;
    let error = stage.queue.consume_process(&process).await.unwrap_err().to_string();
    assert!(error.contains("1 unfinished"), "{error}");
    stage.queue.cancel(id).await.unwrap();
    let error = stage.queue.consume_process(&process).await.unwrap_err().to_string();
    assert!(error.contains("open for more jobs") && error.contains("seal"), "{error}");
    stage.queue.seal(process.clone()).await.unwrap();
    assert_eq!(stage.queue.consume_process(&process).await.unwrap(), 1);
    assert_eq!(stage.queue.consume_process(&process).await.unwrap(), 0);
}

#[tokio::test]
async fn unpark_of_a_job_that_is_not_parked_names_its_state() {
    let stage = Stage::new();
    let ready = stage.enqueue("job").await;
    let error = stage.queue.unpark_jobs(vec![ready], Signal::Resume(Json::null())).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("is ready"), "{error}");

    let mut worker = stage.worker();
    worker.handle("waits", |_: JobContext, (): ()| async {
        let park = Park { key: "k".to_owned(), until: None, on_timeout: Default::default() };
        Ok::<_, Failure>(Outcome::Park { park, data: None })
    });
    let started = Started::new(worker);
    let parked = stage.enqueue("waits").await;
    stage.until(parked, State::Parked).await;
    started.drain().await;
    let both = vec![parked, ready];
    let error = stage.queue.unpark_jobs(both, Signal::Resume(Json::null())).await.unwrap_err().to_string();
    assert!(error.contains(&ready.to_string()) && error.contains("told: 1"), "{error}");
    assert_eq!(stage.get(parked).await.job.state, State::Ready);
}

#[tokio::test]
async fn explain_names_a_limit_only_when_it_is_the_jobs_own() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let options = KindOptions { max_attempts: 9, ..KindOptions::default() };
    worker.handle_with("job", options, |_: JobContext, (): ()| async {
        Answer::Err(Failure::retry_after("not yet", Duration::from_secs(60)))
    });
    let started = Started::new(worker);
    let kinds = stage.enqueue("job").await;
    let own = stage.enqueue_job(NewJob::new("job", Json::null()).max_attempts(5)).await;
    for (id, expected) in [(kinds, "failed once,"), (own, "failed 1 of 5 attempts")] {
        stage.until(id, State::Scheduled).await;
        let reason = stage.queue.explain(id).await.unwrap().reason;
        assert!(reason.starts_with(expected), "{reason}");
    }
    started.drain().await;
}

#[tokio::test]
async fn list_of_retry_delays_is_bounded_however_it_was_made() {
    let stage = Stage::new();
    let backoff = Backoff::List { delays_ms: vec![1; RETRY_LIST_MAX + 1] };
    let retry = RetryPolicy { backoff, ..RetryPolicy::default() };
    let error = stage.queue.enqueue(NewJob::new("job", Json::null()).retry(retry)).await.unwrap_err();
    assert!(error.to_string().contains("retry.delays_ms has 101, at most 100 are allowed"), "{error}");
}

#[tokio::test]
async fn limits_beyond_the_largest_value_are_refused() {
    let stage = Stage::new();
    let engine = stage.engine.clone().with_limits(Limits { value_bytes_max: VALUE_BYTES_MAX + 1 });
    let error = engine.enqueue(NewJob::new("job", Json::null())).await.unwrap_err().to_string();
    assert!(error.contains("value_bytes_max is 16000001, at most 16000000 are allowed"), "{error}");
    let worker = longhaul_queue::Worker::new(engine, Default::default());
    let error = worker.run(longhaul_queue::Shutdown::new()).await.unwrap_err().to_string();
    assert!(error.contains("value_bytes_max"), "{error}");
}

/// An index of ids then grows at its end, and ids sort in submission order.
#[tokio::test]
async fn ids_of_one_submission_follow_each_other() {
    let queue = Stage::new().queue;
    let jobs = (0..1000).map(|_| NewJob::new("k", Json::null())).collect();
    let ids: Vec<_> = queue.enqueue_many(jobs).await.unwrap().iter().map(|enqueued| enqueued.id).collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
}
