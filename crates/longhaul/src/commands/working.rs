//! The worker inside of a command that answers its own work: `run`, `score`. It serves that alone.

use anyhow::{Context as _, Result};
use longhaul_queue::{QueueShare, Shutdown, Worker, WorkerId, WorkerOptions, WorkerReport};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::config::lease;

/// A worker under way.
pub(crate) struct Working {
    shutdown: Shutdown,
    task: JoinHandle<longhaul_queue::Result<WorkerReport>>,
    ended: watch::Sender<bool>,
    id: WorkerId,
}

/// Options of a worker that serves one queue with so many slots.
pub(crate) fn options(app: &App, queue: &str, slots: usize) -> Result<WorkerOptions> {
    Ok(WorkerOptions {
        queues: vec![QueueShare::from(queue)],
        concurrency: slots,
        // A request cannot take its worker down; after a kill all that were under way may go on at once.
        suspects_max: slots,
        lease: app.settings.read("worker.lease", lease)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..WorkerOptions::default()
    })
}

impl Working {
    pub(crate) fn start(worker: Worker) -> Self {
        let shutdown = Shutdown::new();
        let ended = watch::Sender::new(false);
        let id = worker.control().id().clone();
        let (running, last) = (worker.run(shutdown.clone()), ended.clone());
        let task = tokio::spawn(async move {
            let report = running.await;
            last.send_replace(true);
            report
        });
        Self { shutdown, task, ended, id }
    }

    /// The worker's name, by which its jobs are told from those of others.
    pub(crate) fn id(&self) -> &WorkerId {
        &self.id
    }

    /// No more requests are sent; those under way may be answered.
    pub(crate) fn drain(&self) {
        self.shutdown.drain();
    }

    /// Requests under way are given back.
    pub(crate) fn abort(&self) {
        self.shutdown.stop();
    }

    /// Returns when the worker has ended. How is for [`Working::stop`] to say.
    pub(crate) async fn ended(&mut self) {
        let mut stopped = self.ended.subscribe();
        // An error means that the sender is gone, with the worker.
        let _ = stopped.wait_for(|ended| *ended).await;
    }

    /// Ends the worker, and answers what it did.
    pub(crate) async fn stop(self) -> Result<WorkerReport> {
        self.drain();
        Ok(self.task.await.context("the worker broke off")??)
    }
}
