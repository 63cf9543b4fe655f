//! What goes into a controller and comes out of it: configuration, what it has learnt, what it is doing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::adaptive::AdaptiveConcurrency;
use super::quota::Meter;

/// What is configured for a route. Limits are ceilings: what the provider tells may lower them, never raise them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteLimits {
    /// Requests a minute.
    pub rpm: Option<u64>,
    /// Tokens a minute, of all kinds.
    pub tpm: Option<u64>,
    /// Input tokens a minute, where the provider counts them apart.
    pub input_tpm: Option<u64>,
    /// Output tokens a minute, where the provider counts them apart.
    pub output_tpm: Option<u64>,
    /// Most calls under way; 2,048 by default.
    pub concurrency_max: Option<usize>,
    /// Whether the model runs at a provider or on a machine of ours.
    pub engine: Engine,
    /// How the provider counts output against its limits.
    pub output_charge: OutputCharge,
    /// Whether input that the provider has cached counts against its limits. Not with Anthropic.
    pub counts_cache_reads: bool,
}

impl Default for RouteLimits {
    fn default() -> Self {
        Self {
            rpm: None,
            tpm: None,
            input_tpm: None,
            output_tpm: None,
            concurrency_max: None,
            engine: Engine::Hosted,
            output_charge: OutputCharge::MaxTokens,
            counts_cache_reads: true,
        }
    }
}

/// Where the model runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// At a provider with limits, told or not.
    #[default]
    Hosted,
    /// On a machine of ours: it refuses nobody and only gets slower.
    Local {
        /// How many calls it works on at a time, where that is known.
        slots: Option<usize>,
    },
}

/// How a provider counts output against its limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputCharge {
    /// `max_tokens` at admission, for good: OpenAI, Azure.
    #[default]
    MaxTokens,
    /// `max_tokens` at admission; what was not used comes back at the end: Anthropic.
    Refunded,
    /// What was written.
    Actual,
}

/// What a controller has found out. Whoever stores it spares the next process from finding it out by being refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learnt {
    /// Requests a minute, as told.
    pub requests: Option<u64>,
    /// Tokens a minute, as told.
    pub tokens: Option<u64>,
    /// Input tokens a minute, as told.
    pub input_tokens: Option<u64>,
    /// Output tokens a minute, as told.
    pub output_tokens: Option<u64>,
    /// Limits a minute that nobody tells but by refusing calls.
    pub found: Vec<(Meter, u64)>,
    /// Adaptive concurrency, once a call was refused.
    pub adaptive: Option<AdaptiveConcurrency>,
    /// Calls that a local engine works on at a time.
    pub concurrency: Option<usize>,
    /// A local engine's seconds a token without load.
    pub seconds_per_token: Option<f64>,
    /// True input tokens for one estimated.
    pub input_ratio: Option<f64>,
    /// What nine of ten outputs stay below.
    pub output_p90: Option<u64>,
    /// No calls before this, in milliseconds since the epoch.
    pub paused_until_ms: Option<i64>,
}

impl Learnt {
    pub(super) fn has_limits(&self) -> bool {
        let told = [self.requests, self.tokens, self.input_tokens, self.output_tokens];
        !self.found.is_empty() || told.iter().any(Option::is_some)
    }
}

/// What a route is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RouteStats {
    /// Calls under way.
    pub in_flight: usize,
    /// Calls that wait for admission.
    pub waiting: usize,
    /// Most calls under way, at present.
    pub concurrency_limit: usize,
    /// The limits in force, a minute.
    pub limits: Vec<(Meter, u64)>,
    /// The part of them that other processes leave to this one.
    pub share: f64,
    /// What the next call waits for.
    pub held: Option<Held>,
    /// How long no call goes because the provider said so.
    pub paused_for: Option<Duration>,
    /// Why the route is closed.
    pub closed: Option<String>,
    /// Calls sent, answered, refused and met by overload since the controller was made.
    pub totals: Totals,
}

/// Calls since the controller was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Admitted.
    pub admitted: u64,
    /// Answered.
    pub answered: u64,
    /// Refused with a 429.
    pub throttled: u64,
    /// Met by an overload.
    pub overloaded: u64,
    /// Failed otherwise, or cancelled.
    pub failed: u64,
}

/// How much of its limits a route can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Nobody calls.
    Nothing,
    /// Calls are under way, and none waits.
    Some,
    /// Calls wait.
    All,
}

/// What a call waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// What is in the way.
    pub gate: Gate,
    /// Until when; open where another call has to end first.
    pub wait: Option<Duration>,
}

/// What can be in a call's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// The provider said to wait.
    Pause,
    /// The provider is overloaded.
    Overload,
    /// A limit a minute.
    Quota(Meter),
    /// Enough calls are under way, or the last one has only just gone.
    Concurrency,
    /// Enough calls of every waiting run are under way.
    RunConcurrency,
}
