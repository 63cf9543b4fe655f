//! Runs of every pipeline, as they are listed, shown and steered.

use longhaul_llm::NanoUsd;
use longhaul_llm::rate::AdaptiveConcurrency;
use longhaul_pipeline::{FailedUnit, Found, Part, Result, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// Failed units whose reasons are shown with a run.
const FAILURES_MAX: usize = 10;

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// `id`, `pipeline`, `title`, `state`, `hold`, `message`, `units` by what became of them, `spent` in dollars, `estimated_usd`,
    /// `eta_seconds`, times, and `details` that only this pipeline has.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub status: Status,
    /// A living worker serves it; otherwise nothing moves.
    pub served: bool,
    /// What the whole of it will cost if it goes on as so far, in dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub projected_usd: Option<NanoUsd>,
}

impl Run {
    /// A run that stands so.
    pub fn new(status: Status, served: bool) -> Self {
        Self { projected_usd: status.projected(), status, served }
    }
}

/// A run with everything known of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: Run,
    /// Its settings.
    #[schema(value_type = Object)]
    pub settings: Value,
    /// Calls that may be under way on its model, where calls were refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub adaptive_concurrency: Option<AdaptiveConcurrency>,
    /// Its first parts, such as provider batches or chunks.
    #[schema(value_type = Vec<Object>)]
    pub parts: Vec<Part>,
    /// The first units that failed: `unit`, where it is in the input, and `reason`.
    #[schema(value_type = Vec<Object>)]
    pub failures: Vec<FailedUnit>,
}

impl RunDetail {
    /// All that is known of a run, with at most `parts` of its parts.
    pub async fn of(found: &Found, run: Run, parts: usize) -> Result<Self> {
        let standing = &run.status.standing;
        let adaptive_concurrency = match (&standing.model, found.pipeline.llm()) {
            (Some(model), Some(llm)) => llm.adaptive_concurrency(&model.profile, &model.name).await,
            _ => None,
        };
        let failures = match standing.units.failed {
            0 => Vec::new(),
            _ => found.pipeline.failures(&found.run, FAILURES_MAX).await?,
        };
        Ok(Self {
            settings: found.pipeline.settings(&found.run).await?,
            adaptive_concurrency,
            parts: found.pipeline.parts(&found.run, 0, parts).await?,
            failures,
            run,
        })
    }
}

/// How a run goes on.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = ResumeIn)]
pub struct Resume {
    /// A new limit of its cost.
    pub max_cost_usd: Option<f64>,
    /// Calls without a price pass under its budgets, uncounted.
    pub allow_unpriced: bool,
}

/// What is tried again; nothing said means all that failed.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = RetryRunIn)]
pub struct RetryRun {
    /// What failed in one part, counted from 1, and nothing of the others.
    pub part: Option<u64>,
}

/// What to do with provider batches whose fate is unknown, or that the provider refuses.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResolveIn)]
pub struct Resolve {
    /// The decision.
    pub decision: Decision,
}

/// A person's word on a batch that may or may not exist, or that the provider does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Send it again: the unknown one is believed not to exist.
    Resubmit,
    /// Look for it again.
    Wait,
    /// Send its requests one by one.
    OneByOne,
    /// Give up on it: its requests fail.
    Drop,
}
