//! What the machine lacks for a command to start: descriptors, processes, memory. The job has not failed, so it
//! waits in its slot, which keeps the worker from claiming more, and is then given back without losing an attempt.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_queue::{JobContext, Outcome};
use rustix::io::Errno;
use tracing::warn;

/// Delay between two attempts to start a command: doubled each time, from the first value up to the second.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A job that could not be started for this long goes back, for a worker elsewhere, and is due again after the same time.
const HELD_MAX: Duration = Duration::from_secs(10);

/// A shortage is over when nothing was lacking for this long; of several commands some may start while others cannot.
const OVER_AFTER: Duration = Duration::from_secs(60);

/// When a command could not be started last. A shortage is reported once.
#[derive(Debug, Default)]
pub(super) struct Machine {
    lacked_at: Mutex<Option<Instant>>,
}

/// How long a job has waited for its start.
pub(super) struct Waited {
    since: Instant,
    next: Duration,
}

impl Default for Waited {
    fn default() -> Self {
        Self { since: Instant::now(), next: WAIT_MIN }
    }
}

impl Machine {
    /// After a start that failed: waits, and answers how the run ends where it is not to be tried again here. Fails by what is wrong
    /// with the command itself.
    pub(super) async fn wait(
        &self,
        context: &JobContext,
        error: io::Error,
        waited: &mut Waited,
    ) -> io::Result<Option<Outcome>> {
        if !is_the_machines(&error) {
            return Err(error);
        }
        self.tell(&error);
        // A job that was woken by a signal has it in this run only, so it is not handed on.
        let may_go = context.wake().is_none();
        tokio::select! {
            () = tokio::time::sleep(waited.next) => {}
            () = context.cancelled(), if may_go => return Ok(Some(given_back(None))),
        }
        waited.next = (waited.next * 2).min(WAIT_MAX);
        let is_over = may_go && waited.since.elapsed() >= HELD_MAX;
        Ok(is_over.then(|| given_back(Some(HELD_MAX))))
    }

    fn tell(&self, error: &io::Error) {
        let before = self.lacked_at.lock().unwrap_or_else(PoisonError::into_inner).replace(Instant::now());
        if before.is_none_or(|at| at.elapsed() > OVER_AFTER) {
            warn!(
                %error,
                hint = "raise the limit (ulimit -n, ulimit -u) or lower --concurrency",
                "no command can be started, jobs wait and lose no attempt"
            );
        }
    }
}

fn given_back(after: Option<Duration>) -> Outcome {
    Outcome::Continue { after, data: None }
}

fn is_the_machines(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM];
    error.raw_os_error().is_some_and(|code| lacking.iter().any(|lack| lack.raw_os_error() == code))
}
