//! The worker inside of `run`: it serves this run alone.

use anyhow::{Context as _, Result};
use longhaul_pipelines::bulk::{Bulk, RunId};
use longhaul_queue::{QueueShare, Shutdown, Worker, WorkerOptions, WorkerReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::args::RunArgs;
use crate::config::{concurrency, lease};

/// A worker under way.
pub(super) struct Working {
    shutdown: Shutdown,
    task: JoinHandle<longhaul_queue::Result<WorkerReport>>,
    ended: watch::Sender<bool>,
}

impl Working {
    pub(super) fn start(app: &App, args: &RunArgs, bulk: &Bulk, id: &RunId) -> Result<Self> {
        let slots = match args.concurrency {
            Some(slots) => slots,
            None => app.settings.read("llm.concurrency", concurrency)?,
        };
        let options = WorkerOptions {
            queues: vec![QueueShare::from(id.as_str())],
            concurrency: slots as usize,
            // A request cannot take its worker down; after a kill all that were under way may go on at once.
            suspects_max: slots as usize,
            lease: app.settings.read("worker.lease", lease)?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..WorkerOptions::default()
        };
        let mut worker = Worker::new(bulk.queue().clone(), options);
        bulk.register(&mut worker);
        let shutdown = Shutdown::new();
        let ended = watch::Sender::new(false);
        let (running, last) = (worker.run(shutdown.clone()), ended.clone());
        let task = tokio::spawn(async move {
            let report = running.await;
            last.send_replace(true);
            report
        });
        Ok(Self { shutdown, task, ended })
    }

    /// No more requests are sent; those under way may be answered.
    pub(super) fn drain(&self) {
        self.shutdown.drain();
    }

    /// Requests under way are given back.
    pub(super) fn abort(&self) {
        self.shutdown.stop();
    }

    /// Returns when the worker has ended. How is for [`Working::stop`] to say.
    pub(super) async fn ended(&mut self) {
        let mut stopped = self.ended.subscribe();
        // An error means that the sender is gone, with the worker.
        let _ = stopped.wait_for(|ended| *ended).await;
    }

    /// Ends the worker, and answers what it did.
    pub(super) async fn stop(self) -> Result<WorkerReport> {
        self.drain();
        Ok(self.task.await.context("the worker broke off")??)
    }
}
