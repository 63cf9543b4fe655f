//! An OS thread that keeps this worker's leases alive, whatever its handlers do to the async runtime. It also watches
//! the clocks of every run (run limit, idle limit, grace time of a cancel), so that no job needs a timer of its own.
//!
//! It decides nothing about jobs: it renews, and tells runs to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tracing::{debug, warn};

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::live_run::{LiveRuns, Services, Stop};
use crate::store::{ExtendRequest, Renewal, WorkerInfo};

/// Its name when the store does not answer.
const WHO: &str = "heartbeat";
/// Time between two signs of life.
const BEAT_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for the store to answer one call, in real time.
const CALL_WAIT_MAX: Duration = Duration::from_secs(10);

/// The moment at which the heartbeat looks at the runs again.
pub(crate) struct Alarm {
    next_ms: AtomicI64,
    ring: Notify,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { next_ms: AtomicI64::new(i64::MAX), ring: Notify::new() }
    }
}

impl Alarm {
    /// Something is due at `at`: wakes the heartbeat if it would sleep longer.
    pub(crate) fn set(&self, at: Timestamp) {
        if at.as_millis() < self.next_ms.load(Ordering::Acquire) {
            self.ring.notify_one();
        }
    }
}

/// What the thread needs to know.
pub(crate) struct HeartbeatOptions {
    pub(crate) services: Arc<Services>,
    pub(crate) runs: Arc<LiveRuns>,
    pub(crate) lease: Duration,
    /// How this worker presents itself right now.
    pub(crate) info: Box<dyn Fn(Timestamp) -> WorkerInfo + Send + Sync>,
}

/// The running thread. Dropping it ends the thread as a crash would: without a goodbye.
pub(crate) struct Heartbeat {
    state: Arc<HeartbeatState>,
    gone: Option<oneshot::Receiver<()>>,
}

struct HeartbeatState {
    options: HeartbeatOptions,
    end: AtomicBool,
    say_goodbye: AtomicBool,
}

impl Heartbeat {
    /// Starts the thread.
    pub(crate) fn start(options: HeartbeatOptions) -> Result<Self> {
        let state = Arc::new(HeartbeatState {
            options,
            end: AtomicBool::new(false),
            say_goodbye: AtomicBool::new(false),
        });
        let (gone_sender, gone) = oneshot::channel();
        let of_thread = Arc::clone(&state);
        // Read here: leases may be taken before the thread has got going.
        let started_at = state.options.services.engine.clock().now();
        let (made_sender, made) = std::sync::mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("longhaul-heartbeat".to_owned())
            .spawn(move || {
                // Made in the thread: one that was made outside is dropped there when the thread cannot start, and a runtime
                // that is dropped inside of another panics.
                let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(made_sender.send(Err(error))),
                };
                let _ = made_sender.send(Ok(()));
                runtime.block_on(of_thread.run(started_at));
                // First: whoever hears that the thread has gone may close the store, which these hold.
                drop((runtime, of_thread));
                let _ = gone_sender.send(());
            })
            .map_err(|error| Error::Unavailable(format!("the heartbeat's thread cannot start: {error}")))?;
        let made = made.recv().unwrap_or_else(|_| Err(std::io::Error::other("its thread has ended")));
        made.map_err(|error| Error::Unavailable(format!("the heartbeat's runtime cannot start: {error}")))?;
        Ok(Self { state, gone: Some(gone) })
    }

    /// Ends the thread and signs the worker off.
    pub(crate) async fn finish(mut self) {
        self.state.say_goodbye.store(true, Ordering::Release);
        self.end();
        if let Some(gone) = self.gone.take() {
            let _ = gone.await;
        }
    }

    fn end(&self) {
        self.state.end.store(true, Ordering::Release);
        self.state.options.services.alarm.ring.notify_one();
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.end();
    }
}

impl HeartbeatState {
    async fn run(&self, started_at: Timestamp) {
        let HeartbeatOptions { services, runs, lease, .. } = &self.options;
        let clock = services.engine.clock();
        let mut beat_at = started_at;
        let third = *lease / 3;
        let mut renew_at = beat_at + third;
        while !self.end.load(Ordering::Acquire) {
            let now = clock.now();
            // A clock that was set back must not put off the next renewal.
            (renew_at, beat_at) = (renew_at.min(now + third), beat_at.min(now + BEAT_EVERY));
            if now >= beat_at {
                self.beat(now, false).await;
                beat_at = now + BEAT_EVERY;
            }
            if now >= renew_at {
                // After a failure soon again, while the leases still hold.
                let wait = if self.renew(now).await { third } else { third / 4 };
                renew_at = now + wait;
            }
            // While the next moment is not known every newcomer rings, and a ring that nobody waits for is kept.
            services.alarm.next_ms.store(i64::MAX, Ordering::Release);
            let limit_at = runs.enforce_limits(now);
            let next = limit_at.unwrap_or(renew_at).min(renew_at).min(beat_at);
            services.alarm.next_ms.store(next.as_millis(), Ordering::Release);
            tokio::select! {
                () = clock.sleep_until(next) => {}
                () = services.alarm.ring.notified() => {}
            }
        }
        if self.say_goodbye.load(Ordering::Acquire) {
            self.beat(clock.now(), true).await;
        }
    }

    async fn beat(&self, now: Timestamp, gone: bool) {
        let info = WorkerInfo { gone, ..(self.options.info)(now) };
        let store = self.options.services.engine.store();
        if let Err(error) = within_wait(store.heartbeat(info)).await {
            debug!(%error, "sign of life not stored");
        }
    }

    /// Renews every lease in one call; false when the store did not answer.
    async fn renew(&self, now: Timestamp) -> bool {
        let HeartbeatOptions { services, runs, lease, .. } = &self.options;
        let mut held = runs.all();
        held.retain(|run| run.is_renewable(now) && run.stop_reason() != Some(Stop::LostLease));
        if held.is_empty() {
            services.engine.outages().answered(WHO);
            return true;
        }
        let leases = held.iter().map(|run| run.lease.clone()).collect();
        let request = ExtendRequest { leases, lease_for: *lease, now };
        match within_wait(services.engine.store().extend(request)).await {
            Ok(renewals) => {
                services.engine.outages().answered(WHO);
                for (run, renewal) in held.iter().zip(renewals) {
                    match renewal {
                        Renewal::Extended { cancel_requested: false, .. } => {}
                        Renewal::Extended { cancel_requested: true, .. } => run.request_cancel(now),
                        Renewal::Lost => run.stop(Stop::LostLease),
                    }
                }
                true
            }
            Err(error) => {
                match error.is_transient() {
                    true => services.engine.outages().failed(WHO, &error),
                    false => {
                        warn!(%error, leases = held.len(), "leases could not be renewed, trying again soon");
                    }
                }
                false
            }
        }
    }
}

async fn within_wait<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let late =
        |_| Error::Unavailable(format!("no answer from the store within {} s", CALL_WAIT_MAX.as_secs()));
    tokio::time::timeout(CALL_WAIT_MAX, call).await.map_err(late)?
}
