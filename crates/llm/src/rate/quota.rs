//! The buckets of a route: requests and tokens, or input and output tokens apart. A call reserves in all of them and is
//! settled in all of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::bucket::{Bucket, Told};
use super::pace::{Mark, Pace, Refusal};
use super::refusals::{Kind, Refusals, Refused};
use super::{Learnt, OutputCharge, RouteLimits};
use crate::provider::{RateSignals, RateWindow};

/// A minute's window is whole again after a minute. Some providers put the figures of a day into the same headers;
/// those say nothing about a pace.
const RESET_MAX: Duration = Duration::from_secs(120);

/// Headers explain a refusal if they leave less than this many times what we think the call costs: the provider may
/// think otherwise.
const SHORTAGE: f64 = 2.0;

/// The pace of the last while is taken over no less than this.
const RECENT_MIN: Duration = Duration::from_secs(4);

/// What a provider counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meter {
    /// Requests.
    Requests,
    /// Tokens of all kinds.
    Tokens,
    /// Input tokens.
    InputTokens,
    /// Output tokens.
    OutputTokens,
}

impl Meter {
    /// Every meter, in the order of its variants.
    pub const ALL: [Self; 4] = [Self::Requests, Self::Tokens, Self::InputTokens, Self::OutputTokens];
}

/// What a call costs, or a correction of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Charge {
    pub requests: f64,
    pub input: f64,
    pub output: f64,
}

impl Charge {
    /// One request of this many tokens.
    pub(super) fn call(input: u64, output: u64) -> Self {
        Self { requests: 1.0, input: input as f64, output: output as f64 }
    }

    fn all(self) -> [f64; 4] {
        Meter::ALL.map(|meter| self.of(meter))
    }

    fn of(self, meter: Meter) -> f64 {
        match meter {
            Meter::Requests => self.requests,
            Meter::Tokens => self.input + self.output,
            Meter::InputTokens => self.input,
            Meter::OutputTokens => self.output,
        }
    }
}

/// What was reserved for a call, and what had been sent by then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    pub charge: Charge,
    pub at: Instant,
    sent: [f64; 4],
    /// What had been let through before it.
    passed: [f64; 4],
}

impl Reservation {
    fn refused(&self) -> Refused {
        Refused { number: self.sent[Meter::Requests as usize] as u64, at: self.at, passed: self.passed }
    }
}

/// All buckets of a route, and the paces where only refusals tell of a limit. Which there are depends on configuration
/// and on what the provider tells.
#[derive(Debug)]
pub(super) struct Quota {
    buckets: [Option<Bucket>; 4],
    /// What other processes leave to us of each.
    share: f64,
    paces: Vec<Pace>,
    refusals: Refusals,
    /// All that was ever charged, a meter: a difference of two such sums is what was sent in between.
    sent: [f64; 4],
    /// The same without what was refused.
    passed: [f64; 4],
    /// Two moments of the last while: for a first refusal, which has nothing to be measured from.
    recent: [Mark; 2],
}

impl Quota {
    pub(super) fn new(limits: &RouteLimits, learnt: &Learnt, now: Instant) -> Self {
        let ceilings = [limits.rpm, limits.tpm, limits.input_tpm, limits.output_tpm];
        let told = [learnt.requests, learnt.tokens, learnt.input_tokens, learnt.output_tokens];
        let buckets = std::array::from_fn(|index| Bucket::new(ceilings[index], told[index], now));
        let start = Mark { at: now, sent: [0.0; 4] };
        let found =
            learnt.found.iter().map(|(meter, limit)| Pace::confirmed(*meter, *limit as f64 / 60.0, start));
        Self {
            buckets,
            share: 1.0,
            paces: found.collect(),
            refusals: Refusals::default(),
            sent: start.sent,
            passed: start.sent,
            recent: [start; 2],
        }
    }

    /// Uses this share of the limits that are told or configured. Those found by being refused are found with everybody
    /// else calling, and so are ours alone.
    pub(super) fn set_share(&mut self, share: f64, now: Instant) {
        self.share = share;
        self.buckets.iter_mut().flatten().for_each(|bucket| bucket.set_share(share, now));
    }

    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// When all paces let a call go, and which is the last to do so; `None`: now.
    pub(super) fn paced_until(&self, charge: Charge, now: Instant) -> Option<(Instant, Meter)> {
        let paced = self.paces.iter().filter_map(|pace| {
            let ready_at = pace.ready_at(charge.of(pace.meter), now)?;
            Some((ready_at, pace.meter))
        });
        paced.max_by_key(|(ready_at, _)| *ready_at)
    }

    /// When all buckets have room for a call, and which is the last to have it; `None`: now.
    pub(super) fn ready_at(&mut self, charge: Charge, now: Instant) -> Option<(Instant, Meter)> {
        let filled = self.buckets.iter_mut().zip(Meter::ALL).filter_map(|(bucket, meter)| {
            let ready_at = bucket.as_mut()?.ready_at(charge.of(meter), now)?;
            Some((ready_at, meter))
        });
        filled.max_by_key(|(ready_at, _)| *ready_at)
    }

    /// Reserves for a call.
    pub(super) fn reserve(&mut self, charge: Charge, now: Instant) -> Reservation {
        let before = Mark { at: now, sent: self.passed };
        if self.sent[Meter::Requests as usize] == 0.0 {
            // Time in which nobody called says nothing of a limit.
            self.recent = [before; 2];
        } else if now.saturating_duration_since(self.recent[1].at) >= RECENT_MIN {
            self.recent = [self.recent[1], before];
        }
        for pace in &mut self.paces {
            pace.take(charge.of(pace.meter), before);
        }
        for meter in Meter::ALL {
            self.sent[meter as usize] += charge.of(meter);
            self.passed[meter as usize] += charge.of(meter);
            if let Some(bucket) = &mut self.buckets[meter as usize] {
                bucket.take(charge.of(meter), now);
            }
        }
        Reservation { charge, at: now, sent: self.sent, passed: before.sent }
    }

    /// Gives back what the provider did not charge. It stays in the sums of what was sent: with several calls refused at
    /// once, their order is unknown, and this errs on the safe side.
    pub(super) fn give_back(&mut self, charge: Charge, now: Instant) {
        for meter in Meter::ALL {
            self.add(meter, charge.of(meter), now);
        }
    }

    fn add(&mut self, meter: Meter, amount: f64, now: Instant) {
        if let Some(bucket) = &mut self.buckets[meter as usize] {
            bucket.add(amount, now);
        }
        self.paces.iter_mut().filter(|pace| pace.meter == meter).for_each(|pace| pace.add(amount));
    }

    /// Corrects a reservation by what the call truly used.
    pub(super) fn correct(&mut self, call: &Reservation, used: Correction<'_>, now: Instant) {
        let Correction { input, output, output_charge, rate } = used;
        let estimate_error = Charge { input: call.charge.input - input, ..Charge::default() };
        let refund = match output_charge {
            OutputCharge::MaxTokens => Charge::default(),
            OutputCharge::Refunded | OutputCharge::Actual => {
                Charge { output: call.charge.output - output, ..Charge::default() }
            }
        };
        for (meter, window) in windows(rate) {
            self.sent[meter as usize] -= refund.of(meter);
            // Headers have counted the true input since the call was admitted; the refund happens only now.
            let error = if window.is_some() { 0.0 } else { estimate_error.of(meter) };
            self.add(meter, refund.of(meter) + error, now);
        }
    }

    /// Takes in the headers of an answer; whether they told a limit.
    pub(super) fn learn(&mut self, call: &Reservation, rate: &RateSignals, now: Instant) -> bool {
        for (meter, window) in windows(rate) {
            if let Some(window) = window {
                self.learn_window(call, meter, window, now);
            }
        }
        windows(rate).iter().any(|(_, window)| window.is_some_and(|window| window.limit.is_some()))
    }

    fn learn_window(&mut self, call: &Reservation, meter: Meter, window: RateWindow, now: Instant) {
        let bucket = &mut self.buckets[meter as usize];
        if bucket.is_none() {
            *bucket = Bucket::new(None, window.limit, now);
            bucket.iter_mut().for_each(|bucket| bucket.set_share(self.share, now));
        }
        if let Some(bucket) = bucket {
            let sent_since = self.sent[meter as usize] - call.sent[meter as usize];
            let (limit, remaining) = (window.limit, window.remaining.map(|left| left as f64));
            let limit = limit.filter(|limit| *limit > 0).map(|limit| limit as f64);
            bucket.learn(Told { limit, remaining, admitted_at: call.at, sent_since }, now);
        }
    }

    /// Whether most calls around a refused one were refused too.
    pub(super) fn refused_together(&mut self, call: &Reservation) -> bool {
        matches!(self.refusals.refused(call.refused(), 0.0), Kind::Together)
    }

    /// Takes in a refusal, and how long it tells to wait. How long everybody has to, if a limit was met. Headers may show that
    /// too little was left. If not, the limit that was met has to be paced: the one that the refusal names, or else one of requests.
    pub(super) fn refused(
        &mut self,
        call: &Reservation,
        rate: &RateSignals,
        pause: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let mut explained = false;
        let mut named = Vec::new();
        for (meter, window) in windows(rate) {
            match window {
                Some(window @ RateWindow { remaining: Some(left), .. }) => {
                    explained |= (left as f64) < SHORTAGE * call.charge.of(meter);
                    self.learn_window(call, meter, window, now);
                }
                Some(RateWindow { limit: Some(limit @ 1..), .. }) => named.push(Some((meter, limit))),
                Some(_) | None => {}
            }
        }
        let cost = call.charge.all();
        let now_sent = Mark { at: now, sent: self.passed };
        self.passed = std::array::from_fn(|index| self.passed[index] - cost[index]);
        if explained {
            return Some(pause);
        }
        if named.is_empty() {
            named.push(None);
        }
        let mut longest = None;
        for told in named {
            let refusal = Refusal { admitted_at: call.at, now: now_sent, cost, told, pause };
            longest = longest.max(self.pace(call.refused(), refusal));
        }
        if longest.is_some() {
            self.buckets.iter_mut().flatten().for_each(|bucket| bucket.drain(now));
        }
        longest
    }

    /// Takes in a refusal that headers do not explain. How long everybody has to wait, if a limit was met.
    fn pace(&mut self, refused: Refused, refusal: Refusal) -> Option<Duration> {
        let pace = self.paces.iter_mut().find(|pace| pace.is_of(refusal.told));
        if let Some(pace) = pace {
            if pace.is_straggler(&refusal) {
                pace.refuse_straggler(refusal);
                return Some(Duration::ZERO);
            }
            let kind = self.refusals.refused(refused, pace.usual());
            return pace.refuse(refusal, kind);
        }
        // Nothing was ever met, so these were none of a limit.
        let usual = self.refusals.share(self.sent[Meter::Requests as usize]);
        match self.refusals.refused(refused, usual) {
            Kind::Alone if refusal.told.is_none() => None,
            Kind::Often(since) if refusal.told.is_none() => {
                self.paces.push(Pace::let_through(since, refusal.now));
                None
            }
            Kind::Alone | Kind::Often(_) | Kind::Together => {
                let [older, newer] = self.recent;
                let far = refusal.now.at.saturating_duration_since(newer.at) >= RECENT_MIN / 2;
                // Whoever tells how many requests there may be would hardly refuse far fewer by a limit that is not told.
                let told = self.told()[Meter::Requests as usize].map_or(0.0, |limit| limit as f64 / 60.0);
                let (pace, pause) = Pace::new(refusal, if far { newer } else { older }, told, usual);
                self.paces.push(pace);
                Some(pause)
            }
        }
    }

    /// The limits told by the provider, a minute, by meter.
    pub(super) fn told(&self) -> [Option<u64>; 4] {
        self.buckets.each_ref().map(|bucket| bucket.as_ref().and_then(Bucket::told))
    }

    /// The limits found by being refused that are sure to be some, a minute.
    pub(super) fn confirmed(&self) -> Vec<(Meter, u64)> {
        let confirmed = self.paces.iter().filter(|pace| pace.is_confirmed());
        confirmed.map(|pace| (pace.meter, pace.limit())).collect()
    }

    /// Whether the provider tells any limit.
    pub(super) fn is_told(&self) -> bool {
        self.told().iter().any(Option::is_some)
    }

    /// Whether a limit was met so often that it is sure to be one.
    pub(super) fn is_confirmed(&self) -> bool {
        self.paces.iter().any(Pace::is_confirmed)
    }

    /// Whether a limit was found by being refused.
    pub(super) fn is_paced(&self) -> bool {
        !self.paces.is_empty()
    }

    /// The limits in force, a minute.
    pub(super) fn limits(&self) -> Vec<(Meter, u64)> {
        let limit = |meter: Meter| {
            let bucket = self.buckets[meter as usize].as_ref().map(Bucket::limit);
            let found = self.paces.iter().filter(|pace| pace.meter == meter).map(Pace::limit);
            Some((meter, found.chain(bucket).min()?))
        };
        Meter::ALL.into_iter().filter_map(limit).collect()
    }
}

/// What a call truly used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Correction<'a> {
    pub input: f64,
    pub output: f64,
    pub output_charge: OutputCharge,
    pub rate: &'a RateSignals,
}

/// The windows that tell of a minute. Where input and output are counted apart, a total beside them is whichever limit
/// the provider holds for the tightest, and cannot be trusted to be a total.
fn windows(rate: &RateSignals) -> [(Meter, Option<RateWindow>); 4] {
    let minute = |window: Option<RateWindow>| {
        window.filter(|window| window.reset_after.is_none_or(|reset| reset <= RESET_MAX))
    };
    let split = rate.input_tokens.is_some() || rate.output_tokens.is_some();
    [
        (Meter::Requests, minute(rate.requests)),
        (Meter::Tokens, minute(rate.tokens.filter(|_| !split))),
        (Meter::InputTokens, minute(rate.input_tokens)),
        (Meter::OutputTokens, minute(rate.output_tokens)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(limit: u64, remaining: u64) -> Option<RateWindow> {
        Some(RateWindow { limit: Some(limit), remaining: Some(remaining), reset_after: None })
    }

    fn unknown() -> Quota {
        Quota::new(&RouteLimits::default(), &Learnt::default(), Instant::now())
    }

    #[test]
    fn headers_make_the_buckets_that_they_tell_of() {
        let total =
            RateSignals { requests: window(300, 49), tokens: window(9000, 800), ..RateSignals::default() };
        let split = RateSignals {
            input_tokens: window(9000, 800),
            output_tokens: window(2000, 100),
            ..total.clone()
        };
        let day = Some(RateWindow {
            reset_after: Some(Duration::from_secs(3600)),
            ..window(300, 49).expect("a window")
        });
        let of_a_day = RateSignals { requests: day, ..RateSignals::default() };
        let table = [
            (RateSignals::default(), vec![]),
            (total, vec![(Meter::Requests, 300), (Meter::Tokens, 9000)]),
            (split, vec![(Meter::Requests, 300), (Meter::InputTokens, 9000), (Meter::OutputTokens, 2000)]),
            (of_a_day, vec![]),
        ];
        for (rate, limits) in table {
            let (mut quota, now) = (unknown(), Instant::now());
            let call = quota.reserve(Charge::call(10, 10), now);
            assert_eq!(quota.learn(&call, &rate, now), !limits.is_empty());
            assert_eq!(quota.limits(), limits, "{rate:?}");
        }
    }

    #[test]
    fn a_shortage_explains_a_refusal() {
        let table =
            [((300, 0), (9000, 800), true), ((300, 5), (9000, 39), true), ((300, 2), (9000, 40), false)];
        for (requests, tokens, shortage) in table {
            let (mut quota, now) = (unknown(), Instant::now());
            let call = quota.reserve(Charge::call(10, 10), now);
            let (requests, tokens) = (window(requests.0, requests.1), window(tokens.0, tokens.1));
            let rate = RateSignals { requests, tokens, ..RateSignals::default() };
            assert_eq!(quota.refused(&call, &rate, Duration::ZERO, now).is_some(), shortage, "{rate:?}");
        }
    }

    /// How far a call of 100 + 50 tokens that used 80 + 20 leaves the bucket overdrawn, as the wait for the next tells.
    fn debt(output_charge: OutputCharge, told: bool) -> f64 {
        let now = Instant::now();
        let limits = RouteLimits { tpm: Some(6000), ..RouteLimits::default() };
        let mut quota = Quota::new(&limits, &Learnt::default(), now);
        let call = quota.reserve(Charge::call(100, 50), now);
        // Only that the header is there matters here: its figures are not read by `correct`.
        let rate = RateSignals { tokens: window(6000, 0).filter(|_| told), ..RateSignals::default() };
        quota.correct(&call, Correction { input: 80.0, output: 20.0, output_charge, rate: &rate }, now);
        let (ready_at, _) = quota.ready_at(Charge::call(0, 1), now).expect("it must wait");
        ((ready_at - now).as_secs_f64() * 98.0 - 1.0).round()
    }

    #[test]
    fn corrections_follow_how_the_provider_charges() {
        let table = [
            (OutputCharge::MaxTokens, false, 130.0),
            (OutputCharge::MaxTokens, true, 150.0),
            (OutputCharge::Refunded, false, 100.0),
            (OutputCharge::Refunded, true, 120.0),
            (OutputCharge::Actual, false, 100.0),
        ];
        for (output_charge, told, expected) in table {
            assert_eq!(debt(output_charge, told), expected, "{output_charge:?}, told by headers: {told}");
        }
    }
}
