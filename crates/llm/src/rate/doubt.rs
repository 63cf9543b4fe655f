//! Whether refusals have anything to do with the pace. Some refuse a share of all calls, however slowly they come: there,
//! going slower costs time and helps nobody.
//!
//! A limit refuses nothing at a pace below what it let through before. Refusals that come all the same, one after the other
//! while the pace falls and falls, are not the pace's. From then on only the share of refused calls is watched: if it rises
//! with the pace, it is the pace after all.

use std::time::Duration;

use tokio::time::Instant;

/// So many refusals that a limit does not explain, or fewer if the pace fell to this share after the first.
const REFUSALS_MAX: f64 = 6.0;
const REFUSALS_MIN: f64 = 3.0;
const FALLEN_SHARE: f64 = 0.4;
/// One after fewer calls than this is not counted: that is how a pace looks that is far too high.
const CALLS_MIN: f64 = 5.0;
/// So many calls let through make up for one: limits do change now and then.
const CALLS_MAX: f64 = 400.0;
/// The share of refused calls has risen if it is so many times the usual one, and in any case between these.
const RISEN: f64 = 3.0;
const RISEN_MIN: f64 = 0.15;
const RISEN_MAX: f64 = 0.5;
/// The share is taken over about so many calls.
const WINDOW_CALLS: f64 = 400.0;
/// For so long it is believed, and twice as long each time it is found again.
const BELIEVED: Duration = Duration::from_secs(120);
const BELIEVED_MAX: Duration = Duration::from_secs(3_600);

/// What speaks against a limit.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Refusals that a limit does not explain, less what was let through since.
    weight: f64,
    /// The same as they are, with the calls let through between them, and what all of them left of the pace, and the first.
    refusals: f64,
    calls: f64,
    left: f64,
    first_left: f64,
    random: Option<Random>,
    believed: Option<Duration>,
}

/// The share of calls that is refused, whatever the pace.
#[derive(Debug)]
struct Random {
    until: Instant,
    usual: f64,
    sent: f64,
    refused: f64,
}

impl Doubt {
    /// It was found before that such a share of all calls is refused.
    pub(super) fn known(share: f64, now: Instant) -> Self {
        let mut doubt = Self::default();
        doubt.believe(share, now);
        doubt
    }

    fn believe(&mut self, share: f64, now: Instant) {
        let believed = self.believed.map_or(BELIEVED, |before| (2 * before).min(BELIEVED_MAX));
        let usual = share.clamp(0.0, 1.0);
        let sent = WINDOW_CALLS / 4.0;
        let random = Random { until: now + believed, usual, sent, refused: usual * sent };
        *self = Self { random: Some(random), believed: Some(believed), ..Self::default() };
    }

    /// The share of calls that is refused whatever the pace.
    pub(super) fn random_share(&self, now: Instant) -> Option<f64> {
        self.random.as_ref().filter(|random| now < random.until).map(|random| random.usual)
    }

    /// Whether the pace has nothing to do with refusals, as far as is known.
    pub(super) fn is_random(&self, now: Instant) -> bool {
        self.random_share(now).is_some()
    }

    /// A call goes.
    pub(super) fn sent(&mut self) {
        if let Some(random) = &mut self.random {
            random.sent += 1.0;
            if random.sent > WINDOW_CALLS {
                (random.sent, random.refused) = (random.sent / 2.0, random.refused / 2.0);
            }
        }
    }

    /// A call was refused; whether that still has nothing to do with the pace.
    pub(super) fn refused_at_random(&mut self, now: Instant) -> bool {
        let Some(random) = self.random.as_mut().filter(|random| now < random.until) else { return false };
        random.refused += 1.0;
        if random.refused > (RISEN * random.usual).clamp(RISEN_MIN, RISEN_MAX) * random.sent {
            self.random = None;
        }
        self.random.is_some()
    }

    /// A call was refused for a reason, after so many others.
    pub(super) fn explained(&mut self, calls: f64) {
        self.weight = (self.weight - calls / CALLS_MAX).max(0.0);
    }

    /// A call was refused after so many others, although the pace was below the limit, as far as that was known, and that
    /// much is left of the pace. How much more of it was left by all of them, if that was in vain.
    pub(super) fn unexplained(&mut self, calls: f64, left: f64, now: Instant) -> Option<f64> {
        self.explained(calls);
        if calls < CALLS_MIN {
            return None;
        }
        if self.weight == 0.0 {
            (self.refusals, self.calls, self.left, self.first_left) = (0.0, 0.0, 1.0, left);
        }
        self.weight += 1.0;
        self.refusals += 1.0;
        self.calls += calls;
        self.left *= left;
        let fallen = self.weight >= REFUSALS_MIN && self.left <= FALLEN_SHARE * self.first_left;
        if !fallen && self.weight < REFUSALS_MAX {
            return None;
        }
        let left = self.left;
        self.believe(self.refusals / (self.calls + self.refusals), now);
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many refusals after so many calls each it takes to be sure, if each leaves the given share of the pace.
    fn enough(calls: f64, left: f64) -> Option<usize> {
        let (mut doubt, now) = (Doubt::default(), Instant::now());
        let found = (1..=100).find(|_| doubt.unexplained(calls, left, now).is_some());
        assert_eq!(doubt.is_random(now), found.is_some());
        found
    }

    #[test]
    fn refusals_in_vain_are_told_from_a_limit() {
        let table = [
            ("the pace falls and falls", 20.0, 0.6, Some(4)),
            ("it falls a little, and that too often", 20.0, 0.98, Some(7)),
            ("refusals are few", 100.0, 0.98, Some(8)),
            ("a pace that is far too high", 2.0, 0.6, None),
            ("limits that change", 500.0, 0.6, None),
        ];
        for (name, calls, left, found) in table {
            assert_eq!(enough(calls, left), found, "{name}");
        }
    }

    #[test]
    fn the_pace_of_before_is_told() {
        let (mut doubt, now) = (Doubt::default(), Instant::now());
        let found: Vec<_> = [0.5; 4].iter().filter_map(|left| doubt.unexplained(20.0, *left, now)).collect();
        assert_eq!(found, [0.0625]);
    }

    #[test]
    fn a_share_that_rises_shows_that_it_is_the_pace() {
        let now = Instant::now();
        let random = |refused_of: u32| {
            let mut doubt = Doubt::default();
            while doubt.unexplained(20.0, 0.9, now).is_none() {}
            (1..=1_000).all(|call| {
                doubt.sent();
                call % refused_of != 0 || doubt.refused_at_random(now)
            })
        };
        assert!(random(20) && random(8));
        assert!(!random(5) && !random(1));
    }

    #[test]
    fn it_is_believed_longer_each_time() {
        let (mut doubt, mut now) = (Doubt::default(), Instant::now());
        for believed in [BELIEVED, 2 * BELIEVED, 4 * BELIEVED] {
            while doubt.unexplained(20.0, 0.9, now).is_none() {}
            assert!(doubt.is_random(now + believed - Duration::from_secs(1)));
            now += believed;
            assert!(!doubt.is_random(now) && !doubt.refused_at_random(now));
        }
    }
}
