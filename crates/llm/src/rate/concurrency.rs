//! How many calls may be under way. On hosted routes this is only a guard for memory and sockets once a limit is known; on
//! local engines it is the control itself.

use tokio::time::Instant;

use super::adaptive;
use super::latency::Latency;
use super::{Engine, Learnt, RouteLimits};

/// The guard where nothing is configured.
pub(super) const CONCURRENCY_MAX: usize = 2048;
/// An engine known from before starts with this share of what it had.
const RESUME_SHARE: f64 = 0.25;
/// The limit grows only while it is in the way.
const SATURATED: f64 = 0.8;

/// The limit on calls under way.
#[derive(Debug)]
pub(super) struct Concurrency {
    law: Law,
    limit: f64,
    max: f64,
}

#[derive(Debug)]
enum Law {
    /// The engine's slots are known: they are the limit.
    Slots,
    /// Doubles until limits are told or calls are refused: from then on these set the pace.
    Doubling,
    /// Others set the pace.
    Guard,
    /// Grows until calls slow down.
    Latency(Latency),
}

/// A call that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub admitted_at: Instant,
    /// Calls under way when it ended, itself included.
    pub in_flight: usize,
    pub seconds: f64,
    /// Tokens that it took the time to make.
    pub tokens: f64,
}

impl Concurrency {
    pub(super) fn new(limits: &RouteLimits, learnt: &Learnt, now: Instant) -> Self {
        let max = limits.concurrency_max.unwrap_or(CONCURRENCY_MAX).max(1) as f64;
        let (law, start) = match limits.engine {
            Engine::Local { slots: Some(slots) } => (Law::Slots, slots.max(1) as f64),
            Engine::Local { slots: None } => {
                (Law::Latency(Latency::new(learnt.seconds_per_token, now)), adaptive::START)
            }
            // Limits known from before pace the calls; a low guard would only be in the way.
            Engine::Hosted if learnt.has_limits() => (Law::Guard, max),
            Engine::Hosted => (Law::Doubling, adaptive::START),
        };
        let limit = match (&law, learnt.concurrency) {
            (Law::Latency(_), Some(known)) => (known as f64 * RESUME_SHARE).max(start),
            (Law::Latency(_) | Law::Slots | Law::Doubling | Law::Guard, _) => start,
        };
        Self { law, limit: limit.min(max), max }
    }

    /// Most calls under way, at present.
    pub(super) fn limit(&self) -> usize {
        self.limit.max(1.0) as usize
    }

    /// The limits of a hosted route are known, be it by a refusal.
    pub(super) fn lift(&mut self) {
        if matches!(self.law, Law::Doubling) {
            (self.law, self.limit) = (Law::Guard, self.max);
        }
    }

    /// A call was answered.
    pub(super) fn answered(&mut self, sample: Sample, now: Instant) {
        // Of whole calls: one call under way saturates a limit of 1.9.
        let saturated = sample.in_flight as f64 >= SATURATED * self.limit.floor();
        let limit = match &mut self.law {
            // A round is as many answers as the limit: one more each doubles it.
            Law::Doubling if saturated => self.limit + 1.0,
            Law::Slots | Law::Doubling | Law::Guard => self.limit,
            Law::Latency(latency) => latency.answered(sample, self.limit, now).unwrap_or(self.limit),
        };
        self.limit = limit.clamp(1.0, self.max);
    }

    /// The limit, where it had to be found out.
    pub(super) fn learnt(&self) -> Option<usize> {
        (matches!(self.law, Law::Latency(_)) && self.limit < self.max).then(|| self.limit())
    }

    /// Seconds a token without load, where they had to be found out.
    pub(super) fn seconds_per_token(&self) -> Option<f64> {
        match &self.law {
            Law::Latency(latency) => latency.base(),
            Law::Slots | Law::Doubling | Law::Guard => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Meter;

    fn hosted() -> Concurrency {
        Concurrency::new(&RouteLimits::default(), &Learnt::default(), Instant::now())
    }

    /// As many answers as the limit, while a share of it is under way.
    fn round(concurrency: &mut Concurrency, share: f64) {
        let now = Instant::now();
        for _ in 0..concurrency.limit() {
            let in_flight = (share * concurrency.limit).round() as usize;
            concurrency.answered(Sample { admitted_at: now, in_flight, seconds: 1.0, tokens: 1.0 }, now);
        }
    }

    #[test]
    fn clean_rounds_double_until_others_set_the_pace() {
        let mut concurrency = hosted();
        for limit in [4, 8, 16, 32, 64] {
            assert_eq!(concurrency.limit(), limit);
            round(&mut concurrency, 1.0);
        }
        concurrency.lift();
        assert_eq!(concurrency.limit(), CONCURRENCY_MAX);
        round(&mut concurrency, 1.0);
        assert_eq!(concurrency.limit(), CONCURRENCY_MAX);
    }

    #[test]
    fn a_limit_that_is_not_in_the_way_does_not_grow() {
        let mut concurrency = hosted();
        concurrency.limit = 100.0;
        round(&mut concurrency, 0.79);
        assert_eq!(concurrency.limit(), 100);
        round(&mut concurrency, 0.9);
        assert!(concurrency.limit() > 100);
    }

    #[test]
    fn the_start_is_small_unless_something_is_known() {
        let limits = |engine| RouteLimits { engine, ..RouteLimits::default() };
        let (nothing, now) = (Learnt::default(), Instant::now());
        let known = Learnt { concurrency: Some(200), ..Learnt::default() };
        let told = Learnt { requests: Some(600), ..Learnt::default() };
        let found = Learnt { found: vec![(Meter::Requests, 600)], ..Learnt::default() };
        let table = [
            (Engine::Hosted, &nothing, 4),
            (Engine::Hosted, &told, CONCURRENCY_MAX),
            (Engine::Hosted, &found, CONCURRENCY_MAX),
            (Engine::Local { slots: None }, &nothing, 4),
            (Engine::Local { slots: None }, &known, 50),
            (Engine::Local { slots: Some(8) }, &known, 8),
        ];
        for (engine, learnt, limit) in table {
            assert_eq!(
                Concurrency::new(&limits(engine), learnt, now).limit(),
                limit,
                "{engine:?} {learnt:?}"
            );
        }
    }
}
