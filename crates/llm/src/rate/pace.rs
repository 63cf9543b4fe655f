//! A limit that only refusals tell of. Between two refusals the provider's bucket went from empty to empty, so what was
//! let through in between is what it allows. Calls go a little slower than that, and now and then ever faster until one is
//! refused: that is how a raised limit is found. Such tries are paid for with refused calls, so they are made as often as
//! a small share of all calls affords.
//!
//! Pure maths on instants that come in as arguments.

use std::time::Duration;

use tokio::time::Instant;

use super::Meter;
use super::meter_detect::Choice;
use super::refusals::{Kind, Refused, Unexplained};

#[cfg(test)]
mod tests;

// What fails with another value was seen in the simulations of `tests/`. Where nothing is said, none was tried.

/// Between tries: what is saved up in the provider's bucket meanwhile is spent by the next try. At 1.0, 2.2 % of calls are
/// refused at 300k TPM (bound 2 %).
const HOLD_SHARE: f64 = 0.98;
/// A try starts with this (1.0 would do as well) and grows by that much a second. With 1.4,
/// 300k TPM are used by 39 % with seed 7 (bound 97 %).
const TRY_SHARE: f64 = 1.05;
const TRY_GROWTH: f64 = 1.15;
/// Beyond twice the limit it grows slower: by then the bucket has much saved up that hides the new limit.
const TRY_FAR: f64 = 2.0;
const TRY_GROWTH_FAR: f64 = 1.05;
/// Where calls are rare, by no more than this a call: there must be some to tell from.
const TRY_GROWTH_PER_CALL: f64 = 1.06;
/// The first tries after a limit was met grow by this a second, each further one by its root: it may have been none.
const TRY_GROWTH_FIRST: f64 = 1.4;
/// After the limit was met, nothing is tried for this time plus this multiple of the pause that it cost. The time is halved for each
/// time by which the limit was met less than `MET_MAX` times in a row.
const REST_S: f64 = 16.5;
const REST_PAUSES: f64 = 10.0;
const MET_MAX: i32 = 5;
/// A limit that was met so often in a row is one.
const MET_CONFIRMED: i32 = 2;
/// Refused calls that each call pays for. Where calls are rare, it pays for more, so that one is paid for within that time, but
/// for no more than the most: without, 20 RPM are found again after up to 317 s (bound 260 s) and used by 94.7 % (95 %).
const SPARE_PER_CALL: f64 = 0.013;
const SPARE_PER_CALL_MAX: f64 = 0.025;
const SPARE_WITHIN_S: f64 = 240.0;
/// How many are paid for at first, and at least and at most.
const SPARE_START: f64 = 1.0;
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
pub(super) const MEASURE_CALLS_MIN: f64 = 8.0;
const PRIOR_CALLS: f64 = 2.0;
const PRIOR_CALLS_MEASURED: f64 = 8.0;
/// A try that gets so far beyond the limit has met another one.
const RAISED_SHARE: f64 = 2.4;
/// The pace stays in between, whatever is measured.
const PER_S_MIN: f64 = 1.0 / 60.0;
const PER_S_MAX: f64 = 1e9;
/// No call waits for longer than this for the pace alone.
const WAIT_MAX_S: f64 = 60.0;
/// Whatever a refusal says, no call waits longer than this many calls take at the new pace, if any is let in.
const PAUSE_CALLS: u32 = 10;
const PAUSE_CALLS_ALONE: u32 = 2;
/// After a refusal, calls are put off by this much more: what it brings is left in the bucket for wrong estimates.
const RESERVE: Duration = Duration::from_millis(200);
/// A call that goes no later than this after it could have gone has waited for the pace: timers are coarse.
const IN_THE_WAY: Duration = Duration::from_millis(50);
/// What was not used is made up for if it is no older than this. After more, nobody was there to use it.
const CREDIT: Duration = Duration::from_secs(1);
/// The share of calls refused below the limit is taken over about this many calls.
const USUAL_CALLS: f64 = 100.0;
/// If more than this share is refused below the limit, a single refusal says nothing of a try. If it did, 10,000 answers with a
/// fifth refused at random would take 227 s (bound 75 s).
const USUAL_MIN: f64 = 0.015;
/// Single refusals lower the pace to no less than this share of what it was when the limit was met. If it has become lower than that,
/// most calls are refused. At 0, 10,000 answers with a fifth refused at random take 88 s (bound 75 s), and
/// 2,000 prompts with a tenth refused up to 48 minutes.
const LOWERED_MIN: f64 = 0.5;

/// The pace of one limit.
#[derive(Debug)]
pub(super) struct Pace {
    /// What the limit counts.
    pub meter: Meter,
    /// Where that is only supposed.
    choice: Option<Choice>,
    /// Whether the limit was measured.
    is_measured: bool,
    /// Whether it never was: the pace is a guess, and may be several times too high.
    is_guess: bool,
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
    /// How many of them pass before the next try.
    rest_s: f64,
    /// Refused calls that are paid for.
    spare: f64,
    /// The try under way: the share of the limit that it has got to, and where it began.
    trial: Option<(f64, Mark)>,
    /// How often in a row the limit was met where it was thought to be.
    met: i32,
    /// Whether the last call had to wait for it.
    in_the_way: bool,
    /// The share of calls that is refused below the limit.
    usual: f64,
    unexplained: Unexplained,
    /// What seemed to be allowed when the limit was met.
    met_per_s: f64,
    /// Single refusals lower the pace to no less than this.
    least_per_s: f64,
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
    /// The pace after a limit was met for the first time, and how long nobody is sent. `recent` is some while before it, and so
    /// many requests a second at least are thought to be allowed.
    pub(super) fn new(refusal: Refusal, recent: Mark, told_per_s: f64, usual: f64) -> (Self, Duration) {
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
        pace.usual = usual;
        pace.choice = pace.choice.filter(|_| refusal.told.is_none());
        pace.mark = pace.emptied(refusal);
        let pause = pace.pause(&refusal, false, sent < 1.0);
        pace.rest(Refusal { pause, ..refusal });
        (pace, pause)
    }

    /// The pace of a limit that was confirmed before.
    pub(super) fn confirmed(meter: Meter, per_s: f64, mark: Mark) -> Self {
        let rest_s = rest_s(Duration::ZERO, MET_MAX);
        Self { met: MET_MAX, rest_s, is_guess: false, ..Self::known(meter, per_s, mark) }
    }

    /// A pace that is only supposed.
    fn known(meter: Meter, per_s: f64, mark: Mark) -> Self {
        let (now, per_s) = (mark.at, per_s.clamp(PER_S_MIN, PER_S_MAX));
        Self {
            meter,
            choice: Some(Choice::default()),
            is_measured: false,
            is_guess: true,
            per_s,
            mark,
            refused_at: now,
            paid_at: now,
            at: now,
            clean_s: 0.0,
            rest_s: rest_s(Duration::ZERO, 1),
            spare: SPARE_START,
            trial: None,
            met: 1,
            in_the_way: false,
            usual: 0.0,
            unexplained: Unexplained::default(),
            met_per_s: per_s,
            least_per_s: LOWERED_MIN * per_s,
        }
    }

    /// The pace at which calls were let through since a refusal, of which many followed one by one.
    pub(super) fn let_through(since: Refused, now: Mark) -> Self {
        let per_s = per_s_since(since, now, Meter::Requests);
        Self { is_guess: false, ..Self::known(Meter::Requests, per_s, now) }
    }

    /// The share of calls that is refused below the limit.
    pub(super) fn usual(&self) -> f64 {
        self.usual
    }

    /// Whether a refused call went before the last refusal was known: they are one mistake.
    pub(super) fn is_straggler(&self, refusal: &Refusal) -> bool {
        refusal.admitted_at < self.refused_at
    }

    /// Whether a refusal is of this limit.
    pub(super) fn is_of(&self, told: Option<(Meter, u64)>) -> bool {
        told.is_none_or(|(meter, _)| meter == self.meter)
    }

    /// What seems to be allowed, a minute.
    pub(super) fn limit(&self) -> u64 {
        (self.per_s * 60.0).round() as u64
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
        // One that did not have to wait for the pace leaves no debt behind.
        self.paid_at = ready_at.min(now + self.time_for(cost));
        if late > CREDIT {
            (self.mark, self.paid_at) = (before, now);
        }
        self.in_the_way = late <= IN_THE_WAY;
        if self.in_the_way {
            self.pass(before);
            if self.trial.is_none() {
                self.usual *= 1.0 - 1.0 / USUAL_CALLS;
            }
        }
        self.at = self.at.max(now);
        let pays = (1.0 / (SPARE_WITHIN_S * self.per_s)).clamp(SPARE_PER_CALL, SPARE_PER_CALL_MAX);
        self.spare = (self.spare + pays).min(SPARE_MAX);
    }

    /// Something was charged too much, or, below zero, too little.
    pub(super) fn add(&mut self, amount: f64) {
        let by = self.time_for(amount.abs());
        let moved = if amount < 0.0 { self.paid_at.checked_add(by) } else { self.paid_at.checked_sub(by) };
        self.paid_at = moved.unwrap_or(self.paid_at);
    }

    /// A call was refused that had gone before the last refusal was known. The mark had counted it as let through.
    pub(super) fn refuse_straggler(&mut self, refusal: Refusal) {
        self.mark.sent = std::array::from_fn(|index| self.mark.sent[index] - refusal.cost[index]);
        self.spare = (self.spare - 1.0).max(SPARE_MIN);
    }

    /// Whether the limit was met where it was thought to be, again and again.
    pub(super) fn is_confirmed(&self) -> bool {
        self.met >= MET_CONFIRMED
    }

    /// A call was refused. How long everybody has to wait, if so.
    pub(super) fn refuse(&mut self, refusal: Refusal, kind: Kind) -> Option<Duration> {
        let is_alone = refusal.told.is_none() && !matches!(kind, Kind::Together);
        let tries = self.in_the_way && self.trial.is_some() && self.usual < USUAL_MIN;
        if is_alone && !tries {
            match kind {
                Kind::Often(since) => self.restart(per_s_since(since, refusal.now, self.meter), refusal.now),
                Kind::Alone if self.in_the_way && self.trial.is_none() => self.lower(refusal),
                Kind::Alone | Kind::Together => {}
            }
            return None;
        }
        let emptied = self.emptied(refusal);
        let nobody = self.passed(emptied)[0] < 1.0;
        self.per_s = match refusal.told {
            // Whoever lets nobody in shows no limit.
            _ if nobody => self.per_s,
            Some((_, told)) if self.trial.is_some() => (told as f64 / 60.0).min(self.rate()),
            // Refused while nothing was tried: it is lower now, or others use it too.
            Some((_, told)) => (told as f64 / 60.0).min(self.measure(emptied)),
            None => self.measure(emptied),
        };
        self.measured(emptied);
        let raised = self.trial.is_some_and(|(share, _)| share >= RAISED_SHARE);
        if raised && self.is_confirmed() {
            // It was worth its refusal, and the next try, which tells how much more there is, is made at once. What is let through
            // from now on is not held against what was before.
            self.spare += 1.0;
            self.choice.iter_mut().for_each(Choice::changed);
        }
        self.met = if raised || self.trial.is_none() { 1 } else { self.met.saturating_add(1) };
        let pause = self.pause(&refusal, is_alone, nobody);
        self.rest(Refusal { pause, ..refusal });
        self.unexplained = Unexplained::default();
        self.paid_at += RESERVE;
        (!is_alone).then_some(pause)
    }

    /// How long no call is sent. A bucket that lets some calls in is soon full enough for the next few, whatever it tells.
    fn pause(&self, refusal: &Refusal, is_alone: bool, nobody: bool) -> Duration {
        let calls = if is_alone { PAUSE_CALLS_ALONE } else { PAUSE_CALLS };
        let soon = calls * self.time_for(refusal.cost[self.meter as usize]);
        if nobody { refusal.pause } else { refusal.pause.min(soon) }
    }

    /// A single call was refused below the limit: at random, or else the limit is lower than was thought.
    fn lower(&mut self, refusal: Refusal) {
        if self.usual > 0.0 {
            self.usual += (1.0 - self.usual) / USUAL_CALLS;
        }
        let calls = self.passed(refusal.now)[0];
        if calls < 1.0 {
            return;
        }
        let (meter, was_guess, measured) = (self.meter, self.is_guess, self.measure(refusal.now));
        self.per_s = if self.meter == meter { measured.max(self.least_per_s) } else { measured };
        self.measured(refusal.now);
        if self.meter != meter {
            // Counted otherwise, it has another pace.
            self.met_at(measured);
        } else if was_guess && !self.is_guess && measured < self.least_per_s {
            self.least_per_s *= LOWERED_MIN;
        }
        if let Some(share) = self.unexplained.refused(calls) {
            if self.usual < USUAL_MIN {
                // Perhaps there is no limit: the next try is made at once.
                (self.clean_s, self.spare) = (self.rest_s, self.spare.max(1.0));
            }
            (self.per_s, self.usual) = (self.met_per_s, self.usual.max(share));
        } else if self.usual < USUAL_MIN {
            self.clean_s = 0.0;
        }
    }

    fn met_at(&mut self, per_s: f64) {
        (self.met_per_s, self.least_per_s) = (per_s, LOWERED_MIN * per_s);
    }

    /// Was measured until here.
    fn measured(&mut self, until: Mark) {
        let calls = self.passed(until)[0];
        self.per_s = self.per_s.clamp(PER_S_MIN, PER_S_MAX);
        self.is_measured = calls >= MEASURE_CALLS_MIN;
        self.is_guess &= !self.is_measured;
        if self.is_measured || calls < 1.0 {
            self.mark = until;
        }
    }

    /// Starts anew with what was let through.
    fn restart(&mut self, per_s: f64, now: Mark) {
        self.per_s = per_s.min(self.rate()).max(PER_S_MIN);
        (self.trial, self.met, self.clean_s, self.mark, self.is_guess) = (None, 1, 0.0, now, false);
        self.unexplained = Unexplained::default();
        self.met_at(self.per_s);
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
        // Those that are refused anyway are made up for.
        let measured = (passed[index] + prior) / (passed_s + prior / self.per_s) / (1.0 - self.usual);
        measured.min(self.rate())
    }

    fn rest(&mut self, refusal: Refusal) {
        let now = refusal.now.at;
        self.spare = (self.spare - 1.0).max(SPARE_MIN);
        self.trial = None;
        self.clean_s = 0.0;
        self.met_at(self.per_s);
        self.rest_s = rest_s(refusal.pause, self.met);
        self.refused_at = now;
        self.at = now + refusal.pause;
        self.paid_at = self.at.checked_sub(self.time_for(refusal.cost[self.meter as usize])).unwrap_or(now);
    }

    /// Time passes. A try that has begun goes on until a call is refused.
    fn pass(&mut self, before: Mark) {
        let passed_s = seconds(self.at, before.at);
        if let Some((share, _)) = &mut self.trial {
            let growth = match self.met {
                ..=3 => TRY_GROWTH_FIRST.powf(0.5_f64.powi(self.met - 1)),
                _ if *share < TRY_FAR => TRY_GROWTH,
                _ => TRY_GROWTH_FAR,
            };
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

/// How long nothing is tried after a limit was met: little at first, since it may have been none.
fn rest_s(pause: Duration, met: i32) -> f64 {
    REST_S.max(REST_PAUSES * pause.as_secs_f64()) * 0.5_f64.powi((MET_MAX - met).max(0))
}

/// What was let through a second since a call went.
fn per_s_since(since: Refused, now: Mark, meter: Meter) -> f64 {
    let passed = now.sent[meter as usize] - since.passed[meter as usize];
    passed / seconds(since.at, now.at).max(0.001)
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}
