//! The time of a server that several machines share. Leases are given and taken by it, so that a machine whose clock is
//! wrong neither keeps a dead worker's jobs nor takes a living one's.
//!
//! The server is asked when a store connects and every minute; in between, time goes on by this machine's monotonic
//! clock, so setting the wall clock changes nothing. A store that was given a clock of its own, as tests do, goes by that.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use longhaul_queue::{Clock, Timestamp};
use tracing::warn;

/// How often the server is asked.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(60);
/// Answers of which the fastest counts, when a store connects.
pub(crate) const FIRST_READINGS: usize = 3;
/// A step that is worth telling somebody.
const STEP_TOLD: Duration = Duration::from_secs(1);

/// A server's answer to "what time is it".
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// What it said.
    pub(crate) server: Timestamp,
    /// When it was asked.
    pub(crate) asked: Instant,
    /// When the answer was here.
    pub(crate) answered: Instant,
}

impl Reading {
    fn took(&self) -> Duration {
        self.answered.duration_since(self.asked)
    }

    /// The server's time at an instant, if it answered in the middle of its wait.
    fn at(&self, instant: Instant) -> Timestamp {
        let middle = self.asked + self.took() / 2;
        match instant.checked_duration_since(middle) {
            Some(later) => self.server + later,
            None => self.server - middle.duration_since(instant),
        }
    }

    /// How far it may be off: half its wait, and what milliseconds cannot tell.
    fn doubt(&self) -> Duration {
        self.took() / 2 + Duration::from_millis(1)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ServerClock(Mutex<Reading>);

impl ServerClock {
    /// Goes by the fastest of some readings.
    pub(crate) fn new(first: Reading, others: &[Reading]) -> Self {
        let fastest = others
            .iter()
            .copied()
            .fold(first, |best, next| if next.took() < best.took() { next } else { best });
        Self(Mutex::new(fastest))
    }

    /// Takes a reading in. One that agrees with what is known, as far as it can tell, changes nothing: the clock does
    /// not tremble with the network.
    pub(crate) fn hear(&self, reading: Reading) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (expected, told) = (known.at(reading.answered), reading.at(reading.answered));
        let apart = told.since(expected).max(expected.since(told));
        if apart <= reading.doubt() {
            return;
        }
        if apart >= STEP_TOLD {
            warn!(
                apart_ms = apart.as_millis(),
                "the server's clock has been set, or another server answers now"
            );
        }
        *known = reading;
    }
}

#[async_trait]
impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).at(Instant::now())
    }

    async fn sleep_until(&self, until: Timestamp) {
        tokio::time::sleep(until.since(self.now())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED_MS: i64 = 1_000_000;

    fn reading(asked: Instant, took_ms: u64, server_ms: i64) -> Reading {
        let answered = asked + Duration::from_millis(took_ms);
        Reading { server: Timestamp::from_millis(server_ms), asked, answered }
    }

    fn off_by(clock: &ServerClock, at: Instant) -> i64 {
        clock.0.lock().expect("no test panics in it").at(at).as_millis() - ASKED_MS
    }

    #[test]
    fn the_fastest_answer_counts_and_its_middle_is_when_the_server_spoke() {
        let start = Instant::now();
        let slow = reading(start, 400, ASKED_MS + 5_000);
        let fast = reading(start, 20, ASKED_MS);
        let clock = ServerClock::new(slow, &[fast]);
        assert_eq!(off_by(&clock, start + Duration::from_millis(10)), 0);
        assert_eq!(
            off_by(&clock, start + Duration::from_millis(1_010)),
            1_000,
            "time goes on without asking"
        );
    }

    #[test]
    fn a_reading_that_cannot_tell_better_changes_nothing_and_one_that_can_does() {
        let start = Instant::now();
        let clock = ServerClock::new(reading(start, 2, ASKED_MS), &[]);
        let later = start + Duration::from_secs(60);
        clock.hear(reading(later, 200, ASKED_MS + 60_000 + 50));
        assert_eq!(
            off_by(&clock, later + Duration::from_millis(1)),
            60_000,
            "a slow answer says nothing new"
        );
        for (step_ms, what) in
            [(40, "drift is followed"), (-3_600_000, "a clock that was set back is followed too")]
        {
            clock.hear(reading(later, 2, ASKED_MS + 60_000 + step_ms));
            assert_eq!(off_by(&clock, later + Duration::from_millis(1)), 60_000 + step_ms, "{what}");
        }
    }
}
