//! Finds the concurrency of a local engine that has queues instead of limits. Beyond the knee more calls only wait
//! longer: of `n` calls under way, `n · (1 - base / now)` are waiting, where `base` and `now` are seconds a token without
//! load and at present. The limit is steered to where a few wait, so that the engine never idles (TCP Vegas, in the form
//! of FAST). Seconds a token, because the bare time of a call is mostly the length of its answer.

use tokio::time::Instant;

use super::concurrency::Sample;

/// Calls that should be waiting: this number, and a share of the limit for the noise in the figures.
const WAITING: f64 = 2.0;
const WAITING_SHARE: f64 = 0.1;
/// The new limit goes half the way: what one round says is noisy.
const STEP: f64 = 0.5;
/// Below this many answers a mean says little.
const ROUND_ANSWERS_MIN: f64 = 8.0;
/// One round in this many is run at a share of the limit, to see what the engine does without load today.
const PROBE_ROUNDS: u32 = 40;
const PROBE_SHARE: f64 = 0.5;
/// Sooner if the limit has fallen to a share of its highest: is there more load, or a slower model?
const PROBE_FALL: f64 = 0.5;
/// A base that has moved by this factor is another model's; the search starts anew.
const BASE_MOVED: f64 = 1.5;
/// The limit grows only while it is in the way.
const SATURATED: f64 = 0.8;

/// The state of the search.
#[derive(Debug)]
pub(super) struct Latency {
    /// The lowest seconds a token of any round. Of rounds, not of calls: the luckiest call is no measure.
    base: Option<f64>,
    round: Round,
    /// Since the last probe.
    rounds: u32,
    /// Since the last probe.
    limit_max: f64,
    /// Doubles until calls first wait.
    doubling: bool,
    /// The limit to go back to after the probe.
    before_probe: Option<f64>,
}

#[derive(Debug)]
struct Round {
    since: Instant,
    answers: f64,
    seconds: f64,
    tokens: f64,
    in_flight_max: usize,
}

impl Round {
    fn new(since: Instant) -> Self {
        Self { since, answers: 0.0, seconds: 0.0, tokens: 0.0, in_flight_max: 0 }
    }
}

impl Latency {
    pub(super) fn new(base: Option<f64>, now: Instant) -> Self {
        let base = base.filter(|base| base.is_finite() && *base > 0.0);
        Self { base, round: Round::new(now), rounds: 0, limit_max: 0.0, doubling: true, before_probe: None }
    }

    /// Takes in an answer; the new limit, if a round has ended.
    pub(super) fn answered(&mut self, sample: Sample, limit: f64, now: Instant) -> Option<f64> {
        let round = &mut self.round;
        // Calls from before the round ran under another limit.
        if sample.admitted_at < round.since || sample.tokens <= 0.0 {
            return None;
        }
        round.answers += 1.0;
        round.seconds += sample.seconds;
        round.tokens += sample.tokens;
        round.in_flight_max = round.in_flight_max.max(sample.in_flight);
        if round.answers < limit.max(ROUND_ANSWERS_MIN) {
            return None;
        }
        let round = std::mem::replace(&mut self.round, Round::new(now));
        Some(self.ended(&round, limit))
    }

    /// Seconds a token without load.
    pub(super) fn base(&self) -> Option<f64> {
        self.base
    }

    fn ended(&mut self, round: &Round, limit: f64) -> f64 {
        let mean = round.seconds / round.tokens;
        if let Some(before) = self.before_probe.take() {
            self.doubling |= self.base.is_some_and(|base| mean > BASE_MOVED * base);
            (self.base, self.rounds, self.limit_max) = (Some(mean), 0, before);
            return before;
        }
        let base = self.base.map_or(mean, |base| base.min(mean));
        self.base = Some(base);
        self.rounds += 1;
        self.limit_max = self.limit_max.max(limit);
        if self.rounds >= PROBE_ROUNDS || limit < PROBE_FALL * self.limit_max {
            self.before_probe = Some(limit);
            return limit * PROBE_SHARE;
        }
        let next = steer(limit, base / mean);
        self.doubling &= limit * (1.0 - base / mean) <= waiting(limit);
        if (round.in_flight_max as f64) < SATURATED * limit.floor() {
            return limit.min(next);
        }
        if self.doubling { limit * 2.0 } else { next }
    }
}

/// The limit after a round in which a token took `1 / speed` times as long as without load.
fn steer(limit: f64, speed: f64) -> f64 {
    limit + STEP * (limit * speed + waiting(limit) - limit)
}

fn waiting(limit: f64) -> f64 {
    WAITING + WAITING_SHARE * limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_settles_where_a_few_calls_wait() {
        for (knee, start) in [(32.0, 4.0), (32.0, 200.0), (8.0, 64.0), (100.0, 10.0)] {
            let mut limit: f64 = start;
            for _ in 0..100 {
                limit = steer(limit, (knee / limit).min(1.0));
            }
            let expected = (knee + WAITING) / (1.0 - WAITING_SHARE);
            assert!((limit - expected).abs() < 0.5, "knee {knee}: {limit}, not {expected}");
        }
    }

    /// Runs one round at a limit; the next limit.
    fn round(latency: &mut Latency, limit: f64, seconds_per_token: f64) -> f64 {
        let now = Instant::now();
        let sample =
            Sample { admitted_at: now, in_flight: limit as usize, seconds: seconds_per_token, tokens: 1.0 };
        loop {
            if let Some(limit) = latency.answered(sample, limit, now) {
                return limit;
            }
        }
    }

    #[test]
    fn an_engine_that_got_slower_is_probed_soon_and_believed() {
        let mut latency = Latency::new(Some(0.01), Instant::now());
        let mut limit = 32.0;
        let mut rounds = 0;
        while latency.base() == Some(0.01) {
            limit = round(&mut latency, limit, 0.04);
            rounds += 1;
        }
        assert!(rounds < PROBE_ROUNDS / 2, "{rounds} rounds");
        assert!(latency.base().is_some_and(|base| (base - 0.04).abs() < 1e-9), "{latency:?}");
        assert_eq!(round(&mut latency, limit, 0.04), 2.0 * limit);
    }

    #[test]
    fn a_steady_engine_is_probed_now_and_then() {
        let mut latency = Latency::new(Some(0.01), Instant::now());
        let limits: Vec<f64> = (0..=PROBE_ROUNDS).map(|_| round(&mut latency, 32.0, 0.012)).collect();
        assert_eq!(limits.iter().position(|limit| *limit == 16.0), Some(PROBE_ROUNDS as usize - 1));
        assert_eq!(limits.last(), Some(&32.0));
        assert!(latency.base().is_some_and(|base| (base - 0.012).abs() < 1e-9), "{latency:?}");
    }

    #[test]
    fn rounds_double_until_calls_first_wait() {
        let mut latency = Latency::new(None, Instant::now());
        assert_eq!(round(&mut latency, 4.0, 0.01), 8.0);
        assert_eq!(round(&mut latency, 8.0, 0.01), 16.0);
        let waited = round(&mut latency, 16.0, 0.02);
        assert!(waited < 16.0, "{waited}");
        assert!(round(&mut latency, waited, 0.01) < 2.0 * waited);
    }
}
