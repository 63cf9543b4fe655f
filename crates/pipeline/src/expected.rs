//! What is expected of answers before any has come, for all pipelines that estimate a cost: how many tokens an answer may have by its
//! schema, and how far an input may be from what its bytes say.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// By how much of it an input may differ from what its bytes say, until some of it was counted.
pub const INPUT_SPREAD: f64 = 0.1;
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// Tokens of an answer that fits a schema, from and to.
pub fn of_schema(schema: &Value, model: &str) -> (f64, f64) {
    let (low, high) = bytes(schema, schema, 0);
    let high = high as f64 / JSON_BYTES_PER_TOKEN.1 + reasoning_tokens_max(model);
    (low as f64 / JSON_BYTES_PER_TOKEN.0, high)
}

/// What a model may think before it answers, at most as expected.
pub fn reasoning_tokens_max(model: &str) -> f64 {
    if REASONING_MODELS.iter().any(|name| model.starts_with(name)) { REASONING_TOKENS_MAX } else { 0.0 }
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
