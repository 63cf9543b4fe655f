//! How runs and workers end on request: cancel, drain, stop, and a change of concurrency.

use std::time::Duration;

use longhaul_queue::state::RunOutcome;
use longhaul_queue::store::CancelReply;
use longhaul_queue::testing::{Started, soon};
use longhaul_queue::{Failure, JobContext, Json, NewJob, Outcome, QueueShare, State, WorkerOptions};

use crate::stage::{Answer, Mark, Stage};

#[tokio::test]
async fn cancelled_handler_is_told_and_may_still_finish() {
    let stage = Stage::new();
    let begun = Mark::default();
    let mark = begun.clone();
    let mut worker = stage.worker();
    worker.handle("job", move |context: JobContext, (): ()| {
        let begun = mark.clone();
        async move {
            begun.reach();
            context.cancelled().await;
            assert!(context.is_cancelled());
            Answer::Ok("saved what I could".to_owned())
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("job").await;
    begun.reached().await;
    assert_eq!(stage.queue.cancel(id).await.unwrap(), CancelReply::Requested);
    let detail = stage.until(id, State::Succeeded).await;
    assert_eq!(
        detail.result,
        Some(Json::parse("\"saved what I could\"").unwrap()),
        "an end that arrives first wins"
    );
    started.drain().await;
}

#[tokio::test]
async fn cancelled_handler_that_goes_on_is_stopped_after_the_grace_time() {
    let stage = Stage::new();
    let (begun, told) = (Mark::default(), Mark::default());
    let marks = (begun.clone(), told.clone());
    let mut worker = stage.worker();
    worker.handle("job", move |context: JobContext, (): ()| {
        let (begun, told) = marks.clone();
        async move {
            begun.reach();
            context.cancelled().await;
            told.reach();
            std::future::pending::<Answer>().await
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("job").await;
    begun.reached().await;
    stage.queue.cancel(id).await.unwrap();
    told.reached().await;
    assert_eq!(stage.get(id).await.job.state, State::Running);
    stage.clock.advance(Duration::from_secs(10));
    let detail = stage.until(id, State::Cancelled).await;
    assert_eq!(detail.runs[0].outcome, RunOutcome::Cancel);
    assert_eq!(started.drain().await.cancelled, 1);
}

/// A worker with two jobs: "quick" ends when told, "slow" never does.
async fn two_running(stage: &Stage) -> (Started, Mark, [longhaul_queue::JobId; 2]) {
    let (begun, finish) = (Mark::default(), Mark::default());
    let marks = (begun.clone(), finish.clone());
    let mut worker = stage.worker();
    worker.handle("quick", move |_: JobContext, (): ()| {
        let (begun, finish) = marks.clone();
        async move {
            begun.reach();
            finish.reached().await;
            Answer::Ok("done".to_owned())
        }
    });
    let begun_slow = begun.clone();
    worker.handle("slow", move |_: JobContext, (): ()| {
        begun_slow.reach();
        std::future::pending::<Answer>()
    });
    let started = Started::new(worker);
    let quick = stage.enqueue("quick").await;
    begun.reached().await;
    let slow = stage.enqueue("slow").await;
    begun.reached().await;
    (started, finish, [quick, slow])
}

#[tokio::test]
async fn drain_lets_jobs_finish_and_gives_the_rest_back_unspent() {
    let stage = Stage::new();
    let (started, finish, [quick, slow]) = two_running(&stage).await;
    started.shutdown.drain();
    finish.reach();
    stage.until(quick, State::Succeeded).await;
    let late = stage.enqueue("quick").await;
    stage.clock.advance(Duration::from_secs(30));
    let report = started.ended().await;
    assert_eq!((report.done, report.released, report.total()), (1, 1, 2));
    let job = stage.get(slow).await.job;
    assert_eq!((job.state, job.spent, job.fence), (State::Ready, Default::default(), 1));
    assert_eq!(stage.get(late).await.job.fence, 0, "nothing is claimed while draining");
}

#[tokio::test]
async fn drain_tells_running_handlers_so_that_they_can_save_and_continue() {
    let stage = Stage::new();
    let begun = Mark::default();
    let mark = begun.clone();
    let mut worker = stage.worker();
    worker.handle("long", move |context: JobContext, (): ()| {
        let begun = mark.clone();
        async move {
            begun.reach();
            context.cancelled().await;
            assert!(context.is_cancelled() && context.is_draining() && !context.is_cancel_requested());
            context.save(&7).await?;
            Ok::<_, Failure>(Outcome::Continue { after: None, data: None })
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("long").await;
    begun.reached().await;
    assert_eq!(started.drain().await.continued, 1);
    let detail = stage.get(id).await;
    assert_eq!((detail.job.state, detail.data), (State::Ready, Some(Json::of(&7).unwrap())));
    assert_eq!((detail.job.spent.attempt, detail.job.spent.crashes), (0, 0));
}

#[tokio::test]
async fn drain_is_no_cancel_but_a_cancel_during_a_drain_is() {
    let stage = Stage::new();
    let (begun, told) = (Mark::default(), Mark::default());
    let marks = (begun.clone(), told.clone());
    let mut worker = stage.worker();
    worker.handle("long", move |context: JobContext, (): ()| {
        let (begun, told) = marks.clone();
        async move {
            begun.reach();
            let waiting = context.cancel_requested();
            tokio::pin!(waiting);
            tokio::select! {
                () = &mut waiting => panic!("a drain is no cancel"),
                () = context.cancelled() => told.reach(),
            }
            waiting.await;
            assert!(context.is_cancel_requested() && context.is_draining());
            Answer::Ok("ended on request".to_owned())
        }
    });
    let started = Started::new(worker);
    let id = stage.enqueue("long").await;
    begun.reached().await;
    started.shutdown.drain();
    told.reached().await;
    stage.queue.cancel(id).await.unwrap();
    assert_eq!(started.ended().await.done, 1);
}

#[tokio::test]
async fn second_signal_gives_everything_back_at_once() {
    let stage = Stage::new();
    let (started, _finish, ids) = two_running(&stage).await;
    started.shutdown.drain();
    started.shutdown.stop();
    let report = started.ended().await;
    assert_eq!((report.released, report.total()), (2, 2));
    for id in ids {
        assert_eq!(stage.get(id).await.job.state, State::Ready);
    }
}

#[tokio::test]
async fn concurrency_changes_while_running() {
    let stage = Stage::new();
    let (begun, finish) = (Mark::default(), Mark::default());
    let marks = (begun.clone(), finish.clone());
    let mut worker = stage.worker_with(WorkerOptions { concurrency: 1, ..WorkerOptions::default() });
    worker.handle("job", move |_: JobContext, (): ()| {
        let (begun, finish) = marks.clone();
        async move {
            begun.reach();
            finish.reached().await;
            Answer::Ok("done".to_owned())
        }
    });
    let control = worker.control();
    let jobs = [stage.enqueue("job").await, stage.enqueue("job").await];
    let started = Started::new(worker);
    begun.reached().await;
    assert_eq!((control.running(), stage.get(jobs[1]).await.job.state), (1, State::Ready));
    control.set_concurrency(2);
    begun.reached().await;
    assert_eq!((control.running(), control.concurrency()), (2, 2));
    finish.reach();
    stage.until(jobs[0], State::Succeeded).await;
    finish.reach();
    stage.until(jobs[1], State::Succeeded).await;
    started.drain().await;
}

#[tokio::test]
async fn queues_change_while_running() {
    let stage = Stage::new();
    let mut worker = stage.worker();
    worker.handle("job", |_: JobContext, (): ()| async { Answer::Ok("done".to_owned()) });
    let control = worker.control();
    let started = Started::new(worker);
    let new = stage.enqueue_job(NewJob::new("job", Json::null()).queue("new")).await;
    stage.until(stage.enqueue("job").await, State::Succeeded).await;
    assert_eq!(stage.get(new).await.job.state, State::Ready);
    control.set_queues(vec![QueueShare::from("new")]);
    stage.until(new, State::Succeeded).await;
    started.drain().await;
}

#[tokio::test]
async fn until_empty_ends_when_nothing_is_left_that_it_could_move() {
    let stage = Stage::new();
    let mut worker = stage.worker_with(WorkerOptions { until_empty: true, ..WorkerOptions::default() });
    worker.handle("job", |_: JobContext, (): ()| async { Answer::Ok("done".to_owned()) });
    let parent = stage.enqueue("job").await;
    stage.enqueue_job(NewJob::new("job", Json::null()).after(parent)).await;
    let other_kind = stage.enqueue("unknown").await;
    let other_queue = stage.enqueue_job(NewJob::new("job", Json::null()).queue("elsewhere")).await;
    let report = Started::new(worker).ended().await;
    assert_eq!(report.done, 2);
    for id in [other_kind, other_queue] {
        assert_eq!(stage.get(id).await.job.state, State::Ready);
    }
}

#[tokio::test]
async fn queues_are_served_in_the_order_given() {
    let stage = Stage::new();
    let options = WorkerOptions {
        queues: vec![QueueShare::from("urgent"), QueueShare::from("default")],
        concurrency: 1,
        until_empty: true,
        ..WorkerOptions::default()
    };
    let mut worker = stage.worker_with(options);
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    worker.handle("job", move |context: JobContext, (): ()| {
        sender.send(context.job().queue.clone()).unwrap();
        async { Answer::Ok(String::new()) }
    });
    stage.enqueue("job").await;
    stage.enqueue_job(NewJob::new("job", Json::null()).queue("urgent")).await;
    Started::new(worker).ended().await;
    assert_eq!(
        (soon(order.recv()).await.unwrap(), soon(order.recv()).await.unwrap()),
        ("urgent".into(), "default".into())
    );
}

#[tokio::test]
async fn worker_that_never_polls_is_told_of_new_jobs() {
    let stage = Stage::new();
    let mut worker = stage.worker_with(WorkerOptions { poll: Duration::MAX, ..WorkerOptions::default() });
    worker.handle("job", |_: JobContext, (): ()| async { Answer::Ok("done".to_owned()) });
    let started = Started::new(worker);
    for _ in 0..2 {
        let id = stage.enqueue("job").await;
        stage.until(id, State::Succeeded).await;
    }
    assert_eq!(started.drain().await.done, 2);
}

#[tokio::test]
async fn worker_without_handlers_says_so() {
    let stage = Stage::new();
    let error = stage.worker().run(longhaul_queue::Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("no handler"), "{error}");
}
