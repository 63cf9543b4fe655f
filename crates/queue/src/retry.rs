//! How long to wait before a failed job runs again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest list of delays a policy may carry.
pub const RETRY_LIST_MAX: usize = 100;

/// When to try again: a formula, a cap, and whether to spread retries at random.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// The formula.
    #[serde(flatten)]
    pub backoff: Backoff,
    /// No delay is longer than this. Default 1 h.
    #[serde(with = "crate::duration::millis", rename = "cap_ms", default = "default_cap")]
    pub cap: Duration,
    /// Shorten each delay by up to a half at random, so that jobs that failed together do not return together.
    /// Default on.
    #[serde(default = "default_jitter")]
    pub jitter: bool,
}

/// The formulas, with n = failures before this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "backoff", rename_all = "snake_case")]
pub enum Backoff {
    /// base · 2ⁿ
    Exponential {
        /// The first delay.
        #[serde(with = "crate::duration::millis", rename = "base_ms")]
        base: Duration,
    },
    /// base · (n + 1)²
    Quadratic {
        /// The first delay.
        #[serde(with = "crate::duration::millis", rename = "base_ms")]
        base: Duration,
    },
    /// The same delay each time.
    Fixed {
        /// The delay.
        #[serde(with = "crate::duration::millis", rename = "delay_ms")]
        delay: Duration,
    },
    /// One delay after the other; the last one repeats.
    List {
        /// The delays in milliseconds, at most [`RETRY_LIST_MAX`].
        delays_ms: Vec<u64>,
    },
}

fn default_cap() -> Duration {
    Duration::from_secs(3600)
}

fn default_jitter() -> bool {
    true
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::exponential(Duration::from_secs(1))
    }
}

impl RetryPolicy {
    /// base · 2ⁿ, at most an hour, with jitter.
    pub fn exponential(base: Duration) -> Self {
        Self::of(Backoff::Exponential { base })
    }

    /// base · (n + 1)², at most an hour, with jitter.
    pub fn quadratic(base: Duration) -> Self {
        Self::of(Backoff::Quadratic { base })
    }

    /// Always the same delay, with jitter.
    pub fn fixed(delay: Duration) -> Self {
        Self::of(Backoff::Fixed { delay })
    }

    /// A list of delays; the last one repeats. With jitter.
    pub fn list(delays: impl IntoIterator<Item = Duration>) -> Self {
        let millis = |delay: Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Self::of(Backoff::List { delays_ms: delays.into_iter().take(RETRY_LIST_MAX).map(millis).collect() })
    }

    /// No delay is longer than `cap`.
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// The formula to the millisecond.
    pub fn without_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }

    fn of(backoff: Backoff) -> Self {
        Self { backoff, cap: default_cap(), jitter: default_jitter() }
    }

    /// The wait after a failure, with `failures` failures before it and `jitter` drawn from 0..1.
    pub fn delay(&self, failures: u32, jitter: f64) -> Duration {
        let raw = match &self.backoff {
            Backoff::Exponential { base } => {
                base.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX))
            }
            Backoff::Quadratic { base } => base.saturating_mul(failures.saturating_add(1).saturating_pow(2)),
            Backoff::Fixed { delay } => *delay,
            Backoff::List { delays_ms } => {
                let index = (failures as usize).min(delays_ms.len().saturating_sub(1));
                Duration::from_millis(delays_ms.get(index).copied().unwrap_or(0))
            }
        };
        let capped = raw.min(self.cap);
        if self.jitter { capped.mul_f64(1.0 - 0.5 * jitter.clamp(0.0, 1.0)) } else { capped }
    }
}

#[cfg(test)]
#[path = "retry/tests.rs"]
mod tests;
