//! How the simulator behaves. Every field has a default under which it answers at once and never fails, and every struct
//! can be written as JSON or TOML with only the fields that differ.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest that a hanging call is held, whatever is asked for.
pub const HANG_MAX: Duration = Duration::from_secs(3600);
/// The window of a batch before it is scaled.
pub const BATCH_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// All settings of a simulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimOptions {
    /// Decides answers and faults; two simulators of one seed are alike.
    pub seed: u64,
    /// What goes wrong, and how often. Can be changed while it runs.
    pub faults: Faults,
    /// What is allowed a minute. Can be changed while it runs.
    pub limits: Limits,
    /// How long an answer takes.
    pub latency: Latency,
    /// A local engine: so many calls run at once, more wait in line.
    pub slots: Option<usize>,
    /// Most tokens of input; more is refused as too long.
    pub context_tokens: Option<u64>,
    /// The batch API.
    pub batch: BatchOptions,
    /// The models on offer. Any other name is answered too.
    pub models: Vec<String>,
    /// The one key that is accepted; any is by default.
    pub require_key: Option<String>,
    /// Refuses every key as expired.
    pub keys_expired: bool,
    /// A file to which each executed call is appended as a line of JSON.
    pub log: Option<PathBuf>,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            faults: Faults::default(),
            limits: Limits::default(),
            latency: Latency::default(),
            slots: None,
            context_tokens: None,
            batch: BatchOptions::default(),
            models: ["sim-small", "sim-large", "sim-embed"].map(str::to_owned).to_vec(),
            require_key: None,
            keys_expired: false,
            log: None,
        }
    }
}

/// Rates of faults, each in `0.0..=1.0`. A call has at most one fault, so their sum should not exceed one. Whether it has
/// one is decided by seed, request and attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// 429 with Retry-After.
    pub rate_429: f64,
    /// 500, 502, 503 or 529.
    pub rate_5xx: f64,
    /// 502 with a page of HTML, as a proxy answers.
    pub rate_html: f64,
    /// No answer for `hang_ms`, then the connection ends. Half of these calls are executed.
    pub rate_timeout: f64,
    /// The connection is dropped: half before anything is sent and executed, half in the middle of the answer.
    pub rate_drop: f64,
    /// Broken JSON where a schema was asked for, otherwise an oddly wrapped text.
    pub rate_malformed: f64,
    /// The answer ends half-way, as if `max_tokens` had been reached.
    pub rate_truncated: f64,
    /// JSON of another shape than the schema's; nothing without a schema.
    pub rate_schema_break: f64,
    /// The right JSON between prose and fences; nothing without a schema.
    pub rate_fenced: f64,
    /// Attempts after so many are not disturbed. So a rate of 1.0 can still end well.
    pub calm_after: Option<u32>,
    /// What a random 429 asks to wait, in milliseconds.
    pub retry_after_ms: u64,
    /// How long a timed-out call hangs, in milliseconds.
    pub hang_ms: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rate_429: 0.0,
            rate_5xx: 0.0,
            rate_html: 0.0,
            rate_timeout: 0.0,
            rate_drop: 0.0,
            rate_malformed: 0.0,
            rate_truncated: 0.0,
            rate_schema_break: 0.0,
            rate_fenced: 0.0,
            calm_after: None,
            retry_after_ms: 1000,
            hang_ms: 600_000,
        }
    }
}

/// What each model allows a minute; a burst of ten seconds' worth is possible. `None` allows everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Requests a minute.
    pub rpm: Option<u64>,
    /// Tokens a minute: input and `max_tokens`, or the real output where no `max_tokens` was given.
    pub tpm: Option<u64>,
}

/// How long an answer takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// Until the first token, in milliseconds.
    pub base_ms: u64,
    /// For each token of output, in microseconds.
    pub per_token_us: u64,
    /// How much it varies from request to request: `0.5` is from half to one and a half times.
    pub spread: f64,
}

/// The batch API. Durations are those of a real provider and are divided by `time_scale`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchOptions {
    /// How much faster than real a batch is: at 1000, 24 hours take 86.4 s.
    pub time_scale: f64,
    /// Time in the queue, in seconds before scaling.
    pub queue_s: f64,
    /// Time of running, in seconds before scaling.
    pub run_s: f64,
    /// Time of writing results, in seconds before scaling.
    pub finalize_s: f64,
    /// Time between a cancel and the end, in seconds before scaling.
    pub cancel_s: f64,
    /// The batch is not done within its window: only this part of its lines is run.
    pub expire_after: Option<f64>,
    /// Rate of lines that fail with a 500.
    pub rate_line_failed: f64,
    /// Rate of creations that succeed but whose response is lost; `rate_drop` adds to it.
    pub rate_create_lost: f64,
    /// Rate of status calls that fail with a 503, by batch and how often it was asked.
    pub rate_poll_5xx: f64,
    /// Lines of each batch that are left out of its results.
    pub lines_missing: usize,
    /// Lines of each batch that come twice.
    pub lines_duplicated: usize,
    /// Lines in each result that nobody asked for.
    pub lines_unknown: usize,
    /// Results come in the order of the input.
    pub in_order: bool,
    /// Every new batch fails its validation with this code, such as `token_limit_exceeded`.
    pub fail_validation: Option<String>,
    /// Most tokens of input in unfinished batches of a model; a batch above it fails with `token_limit_exceeded`.
    pub enqueued_tokens_max: Option<u64>,
}

impl Default for BatchOptions {
    fn default() -> Self {
        Self {
            time_scale: 1000.0,
            queue_s: 300.0,
            run_s: 1800.0,
            finalize_s: 300.0,
            cancel_s: 300.0,
            expire_after: None,
            rate_line_failed: 0.0,
            rate_create_lost: 0.0,
            rate_poll_5xx: 0.0,
            lines_missing: 0,
            lines_duplicated: 0,
            lines_unknown: 0,
            in_order: false,
            fail_validation: None,
            enqueued_tokens_max: None,
        }
    }
}

impl BatchOptions {
    /// Seconds of a real provider in our time.
    pub fn scaled(&self, seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds / self.time_scale.max(f64::MIN_POSITIVE)).unwrap_or(BATCH_WINDOW)
    }

    /// The scaled 24 hours.
    pub fn window(&self) -> Duration {
        self.scaled(BATCH_WINDOW.as_secs_f64())
    }
}
