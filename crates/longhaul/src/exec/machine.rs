//! What the machine lacks for a command to start: descriptors, processes, memory. That is nobody's failure but the machine's, so a
//! job waits in its slot, which keeps the worker from claiming more, and is then given back at no cost.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longhaul_queue::{JobContext, Outcome};
use rustix::io::Errno;
use tracing::{info, warn};

/// Between two tries to start a command: doubled each time, up to the second.
const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);
/// A job that could not be started for so long goes back, for a worker elsewhere, and is due again after the same time.
const HELD_MAX: Duration = Duration::from_secs(10);

/// Whether commands start here. Told once when they cease to, and once when they start again.
#[derive(Debug, Default)]
pub(super) struct Machine {
    lacks: AtomicBool,
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
    /// Something was started.
    pub(super) fn started(&self) {
        if self.lacks.swap(false, Ordering::Relaxed) {
            info!("commands can be started again");
        }
    }

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
        if !self.lacks.swap(true, Ordering::Relaxed) {
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
