//! What a worker allows the jobs of a kind.

use std::time::Duration;

use crate::retry::RetryPolicy;
use crate::state::Policy;

/// Limits of a kind; a job's own options go before them. They count where the worker judges: at the end of a run. A
/// crash and a signal for a parked job are judged by the store, which knows the job's own options and the defaults
/// only; so the number of crashes is a job's own option ([`crate::job::JobOptions::max_crashes`]) and not found here.
#[derive(Debug, Clone, PartialEq)]
pub struct KindOptions {
    /// Failures allowed. Default 3.
    pub max_attempts: u32,
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

impl Default for KindOptions {
    fn default() -> Self {
        // All fields by name: a limit that is added to the policy must be decided here.
        let Policy {
            max_attempts,
            max_crashes: _,
            max_throttles,
            max_continues,
            max_parks,
            retry,
            run_limit,
            idle_limit,
            delay,
        } = Policy::default();
        Self { max_attempts, max_throttles, max_continues, max_parks, retry, run_limit, idle_limit, delay }
    }
}

impl From<KindOptions> for Policy {
    fn from(options: KindOptions) -> Self {
        let KindOptions {
            max_attempts,
            max_throttles,
            max_continues,
            max_parks,
            retry,
            run_limit,
            idle_limit,
            delay,
        } = options;
        Self {
            max_attempts,
            max_crashes: Self::default().max_crashes,
            max_throttles,
            max_continues,
            max_parks,
            retry,
            run_limit,
            idle_limit,
            delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_limits_of_a_kind_are_the_default_policy() {
        assert_eq!(Policy::from(KindOptions::default()), Policy::default());
    }
}
