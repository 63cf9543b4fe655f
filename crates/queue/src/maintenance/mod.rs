//! What time moves: four duties of one shape. Any number of processes may run them at once; the store makes each
//! change once, and one process leads, so that the others need not look so often (`leader`).
//!
//! A duty sweeps, then sleeps until the store says that there is more to do, until its interval has passed, or until
//! something changed in the store that may have brought an earlier time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::client::Queue;
use crate::engine::Engine;
use crate::error::Result;
use crate::limits::SWEEP_MAX;
use crate::shutdown::Shutdown;
use crate::store::{EngineStore, Swept, Task};

mod cron;
mod leader;
mod promoter;
mod pruner;
mod rescuer;

pub use cron::{Cron, next_after};
pub use leader::Leader;
use leader::{Leadership, Patience};
pub use promoter::Promoter;
pub use pruner::Pruner;
pub use rescuer::Rescuer;

/// One background duty.
#[async_trait]
pub trait Duty: Send + Sync + 'static {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// What it works on.
    fn queue(&self) -> &Queue;

    /// How it is paced.
    fn pace(&self) -> Pace;

    /// Does what is due now, up to the pace's limit.
    async fn run_once(&self) -> Result<Swept>;
}

/// How often a duty looks, and how much it does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Longest time between two sweeps.
    pub interval: Duration,
    /// Real time between a change in the store and the sweep that it suggests; `None` ignores changes.
    pub change_gap: Option<Duration>,
    /// Rows that one sweep changes.
    pub batch_max: usize,
}

/// Settings of all duties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaintenanceOptions {
    /// Scheduled jobs, parks and expiry. Default: every 10 s, within 5 ms of a change.
    pub promoter: Pace,
    /// Expired leases. Default: every 5 s, within 1 s of a change.
    pub rescuer: Pace,
    /// Retention. Default: every minute.
    pub pruner: Pace,
    /// Schedules. Default: every 30 s, within 250 ms of a change.
    pub cron: Pace,
}

impl Default for MaintenanceOptions {
    fn default() -> Self {
        let pace = |interval_s, change_gap_ms: Option<u64>| Pace {
            interval: Duration::from_secs(interval_s),
            change_gap: change_gap_ms.map(Duration::from_millis),
            batch_max: SWEEP_MAX,
        };
        Self {
            promoter: pace(10, Some(5)),
            rescuer: pace(5, Some(1000)),
            pruner: pace(60, None),
            cron: pace(30, Some(250)),
        }
    }
}

/// The four duties, running. Dropping it ends them. A [`crate::Worker`] runs them by itself; this is for programs that
/// want them without one.
pub struct Maintenance {
    shutdown: Shutdown,
    tasks: JoinSet<()>,
}

impl Maintenance {
    /// Starts the duties, under a name of their own.
    pub fn spawn(engine: &Engine, options: MaintenanceOptions) -> Self {
        Self::spawn_as(format!("m-{:016x}", fastrand::u64(..)), engine, options)
    }

    /// Starts the duties. `holder` is this process's name where it leads.
    pub fn spawn_as(holder: String, engine: &Engine, options: MaintenanceOptions) -> Self {
        let duties: [Arc<dyn Duty>; 4] = [
            Arc::new(Promoter::new(engine.clone(), options.promoter)),
            Arc::new(Rescuer::new(engine.clone(), options.rescuer)),
            Arc::new(Pruner::new(engine.clone(), options.pruner)),
            Arc::new(Cron::new(engine.clone(), options.cron)),
        ];
        let shutdown = Shutdown::new();
        let leadership = Leadership::new(engine.clone(), holder);
        let mut tasks = JoinSet::new();
        tasks.spawn(near_changes(Arc::clone(engine.store()), run_all(duties, leadership, shutdown.clone())));
        Self { shutdown, tasks }
    }

    /// Lets each duty finish its sweep, then ends them.
    pub async fn stop(mut self) {
        self.shutdown.drain();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Runs `work` where the store hears of changes, so that a change wakes no other thread for it. It ends when this is dropped.
async fn near_changes(store: Arc<dyn EngineStore>, work: impl Future<Output = ()> + Send + 'static) {
    let (mut running, ended) = oneshot::channel::<()>();
    let task: Task = Box::pin(async move {
        tokio::select! {
            () = work => {}
            () = running.closed() => {}
        }
    });
    match store.spawn_on_listener(task) {
        Some(task) => task.await,
        // An error, because nothing is ever sent: the task has dropped its end.
        None => drop(ended.await),
    }
}

async fn run_all(duties: [Arc<dyn Duty>; 4], leadership: Arc<Leadership>, shutdown: Shutdown) {
    let mut tasks = JoinSet::new();
    for duty in duties {
        let (leads, shutdown) = (leadership.watch(), shutdown.clone());
        tasks.spawn(async move { run(duty.as_ref(), leads, shutdown).await });
    }
    tasks.spawn(async move { leadership.run(shutdown).await });
    while tasks.join_next().await.is_some() {}
}

/// The loop of every duty.
async fn run(duty: &dyn Duty, mut leads: watch::Receiver<bool>, shutdown: Shutdown) {
    let (queue, pace) = (duty.queue(), duty.pace());
    let mut patience = Patience::new();
    let mut changes = queue.store().watch();
    let mut backoff = Backoff::new();
    while !shutdown.is_requested() {
        changes.mark_unchanged();
        let swept = match duty.run_once().await {
            Ok(swept) => {
                backoff.reset();
                queue.outages().answered(duty.name());
                swept
            }
            Err(error) => {
                match error.is_transient() {
                    true => queue.outages().failed(duty.name(), &error),
                    false => {
                        warn!(duty = duty.name(), %error, "sweep failed, trying again");
                        queue.outages().suspect();
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(backoff.next_wait()) => {}
                    () = shutdown.requested() => {}
                }
                continue;
            }
        };
        if swept.changed > 0 {
            debug!(duty = duty.name(), changed = swept.changed, "swept");
        }
        let now = queue.clock().now();
        let (until, change_gap) = patience.after(swept, *leads.borrow_and_update(), pace, now);
        if until <= now && swept.changed > 0 {
            // The limit cut the sweep. Others may run in between.
            tokio::task::yield_now().await;
            continue;
        }
        // A next time that is past although nothing could be done must not make the loop spin.
        let until = if until <= now { now + Duration::from_millis(1) } else { until };
        tokio::select! {
            () = queue.clock().sleep_until(until) => {}
            () = changed(&mut changes, change_gap) => {}
            Ok(()) = leads.changed() => {}
            () = shutdown.requested() => {}
        }
    }
}

/// Returns a while after something has changed: more may come, and whoever the change was for goes first.
async fn changed(changes: &mut watch::Receiver<u64>, gap: Option<Duration>) {
    if let Some(gap) = gap
        && changes.changed().await.is_ok()
    {
        return tokio::time::sleep(gap).await;
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::memory::MemoryStore;
    use crate::{Json, NewJob};

    const GAP: Duration = Duration::from_millis(5);

    struct Counted {
        queue: Queue,
        sweeps: AtomicUsize,
    }

    #[async_trait]
    impl Duty for Counted {
        fn name(&self) -> &'static str {
            "counted"
        }

        fn queue(&self) -> &Queue {
            &self.queue
        }

        fn pace(&self) -> Pace {
            Pace { interval: Duration::from_secs(3600), change_gap: Some(GAP), batch_max: 1 }
        }

        async fn run_once(&self) -> Result<Swept> {
            self.sweeps.fetch_add(1, Ordering::Relaxed);
            Ok(Swept::default())
        }
    }

    /// Whoever waits for a new job is not behind a sweep, and a burst of changes is one reason to look.
    #[tokio::test(start_paused = true)]
    async fn a_sweep_follows_a_change_and_those_that_come_with_it() {
        let queue = Queue::new(Arc::new(MemoryStore::new()));
        let duty = Arc::new(Counted { queue: queue.clone(), sweeps: AtomicUsize::new(0) });
        let sweeps = || duty.sweeps.load(Ordering::Relaxed);
        let (leads, shutdown) = (watch::Sender::new(true), Shutdown::new());
        let running = tokio::spawn({
            let (duty, leads, shutdown) = (Arc::clone(&duty), leads.subscribe(), shutdown.clone());
            async move { run(duty.as_ref(), leads, shutdown).await }
        });
        let tick = Duration::from_millis(1);
        tokio::time::sleep(tick).await;
        assert_eq!(sweeps(), 1, "at its start");
        for _ in 0..3 {
            queue.enqueue(NewJob::new("k", Json::null())).await.expect("enqueued");
            tokio::time::sleep(tick).await;
            assert_eq!(sweeps(), 1, "not at once");
        }
        tokio::time::sleep(GAP).await;
        assert_eq!(sweeps(), 2, "one for the three");
        tokio::time::sleep(GAP * 100).await;
        assert_eq!(sweeps(), 2, "and none without a reason");
        shutdown.drain();
        running.await.expect("it ends");
    }
}
