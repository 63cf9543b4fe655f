//! What handlers get and answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use longhaul_queue::job::{ParentResult, Wake};
use longhaul_queue::limits::Limits;
use longhaul_queue::state::{Park, Reason, RunOutcome};
use longhaul_queue::store::Signal;
use longhaul_queue::testing::{Started, soon};
use longhaul_queue::{Clock, Failure, JobContext, Json, KindOptions, NewJob, Outcome, State};
use serde::{Deserialize, Serialize};

use crate::stage::{Answer, Mark, Stage};

#[derive(Serialize, Deserialize)]
struct Sum {
    left: u32,
    right: u32,
}

fn sum(left: u32, right: u32) -> NewJob {
    NewJob::new("sum", Json::of(&Sum { left, right }).unwrap())
}

#[tokio::test]
async fn typed_handler_gets_its_payload_and_its_value_is_the_result() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("sum", |_: JobContext, sum: Sum| async move { Ok::<_, Failure>(sum.left + sum.right) });
    let started = Started::new(worker);
    let id = stage.enqueue_job(sum(1, 2)).await;
    let detail = stage.until(id, State::Succeeded).await;
    assert_eq!(detail.result, Some(Json::parse("3").unwrap()));
    assert_eq!(started.drain().await.done, 1);
}

#[tokio::test]
async fn payload_that_does_not_fit_fails_with_a_clear_error() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("sum", |_: JobContext, sum: Sum| async move { Ok::<_, Failure>(sum.left) });
    let started = Started::new(worker);
    let id = stage.enqueue_job(NewJob::new("sum", Json::parse(r#"{"left":1}"#).unwrap())).await;
    let error = stage.until(id, State::Failed).await.job.error.unwrap();
    assert!(error.text.contains("sum expects") && error.text.contains("missing field `right`"), "{error}");
    started.drain().await;
}

#[derive(Debug, thiserror::Error)]
#[error("cannot read the page")]
struct PageError(#[source] std::num::ParseIntError);

#[tokio::test]
async fn question_mark_makes_a_retry_with_the_sources_in_its_text() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("page", |_: JobContext, (): ()| async move {
        let number: u32 = "x".parse().map_err(PageError)?;
        Ok::<_, Failure>(number)
    });
    let started = Started::new(worker);
    let id = stage.enqueue("page").await;
    let job = stage.until(id, State::Scheduled).await.job;
    assert_eq!(job.error.unwrap().text, "cannot read the page: invalid digit found in string");
    assert_eq!(job.spent.attempt, 1);
    assert_eq!(started.drain().await.retried, 1);
}

#[tokio::test]
async fn panic_is_a_failure_and_the_worker_goes_on() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("boom", |_: JobContext, (): ()| async move {
        if true {
            panic!("lost my head");
        }
        Ok::<_, Failure>(())
    });
    worker.handle("fine", |_: JobContext, (): ()| async { Ok::<_, Failure>(()) });
    let started = Started::new(worker);
    let id = stage.enqueue_job(NewJob::new("boom", Json::null()).max_attempts(1)).await;
    let error = stage.until(id, State::Failed).await.job.error.unwrap();
    assert_eq!(error.reason, Reason::Panic);
    assert!(error.text.contains("lost my head"));
    let fine = stage.enqueue("fine").await;
    stage.until(fine, State::Succeeded).await;
    started.drain().await;
}

#[tokio::test]
async fn failures_say_what_comes_next() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("fatal", |_: JobContext, (): ()| async { Answer::Err(Failure::fatal("no such page")) });
    worker.handle("later", |_: JobContext, (): ()| async {
        Answer::Err(Failure::retry_after("busy", Duration::from_secs(7)))
    });
    worker.handle("limited", |_: JobContext, (): ()| async {
        Answer::Err(Failure::throttle("429", Some(Duration::from_secs(9))))
    });
    let started = Started::new(worker);
    let fatal = stage.enqueue("fatal").await;
    let later = stage.enqueue("later").await;
    let limited = stage.enqueue("limited").await;
    assert_eq!(stage.until(fatal, State::Failed).await.job.error.unwrap().text, "no such page");
    let later = stage.until(later, State::Scheduled).await.job;
    assert_eq!(later.run_at.since(stage.clock.now()), Duration::from_secs(7));
    let limited = stage.until(limited, State::Scheduled).await.job;
    assert_eq!(limited.run_at.since(stage.clock.now()), Duration::from_secs(9));
    assert_eq!((limited.spent.attempt, limited.spent.throttles), (0, 1), "a throttle costs no attempt");
    let report = started.drain().await;
    assert_eq!((report.failed, report.retried, report.throttled), (1, 1, 1));
}

#[tokio::test]
async fn continue_resumes_from_the_checkpoint_and_costs_no_attempt() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("count", |context: JobContext, (): ()| async move {
        let count: u32 = context.data()?.unwrap_or_default();
        context.save(&(count + 1)).await?;
        assert_eq!(context.data::<u32>()?, Some(count + 1), "a save is seen at once");
        if count == 2 {
            return Ok::<_, Failure>(Outcome::Done(Json::of("enough")?));
        }
        Ok(Outcome::Continue { after: None, data: None })
    });
    let started = Started::new(worker);
    let id = stage.enqueue("count").await;
    let detail = stage.until(id, State::Succeeded).await;
    assert_eq!((detail.job.spent.continues, detail.job.spent.attempt, detail.job.fence), (2, 0, 3));
    assert_eq!(started.drain().await.continued, 2);
}

#[tokio::test]
async fn parked_job_is_woken_with_a_value() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("approve", |context: JobContext, (): ()| async move {
        match context.wake() {
            Some(Wake::Signal(value)) => Outcome::Done(value.clone()),
            Some(Wake::TimedOut) | None => {
                let park = Park { key: "approval".to_owned(), until: None, on_timeout: Default::default() };
                Outcome::Park { park, data: None }
            }
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("approve").await;
    stage.until(id, State::Parked).await;
    stage.queue.unpark("approval", Signal::Resume(Json::parse("\"yes\"").unwrap())).await.unwrap();
    assert_eq!(stage.until(id, State::Succeeded).await.result, Some(Json::parse("\"yes\"").unwrap()));
    assert_eq!(started.drain().await.parked, 1);
}

#[tokio::test]
async fn kind_options_hold_unless_the_job_has_its_own() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let options = KindOptions { max_attempts: 1, ..KindOptions::default() };
    worker.handle_with("bad", options, |_: JobContext, (): ()| async { Answer::Err(Failure::retry("no")) });
    let started = Started::new(worker);
    let plain = stage.enqueue("bad").await;
    let stubborn = stage.enqueue_job(NewJob::new("bad", Json::null()).max_attempts(2)).await;
    stage.until(plain, State::Failed).await;
    stage.until(stubborn, State::Scheduled).await;
    started.drain().await;
}

#[tokio::test]
async fn progress_log_and_usage_are_stored_with_the_end_at_the_latest() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("talk", |context: JobContext, (): ()| async move {
        for step in 1..=100 {
            context.progress_with(step, 100, format!("step {step}"));
            context.log(format!("line {step}"));
        }
        context.usage(&7)?;
        Ok::<_, Failure>(())
    });
    let started = Started::new(worker);
    let id = stage.enqueue("talk").await;
    let detail = stage.until(id, State::Succeeded).await;
    let progress = detail.progress.unwrap();
    assert_eq!(
        (progress.done, progress.total, progress.message.as_deref()),
        (100, Some(100), Some("step 100"))
    );
    let lines: Vec<_> = detail.log.iter().map(|line| line.text.as_str()).collect();
    assert_eq!((lines.len(), lines.first(), lines.last()), (100, Some(&"line 1"), Some(&"line 100")));
    assert_eq!(detail.runs[0].usage, Some(Json::parse("7").unwrap()));
    started.drain().await;
}

#[tokio::test]
async fn progress_is_seen_while_the_job_runs() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let release = Mark::default();
    let released = release.clone();
    worker.handle("slow", move |context: JobContext, (): ()| {
        let released = released.clone();
        async move {
            context.progress(1, None);
            released.reached().await;
            Ok::<_, Failure>(())
        }
    });
    let started = Started::new(worker);
    let mut changes = stage.store.watch();
    let id = stage.enqueue("slow").await;
    soon(async {
        while stage.get(id).await.progress.is_none() {
            changes.changed().await.unwrap();
        }
    })
    .await;
    release.reach();
    stage.until(id, State::Succeeded).await;
    started.drain().await;
}

#[tokio::test]
async fn value_over_the_limit_is_refused_with_its_size() {
    let mut stage = Stage::new();
    stage.engine = stage.engine.clone().with_limits(Limits { value_bytes_max: 100 });
    let mut worker = stage.worker();
    worker.handle("long", |context: JobContext, (): ()| async move {
        assert!(context.save(&"x".repeat(200)).await.is_err());
        Ok::<_, Failure>("x".repeat(200))
    });
    let started = Started::new(worker);
    let id = stage.enqueue("long").await;
    let error = stage.until(id, State::Failed).await.job.error.unwrap();
    assert!(error.text.contains("result is 202 bytes, the limit is 100"), "{error}");
    started.drain().await;
}

#[tokio::test]
async fn follow_ups_are_stored_with_the_outcome_and_only_with_one_that_stands() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    worker.handle("parent", move |context: JobContext, (): ()| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let id = context.enqueue(NewJob::new("child", Json::null()))?;
            if run == 0 { Err(Failure::retry_after("not yet", Duration::from_secs(1))) } else { Ok(id) }
        }
    });
    let started = Started::new(worker);
    let mut parent = NewJob::new("parent", Json::null());
    parent.options.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    let id = stage.enqueue_job(parent.clone()).await;
    stage.until(id, State::Scheduled).await;
    assert_eq!(stage.store.counts().await.unwrap().iter().filter(|count| count.kind == "child").count(), 0);
    stage.pass(Duration::from_secs(1)).await;
    let child = stage.until(id, State::Succeeded).await.result.unwrap().to().unwrap();
    let child = stage.get(child).await.job;
    assert_eq!((child.state, child.options.parent_id), (State::Ready, Some(id)));
    assert_eq!(child.options.trace, parent.options.trace);
    started.drain().await;
}

#[tokio::test]
async fn refused_follow_ups_fail_the_run_that_made_them() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    let stranger = longhaul_queue::JobId::from_bytes([7; 16]);
    worker.handle("parent", move |context: JobContext, (): ()| async move {
        context.enqueue(NewJob::new("child", Json::null()).after(stranger))?;
        context.usage(&7)?;
        Ok::<_, Failure>(())
    });
    let started = Started::new(worker);
    let id = stage.enqueue_job(NewJob::new("parent", Json::null()).max_attempts(1)).await;
    let detail = stage.until(id, State::Failed).await;
    assert_eq!(detail.runs[0].usage, Some(Json::of(&7).unwrap()), "spent whatever became of the jobs");
    let error = detail.job.error.unwrap();
    assert!(error.text.contains("were refused") && error.text.contains(&stranger.to_string()), "{error}");
    started.drain().await;
}

#[tokio::test]
async fn parents_and_a_key_for_the_outside_are_at_hand() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("first", |_: JobContext, (): ()| async { Ok::<_, Failure>(5) });
    worker.handle("second", |context: JobContext, (): ()| async move {
        let [ParentResult { result: Some(result), .. }] = context.parents() else { panic!("no parent") };
        assert_eq!(context.idempotency_key("send"), format!("{}:send", context.id()));
        Ok::<_, Failure>(result.to::<u32>()? + 1)
    });
    let started = Started::new(worker);
    let first = stage.enqueue("first").await;
    let second = stage.enqueue_job(NewJob::new("second", Json::null()).after(first)).await;
    assert_eq!(stage.until(second, State::Succeeded).await.result, Some(Json::parse("6").unwrap()));
    started.drain().await;
}

#[tokio::test]
async fn any_kind_is_taken_by_the_handler_for_any() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle_any(KindOptions::default(), |context: JobContext, payload: Json| async move {
        Ok::<_, Failure>(format!("{} {payload}", context.kind()))
    });
    let started = Started::new(worker);
    let id = stage.enqueue_job(NewJob::new("whatever", Json::parse("[1]").unwrap())).await;
    let detail = stage.until(id, State::Succeeded).await;
    assert_eq!(detail.result, Some(Json::parse("\"whatever [1]\"").unwrap()));
    assert_eq!(detail.runs[0].outcome, RunOutcome::Done);
    started.drain().await;
}
