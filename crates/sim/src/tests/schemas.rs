//! Values conform to the schemas that structured output is asked for with.

use serde_json::{Value, json};

use super::ask_json;
use crate::answer_key;

/// Every schema is asked for with so many prompts.
const PROMPTS: usize = 40;

fn simple() -> Vec<(&'static str, Value)> {
    vec![
        ("any", json!({})),
        ("string", json!({"type": "string", "minLength": 20, "maxLength": 30})),
        ("short string", json!({"type": "string", "maxLength": 3})),
        ("enum", json!({"enum": ["red", 7, null, {"a": 1}]})),
        ("const", json!({"const": {"fixed": [1, 2]}})),
        ("integer", json!({"type": "integer", "minimum": 1, "maximum": 5})),
        ("exclusive", json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 3})),
        ("negative", json!({"type": "number", "maximum": -3.5})),
        ("narrow", json!({"type": "number", "minimum": 0.1, "maximum": 0.2})),
        ("multiple", json!({"type": "integer", "multipleOf": 7, "minimum": 50, "maximum": 90})),
        ("fraction", json!({"type": "number", "minimum": 0, "maximum": 1})),
        ("nullable", json!({"type": ["null", "boolean"]})),
        ("array", json!({"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4})),
        ("empty array", json!({"type": "array", "items": {"type": "string"}, "maxItems": 0})),
        (
            "unique",
            json!({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": true, "minItems": 3}),
        ),
        (
            "tuple",
            json!({"prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": false, "minItems": 2}),
        ),
    ]
}

fn nested() -> Vec<(&'static str, Value)> {
    vec![
        (
            "scores",
            json!({
                "type": "object",
                "properties": {
                    "score": {"type": "integer", "minimum": 0, "maximum": 10},
                    "reason": {"type": "string", "minLength": 5},
                    "labels": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "minItems": 1},
                    "nested": {
                        "type": "object",
                        "properties": {"ok": {"type": "boolean"}, "none": {"type": "null"}},
                        "required": ["ok", "none"],
                        "additionalProperties": false
                    }
                },
                "required": ["score", "reason", "labels", "nested"],
                "additionalProperties": false
            }),
        ),
        (
            "recursive",
            json!({
                "$ref": "#/$defs/node",
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
                        },
                        "required": ["name", "children", "next"]
                    }
                }
            }),
        ),
        (
            "all of",
            json!({"allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"b": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}, "required": ["b"]}
            ]}),
        ),
        ("map", json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2})),
        (
            "patterns",
            json!({
                "type": "object",
                "properties": {
                    "zip": {"type": "string", "pattern": "^\\d{5}(-\\d{4})?$"},
                    "code": {"type": "string", "pattern": "^[A-Z]{2,3}_[a-z0-9]+$"},
                    "either": {"type": "string", "pattern": "^(yes|no)$"},
                    "day": {"type": "string", "format": "date"},
                    "id": {"type": "string", "format": "uuid"}
                },
                "required": ["zip", "code", "either", "day", "id"]
            }),
        ),
    ]
}

#[test]
fn answers_conform_to_their_schema() {
    for (name, schema) in simple().into_iter().chain(nested()) {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&schema)
            .expect("a schema of the table is valid");
        for prompt in 0..PROMPTS {
            let key = answer_key(7, &ask_json(&format!("prompt {prompt}"), schema.clone()));
            let value: Value =
                serde_json::from_str(&key).unwrap_or_else(|error| panic!("{name}: {error}: {key}"));
            let error = validator.iter_errors(&value).next();
            assert!(
                error.is_none(),
                "{name}: {key}: {}",
                error.map_or_else(String::new, |error| error.to_string())
            );
        }
    }
}

#[test]
fn different_prompts_have_different_values() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 1_000_000}}});
    let keys: std::collections::BTreeSet<String> = (0..100)
        .map(|prompt| answer_key(7, &ask_json(&format!("prompt {prompt}"), schema.clone())))
        .collect();
    assert!(keys.len() > 95, "{}", keys.len());
}
