//! Workers in the background of a test, and waits that end by the machine's time: a test may have paused tokio's.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Result, Shutdown, Worker, WorkerReport};

/// No test waits longer than this for something that should come.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the thread that waits looks whether it still has to.
const LOOKS: u32 = 600;

/// A worker that runs in the background.
#[derive(Debug)]
pub struct Started {
    /// Asks it to end.
    pub shutdown: Shutdown,
    task: JoinHandle<Result<WorkerReport>>,
}

impl Started {
    /// Starts it.
    pub fn new(worker: Worker) -> Self {
        let shutdown = Shutdown::new();
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Self { shutdown, task }
    }

    /// Waits for the worker's own end.
    pub async fn ended(self) -> WorkerReport {
        soon(self.task).await.expect("the worker does not panic").expect("the worker ends well")
    }

    /// Lets it end what it has begun.
    pub async fn drain(self) -> WorkerReport {
        self.shutdown.drain();
        self.ended().await
    }

    /// As if the process had died: nothing is settled.
    pub async fn kill(self) {
        self.task.abort();
        assert!(soon(self.task).await.is_err(), "the worker had ended before");
    }
}

/// A future that must end soon; this only turns a hang into a failure.
pub async fn soon<F: Future>(future: F) -> F::Output {
    let late = late();
    tokio::select! {
        output = future => output,
        _ = late => panic!("this should have happened by now"),
    }
}

/// Whether a future ended soon.
pub async fn patient(future: impl Future) -> bool {
    let late = late();
    tokio::select! {
        _ = future => true,
        _ = late => false,
    }
}

fn late() -> oneshot::Receiver<()> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        for _ in 0..LOOKS {
            std::thread::sleep(PATIENCE / LOOKS);
            if sender.is_closed() {
                return;
            }
        }
        let _ = sender.send(());
    });
    receiver
}
