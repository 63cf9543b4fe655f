//! The state of a route and its two moves: [`Route::admit`] and [`Route::settle`]. Knows no tasks and no timers; the time
//! comes in as an argument.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::adaptive::Adaptive;
use super::breaker::{Breaker, Pass, Reached};
use super::concurrency::{CONCURRENCY_MAX, Concurrency, Sample};
use super::estimate::Estimator;
use super::fair::{Entry, Waiting};
use super::quota::{Charge, Correction, Quota, Reservation};
use super::{Ask, Demand, Engine, Gate, Held, Learnt, Permit, RouteLimits, RouteStats, Settled, Totals};
use crate::error::{Error, Result};
use crate::provider::RateSignals;
use crate::types::Usage;

/// The wait after a 429 that names none; each further one in a row doubles it.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_UNTOLD_MAX: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A provider that asks for more is asked again: a header may be wrong.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Processes that share a key are told the same time; they come back apart by up to this share of it.
const JITTER_SHARE: f64 = 0.1;
const JITTER_MAX: Duration = Duration::from_secs(1);

/// The state of a route.
#[derive(Debug)]
pub(super) struct Route {
    limits: RouteLimits,
    quota: Quota,
    concurrency: Concurrency,
    adaptive: Adaptive,
    breaker: Breaker,
    estimator: Estimator,
    waiting: Waiting<Waiter>,
    in_flight: usize,
    paused_until: Option<Instant>,
    /// Pauses of the whole route without an answer in between.
    pauses_in_a_row: u32,
    closed: Option<Error>,
    /// What the next call waits for, and until when if time alone helps.
    held: Option<(Gate, Option<Instant>)>,
    totals: Totals,
    rng: fastrand::Rng,
    next_id: u64,
}

/// A call that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub ask: Ask,
    pub granted: oneshot::Sender<Result<Permit>>,
}

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Call {
    run: Arc<str>,
    input_estimated: u64,
    /// How often it was refused before.
    refusals: u32,
    reservation: Reservation,
    /// Whether it finds out for all others if an outage is over.
    probe: bool,
}

impl Call {
    pub(super) fn is_probe(&self) -> bool {
        self.probe
    }
}

impl Route {
    pub(super) fn new(limits: RouteLimits, learnt: &Learnt, seed: u64, now: Instant) -> Self {
        Self {
            quota: Quota::new(&limits, learnt, now),
            concurrency: Concurrency::new(&limits, learnt, now),
            adaptive: Adaptive::new(learnt.adaptive.as_ref(), concurrency_max(&limits)),
            breaker: Breaker::default(),
            estimator: Estimator::new(limits.output_charge, learnt.input_ratio, learnt.output_p90),
            waiting: Waiting::new(),
            in_flight: 0,
            paused_until: None,
            pauses_in_a_row: 0,
            closed: None,
            held: None,
            totals: Totals::default(),
            rng: fastrand::Rng::with_seed(seed),
            next_id: 0,
            limits,
        }
    }

    /// Queues a call; its number.
    pub(super) fn enqueue(&mut self, waiter: Waiter) -> Result<u64> {
        if let Some(error) = &self.closed {
            return Err(error.clone());
        }
        self.next_id += 1;
        let charge = self.estimator.charge(&waiter.ask);
        let cost = (charge.input + charge.output) as u64;
        let ask = waiter.ask.clone();
        self.waiting.push(&ask, Entry { id: self.next_id, cost, item: waiter });
        Ok(self.next_id)
    }

    /// Admits the calls that may go now.
    pub(super) fn admit(&mut self, now: Instant) -> Vec<(Waiter, Call)> {
        let mut admitted = Vec::new();
        loop {
            let Some(turn) = self.waiting.next() else {
                self.held = (self.waiting.len() > 0).then_some((Gate::RunConcurrency, None));
                break;
            };
            let charge = self
                .waiting
                .front(turn)
                .map(|entry| self.estimator.charge(&entry.item.ask))
                .unwrap_or_default();
            self.held = self.gate(charge, now);
            if self.held.is_some() {
                break;
            }
            let Some(entry) = self.waiting.admit(turn) else { break };
            let call = self.start(&entry.item.ask, charge, now);
            admitted.push((entry.item, call));
        }
        admitted
    }

    /// What is in a call's way.
    fn gate(&mut self, charge: Charge, now: Instant) -> Option<(Gate, Option<Instant>)> {
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return Some((Gate::Pause, Some(until)));
        }
        match self.breaker.pass(now) {
            Pass::At(until) => return Some((Gate::Overload, Some(until))),
            Pass::AfterProbe => return Some((Gate::Overload, None)),
            Pass::Yes => {}
        }
        if self.in_flight >= self.concurrency.limit() {
            return Some((Gate::Concurrency, None));
        }
        let mut paced = self.quota.paced_until(charge, now);
        if paced.is_some() && self.in_flight < self.floor() {
            self.adaptive.used();
            paced = None;
        }
        let held = [self.quota.ready_at(charge, now), paced].into_iter().flatten();
        let (ready_at, meter) = held.max_by_key(|(ready_at, _)| *ready_at)?;
        Some((Gate::Quota(meter), Some(ready_at)))
    }

    pub(super) fn outage(&self, now: Instant) -> Option<Duration> {
        self.breaker.outage(now)
    }

    /// Calls that no pace holds back, unless it is known to be a limit's.
    fn floor(&self) -> usize {
        if self.quota.is_told() || self.quota.is_confirmed() { 0 } else { self.adaptive.floor() }
    }

    fn start(&mut self, ask: &Ask, charge: Charge, now: Instant) -> Call {
        self.in_flight += 1;
        self.totals.admitted += 1;
        Call {
            run: ask.run.clone(),
            input_estimated: ask.input_tokens,
            refusals: ask.refusals,
            reservation: self.quota.reserve(charge, now),
            probe: self.breaker.admit(),
        }
    }

    /// Ends a call and learns from how it went. How long the call itself has to wait before it is made again: not at all
    /// where everybody does.
    pub(super) fn settle(&mut self, call: &Call, settled: &Settled, now: Instant) -> Duration {
        let in_flight = self.in_flight;
        self.in_flight -= 1;
        self.waiting.ended(&call.run);
        let charge = call.reservation.charge;
        match settled {
            Settled::Answered { usage, rate, latency } => {
                self.totals.answered += 1;
                self.pauses_in_a_row = 0;
                self.breaker.answered();
                if self.quota.learn(&call.reservation, rate, now) {
                    self.concurrency.lift();
                }
                self.correct(call, usage, rate, now);
                self.concurrency.answered(sample(call, usage, *latency, in_flight), now);
                self.adaptive.answered(in_flight, self.quota.is_paced(), now);
            }
            Settled::Throttled { retry_after, rate } => {
                self.totals.throttled += 1;
                self.breaker.answered();
                self.quota.give_back(Charge { requests: 0.0, ..charge }, now);
                return self.throttled(call, rate, *retry_after, now);
            }
            // No word about limits: the buckets get their tokens back and the pace stays.
            Settled::Overloaded => {
                self.totals.overloaded += 1;
                self.quota.give_back(Charge { requests: 0.0, ..charge }, now);
                self.breaker.unanswered(call.probe, Reached::Yes, now);
            }
            Settled::Unanswered { sent } => {
                self.totals.failed += 1;
                let reached = if *sent { Reached::Yes } else { Reached::No };
                self.breaker.unanswered(call.probe, reached, now);
                if !sent {
                    self.quota.give_back(charge, now);
                }
            }
            Settled::Refused => {
                self.totals.failed += 1;
                self.breaker.answered();
            }
            Settled::Failed { sent } => {
                self.totals.failed += 1;
                self.breaker.nothing_learnt(call.probe);
                if !sent {
                    self.quota.give_back(charge, now);
                }
            }
        }
        Duration::ZERO
    }

    /// A call was refused. If a limit was met, no call is sent for a while; otherwise only the call itself waits.
    fn throttled(
        &mut self,
        call: &Call,
        rate: &RateSignals,
        retry_after: Option<Duration>,
        now: Instant,
    ) -> Duration {
        let pause = self.wait_after(retry_after, self.pauses_in_a_row);
        self.adaptive.refused(call.reservation.at, now);
        // Known slots are no matter of pace.
        let known = matches!(self.limits.engine, Engine::Local { slots: Some(_) });
        let pause = match known {
            true => self.quota.refused_together(&call.reservation).then_some(pause),
            false => self.quota.refused(&call.reservation, rate, pause, now),
        };
        let Some(pause) = pause else { return self.wait_after(retry_after, call.refusals) };
        if !known {
            self.concurrency.lift();
        }
        if self.paused_until.is_none_or(|until| until <= now) {
            self.pauses_in_a_row = self.pauses_in_a_row.saturating_add(1);
        }
        self.pause_until(now + pause);
        Duration::ZERO
    }

    fn correct(&mut self, call: &Call, usage: &Usage, rate: &RateSignals, now: Instant) {
        let cached = if self.limits.counts_cache_reads { 0 } else { usage.cache_read };
        let (input, output) = (usage.input().saturating_sub(cached), usage.output());
        // An answer without any figures says nothing.
        if usage.total() > 0 {
            let (output_charge, used) = (self.limits.output_charge, (input as f64, output as f64));
            let correction = Correction { input: used.0, output: used.1, output_charge, rate };
            self.quota.correct(&call.reservation, correction, now);
            self.estimator.record(&call.run, call.input_estimated, input, output);
        }
    }

    /// How long to wait after a refusal that follows this many others.
    fn wait_after(&mut self, retry_after: Option<Duration>, others: u32) -> Duration {
        let usual = PAUSE.saturating_mul(2_u32.saturating_pow(others)).min(PAUSE_UNTOLD_MAX);
        let wait = retry_after.unwrap_or(usual).clamp(PAUSE_MIN, PAUSE_MAX);
        let jitter = wait.mul_f64(JITTER_SHARE * self.rng.f64()).min(JITTER_MAX);
        wait + jitter
    }

    /// Admits nobody before a time; a longer pause stands.
    pub(super) fn pause_until(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(Some(until));
    }

    /// Uses this share of the limits.
    pub(super) fn set_share(&mut self, share: f64, now: Instant) {
        self.quota.set_share(share, now);
    }

    /// How much of its limits it can use. A machine of ours has none to share.
    pub(super) fn demand(&self) -> Option<Demand> {
        if matches!(self.limits.engine, Engine::Local { .. }) {
            return None;
        }
        match (self.waiting.len(), self.in_flight) {
            (0, 0) => Some(Demand::Nothing),
            (0, _) => Some(Demand::Some),
            (_, _) => Some(Demand::All),
        }
    }

    /// Ends any pause.
    pub(super) fn unpause(&mut self) {
        self.paused_until = None;
    }

    /// Sends everyone away who waits or will come.
    pub(super) fn close(&mut self, error: Error) -> Vec<Waiter> {
        self.closed = Some(error);
        self.held = None;
        self.waiting.clear()
    }

    pub(super) fn reopen(&mut self) {
        self.closed = None;
    }

    /// A caller waits no longer.
    pub(super) fn leave(&mut self, ask: &Ask, id: u64) {
        self.waiting.remove(ask, id);
    }

    /// When to look again, if no call ends before that.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.held.and_then(|(_, until)| until)
    }

    pub(super) fn stats(&self, now: Instant) -> RouteStats {
        let left = |until: Instant| until.saturating_duration_since(now);
        RouteStats {
            in_flight: self.in_flight,
            waiting: self.waiting.len(),
            concurrency_limit: self.concurrency.limit(),
            limits: self.quota.limits(),
            share: self.quota.share(),
            held: self.held.map(|(gate, until)| Held { gate, wait: until.map(left) }),
            paused_for: self.paused_until.filter(|until| *until > now).map(left),
            closed: self.closed.as_ref().map(ToString::to_string),
            totals: self.totals,
        }
    }

    pub(super) fn learnt(&self, now: Instant, now_ms: i64) -> Learnt {
        let [requests, tokens, input_tokens, output_tokens] = self.quota.told();
        let pause = self.paused_until.map(|until| until.saturating_duration_since(now));
        let in_ms =
            |wait: Duration| now_ms.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
        Learnt {
            requests,
            tokens,
            input_tokens,
            output_tokens,
            found: self.quota.confirmed(),
            adaptive: self.adaptive.learnt(now, now_ms),
            concurrency: self.concurrency.learnt(),
            seconds_per_token: self.concurrency.seconds_per_token(),
            input_ratio: Some(self.estimator.input_ratio()),
            output_p90: self.estimator.output_p90(),
            paused_until_ms: pause.filter(|wait| !wait.is_zero()).map(in_ms),
        }
    }
}

/// How long is left of a stored pause. Bounded, since the clock may have been set in between.
pub(super) fn pause_left(learnt: &Learnt, now_ms: i64) -> Option<Duration> {
    let left_ms = learnt.paused_until_ms?.saturating_sub(now_ms);
    let left = Duration::from_millis(u64::try_from(left_ms).ok()?);
    (!left.is_zero()).then(|| left.min(PAUSE_MAX))
}

fn concurrency_max(limits: &RouteLimits) -> f64 {
    limits.concurrency_max.unwrap_or(CONCURRENCY_MAX).max(1) as f64
}

fn sample(call: &Call, usage: &Usage, latency: Duration, in_flight: usize) -> Sample {
    // Embeddings write nothing; reading is their work.
    let tokens = if usage.output() > 0 { usage.output() } else { usage.input() };
    let (seconds, tokens) = (latency.as_secs_f64(), tokens as f64);
    Sample { admitted_at: call.reservation.at, in_flight, seconds, tokens }
}
