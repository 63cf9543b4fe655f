//! Token buckets: what each model allows a minute. They fill continuously and hold ten seconds' worth. A call is charged
//! when it is admitted, and what headers tell is the state of that moment.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

use super::options::Limits;
use longhaul_llm::provider::{RateSignals, RateWindow};

/// How much of a minute's worth can be used at once.
const BURST_OF_MINUTE: f64 = 10.0 / 60.0;
/// Models with buckets of their own; further ones share.
const MODELS_MAX: usize = 1024;
/// No limit.
const UNLIMITED: u64 = u64::MAX;

/// The buckets of all models.
#[derive(Debug)]
pub(crate) struct Buckets {
    rpm: AtomicU64,
    tpm: AtomicU64,
    models: RwLock<HashMap<String, Arc<Mutex<Pair>>>>,
}

/// A call that was not admitted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Denied {
    /// Exactly when it would be, if nobody else came.
    pub(crate) wait: Duration,
    /// Whether it lacked tokens rather than requests.
    pub(crate) tokens: bool,
    pub(crate) rate: Box<RateSignals>,
}

#[derive(Debug)]
struct Pair {
    requests: Bucket,
    tokens: Bucket,
}

#[derive(Debug)]
struct Bucket {
    level: f64,
    per_minute: u64,
    filled_at: Instant,
}

impl Buckets {
    pub(crate) fn new(limits: Limits) -> Self {
        let buckets = Self {
            rpm: AtomicU64::new(UNLIMITED),
            tpm: AtomicU64::new(UNLIMITED),
            models: RwLock::default(),
        };
        buckets.set(limits);
        buckets
    }

    pub(crate) fn set(&self, limits: Limits) {
        self.rpm.store(limits.rpm.unwrap_or(UNLIMITED), Ordering::Relaxed);
        self.tpm.store(limits.tpm.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    pub(crate) fn limits(&self) -> Limits {
        let (rpm, tpm) = self.load();
        let some = |limit| (limit != UNLIMITED).then_some(limit);
        Limits { rpm: some(rpm), tpm: some(tpm) }
    }

    /// Admits a call and charges it, or tells when to come back.
    pub(crate) fn take(&self, model: &str, tokens: u64) -> Result<RateSignals, Denied> {
        let (rpm, tpm) = self.load();
        if rpm == UNLIMITED && tpm == UNLIMITED {
            return Ok(RateSignals::default());
        }
        let now = Instant::now();
        let pair = self.pair(model, now);
        let mut pair = pair.lock().unwrap_or_else(PoisonError::into_inner);
        pair.requests.fill(rpm, now);
        pair.tokens.fill(tpm, now);
        let (for_request, for_tokens) = (pair.requests.wait(1.0), pair.tokens.wait(tokens as f64));
        let wait = for_request.max(for_tokens);
        if wait > Duration::ZERO {
            return Err(Denied { wait, tokens: for_tokens >= for_request, rate: Box::new(pair.signals()) });
        }
        pair.requests.level -= 1.0;
        pair.tokens.level -= tokens as f64;
        Ok(pair.signals())
    }

    /// Takes a charge back: the call was not let in after all.
    pub(crate) fn give_back(&self, model: &str, tokens: u64) {
        if self.load() == (UNLIMITED, UNLIMITED) {
            return;
        }
        let pair = self.pair(model, Instant::now());
        let mut pair = pair.lock().unwrap_or_else(PoisonError::into_inner);
        pair.requests.level += 1.0;
        pair.tokens.level += tokens as f64;
    }

    fn load(&self) -> (u64, u64) {
        (self.rpm.load(Ordering::Relaxed), self.tpm.load(Ordering::Relaxed))
    }

    fn pair(&self, model: &str, now: Instant) -> Arc<Mutex<Pair>> {
        let known = self.models.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = known.get(model) {
            return Arc::clone(pair);
        }
        let name = if known.len() < MODELS_MAX { model } else { "" };
        drop(known);
        let (rpm, tpm) = self.load();
        let new = || Pair { requests: Bucket::full(rpm, now), tokens: Bucket::full(tpm, now) };
        let mut known = self.models.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(name.to_owned()).or_insert_with(|| Arc::new(Mutex::new(new()))))
    }
}

impl Pair {
    fn signals(&self) -> RateSignals {
        RateSignals {
            requests: self.requests.window(),
            tokens: self.tokens.window(),
            ..RateSignals::default()
        }
    }
}

impl Bucket {
    fn full(per_minute: u64, now: Instant) -> Self {
        let mut bucket = Self { level: 0.0, per_minute, filled_at: now };
        bucket.level = bucket.capacity();
        bucket
    }

    /// At least one: a limit of three a minute must let one through.
    fn capacity(&self) -> f64 {
        (self.per_minute as f64 * BURST_OF_MINUTE).max(1.0)
    }

    fn per_second(&self) -> f64 {
        (self.per_minute as f64 / 60.0).max(f64::MIN_POSITIVE)
    }

    /// What time has brought, at the old rate; from now on at the new one.
    fn fill(&mut self, per_minute: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.level += passed * self.per_second();
        self.filled_at = now;
        self.per_minute = per_minute;
        self.level = self.level.min(self.capacity());
    }

    /// Until a charge fits. One that is larger than the bucket needs a full one and leaves a debt.
    fn wait(&self, charge: f64) -> Duration {
        if self.per_minute == UNLIMITED {
            return Duration::ZERO;
        }
        let missing = charge.min(self.capacity()) - self.level;
        // What is lost in rounding must not make a caller come a nanosecond early.
        if missing <= 1e-9 { Duration::ZERO } else { self.time_for(missing) + Duration::from_micros(1) }
    }

    fn window(&self) -> Option<RateWindow> {
        (self.per_minute != UNLIMITED).then(|| RateWindow {
            limit: Some(self.per_minute),
            remaining: Some(self.level.max(0.0) as u64),
            reset_after: Some(self.time_for((self.capacity() - self.level).max(0.0))),
        })
    }

    fn time_for(&self, amount: f64) -> Duration {
        Duration::try_from_secs_f64(amount / self.per_second()).unwrap_or(Duration::MAX)
    }
}
