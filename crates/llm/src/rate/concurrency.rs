//! How many calls may be under way. Where headers tell the limits, this is only a guard for memory and sockets; elsewhere
//! it is the control itself, by one of three laws.

use std::time::Duration;

use tokio::time::Instant;

use super::latency::Latency;
use super::{Engine, Learnt, RouteLimits};

/// The guard where nothing is configured.
const CONCURRENCY_MAX: usize = 2048;
/// The first calls of a route of which nothing is known.
const CONCURRENCY_START: f64 = 4.0;
/// A route known from before starts with this share of what it had, and doubles up to it.
const RESUME_SHARE: f64 = 0.25;
/// What a refusal leaves of the limit.
const CUT: f64 = 0.7;
/// The same while doubling: the limit of a round ago was the last that is known to be good.
const CUT_DOUBLING: f64 = 0.5;
/// A limit that gets so far beyond where it was last refused meets a new one somewhere else, and doubles up to it.
const BEYOND: f64 = 1.2;
/// All refusals of one mistake count once.
const CUT_EVERY: Duration = Duration::from_secs(5);
/// Growth an answer after the first cut: a clean round has as many answers as the limit, so it is 7 % a round.
const GROWTH: f64 = 0.07;
/// Weight of the newest call in the mean latency.
const LATENCY_WEIGHT: f64 = 0.1;
/// The limit grows only while it is in the way.
const SATURATED: f64 = 0.8;

/// The limit on calls under way.
#[derive(Debug)]
pub(super) struct Concurrency {
    law: Law,
    limit: f64,
    max: f64,
    /// Below it, a clean round doubles the limit.
    threshold: f64,
    last_cut: Option<Cut>,
    /// Mean seconds of a call.
    latency_s: Option<f64>,
    /// Once calls were refused, they go one by one: as many a second as the limit allows, not all when a pause ends. That
    /// is also what tells a limit of 1.4 calls from one of 1.
    next_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    at: Instant,
    /// The limit that was refused.
    from: f64,
}

#[derive(Debug)]
enum Law {
    /// The engine's slots are known: they are the limit.
    Slots,
    /// Grows until calls are refused.
    Refusals,
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
                (Law::Latency(Latency::new(learnt.seconds_per_token, now)), CONCURRENCY_START)
            }
            Engine::Hosted => (Law::Refusals, CONCURRENCY_START),
        };
        let (limit, threshold) = match (&law, learnt.concurrency) {
            (Law::Refusals | Law::Latency(_), Some(known)) => {
                ((known as f64 * RESUME_SHARE).max(start), known as f64)
            }
            // Limits known from before pace the calls; a low guard would only be in the way.
            (Law::Refusals, None) if learnt.has_limits() => (max, max),
            (Law::Slots | Law::Refusals | Law::Latency(_), _) => (start, f64::INFINITY),
        };
        Self { law, limit: limit.min(max), max, threshold, last_cut: None, latency_s: None, next_at: None }
    }

    /// Most calls under way, at present.
    pub(super) fn limit(&self) -> usize {
        match self.law {
            // Calls that go one by one need a place for the last of them.
            Law::Refusals if self.last_cut.is_some() => self.limit.ceil() as usize + 1,
            Law::Slots | Law::Refusals | Law::Latency(_) => self.limit.max(1.0) as usize,
        }
    }

    /// When the next call may go, if the limit alone would let it go now.
    pub(super) fn next_at(&self, now: Instant) -> Option<Instant> {
        self.next_at.filter(|next_at| *next_at > now)
    }

    /// A call goes.
    pub(super) fn admit(&mut self, now: Instant) {
        if let (Law::Refusals, Some(_), Some(latency_s)) = (&self.law, self.last_cut, self.latency_s) {
            self.next_at = Some(now + Duration::from_secs_f64(latency_s / self.limit));
        }
    }

    /// Headers tell the limits: they pace the calls from now on. Not if calls were refused without their telling why, for
    /// then there is a limit that they do not tell.
    pub(super) fn told(&mut self) {
        if matches!(self.law, Law::Refusals) && self.last_cut.is_none() {
            self.limit = self.max;
        }
    }

    /// A call was answered.
    pub(super) fn answered(&mut self, sample: Sample, now: Instant) {
        let latency_s = self.latency_s.unwrap_or(sample.seconds);
        self.latency_s = Some(latency_s + LATENCY_WEIGHT * (sample.seconds - latency_s));
        // Of whole calls: one call under way saturates a limit of 1.9.
        let saturated = sample.in_flight as f64 >= SATURATED * self.limit.floor();
        if self.last_cut.is_some_and(|cut| self.limit > BEYOND * cut.from) {
            self.threshold = f64::INFINITY;
        }
        let limit = match &mut self.law {
            Law::Slots => self.limit,
            // A round is as many answers as the limit: one more each doubles it.
            Law::Refusals if saturated && self.limit < self.threshold => self.limit + 1.0,
            Law::Refusals if saturated => self.limit + GROWTH,
            Law::Refusals => self.limit,
            Law::Latency(latency) => latency.answered(sample, self.limit, now).unwrap_or(self.limit),
        };
        self.limit = limit.clamp(1.0, self.max);
    }

    /// A call was refused, and headers did not say why.
    pub(super) fn refused(&mut self, admitted_at: Instant, in_flight: usize, now: Instant) {
        let same = |cut: Cut| admitted_at < cut.at || now < cut.at + CUT_EVERY;
        if matches!(self.law, Law::Slots) || self.last_cut.is_some_and(same) {
            return;
        }
        let from = self.limit.min(in_flight as f64);
        let share = if self.limit < self.threshold { CUT_DOUBLING } else { CUT };
        self.limit = (share * from).max(1.0);
        self.threshold = self.limit;
        self.last_cut = Some(Cut { at: now, from });
    }

    /// The limit, where it had to be found out.
    pub(super) fn learnt(&self) -> Option<usize> {
        let adaptive = matches!(self.law, Law::Refusals | Law::Latency(_)) && self.limit < self.max;
        adaptive.then(|| self.limit())
    }

    /// Seconds a token without load, where they had to be found out.
    pub(super) fn seconds_per_token(&self) -> Option<f64> {
        match &self.law {
            Law::Latency(latency) => latency.base(),
            Law::Slots | Law::Refusals => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosted(learnt: &Learnt) -> Concurrency {
        Concurrency::new(&RouteLimits::default(), learnt, Instant::now())
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
    fn clean_rounds_double_until_the_first_refusal_and_add_after_it() {
        let mut concurrency = hosted(&Learnt::default());
        for limit in [4, 8, 16, 32, 64] {
            assert_eq!(concurrency.limit(), limit);
            round(&mut concurrency, 1.0);
        }
        let now = Instant::now();
        concurrency.refused(now, 128, now);
        assert_eq!(concurrency.limit, 64.0);
        round(&mut concurrency, 1.0);
        assert!((concurrency.limit / 64.0 - 1.0 - GROWTH).abs() < 0.01, "{concurrency:?}");
    }

    #[test]
    fn a_limit_beyond_the_refused_one_doubles_again() {
        let mut concurrency = hosted(&Learnt::default());
        let now = Instant::now();
        (concurrency.limit, concurrency.threshold) = (100.0, 100.0);
        concurrency.refused(now, 100, now);
        let mut limits = Vec::new();
        while concurrency.limit < 200.0 {
            round(&mut concurrency, 1.0);
            limits.push(concurrency.limit as usize);
        }
        // 7 % a round up to 120 %, then double.
        assert_eq!(limits, [74, 80, 86, 92, 98, 105, 113, 138, 278]);
    }

    #[test]
    fn refusals_of_one_mistake_cut_once() {
        let mut concurrency = hosted(&Learnt { concurrency: Some(400), ..Learnt::default() });
        let start = Instant::now();
        concurrency.threshold = 100.0;
        concurrency.refused(start, 100, start);
        assert_eq!(concurrency.limit.round(), 70.0);
        concurrency.refused(start, 100, start + CUT_EVERY / 2);
        concurrency.refused(start - CUT_EVERY, 100, start + CUT_EVERY * 2);
        assert_eq!(concurrency.limit.round(), 70.0);
        concurrency.refused(start + CUT_EVERY, 70, start + CUT_EVERY);
        assert_eq!(concurrency.limit.round(), 49.0);
    }

    #[test]
    fn a_limit_that_is_not_in_the_way_does_not_grow() {
        let mut concurrency = hosted(&Learnt { concurrency: Some(400), ..Learnt::default() });
        round(&mut concurrency, 0.79);
        assert_eq!(concurrency.limit(), 100);
        round(&mut concurrency, 0.9);
        assert!(concurrency.limit() > 100);
    }

    #[test]
    fn one_call_saturates_a_limit_of_nearly_two() {
        let mut concurrency = hosted(&Learnt::default());
        (concurrency.limit, concurrency.threshold) = (1.9, 1.0);
        let now = Instant::now();
        concurrency.answered(Sample { admitted_at: now, in_flight: 1, seconds: 1.0, tokens: 1.0 }, now);
        assert!(concurrency.limit > 1.9, "{concurrency:?}");
    }

    #[test]
    fn calls_go_one_by_one_once_some_were_refused() {
        let mut concurrency = hosted(&Learnt::default());
        let now = Instant::now();
        concurrency.answered(Sample { admitted_at: now, in_flight: 1, seconds: 6.0, tokens: 1.0 }, now);
        concurrency.admit(now);
        assert_eq!(concurrency.next_at(now), None);
        concurrency.refused(now, 4, now);
        concurrency.admit(now);
        // Two calls of six seconds: one every three.
        let next_at = now + Duration::from_secs(3);
        assert_eq!(concurrency.next_at(now), Some(next_at));
        assert_eq!(concurrency.next_at(next_at), None);
    }

    #[test]
    fn headers_lift_the_limit_unless_they_hid_a_refusal() {
        let mut concurrency = hosted(&Learnt::default());
        concurrency.told();
        assert_eq!(concurrency.limit(), CONCURRENCY_MAX);
        let now = Instant::now();
        concurrency.refused(now, 10, now);
        concurrency.told();
        assert_eq!(concurrency.limit, 5.0);
    }

    #[test]
    fn the_start_is_small_unless_something_is_known() {
        let limits = |engine| RouteLimits { engine, ..RouteLimits::default() };
        let (nothing, now) = (Learnt::default(), Instant::now());
        let known = Learnt { concurrency: Some(200), ..Learnt::default() };
        let told = Learnt { requests: Some(600), ..Learnt::default() };
        let table = [
            (Engine::Hosted, &nothing, 4),
            (Engine::Hosted, &known, 50),
            (Engine::Hosted, &told, CONCURRENCY_MAX),
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
