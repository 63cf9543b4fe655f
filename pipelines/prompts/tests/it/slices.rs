//! Slices that need many answers, and the worker that serves all runs.

use longhaul_pipeline::Pipeline as _;
use longhaul_pipeline::testing::options;
use longhaul_queue::testing::{Started, soon};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use longhaul_pipeline::serve::{self, Served};
use longhaul_prompts::process::{Slice, Slices};
use longhaul_prompts::request::RequestResult;
use longhaul_prompts::{Mode, NewRequest, Prompts, Result, RunId};
use longhaul_queue::job::JobDetail;
use longhaul_queue::{Engine, Json, QueueShare, State, Worker, WorkerOptions};
use longhaul_sim::{Latency, SimOptions};
use tokio::sync::Notify;

use crate::stage::{Stage, assert_right, prompts, settings};

/// Keeps what it is given to save.
#[derive(Default)]
struct Summaries {
    saved: Mutex<Vec<Vec<std::result::Result<RequestResult, String>>>>,
    saves: AtomicUsize,
    /// Dies in the middle of the first save.
    dies: bool,
    dying: Notify,
}

#[async_trait]
impl Slice for Summaries {
    fn name(&self) -> &str {
        "summaries"
    }

    async fn prepare(&self, input: &Json) -> Result<Vec<NewRequest>> {
        Ok(prompts(input.to()?))
    }

    async fn save(&self, _: &Json, answers: Vec<std::result::Result<RequestResult, String>>) -> Result<()> {
        if self.saves.fetch_add(1, Ordering::SeqCst) == 0 && self.dies {
            self.dying.notify_one();
            std::future::pending::<()>().await;
        }
        self.saved.lock().unwrap().push(answers);
        Ok(())
    }
}

fn worker(
    (engine, pipeline): (&Engine, &Prompts),
    slices: &Slices,
    run: &RunId,
    options: WorkerOptions,
) -> Started {
    let options = WorkerOptions { queues: vec![QueueShare::from(run.as_str())], ..options };
    let mut worker = Worker::new(engine.clone(), options);
    pipeline.register(&mut worker);
    slices.register(pipeline, &mut worker);
    Started::new(worker)
}

async fn callback(stage: &Stage, run: &RunId) -> Option<JobDetail> {
    stage.store.get(vec![run.job(longhaul_prompts::run::CALLBACK)]).await.unwrap().pop()
}

/// Waits until the call-back is gone, which it is when it has succeeded.
async fn called_back(stage: &Stage, run: &RunId) {
    let mut changes = stage.store.watch();
    soon(async {
        loop {
            changes.mark_unchanged();
            if callback(stage, run).await.is_none() {
                return;
            }
            changes.changed().await.unwrap();
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_is_called_back_with_its_answers_in_order_and_nothing_is_left() {
    // One slot: whatever waits for something else in its own run would wait for ever.
    for (mode, concurrency) in [(Mode::Sync, 1), (Mode::Batch, 1), (Mode::Batch, 10)] {
        let stage = Stage::new(SimOptions::default());
        let slice = Arc::new(Summaries::default());
        let mut slices = Slices::default();
        slices.add(slice.clone());
        let settings = settings(mode, "slice");
        let run = slices
            .start(&stage.pipeline, "summaries", Json::of(&25).unwrap(), settings.clone())
            .await
            .unwrap();
        let worker = worker(
            (&stage.engine(), &stage.pipeline),
            &slices,
            &run,
            WorkerOptions { concurrency, ..options() },
        );
        called_back(&stage, &run).await;
        worker.drain().await;
        let saved = slice.saved.lock().unwrap().clone();
        assert_eq!((saved.len(), saved[0].len()), (1, 25));
        for (answer, request) in saved[0].iter().zip(&prompts(25)) {
            assert_right(answer.as_ref().unwrap(), &settings, request);
        }
        assert!(stage.store.counts().await.unwrap().iter().all(|count| count.jobs == 0));
        assert!(stage.store.process(run.process()).await.unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_whose_worker_died_while_saving_is_called_again() {
    let stage = Stage::new(SimOptions::default());
    let slice = Arc::new(Summaries { dies: true, ..Summaries::default() });
    let mut slices = Slices::default();
    slices.add(slice.clone());
    let settings = settings(Mode::Sync, "dies");
    let run = slices.start(&stage.pipeline, "summaries", Json::of(&5).unwrap(), settings).await.unwrap();
    let first = worker((&stage.engine(), &stage.pipeline), &slices, &run, options());
    soon(slice.dying.notified()).await;
    stage.kill(first).await;
    let second = worker((&stage.engine(), &stage.other_process()), &slices, &run, options());
    called_back(&stage, &run).await;
    second.drain().await;
    assert_eq!((slice.saves.load(Ordering::SeqCst), slice.saved.lock().unwrap()[0].len()), (2, 5));
}

/// The run is consumed, and the worker dies before the call-back's own end is stored.
#[tokio::test(start_paused = true)]
async fn a_slice_is_never_called_with_the_emptied_run() {
    let stage = Stage::new(SimOptions::default());
    let slice = Arc::new(Summaries { dies: true, ..Summaries::default() });
    let mut slices = Slices::default();
    slices.add(slice.clone());
    let settings = settings(Mode::Sync, "emptied");
    let run = slices.start(&stage.pipeline, "summaries", Json::of(&5).unwrap(), settings).await.unwrap();
    let first = worker((&stage.engine(), &stage.pipeline), &slices, &run, options());
    soon(slice.dying.notified()).await;
    stage.found(&run).await.remove().await.unwrap();
    stage.kill(first).await;
    let second = worker((&stage.engine(), &stage.other_process()), &slices, &run, options());
    called_back(&stage, &run).await;
    second.drain().await;
    assert_eq!(slice.saves.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_slice_is_a_clear_failure() {
    let stage = Stage::new(SimOptions::default());
    let mut slices = Slices::default();
    slices.add(Arc::new(Summaries::default()));
    let settings = settings(Mode::Sync, "unknown");
    let start = |name: &'static str, count: usize| {
        slices.start(&stage.pipeline, name, Json::of(&count).unwrap(), settings.clone())
    };
    let unknown = start("nobody", 5).await.unwrap_err().to_string();
    assert!(unknown.contains("no slice \"nobody\""), "{unknown}");
    assert!(start("summaries", 0).await.unwrap_err().to_string().contains("no requests"));
    assert!(stage.store.counts().await.unwrap().is_empty(), "nothing was stored");
    // Stored by one program, called back in another that does not know it.
    let run = start("summaries", 5).await.unwrap();
    let worker = worker((&stage.engine(), &stage.pipeline), &Slices::default(), &run, options());
    let mut changes = stage.store.watch();
    soon(async {
        while callback(&stage, &run).await.is_some_and(|job| job.job.state != State::Failed) {
            changes.changed().await.unwrap();
        }
    })
    .await;
    worker.drain().await;
    let failed = callback(&stage, &run).await.expect("it is kept").job.error.expect("a reason");
    assert!(failed.text.contains("no slice \"summaries\""), "{failed}");
    assert_eq!(stage.answers(&run).await.len(), 5, "the answers are kept for whoever knows it");
}

#[tokio::test(start_paused = true)]
async fn one_worker_serves_runs_that_come_and_go_and_shares_itself_between_them() {
    let latency = Latency { base_ms: 100, ..Latency::default() };
    let stage = Stage::new(SimOptions { latency, ..SimOptions::default() });
    let options = WorkerOptions { concurrency: 4, queues: vec![QueueShare::from("default")], ..options() };
    let mut worker = Worker::new(stage.engine(), options);
    stage.pipeline.register(&mut worker);
    let always = vec![QueueShare::from("default")];
    let served = Served { always: always.clone(), prefixes: vec![longhaul_prompts::ABOUT.prefix] };
    let serving = tokio::spawn(serve::all(stage.pipeline.queue().clone(), worker.control(), served.clone()));
    let control = worker.control();
    let started = Started::new(worker);
    let (large, small) = (settings(Mode::Sync, "large"), settings(Mode::Sync, "small"));
    let one = stage.submit(&large, &prompts(400)).await;
    stage.until(&one, |info| info.counts[5] > 20).await;
    let two = stage.submit(&small, &prompts(40)).await;
    stage.ended(&two).await;
    let done = stage.process(&one).await.counts[5];
    assert!((40..300).contains(&done), "both went on: {done} of the large one by then");
    stage.ended(&one).await;
    // Runs without work are not looked at any more.
    serve::look(stage.pipeline.queue(), &control, &served).await;
    let three = stage.submit(&settings(Mode::Batch, "late"), &prompts(10)).await;
    stage.ended(&three).await;
    serving.abort();
    started.drain().await;
}
