//! A hosted provider: token buckets that charge at admission, exact Retry-After, and headers that are snapshotted at
//! admission but read at the end of the call. Between us and it lies a network that reorders.
//!
//! Tokio's time stands still in these tests: a `sleep` moves it, and nobody waits.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::provider::{RateSignals, RateWindow};
use crate::rate::OutputCharge;
use crate::types::Usage;

/// Limits a minute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The buckets hold this many seconds of their refill.
    pub burst_s: f64,
    pub requests: Option<u64>,
    pub tokens: Option<u64>,
    pub input: Option<u64>,
    pub output: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { burst_s: 10.0, requests: None, tokens: None, input: None, output: None }
    }
}

/// One call as the provider sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub input: u64,
    pub max_tokens: u64,
    pub output: u64,
    pub latency: Duration,
}

pub(super) struct Reply {
    pub usage: Usage,
    pub rate: RateSignals,
}

pub(super) struct Refusal {
    pub retry_after: Duration,
    pub rate: RateSignals,
}

pub(super) struct Provider {
    state: Mutex<State>,
    /// Whether it sends headers.
    headers: bool,
    /// Whether a refusal names the limit that was met.
    names: bool,
    /// Refusals give whole seconds to wait.
    whole_seconds: bool,
    /// The share of calls that is refused at random, and how long these are told to wait.
    random: Option<(f64, Duration)>,
    output_charge: OutputCharge,
    start: Instant,
}

struct State {
    limits: Limits,
    share: f64,
    /// Requests, tokens, input, output.
    buckets: [Option<Level>; 4],
    at: Instant,
    rng: fastrand::Rng,
    log: Log,
}

/// What the provider has seen.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    /// Admissions: seconds since the start, and what each meter was charged in the end.
    pub admitted: Vec<(f64, [f64; 4])>,
    /// Refusals, in seconds since the start.
    pub refused: Vec<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    per_s: f64,
    level: f64,
}

impl Provider {
    pub(super) fn new(limits: Limits, headers: bool, output_charge: OutputCharge, seed: u64) -> Self {
        let all = [limits.requests, limits.tokens, limits.input, limits.output];
        let buckets = all.map(|limit| {
            let per_s = limit? as f64 / 60.0;
            Some(Level { per_s, level: per_s * limits.burst_s })
        });
        let (rng, log, at) = (fastrand::Rng::with_seed(seed), Log::default(), Instant::now());
        let state = Mutex::new(State { limits, share: 1.0, buckets, at, rng, log });
        Self { state, headers, names: false, whole_seconds: false, random: None, output_charge, start: at }
    }

    /// A provider that tells of requests and counts tokens too.
    pub(super) fn hiding_tokens(limits: Limits, seed: u64) -> Self {
        let provider = Self::new(limits, true, OutputCharge::MaxTokens, seed);
        provider.lock().limits.tokens = None;
        provider
    }

    /// A provider without headers that names the limit by which it refuses.
    pub(super) fn naming(limits: Limits, seed: u64) -> Self {
        Self { names: true, ..Self::new(limits, false, OutputCharge::MaxTokens, seed) }
    }

    /// A provider without headers that gives whole seconds to wait.
    pub(super) fn coarse(limits: Limits, seed: u64) -> Self {
        Self { whole_seconds: true, ..Self::new(limits, false, OutputCharge::MaxTokens, seed) }
    }

    /// A provider without headers that refuses a share of all calls, whatever its limits leave.
    pub(super) fn refusing(share: f64, wait: Duration, limits: Limits, seed: u64) -> Self {
        Self { random: Some((share, wait)), ..Self::new(limits, false, OutputCharge::MaxTokens, seed) }
    }

    pub(super) async fn call(&self, request: Request) -> Result<Reply, Box<Refusal>> {
        let (there, back) = {
            let rng = &mut self.lock().rng;
            (rng.u64(20..60), rng.u64(20..60))
        };
        sleep(Duration::from_millis(there)).await;
        match self.admit(request) {
            Ok((number, rate)) => {
                sleep(request.latency).await;
                if self.output_charge == OutputCharge::Refunded {
                    self.lock().refund(number, (request.max_tokens - request.output) as f64);
                }
                let usage = Usage { fresh_in: request.input, out: request.output, ..Usage::default() };
                Ok(Reply { usage, rate })
            }
            Err(refusal) => {
                sleep(Duration::from_millis(back)).await;
                Err(refusal)
            }
        }
    }

    /// Admits or refuses; the number of the call in the log.
    fn admit(&self, request: Request) -> Result<(usize, RateSignals), Box<Refusal>> {
        let mut state = self.lock();
        state.refill();
        let (input, output) = (request.input as f64, request.max_tokens as f64);
        let charge = [1.0, input + output, input, output];
        let short = |(bucket, cost): (&Option<Level>, f64)| {
            let bucket = bucket.as_ref()?;
            (bucket.level < cost).then(|| (cost - bucket.level) / bucket.per_s)
        };
        let wait_s = state.buckets.iter().zip(charge).filter_map(short).fold(0.0, f64::max);
        let at = (Instant::now() - self.start).as_secs_f64();
        let random = self.random.filter(|(share, _)| state.rng.f64() < *share);
        if wait_s > 0.0 || random.is_some() {
            state.log.refused.push(at);
            let wait_s = if self.whole_seconds { wait_s.ceil() } else { wait_s };
            let retry_after = random.map_or(Duration::from_secs_f64(wait_s), |(_, wait)| wait);
            let rate = if self.names { state.named(charge) } else { state.signals(self.headers) };
            return Err(Box::new(Refusal { retry_after, rate }));
        }
        state.log.admitted.push((at, charge));
        for (bucket, cost) in state.buckets.iter_mut().zip(charge) {
            if let Some(bucket) = bucket {
                bucket.level -= cost;
            }
        }
        Ok((state.log.admitted.len() - 1, state.signals(self.headers)))
    }

    /// Changes all limits to a share of what they were at the start.
    pub(super) fn set_share(&self, share: f64) {
        let mut state = self.lock();
        state.refill();
        let factor = share / state.share;
        for bucket in state.buckets.iter_mut().flatten() {
            bucket.per_s *= factor;
        }
        state.share = share;
        state.refill();
    }

    pub(super) fn log(&self) -> Log {
        self.lock().log.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn refill(&mut self) {
        let now = Instant::now();
        let seconds = (now - self.at).as_secs_f64();
        let burst_s = self.limits.burst_s;
        self.at = now;
        for bucket in self.buckets.iter_mut().flatten() {
            bucket.level = (bucket.level + bucket.per_s * seconds).min(bucket.per_s * burst_s);
        }
    }

    fn refund(&mut self, number: usize, output: f64) {
        self.refill();
        self.log.admitted[number].1[3] -= output;
        if let Some(bucket) = &mut self.buckets[3] {
            bucket.level = (bucket.level + output).min(bucket.per_s * self.limits.burst_s);
        }
    }

    /// The limits that a call has met, and nothing of what is left of them.
    fn named(&self, charge: [f64; 4]) -> RateSignals {
        let window = |index: usize| {
            let bucket = self.buckets[index].filter(|bucket| bucket.level < charge[index])?;
            let limit = Some((bucket.per_s * 60.0).round() as u64);
            Some(RateWindow { limit, remaining: None, reset_after: None })
        };
        let [requests, tokens, input_tokens, output_tokens] = std::array::from_fn(window);
        RateSignals { requests, tokens, input_tokens, output_tokens }
    }

    fn signals(&self, headers: bool) -> RateSignals {
        if !headers {
            return RateSignals::default();
        }
        let window = |index: usize, limit: Option<u64>| {
            let remaining = self.buckets[index].map(|bucket| bucket.level.max(0.0) as u64);
            let limit = limit.map(|limit| (limit as f64 * self.share) as u64);
            limit.map(|_| RateWindow { limit, remaining, reset_after: None })
        };
        RateSignals {
            requests: window(0, self.limits.requests),
            tokens: window(1, self.limits.tokens),
            input_tokens: window(2, self.limits.input),
            output_tokens: window(3, self.limits.output),
        }
    }
}
