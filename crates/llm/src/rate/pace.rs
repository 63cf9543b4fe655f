//! A limit that only refusals tell of. Between two refusals the provider's bucket went from empty to empty, so what was
//! let through in between is what it allows. Calls go a little slower than that, and now and then ever faster until one is
//! refused: that is how a raised limit is found. Such tries are paid for with refused calls, so they are made as often as
//! a small share of all calls affords.
//!
//! Pure maths on instants that come in as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::Meter;
use super::choice::Choice;
use super::doubt::Doubt;

#[cfg(test)]
mod tests;

/// Between tries: what is saved up in the provider's bucket meanwhile is spent by the next try.
const HOLD_SHARE: f64 = 0.98;
/// A try starts with this and grows by that much a second.
const TRY_SHARE: f64 = 1.05;
const TRY_GROWTH: f64 = 1.15;
/// Beyond twice the limit it grows slower: by then the bucket has much saved up that hides the new limit.
const TRY_FAR: f64 = 2.0;
const TRY_GROWTH_FAR: f64 = 1.05;
/// Where calls are rare, by no more than this a call: there must be some to tell from.
const TRY_GROWTH_PER_CALL: f64 = 1.06;
/// Nothing is tried for so long after a refusal, and for so many times the pause that it cost.
const REST_S: f64 = 16.5;
const REST_PAUSES: f64 = 10.0;
/// Refused calls that each call pays for; how many are paid for at first, and at least and at most.
const SPARE_PER_CALL: f64 = 0.014;
const SPARE_START: f64 = 3.0;
const SPARE_MIN: f64 = -2.0;
const SPARE_MAX: f64 = 10.0;
/// The first refusal comes while calls double: a round ago there were half as many.
const FIRST_SHARE: f64 = 0.5;
/// With few calls before it, it says little, but the time to wait does: on average a bucket is half a call short. Too high a guess
/// is soon put right, too low a one is not.
const FIRST_PER_S_MIN: f64 = 1.0;
const FIRST_PER_S_BY_PAUSE_MAX: f64 = 50.0;
const FIRST_SHORT: f64 = 0.5;
/// Fewer calls than this between two refusals say little. Some at the old pace are put to them, more if that was measured,
/// and the next refusal measures from the same mark.
const MEASURE_CALLS_MIN: f64 = 8.0;
const PRIOR_CALLS: f64 = 2.0;
const PRIOR_CALLS_MEASURED: f64 = 8.0;
/// A try that gets so far beyond the limit has met another one.
const RAISED_SHARE: f64 = 2.4;
/// The pace stays in between, whatever is measured.
const PER_S_MIN: f64 = 1.0 / 60.0;
const PER_S_MAX: f64 = 1e9;
/// No call waits for longer than this for the pace alone.
const WAIT_MAX_S: f64 = 60.0;
/// After a refusal, calls are put off by this much more: what it brings is left in the bucket for wrong estimates.
const RESERVE: Duration = Duration::from_millis(200);
/// A call that goes no later than this after it could have gone has waited for the pace: timers are coarse.
const IN_THE_WAY: Duration = Duration::from_millis(50);
/// What was not used is made up for if it is no older than this. After more, nobody was there to use it.
const CREDIT: Duration = Duration::from_secs(1);

/// While refusals have nothing to do with the pace, it grows by this a second, until it is in nobody's way.
const RANDOM_GROWTH: f64 = 2.0;
/// Should it turn out to be the pace after all, it is measured from no further back than this.
const RANDOM_MARK_S: f64 = 2.0;

/// The pace of one limit.
#[derive(Debug)]
pub(super) struct Pace {
    /// What the limit counts.
    pub meter: Meter,
    /// Where that is only supposed.
    choice: Option<Choice>,
    /// Whether the limit was measured.
    is_measured: bool,
    /// What seems to be allowed, a second.
    per_s: f64,
    /// The provider's bucket was empty here, or else nobody had called for a while.
    mark: Mark,
    refused_at: Instant,
    /// What has gone is paid for by then; the next call has to be paid for before it goes.
    paid_at: Instant,
    /// When the last call went.
    at: Instant,
    /// Seconds since the last refusal in which the pace was in the way.
    clean_s: f64,
    /// So many of them pass before the next try.
    rest_s: f64,
    /// Refused calls that are paid for.
    spare: f64,
    /// The try under way: the share of the limit that it has got to, and where it began.
    trial: Option<(f64, Mark)>,
    doubt: Doubt,
}

/// How much had been sent and not refused by a moment, by meter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    pub at: Instant,
    pub sent: [f64; 4],
}

/// A call that was refused.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    /// When the call went.
    pub admitted_at: Instant,
    /// What was sent until now, the call included.
    pub now: Mark,
    pub cost: [f64; 4],
    /// The limit a minute, where the refusal tells it.
    pub told: Option<(Meter, u64)>,
    /// How long nobody sends because of it.
    pub pause: Duration,
}

impl Pace {
    /// The pace after the first refusal. `recent` is some while before it, and so many requests a second at least are thought to be allowed.
    pub(super) fn new(refusal: Refusal, recent: Mark, told_per_s: f64) -> Self {
        let sent = refusal.now.sent[0] - recent.sent[0];
        let measured = FIRST_SHARE * sent / seconds(recent.at, refusal.now.at).max(0.1);
        let (meter, per_s) = match refusal.told {
            Some((meter, told)) => (meter, told as f64 / 60.0),
            None => {
                let by_pause = FIRST_SHORT / refusal.pause.as_secs_f64().max(0.001);
                let least = by_pause.clamp(FIRST_PER_S_MIN, FIRST_PER_S_BY_PAUSE_MAX);
                (Meter::Requests, measured.max(least).max(told_per_s))
            }
        };
        let mut pace = Self::known(meter, per_s, refusal.now);
        pace.choice = pace.choice.filter(|_| refusal.told.is_none());
        pace.mark = pace.emptied(refusal);
        pace.rest(refusal);
        pace
    }

    /// A pace known from before.
    pub(super) fn known(meter: Meter, per_s: f64, mark: Mark) -> Self {
        let now = mark.at;
        Self {
            meter,
            choice: Some(Choice::default()),
            is_measured: false,
            per_s: per_s.clamp(PER_S_MIN, PER_S_MAX),
            mark,
            refused_at: now,
            paid_at: now,
            at: now,
            clean_s: 0.0,
            rest_s: REST_S,
            spare: SPARE_START,
            trial: None,
            doubt: Doubt::default(),
        }
    }

    /// Such a share of all calls is refused, as known from before: there is no limit that is in the way.
    pub(super) fn random(share: f64, mark: Mark) -> Self {
        Self { doubt: Doubt::known(share, mark.at), ..Self::known(Meter::Requests, PER_S_MAX, mark) }
    }

    /// The share of calls that is refused whatever the pace.
    pub(super) fn random_share(&self, now: Instant) -> Option<f64> {
        self.doubt.random_share(now)
    }

    /// Whether a refusal is of this limit.
    pub(super) fn is_of(&self, told: Option<(Meter, u64)>) -> bool {
        told.is_none_or(|(meter, _)| meter == self.meter)
    }

    /// What seems to be allowed, a minute, unless refusals have nothing to do with it.
    pub(super) fn limit(&self, now: Instant) -> Option<u64> {
        (!self.doubt.is_random(now)).then(|| (self.per_s * 60.0).round() as u64)
    }

    /// When a call may go; `None`: now.
    pub(super) fn ready_at(&self, cost: f64, now: Instant) -> Option<Instant> {
        let ready_at = self.paid_at + self.time_for(cost);
        (ready_at > now).then_some(ready_at)
    }

    /// A call goes.
    pub(super) fn take(&mut self, cost: f64, before: Mark) {
        let now = before.at;
        let ready_at = self.paid_at + self.time_for(cost);
        let late = now.saturating_duration_since(ready_at);
        self.paid_at = ready_at;
        if late > CREDIT {
            (self.mark, self.paid_at) = (before, now);
        }
        if late <= IN_THE_WAY {
            self.pass(before);
        }
        self.doubt.sent();
        self.at = self.at.max(now);
        self.spare = (self.spare + SPARE_PER_CALL).min(SPARE_MAX);
    }

    /// Something was charged too much, or, below zero, too little.
    pub(super) fn add(&mut self, amount: f64) {
        let by = self.time_for(amount.abs());
        let moved = if amount < 0.0 { self.paid_at.checked_add(by) } else { self.paid_at.checked_sub(by) };
        self.paid_at = moved.unwrap_or(self.paid_at);
    }

    /// A call was refused; whether that has to do with the pace.
    pub(super) fn refuse(&mut self, refusal: Refusal) -> bool {
        if self.doubt.refused_at_random(refusal.now.at) {
            self.refused_at = refusal.now.at;
            if seconds(self.mark.at, refusal.now.at) > RANDOM_MARK_S {
                self.mark = refusal.now;
            }
            return false;
        }
        // It went before the others were back: they are one mistake, and the mark had counted it as let through.
        if refusal.admitted_at < self.refused_at {
            self.mark.sent = std::array::from_fn(|index| self.mark.sent[index] - refusal.cost[index]);
            self.spare = (self.spare - 1.0).max(SPARE_MIN);
            return true;
        }
        let emptied = self.emptied(refusal);
        let calls = self.passed(emptied)[0];
        let (before, meter, sought) = (self.per_s, self.meter, self.trial.is_some());
        let per_s = match refusal.told {
            // Whoever lets nobody in shows no limit.
            _ if calls < 1.0 => self.per_s,
            Some((_, told)) if self.trial.is_some() => (told as f64 / 60.0).min(self.rate()),
            // Refused while nothing was tried: it is lower now, or others use it too.
            Some((_, told)) => (told as f64 / 60.0).min(self.measure(emptied)),
            None => self.measure(emptied),
        };
        self.per_s = per_s.clamp(PER_S_MIN, PER_S_MAX);
        self.is_measured = calls >= MEASURE_CALLS_MIN;
        if self.is_measured || calls < 1.0 {
            self.mark = emptied;
        }
        self.rest(refusal);
        self.paid_at += RESERVE;
        if sought || refusal.told.is_some() {
            self.doubt.explained(calls);
            return true;
        }
        // Counted otherwise, it has another pace.
        let left = if self.meter == meter { self.per_s / before } else { 1.0 };
        let all_left = self.doubt.unexplained(calls, left, refusal.now.at);
        self.per_s = (self.per_s / all_left.unwrap_or(1.0)).min(PER_S_MAX);
        all_left.is_none()
    }

    /// When the call would have been let in, and the bucket empty: it was short of the call's cost by the time to wait.
    fn emptied(&self, refusal: Refusal) -> Mark {
        let short = refusal.pause.min(self.time_for(refusal.cost[self.meter as usize]));
        Mark { at: refusal.now.at + short, ..refusal.now }
    }

    /// What was let through since the mark.
    fn passed(&self, now: Mark) -> [f64; 4] {
        std::array::from_fn(|index| (now.sent[index] - self.mark.sent[index]).max(0.0))
    }

    /// The limit, by what was let through since the last refusal.
    fn measure(&mut self, emptied: Mark) -> f64 {
        let (passed, passed_s) = (self.passed(emptied), seconds(self.mark.at, emptied.at).max(0.001));
        let calls = passed[0];
        if let Some(choice) = self.choice.as_mut().filter(|_| calls >= MEASURE_CALLS_MIN) {
            let meter = choice.measured(passed.map(|passed| passed / passed_s), self.meter);
            if meter != self.meter {
                self.meter = meter;
                return passed[meter as usize] / passed_s;
            }
        }
        let index = self.meter as usize;
        let measured = passed[index] / passed_s;
        if let Some((share, tried)) = self.trial
            && share >= RAISED_SHARE
        {
            // Too little, for the limit was lower before, or the bucket full. What passed during the try is too much: the
            // bucket was emptied.
            let tried = (emptied.sent[index] - tried.sent[index]) / seconds(tried.at, emptied.at).max(0.001);
            return (tried.min(self.rate()) + measured) / 2.0;
        }
        let prior = match self.is_measured {
            _ if calls >= MEASURE_CALLS_MIN => 0.0,
            true => PRIOR_CALLS_MEASURED * passed[index] / calls,
            false => PRIOR_CALLS * passed[index] / calls,
        };
        ((passed[index] + prior) / (passed_s + prior / self.per_s)).min(self.rate())
    }

    fn rest(&mut self, refusal: Refusal) {
        let now = refusal.now.at;
        self.spare = (self.spare - 1.0).max(SPARE_MIN);
        self.trial = None;
        self.clean_s = 0.0;
        self.rest_s = (REST_PAUSES * refusal.pause.as_secs_f64()).max(REST_S);
        self.refused_at = now;
        self.at = now + refusal.pause;
        self.paid_at = self.at.checked_sub(self.time_for(refusal.cost[self.meter as usize])).unwrap_or(now);
    }

    /// Time passes. A try that has begun goes on until a call is refused.
    fn pass(&mut self, before: Mark) {
        let passed_s = seconds(self.at, before.at);
        if self.doubt.is_random(before.at) {
            self.per_s = (self.per_s * RANDOM_GROWTH.powf(passed_s)).min(PER_S_MAX);
            return;
        }
        if let Some((share, _)) = &mut self.trial {
            let growth = if *share < TRY_FAR { TRY_GROWTH } else { TRY_GROWTH_FAR };
            *share *= growth.powf(passed_s).min(TRY_GROWTH_PER_CALL);
            return;
        }
        self.clean_s += passed_s;
        if self.clean_s >= self.rest_s && self.spare >= 1.0 {
            self.trial = Some((TRY_SHARE, before));
        }
    }

    fn rate(&self) -> f64 {
        let share = self.trial.map_or(HOLD_SHARE, |(share, _)| share);
        (share * self.per_s).min(PER_S_MAX)
    }

    fn time_for(&self, amount: f64) -> Duration {
        Duration::from_secs_f64((amount / self.rate()).clamp(0.0, WAIT_MAX_S))
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
