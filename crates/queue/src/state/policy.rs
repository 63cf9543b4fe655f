//! Budgets: what a job has spent, and what it may.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::JobOptions;
use crate::retry::RetryPolicy;

/// Budgets spent so far. Each is counted apart, so that nobody's crash or rate limit eats the retries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spent {
    /// Failures of the handler.
    pub attempt: u32,
    /// Leases lost since the last durable progress.
    pub crashes: u32,
    /// Throttles in a row.
    pub throttles: u32,
    /// Continues in all.
    pub continues: u32,
    /// Parks in all.
    pub parks: u32,
}

/// The limits that a settlement judges by: the job's own, else the kind's, else the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Failures allowed. Default 3.
    pub max_attempts: u32,
    /// Crashes in a row allowed. Default 3.
    pub max_crashes: u32,
    /// Throttles in a row allowed. Default 100.
    pub max_throttles: u32,
    /// Continues allowed. Default unlimited.
    pub max_continues: Option<u32>,
    /// Parks allowed. Default unlimited.
    pub max_parks: Option<u32>,
    /// When to try again.
    pub retry: RetryPolicy,
    /// Hard time for one run. Default 1 h.
    pub run_limit: Duration,
    /// Longest silence. Default off.
    pub idle_limit: Option<Duration>,
    /// Wait before a `Continue` that names none. Default 0.
    pub delay: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            max_crashes: 3,
            max_throttles: 100,
            max_continues: None,
            max_parks: None,
            retry: RetryPolicy::default(),
            run_limit: Duration::from_secs(3600),
            idle_limit: None,
            delay: Duration::ZERO,
        }
    }
}

impl Policy {
    /// This policy with a job's own settings on top.
    pub fn with(&self, options: &JobOptions) -> Self {
        Self {
            max_attempts: options.max_attempts.unwrap_or(self.max_attempts),
            max_crashes: options.max_crashes.unwrap_or(self.max_crashes),
            max_throttles: options.max_throttles.unwrap_or(self.max_throttles),
            max_continues: options.max_continues.or(self.max_continues),
            max_parks: self.max_parks,
            retry: options.retry.clone().unwrap_or_else(|| self.retry.clone()),
            run_limit: options.run_limit.unwrap_or(self.run_limit),
            idle_limit: options.idle_limit.or(self.idle_limit),
            delay: options.delay.unwrap_or(self.delay),
        }
    }
}
