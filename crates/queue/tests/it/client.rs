//! What callers are told: refusals name the thing and what to do.

use std::time::Duration;

use longhaul_queue::job::ProcessId;
use longhaul_queue::state::Park;
use longhaul_queue::store::Signal;
use longhaul_queue::{Error, Failure, JobContext, Json, KindOptions, NewJob, Outcome, State};

use crate::stage::{Answer, Stage, start};

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
    let started = start(worker);
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
    let started = start(worker);
    let kinds = stage.enqueue("job").await;
    let own = stage.enqueue_job(NewJob::new("job", Json::null()).max_attempts(5)).await;
    for (id, expected) in [(kinds, "failed once,"), (own, "failed 1 of 5 attempts")] {
        stage.until(id, State::Scheduled).await;
        let reason = stage.queue.explain(id).await.unwrap().reason;
        assert!(reason.starts_with(expected), "{reason}");
    }
    started.drain().await;
}
