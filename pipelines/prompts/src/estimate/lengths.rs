//! The expected length of answers: from answers to the same prompts, from the schema, from the model's answers to other prompts, or assumed.

use longhaul_llm::cache::CacheMode;
use longhaul_llm::ledger::day_of;
use longhaul_llm::{Endpoint, Error as LlmError, Llm, Scope};
use longhaul_queue::Queue;

use super::super::Result;
use super::super::run::{Run, RunSettings};
use longhaul_pipeline::RunId;
use longhaul_pipeline::expected::{Basis, of_schema};

/// Runs that are looked at for one of the same prompts, and answers that such a one must have.
const RUNS_LOOKED_AT: usize = 50;
const SAMPLE_MIN: u64 = 5;
/// Days of past answers, and how many of them tell something.
const PAST_DAYS: i64 = 31;
const PAST_MIN: u64 = 20;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// Other prompts get other answers: half as long to twice as long.
const PAST_SPREAD: f64 = 2.0;
/// Tokens of an answer of which nothing is known.
const ASSUMED: (f64, f64) = (20.0, 1_000.0);

/// How long answers are expected to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lengths {
    /// What it is based on.
    pub basis: Basis,
    /// Number of answers behind it.
    pub calls: u64,
    /// Tokens of an answer, from and to.
    pub tokens: (f64, f64),
    /// Real input tokens, in parts of what bytes make them.
    pub input_factor: f64,
    /// Prompts whose answers are in the cache.
    pub answered: u64,
    /// Tokens of all answers so far, from and to.
    so_far: (f64, f64),
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            basis: Basis::Assumed,
            calls: 0,
            tokens: ASSUMED,
            input_factor: 1.0,
            answered: 0,
            so_far: (0.0, 0.0),
        }
    }
}

// Compared in tests only; tokens are never NaN.
impl Eq for Lengths {}

impl Lengths {
    /// For a run with these settings.
    pub async fn of(queue: Option<&Queue>, llm: &Llm, settings: &RunSettings) -> Result<Self> {
        if let Some(queue) = queue
            && let Some(sample) = Self::of_sample(queue, llm, settings).await?
        {
            return Ok(sample);
        }
        if settings.endpoint == Endpoint::Embeddings {
            return Ok(Self { basis: Basis::None, tokens: (0.0, 0.0), ..Self::default() });
        }
        if let Some(schema) = &settings.schema {
            let tokens = of_schema(schema, &settings.model);
            return Ok(Self { basis: Basis::Schema, tokens, ..Self::default() });
        }
        Ok(Self::of_past(llm, settings).await?.unwrap_or_default())
    }

    /// Output tokens of the next request, from and to; rounded so that their sum is right.
    pub fn next_output(&mut self, max_tokens: Option<u32>, choices: u64) -> (u64, u64) {
        let most = max_tokens.map_or(f64::MAX, f64::from);
        let add = |sum: &mut f64, tokens: f64| {
            let before = sum.round();
            *sum += tokens.min(most) * choices as f64;
            (sum.round() - before) as u64
        };
        (add(&mut self.so_far.0, self.tokens.0), add(&mut self.so_far.1, self.tokens.1))
    }

    /// By the newest run of the same prompts, such as a sample of them.
    async fn of_sample(queue: &Queue, llm: &Llm, settings: &RunSettings) -> Result<Option<Self>> {
        if settings.source.content.is_empty() {
            return Ok(None);
        }
        for job in Run::list(queue, RUNS_LOOKED_AT).await? {
            let Some(process) = &job.process_id else { continue };
            let Some(run) = Run::find(queue, &RunId::named(process.as_str())).await? else { continue };
            let Some(expected) = run.settings.expected.filter(|_| asks_the_same(&run.settings, settings))
            else {
                continue;
            };
            let spent = llm.ledger().totals(&Scope::run(run.id.as_str())).await.map_err(LlmError::from)?;
            // A call that repairs an answer is part of what that answer cost.
            let answers = spent.calls.saturating_sub(spent.repaired);
            if answers < SAMPLE_MIN || expected.input_tokens == 0 || expected.requests == 0 {
                continue;
            }
            let each = |tokens: u64| tokens as f64 / answers as f64;
            let expected_input = expected.input_tokens as f64 / expected.requests as f64;
            let kept = settings.cache != CacheMode::Off && run.settings.cache != CacheMode::Off;
            return Ok(Some(Self {
                basis: Basis::Sample,
                calls: spent.calls,
                tokens: (each(spent.usage.output()), each(spent.usage.output())),
                input_factor: each(spent.usage.input()) / expected_input,
                answered: if kept { answers } else { 0 },
                so_far: (0.0, 0.0),
            }));
        }
        Ok(None)
    }

    /// From the model's recent answers.
    async fn of_past(llm: &Llm, settings: &RunSettings) -> Result<Option<Self>> {
        let now = llm.now_ms();
        let days = (day_of(now - PAST_DAYS * DAY_MS), day_of(now));
        let rows = llm.ledger().spend(&days.0, &days.1).await.map_err(LlmError::from)?;
        let ours = rows.iter().filter(|row| row.profile == settings.profile && row.model == settings.model);
        let (calls, output) = ours.fold((0, 0), |sum, row| (sum.0 + row.calls, sum.1 + row.usage.output()));
        if calls < PAST_MIN {
            return Ok(None);
        }
        let mean = output as f64 / calls as f64;
        let tokens = (mean / PAST_SPREAD, mean * PAST_SPREAD);
        Ok(Some(Self { basis: Basis::Past, calls, tokens, ..Self::default() }))
    }
}

/// Whether two runs ask the same of the same prompts, or of parts of them.
fn asks_the_same(one: &RunSettings, other: &RunSettings) -> bool {
    let shape = |settings: &RunSettings| {
        let RunSettings { profile, model, endpoint, defaults, schema, fallback_model, source, .. } = settings;
        let (profile, model, defaults, schema) =
            (profile.clone(), model.clone(), defaults.clone(), schema.clone());
        (profile, model, *endpoint, defaults, schema, fallback_model.clone(), source.content.clone())
    };
    shape(one) == shape(other)
}
