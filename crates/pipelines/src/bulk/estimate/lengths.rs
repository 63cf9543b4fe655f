//! The expected length of answers: from answers to the same prompts, from the schema, from the model's answers to other prompts, or assumed.

use longhaul_llm::cache::CacheMode;
use longhaul_llm::ledger::day_of;
use longhaul_llm::{Endpoint, Error as LlmError, Llm, Scope};
use longhaul_queue::Queue;
use serde::Serialize;
use serde_json::Value;

use super::super::Result;
use super::super::run::{Run, RunId, RunSettings};

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
/// Bytes of JSON that make a token: few where there are mostly digits and punctuation.
const JSON_BYTES_PER_TOKEN: (f64, f64) = (4.5, 2.5);
/// Models that think before they answer, and the tokens that this may take.
const REASONING_MODELS: [&str; 7] = ["gpt-5", "o1", "o3", "o4", "gemini-2.5", "gemini-3", "deepseek-r"];
const REASONING_TOKENS_MAX: f64 = 1_000.0;
/// A schema's texts and lists without a bound of their own: bytes, and items.
const TEXT_BYTES: (u64, u64) = (10, 400);
const ITEMS: (u64, u64) = (0, 10);
/// Nesting of a schema that is followed.
const DEPTH_MAX: u32 = 12;

/// What the expected length is based on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Answers to some of the same prompts.
    Sample,
    /// What the schema allows.
    Schema,
    /// What the model answered to other prompts.
    Past,
    /// Nothing.
    #[default]
    Assumed,
    /// There is no output to pay for.
    None,
}

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
            let (low, high) = bytes(schema, schema, 0);
            let mut high = high as f64 / JSON_BYTES_PER_TOKEN.1;
            if REASONING_MODELS.iter().any(|name| settings.model.starts_with(name)) {
                high += REASONING_TOKENS_MAX;
            }
            let tokens = (low as f64 / JSON_BYTES_PER_TOKEN.0, high);
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
        for job in Run::list(queue, None, RUNS_LOOKED_AT).await?.items {
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

/// Bytes of the shortest and the longest value that one would expect of a schema. Not a bound: models may add blanks, and texts
/// without a limit can be of any length.
fn bytes(schema: &Value, root: &Value, depth: u32) -> (u64, u64) {
    let unknown = (2 + TEXT_BYTES.0, 2 + TEXT_BYTES.1);
    if depth > DEPTH_MAX {
        return unknown;
    }
    let of = |schema: &Value| bytes(schema, root, depth + 1);
    if let Some(pointer) = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#')) {
        return root.pointer(pointer).map_or(unknown, of);
    }
    let length = |value: &Value| value.to_string().len() as u64;
    if let Some(values) = schema["enum"].as_array() {
        return widest(values.iter().map(|value| (length(value), length(value)))).unwrap_or(unknown);
    }
    if let Some(value) = schema.get("const") {
        return (length(value), length(value));
    }
    for several in ["anyOf", "oneOf"] {
        if let Some(found) = schema[several].as_array().and_then(|some| widest(some.iter().map(of))) {
            return found;
        }
    }
    match &schema["type"] {
        Value::Array(types) => {
            let one = |name: &Value| {
                let mut schema = schema.clone();
                schema["type"] = name.clone();
                of(&schema)
            };
            widest(types.iter().map(one)).unwrap_or(unknown)
        }
        Value::String(name) => match name.as_str() {
            "null" => (4, 4),
            "boolean" => (4, 5),
            "integer" => (1, 6),
            "number" => (1, 8),
            "array" => {
                let items = |name: &str, without| schema[name].as_u64().unwrap_or(without);
                let each = of(&schema["items"]);
                let (least, most) = (items("minItems", ITEMS.0), items("maxItems", ITEMS.1));
                (2 + least * (each.0 + 1), 2 + most.max(least) * (each.1 + 1))
            }
            "object" => object(schema, of),
            "string" => {
                let least = schema["minLength"].as_u64().unwrap_or(TEXT_BYTES.0);
                let most = schema["maxLength"].as_u64().unwrap_or(TEXT_BYTES.1);
                (2 + least.min(most), 2 + most.max(least))
            }
            _ => unknown,
        },
        _ if schema["properties"].is_object() => object(schema, of),
        _ => unknown,
    }
}

fn object(schema: &Value, of: impl Fn(&Value) -> (u64, u64)) -> (u64, u64) {
    let required =
        |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    // Braces, and one comma less than there are properties.
    properties.fold((1, 1), |(low, high), (name, schema)| {
        let value = of(schema);
        // Its quotes, a colon and a comma.
        let around = name.len() as u64 + 4;
        let least = if required(name) { around + value.0 } else { 0 };
        (low + least, high + around + value.1)
    })
}

fn widest(ranges: impl Iterator<Item = (u64, u64)>) -> Option<(u64, u64)> {
    ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_tells_how_long_its_values_are() {
        let table = [
            (json!({"type": "boolean"}), (4, 5)),
            (json!({"enum": ["a", "abc"]}), (3, 5)),
            (json!({"const": 12}), (2, 2)),
            (json!({"type": ["integer", "null"]}), (1, 6)),
            (json!({"type": "string", "maxLength": 20}), (12, 22)),
            (json!({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}), (7, 12)),
            (json!({"anyOf": [{"type": "null"}, {"type": "boolean"}]}), (4, 5)),
            (
                json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}),
                (10, 19),
            ),
            (json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}), (4, 4)),
            (json!({"$ref": "#"}), (12, 402)),
            (json!(true), (12, 402)),
        ];
        for (schema, expected) in table {
            assert_eq!(bytes(&schema, &schema, 0), expected, "{schema}");
        }
    }
}
