//! One token bucket of ours that shadows one of the provider's. Pure maths on instants that come in as arguments.
//!
//! The provider tells its level as it was when a call was admitted, but we read it when the call ends: seconds later.
//! [`reconcile`] brings such a figure up to date.

use std::time::Duration;

use tokio::time::Instant;

/// We refill a little slower than the provider, so that an error of ours runs into its spare room and not into a 429.
/// What is left over shows up in its `remaining` and is spent from there.
const RATE_SHARE: f64 = 0.98;
/// How far a good message is believed at once, as a share of the gap. A bad one is believed whole.
const RISE_SHARE: f64 = 0.3;
/// How much may be sent at once after a quiet time. Providers allow more, but slice their minutes as they like.
const BURST_S: f64 = 2.0;
/// What we leave in the provider's bucket for the errors of our estimates. Left standing, it costs no throughput.
const RESERVE_S: f64 = 1.0;
/// The reserve is at most this share of the highest level ever told: some buckets are small.
const RESERVE_SHARE: f64 = 0.1;
const WINDOW_S: f64 = 60.0;
/// Timers are no finer than this.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Rounding of sums must not cost a wake-up.
const EPSILON: f64 = 1e-6;

/// A bucket that refills steadily. Its level may be below zero: then it has been overdrawn.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Configured: most a minute.
    ceiling: Option<f64>,
    /// Told by headers: allowed a minute.
    told: Option<f64>,
    /// What other processes leave to us of either, and of what the provider says remains.
    share: f64,
    /// Refill a second; kept below the limit.
    rate: f64,
    level: f64,
    at: Instant,
    /// The cost of the call at the head: the level may rise to it, even where that is more than a burst.
    need: f64,
    /// Not yet charged: the first call goes at once, whatever it costs.
    fresh: bool,
    /// When the newest call was admitted whose headers were read.
    told_at: Option<Instant>,
    /// The highest `remaining` under the present limit.
    remaining_max: f64,
}

/// A level as a provider told it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub limit: Option<f64>,
    pub remaining: Option<f64>,
    /// When the call that brought it was admitted.
    pub admitted_at: Instant,
    /// What we have sent since then.
    pub sent_since: f64,
}

impl Bucket {
    /// A bucket with a configured ceiling, a limit known from before, or both; `None` without either.
    pub(super) fn new(ceiling: Option<u64>, told: Option<u64>, now: Instant) -> Option<Self> {
        let positive = |limit: Option<u64>| limit.filter(|limit| *limit > 0).map(|limit| limit as f64);
        let (ceiling, told) = (positive(ceiling), positive(told));
        let rate = RATE_SHARE * lower(ceiling, told)? / WINDOW_S;
        // Empty: whoever was here before us may have drained the provider's a moment ago.
        Some(Self {
            ceiling,
            told,
            share: 1.0,
            rate,
            level: 0.0,
            at: now,
            need: 0.0,
            fresh: true,
            told_at: None,
            remaining_max: 0.0,
        })
    }

    /// Uses this share of the limit from now on.
    pub(super) fn set_share(&mut self, share: f64, now: Instant) {
        self.refill(now);
        self.share = share;
        self.rate = self.rate_allowed().unwrap_or(self.rate);
        // What was overdrawn stays so, however small the share has become.
        self.level = self.level.min(self.level_max());
    }

    /// A whole minute of the limit, of which ours is a share: a call may cost more than our share of it.
    fn minute(&self) -> f64 {
        self.rate / self.share * WINDOW_S
    }

    fn level_max(&self) -> f64 {
        (self.rate * BURST_S).max(self.need)
    }

    /// Refill a second that our share of the limit allows.
    fn rate_allowed(&self) -> Option<f64> {
        Some(RATE_SHARE * self.share * lower(self.ceiling, self.told)? / WINDOW_S)
    }

    /// When a call of this cost may go; `None`: now.
    pub(super) fn ready_at(&mut self, cost: f64, now: Instant) -> Option<Instant> {
        // A call that costs more than a whole minute waits for a full one and overdraws.
        self.need = cost.min(self.minute());
        self.refill(now);
        if self.fresh || self.level + EPSILON >= self.need {
            return None;
        }
        Some(now + Duration::from_secs_f64((self.need - self.level) / self.rate).max(WAIT_MIN))
    }

    /// Charges a call.
    pub(super) fn take(&mut self, cost: f64, now: Instant) {
        self.fresh = false;
        self.add(-cost, now);
    }

    /// Corrects the level by what was charged too much, or, below zero, too little.
    pub(super) fn add(&mut self, amount: f64, now: Instant) {
        self.refill(now);
        self.level = self.bounded(self.level + amount);
    }

    /// A call was refused although there seemed to be room.
    pub(super) fn drain(&mut self, now: Instant) {
        self.refill(now);
        self.level = self.level.min(0.0);
    }

    /// Takes in what an answer told. Answers overtake one another: an older state than the one known tells nothing new,
    /// but every answer brings the rate nearer to the limit.
    pub(super) fn learn(&mut self, told: Told, now: Instant) {
        self.refill(now);
        let newest = self.told_at.is_none_or(|newest| told.admitted_at >= newest);
        if newest && told.limit.is_some_and(|limit| self.told != Some(limit)) {
            self.told = told.limit;
            self.remaining_max = 0.0;
        }
        if let Some(rate) = self.rate_allowed() {
            self.rate = approach(self.rate, rate);
        }
        if newest {
            self.told_at = Some(told.admitted_at);
            self.learn_remaining(told, now);
        }
    }

    fn learn_remaining(&mut self, told: Told, now: Instant) {
        let Some(remaining) = told.remaining.map(|remaining| remaining * self.share) else { return };
        self.remaining_max = self.remaining_max.max(remaining);
        let reserve = (RESERVE_S * self.rate).min(RESERVE_SHARE * self.remaining_max);
        let refilled = self.rate * now.saturating_duration_since(told.admitted_at).as_secs_f64();
        let target = reconcile(Reconcile { remaining, reserve, sent_since: told.sent_since, refilled });
        // Where our own ceiling is the lower one, the provider's room is not ours to fill.
        let raises = self.ceiling.is_none_or(|ceiling| self.told.is_some_and(|told| told <= ceiling));
        if target < self.level || raises {
            self.level = self.bounded(approach(self.level, target));
        }
    }

    /// The limit told by the provider, a minute.
    pub(super) fn told(&self) -> Option<u64> {
        self.told.map(|limit| limit as u64)
    }

    /// The limit in force, a minute.
    pub(super) fn limit(&self) -> u64 {
        lower(self.ceiling, self.told).unwrap_or_default() as u64
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.level = self.bounded(self.level + self.rate * seconds);
    }

    fn bounded(&self, level: f64) -> f64 {
        level.clamp(-self.minute(), self.level_max())
    }
}

struct Reconcile {
    remaining: f64,
    reserve: f64,
    sent_since: f64,
    refilled: f64,
}

/// The level now, of a level at the time of a call's admission.
fn reconcile(Reconcile { remaining, reserve, sent_since, refilled }: Reconcile) -> f64 {
    remaining - reserve - sent_since + refilled
}

/// Down at once, up slowly.
fn approach(from: f64, to: f64) -> f64 {
    if to < from { to } else { from + RISE_SHARE * (to - from) }
}

fn lower(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn reconciliation_counts_what_happened_since_the_call_was_admitted() {
        // remaining, reserve, sent since, refilled -> level now
        let table = [
            (50.0, 0.0, 0.0, 0.0, 50.0),
            (50.0, 5.0, 0.0, 0.0, 45.0),
            (50.0, 5.0, 30.0, 0.0, 15.0),
            (50.0, 5.0, 30.0, 30.0, 45.0),
            (0.0, 0.0, 12.0, 10.0, -2.0),
            (10.0, 5.0, 25.0, 0.0, -20.0),
        ];
        for (remaining, reserve, sent_since, refilled, expected) in table {
            let level = reconcile(Reconcile { remaining, reserve, sent_since, refilled });
            assert_eq!(level, expected, "{remaining} - {reserve} - {sent_since} + {refilled}");
        }
    }

    #[test]
    fn values_fall_at_once_and_rise_by_a_share_of_the_gap() {
        for (from, to, expected) in
            [(10.0, 4.0, 4.0), (10.0, 20.0, 13.0), (10.0, 10.0, 10.0), (-10.0, 0.0, -7.0)]
        {
            assert_eq!(approach(from, to), expected, "{from} to {to}");
        }
    }

    /// A bucket of one a second, empty.
    fn one_a_second(now: Instant) -> Bucket {
        let mut bucket = Bucket::new(None, Some(60), now).expect("a limit is known");
        (bucket.rate, bucket.fresh) = (1.0, false);
        bucket
    }

    #[test]
    fn wake_times_are_exact() {
        let start = Instant::now();
        // level, cost -> wait in seconds
        let table = [
            (0.0, 1.0, Some(1.0)),
            (1.0, 1.0, None),
            (0.25, 1.0, Some(0.75)),
            (-3.0, 1.0, Some(4.0)),
            // More than a burst: the level may rise to it.
            (0.0, 30.0, Some(30.0)),
            // More than a minute: a full minute is enough.
            (0.0, 500.0, Some(60.0)),
        ];
        for (level, cost, wait) in table {
            let mut bucket = one_a_second(start);
            bucket.level = level;
            let ready_at = bucket.ready_at(cost, start);
            assert_eq!(ready_at, wait.map(|wait| start + seconds(wait)), "level {level}, cost {cost}");
            assert_eq!(bucket.ready_at(cost, ready_at.unwrap_or(start)), None, "level {level}, cost {cost}");
        }
    }

    #[test]
    fn a_quiet_time_saves_up_a_burst_and_no_more() {
        let start = Instant::now();
        let mut bucket = one_a_second(start);
        bucket.add(0.0, start + seconds(3600.0));
        assert_eq!(bucket.level, BURST_S);
    }

    #[test]
    fn the_first_call_waits_for_nothing_and_is_charged() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(60), None, start).expect("a limit is known");
        assert_eq!(bucket.ready_at(10.0, start), None);
        bucket.take(10.0, start);
        assert_eq!(bucket.level, -10.0);
        assert!(bucket.ready_at(1.0, start).is_some());
    }

    #[test]
    fn what_a_header_told_is_brought_up_to_date_when_it_is_read() {
        let start = Instant::now();
        let mut bucket = Bucket::new(None, Some(60), start).expect("a limit is known");
        bucket.take(20.0, start);
        let (now, admitted_at) = (start + seconds(6.0), start);
        bucket.learn(Told { limit: Some(60.0), remaining: Some(1.0), admitted_at, sent_since: 3.0 }, now);
        let own = -20.0 + 6.0 * bucket.rate;
        let told = 1.0 - RESERVE_SHARE - 3.0 + 6.0 * bucket.rate;
        assert!((bucket.level - approach(own, told)).abs() < EPSILON, "{bucket:?}");
    }

    #[test]
    fn an_older_state_than_the_one_known_says_nothing() {
        let start = Instant::now();
        let mut bucket = one_a_second(start);
        let told = |limit: f64, admitted_s: f64| Told {
            limit: Some(limit),
            remaining: Some(0.0),
            admitted_at: start + seconds(admitted_s),
            sent_since: 0.0,
        };
        bucket.learn(told(30.0, 5.0), start + seconds(8.0));
        assert_eq!(bucket.limit(), 30);
        bucket.learn(told(60.0, 4.0), start + seconds(9.0));
        assert_eq!(bucket.limit(), 30);
        bucket.learn(told(60.0, 6.0), start + seconds(9.0));
        assert_eq!(bucket.limit(), 60);
    }

    #[test]
    fn a_ceiling_below_the_limit_keeps_the_bucket_from_being_raised() {
        let start = Instant::now();
        let told = |remaining| Told {
            limit: Some(6000.0),
            remaining: Some(remaining),
            admitted_at: start,
            sent_since: 0.0,
        };
        let mut bucket = Bucket::new(Some(60), None, start).expect("a limit is known");
        bucket.take(1.0, start);
        bucket.learn(told(1000.0), start);
        assert_eq!((bucket.limit(), bucket.level), (60, -1.0));
        bucket.learn(Told { sent_since: 5.0, ..told(0.0) }, start);
        assert_eq!(bucket.level, -5.0 - RESERVE_S * bucket.rate);
    }

    #[test]
    fn a_share_is_a_share_of_the_limit_and_of_what_remains() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(600), None, start).expect("a limit is known");
        bucket.take(1.0, start);
        bucket.set_share(0.25, start);
        assert_eq!((bucket.rate, bucket.limit()), (RATE_SHARE * 2.5, 600));
        bucket.add(0.0, start + seconds(3600.0));
        assert_eq!(bucket.level, bucket.rate * BURST_S);
        let told = Told { limit: Some(600.0), remaining: Some(8.0), admitted_at: start, sent_since: 0.0 };
        bucket.learn(Told { admitted_at: start + seconds(3600.0), ..told }, start + seconds(3600.0));
        assert!((bucket.level - (8.0 * 0.25 - RESERVE_SHARE * 2.0)).abs() < EPSILON, "{bucket:?}");
        bucket.set_share(1.0, start + seconds(3600.0));
        assert_eq!(bucket.rate, RATE_SHARE * 10.0);
    }

    #[test]
    fn a_call_larger_than_a_minutes_share_waits_for_all_of_it() {
        let start = Instant::now();
        let mut bucket = Bucket::new(Some(6_000), None, start).expect("a limit is known");
        bucket.take(0.0, start);
        bucket.set_share(0.01, start);
        // 58.8 a minute are ours: a call of 588 takes ten minutes of them, and leaves no less behind.
        let ready_at = bucket.ready_at(588.0, start).expect("it waits");
        assert!((ready_at - start).as_secs_f64() > 599.0, "{:?}", ready_at - start);
        bucket.take(588.0, start);
        bucket.set_share(0.005, start);
        bucket.set_share(0.01, start);
        assert_eq!(bucket.level, -588.0, "a smaller share forgives nothing");
    }

    #[test]
    fn a_limit_of_nothing_is_no_limit() {
        assert!(Bucket::new(Some(0), None, Instant::now()).is_none());
        assert!(Bucket::new(None, None, Instant::now()).is_none());
    }
}
