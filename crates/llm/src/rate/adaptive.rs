//! Adaptive concurrency: how many calls may be under way, judged by the refusals so far. It doubles until the first refusal.
//! From then on a refusal multiplies it by 0.7, at most once per round trip, and a clean batch adds one. Where no limit is
//! announced, no pace holds back fewer calls than that.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// Factor after a refusal.
const CUT: f64 = 0.7;
/// Calls at first, on a route of which nothing is known.
pub(super) const START: f64 = 4.0;
/// One call at a time is left to the pace: at a limit of a few calls a minute that take no time, every other call would
/// be refused.
const FLOOR_MIN: f64 = 2.0;
/// A route known from before starts with this share of what it had: the provider's bucket may be empty.
const RESUME_SHARE: f64 = 0.25;
/// Number of changes that are kept.
const CHANGES_MAX: usize = 20;

/// Adaptive concurrency of a route on which calls were refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptiveConcurrency {
    /// Calls that may be under way, whatever the pace.
    pub concurrency: usize,
    /// Its last changes, oldest first.
    pub changes: Vec<Change>,
}

/// One change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When, in milliseconds since the epoch.
    pub at_ms: i64,
    /// What it became.
    pub concurrency: usize,
    /// Whether a refusal was the reason.
    pub refused: bool,
}

/// The calls that may be under way.
#[derive(Debug)]
pub(super) struct Adaptive {
    limit: f64,
    max: f64,
    /// Nothing has been refused so far.
    doubling: bool,
    /// Answers since the last change or refusal.
    clean: f64,
    /// Calls from before do not cut it again.
    cut_at: Option<Instant>,
    /// A pace would have held back a call since the last change.
    used: bool,
    /// Of former processes.
    before: Vec<Change>,
    changes: VecDeque<(Instant, usize, bool)>,
}

impl Adaptive {
    pub(super) fn new(known: Option<&AdaptiveConcurrency>, max: f64) -> Self {
        let limit = known.map_or(START, |known| (known.concurrency as f64 * RESUME_SHARE).max(1.0));
        Self {
            limit: limit.min(max),
            max,
            doubling: known.is_none(),
            clean: 0.0,
            cut_at: None,
            used: false,
            before: known.map_or_else(Vec::new, |known| known.changes.clone()),
            changes: VecDeque::new(),
        }
    }

    /// Calls that may be under way, whatever the pace.
    pub(super) fn floor(&self) -> usize {
        if self.doubling || self.limit < FLOOR_MIN { 0 } else { self.limit as usize }
    }

    /// A call goes that a pace would have held back.
    pub(super) fn used(&mut self) {
        self.used = true;
    }

    /// A call was answered, with this number under way. It grows only while it is what decides: if the pace admits more calls,
    /// the pace knows better, and growth would only be refused.
    pub(super) fn answered(&mut self, in_flight: usize, is_paced: bool, now: Instant) {
        self.clean += 1.0;
        let in_use = if is_paced { self.used } else { in_flight as f64 >= self.limit.floor() };
        if !in_use || self.limit >= self.max {
            return;
        }
        if self.doubling {
            self.limit += 1.0;
        } else if self.clean >= self.limit {
            self.set(self.limit + 1.0, false, now);
        }
    }

    /// A call was refused.
    pub(super) fn refused(&mut self, admitted_at: Instant, now: Instant) {
        self.clean = 0.0;
        if self.cut_at.is_none_or(|cut_at| admitted_at >= cut_at) {
            (self.cut_at, self.doubling) = (Some(now), false);
            self.set(self.limit * CUT, true, now);
        }
    }

    fn set(&mut self, limit: f64, refused: bool, now: Instant) {
        let before = self.limit as usize;
        self.limit = limit.clamp(1.0, self.max);
        (self.clean, self.used) = (0.0, false);
        if self.limit as usize != before {
            self.changes.push_back((now, self.limit as usize, refused));
            if self.changes.len() > CHANGES_MAX {
                self.changes.pop_front();
            }
        }
    }

    /// What it is, once something was refused. `now_ms` is the time of day.
    pub(super) fn learnt(&self, now: Instant, now_ms: i64) -> Option<AdaptiveConcurrency> {
        if self.doubling {
            return None;
        }
        let changes = self.changes.iter().map(|(at, concurrency, refused)| {
            let ago_ms = i64::try_from(now.saturating_duration_since(*at).as_millis()).unwrap_or(i64::MAX);
            Change { at_ms: now_ms.saturating_sub(ago_ms), concurrency: *concurrency, refused: *refused }
        });
        let mut changes: Vec<Change> = self.before.iter().copied().chain(changes).collect();
        changes.drain(..changes.len().saturating_sub(CHANGES_MAX));
        Some(AdaptiveConcurrency { concurrency: self.limit as usize, changes })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_doubles_until_the_first_refusal_then_falls_to_0_7_and_rises_by_one() {
        let (mut adaptive, start) = (Adaptive::new(None, 2048.0), Instant::now());
        let round = |adaptive: &mut Adaptive, now| {
            for _ in 0..adaptive.limit as usize {
                adaptive.answered(adaptive.limit as usize, false, now);
            }
        };
        for limit in [4.0, 8.0, 16.0, 32.0] {
            assert_eq!(adaptive.limit, limit);
            round(&mut adaptive, start);
        }
        assert_eq!((adaptive.floor(), adaptive.learnt(start, 0)), (0, None), "nothing was refused so far");

        let seconds = |seconds| start + Duration::from_secs(seconds);
        adaptive.refused(seconds(1), seconds(2));
        assert_eq!(adaptive.floor(), 44, "0.7 of 64");
        adaptive.refused(seconds(1), seconds(3));
        assert_eq!(adaptive.floor(), 44, "once a round trip");
        adaptive.refused(seconds(2), seconds(4));
        assert_eq!(adaptive.floor(), 31);
        round(&mut adaptive, seconds(5));
        assert_eq!(adaptive.floor(), 31, "31.36 take 32 answers");
        adaptive.answered(31, false, seconds(5));
        assert_eq!(adaptive.floor(), 32, "a clean batch");
        adaptive.answered(31, false, seconds(6));
        adaptive.refused(seconds(6), seconds(7));
        adaptive.answered(31, false, seconds(8));
        assert_eq!((adaptive.floor(), adaptive.clean), (22, 1.0), "a refusal ends a clean batch");

        let learnt = adaptive.learnt(seconds(10), 100_000).unwrap();
        let told: Vec<_> =
            learnt.changes.iter().map(|change| (change.at_ms, change.concurrency, change.refused)).collect();
        assert_eq!(told, [(92_000, 44, true), (94_000, 31, true), (95_000, 32, false), (97_000, 22, true)]);
        let next = Adaptive::new(Some(&learnt), 2048.0);
        assert_eq!((next.floor(), next.learnt(start, 0).unwrap().changes), (5, learnt.changes));
    }

    #[test]
    fn one_call_at_a_time_is_left_to_the_pace() {
        let (mut adaptive, now) = (Adaptive::new(None, 2048.0), Instant::now());
        for seconds in 0..9 {
            let at = now + Duration::from_secs(seconds);
            adaptive.refused(at, at);
        }
        assert_eq!((adaptive.floor(), adaptive.limit), (0, 1.0));
    }
}
