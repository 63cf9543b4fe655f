//! What time moves: four duties of one shape. Any number of processes may run them at once; the store makes each
//! change once.
//!
//! A duty sweeps, then sleeps until the store says that there is more to do, until its interval has passed, or until
//! something changed in the store that may have brought an earlier time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::client::Queue;
use crate::error::Result;
use crate::limits::SWEEP_MAX;
use crate::shutdown::Shutdown;
use crate::store::Swept;

mod cron;
mod promoter;
mod pruner;
mod rescuer;

pub use cron::{Cron, next_after};
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

    /// Sweeps until the shutdown asks for the end.
    async fn run(&self, shutdown: Shutdown) {
        run(self, shutdown).await;
    }
}

/// How often a duty looks, and how much it does at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Longest time between two sweeps.
    pub interval: Duration,
    /// Least real time between two sweeps that only a change in the store suggests; `None` ignores changes.
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
    /// Starts the duties on the current runtime.
    pub fn spawn(queue: &Queue, options: MaintenanceOptions) -> Self {
        let duties: [Arc<dyn Duty>; 4] = [
            Arc::new(Promoter::new(queue.clone(), options.promoter)),
            Arc::new(Rescuer::new(queue.clone(), options.rescuer)),
            Arc::new(Pruner::new(queue.clone(), options.pruner)),
            Arc::new(Cron::new(queue.clone(), options.cron)),
        ];
        let shutdown = Shutdown::new();
        let mut tasks = JoinSet::new();
        for duty in duties {
            let shutdown = shutdown.clone();
            tasks.spawn(async move { duty.run(shutdown).await });
        }
        Self { shutdown, tasks }
    }

    /// Lets each duty finish its sweep, then ends them.
    pub async fn stop(mut self) {
        self.shutdown.drain();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The loop of every duty.
async fn run<D: Duty + ?Sized>(duty: &D, shutdown: Shutdown) {
    let (queue, pace) = (duty.queue(), duty.pace());
    let mut changes = queue.store().watch();
    let mut backoff = Backoff::new();
    while !shutdown.is_requested() {
        changes.mark_unchanged();
        let looked_at = Instant::now();
        let swept = match duty.run_once().await {
            Ok(swept) => {
                backoff.reset();
                queue.outages().answered(duty.name());
                swept
            }
            Err(error) => {
                match error.is_transient() {
                    true => queue.outages().failed(duty.name(), &error),
                    false => warn!(duty = duty.name(), %error, "sweep failed, trying again"),
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
        let until = swept.next_at.unwrap_or(now + pace.interval).min(now + pace.interval);
        if until <= now && swept.changed > 0 {
            // The limit cut the sweep. Others may run in between.
            tokio::task::yield_now().await;
            continue;
        }
        // A next time that is past although nothing could be done must not make the loop spin.
        let until = if until <= now { now + Duration::from_millis(1) } else { until };
        tokio::select! {
            () = queue.clock().sleep_until(until) => {}
            () = changed(&mut changes, looked_at, pace.change_gap) => {}
            () = shutdown.requested() => {}
        }
    }
}

async fn changed(changes: &mut tokio::sync::watch::Receiver<u64>, looked_at: Instant, gap: Option<Duration>) {
    if let Some(gap) = gap {
        tokio::time::sleep_until(looked_at + gap).await;
        if changes.changed().await.is_ok() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
