//! Stops calling a provider that does not answer, and probes it with single calls until it does.

use std::time::Duration;

use tokio::time::Instant;

/// Calls in a row without an answer that open the breaker.
const UNANSWERED_MAX: u32 = 5;
/// How long the first opening lasts; each further one in a row twice as long.
const OPEN_FOR: Duration = Duration::from_secs(5);
const OPEN_FOR_MAX: Duration = Duration::from_secs(60);

/// Closed: calls pass. Open: none does until `open_until`. After that one at a time, the probe, until one succeeds.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The provider was heard of, if only with an error.
    reached: bool,
    in_a_row: u32,
    openings: u32,
    open_until: Option<Instant>,
    probing: bool,
}

/// Whether an unanswered call had a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    Yes,
    No,
}

/// What the breaker says to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Yes,
    At(Instant),
    /// After the probe that is under way.
    AfterProbe,
}

impl Breaker {
    pub(super) fn pass(&self, now: Instant) -> Pass {
        match self.open_until {
            Some(until) if until > now => Pass::At(until),
            Some(_) if self.probing => Pass::AfterProbe,
            Some(_) | None => Pass::Yes,
        }
    }

    /// A call goes; whether it is the probe.
    pub(super) fn admit(&mut self) -> bool {
        self.probing = self.open_until.is_some();
        self.probing
    }

    /// The provider answered, if only with a 429.
    pub(super) fn answered(&mut self) {
        *self = Self { reached: true, ..Self::default() };
    }

    /// The provider did not answer. An address that was never reached opens the breaker at once: what is wrong with it is wrong
    /// for every call. Calls that were under way when the breaker opened do not open it further.
    pub(super) fn unanswered(&mut self, probe: bool, reached: Reached, now: Instant) {
        self.reached |= reached == Reached::Yes;
        self.in_a_row = self.in_a_row.saturating_add(1);
        let trips = match self.open_until {
            Some(_) => probe,
            None => self.in_a_row >= UNANSWERED_MAX || !self.reached,
        };
        if trips {
            self.open_until = Some(now + open_for(self.openings));
            self.openings = self.openings.saturating_add(1);
            self.probing = false;
        }
    }

    /// A call ended without a word about the provider; if it was the probe, another may go.
    pub(super) fn nothing_learnt(&mut self, probe: bool) {
        self.probing &= !probe;
    }

    /// How long until one call finds out whether the outage is over, while there is one.
    pub(super) fn outage(&self, now: Instant) -> Option<Duration> {
        Some(self.open_until?.saturating_duration_since(now))
    }
}

fn open_for(openings: u32) -> Duration {
    OPEN_FOR.saturating_mul(2_u32.saturating_pow(openings)).min(OPEN_FOR_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_after_a_row_probes_once_and_waits_longer_each_time() {
        let mut now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 1..UNANSWERED_MAX {
            breaker.unanswered(breaker.probing, Reached::Yes, now);
            assert_eq!(breaker.pass(now), Pass::Yes);
        }
        for wait_s in [5, 10, 20, 40, 60, 60] {
            let probe = breaker.probing;
            breaker.unanswered(probe, Reached::Yes, now);
            // A straggler from before changes nothing.
            breaker.unanswered(false, Reached::Yes, now);
            let until = now + Duration::from_secs(wait_s);
            assert_eq!(breaker.pass(now), Pass::At(until));
            assert_eq!(breaker.outage(now), Some(Duration::from_secs(wait_s)));
            now = until;
            assert_eq!(breaker.pass(now), Pass::Yes);
            assert!(breaker.admit());
            assert_eq!(breaker.pass(now), Pass::AfterProbe);
        }
        breaker.answered();
        assert_eq!((breaker.pass(now), breaker.outage(now)), (Pass::Yes, None));
        assert!(!breaker.admit());
    }

    #[test]
    fn an_address_that_was_never_reached_opens_at_once_and_one_that_was_does_not() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.unanswered(false, Reached::No, now);
        assert_eq!(breaker.outage(now), Some(OPEN_FOR));
        breaker.answered();
        for _ in 1..UNANSWERED_MAX {
            breaker.unanswered(false, Reached::No, now);
            assert_eq!(breaker.outage(now), None);
        }
        breaker.unanswered(false, Reached::No, now);
        assert_eq!(breaker.outage(now), Some(OPEN_FOR));
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..3 {
            for _ in 1..UNANSWERED_MAX {
                breaker.unanswered(false, Reached::Yes, now);
            }
            breaker.answered();
        }
        assert_eq!(breaker.pass(now), Pass::Yes);
    }

    #[test]
    fn a_lost_probe_makes_room_for_another() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for _ in 0..UNANSWERED_MAX {
            breaker.unanswered(false, Reached::Yes, now);
        }
        assert!(breaker.admit());
        breaker.nothing_learnt(true);
        assert_eq!(breaker.pass(now + OPEN_FOR), Pass::Yes);
    }
}
