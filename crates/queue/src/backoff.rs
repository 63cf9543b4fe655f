//! Waiting out a store that cannot be reached. In real time on purpose: an outage does not follow a job's clock.

use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Jittered waits that double from 10 ms to 2 s.
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST_WAIT }
    }

    /// The next wait, shortened by up to a half at random so that workers do not return together.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next.mul_f64(1.0 - 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(WAIT_MAX);
        wait
    }

    pub(crate) fn reset(&mut self) {
        self.next = FIRST_WAIT;
    }
}
