//! JSON Schema, compiled once and asked often. A complaint names the place and what was expected, short enough to be sent
//! back to a model.

use std::fmt::Write;

use jsonschema::{ValidationError, Validator};
use serde_json::Value;

use crate::error::{Class, Error, Result};

/// Errors named in one complaint; a model mends the first few, and sees the rest the next time.
const ERRORS_TOLD_MAX: usize = 3;
/// Bytes of one error's own words.
const ERROR_BYTES_MAX: usize = 240;
/// Bytes of a wrong value that are repeated; longer ones are called "value".
const VALUE_BYTES_MAX: usize = 80;
/// Bytes of a schema's JSON. Providers take far less; it bounds what compiling costs.
const SCHEMA_BYTES_MAX: usize = 1024 * 1024;

/// A schema, ready to check answers.
#[derive(Debug, Clone)]
pub struct Compiled {
    validator: Validator,
}

impl Compiled {
    /// Compiles a schema. References must stay inside it: nothing is fetched.
    pub fn new(schema: &Value) -> Result<Self> {
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(bad(format!("the JSON schema has {bytes} bytes, more than {SCHEMA_BYTES_MAX}")));
        }
        if !schema.is_object() && !schema.is_boolean() {
            return Err(bad("the JSON schema is not an object".to_owned()));
        }
        let validator = jsonschema::options().offline().build(schema).map_err(|error| {
            bad(format!("the JSON schema is wrong at {}: {}", place(&error, "its top"), words(&error)))
        })?;
        Ok(Self { validator })
    }

    /// Checks a value. The complaint names path and expectation of the first few errors.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let mut complaint = String::new();
        for (told, error) in self.validator.iter_errors(value).enumerate() {
            if told == ERRORS_TOLD_MAX {
                complaint.push_str("; and more");
                break;
            }
            let separator = if told == 0 { "" } else { "; " };
            let place = place(&error, "the top");
            // Writing to a string cannot fail.
            let _ = write!(complaint, "{separator}at {place}: {}", words(&error));
        }
        if complaint.is_empty() { Ok(()) } else { Err(complaint) }
    }
}

fn bad(message: String) -> Error {
    Error::new(Class::BadRequest, message)
}

/// Where, as a JSON pointer. A key of the model's own making may be long.
fn place(error: &ValidationError<'_>, top: &str) -> String {
    let path = error.instance_path().as_str();
    if path.is_empty() { top.to_owned() } else { shortened(path, ERROR_BYTES_MAX) }
}

fn words(error: &ValidationError<'_>) -> String {
    let value = error.instance().to_string();
    let words = if value.len() > VALUE_BYTES_MAX { error.masked().to_string() } else { error.to_string() };
    shortened(&words, ERROR_BYTES_MAX)
}

/// The beginning of a text, cut between characters and marked as cut.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes_max)])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn person() -> Compiled {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "age": {"type": "integer", "minimum": 0},
                "mood": {"enum": ["good", "bad"]},
                "friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}},
            },
            "required": ["name"],
            "additionalProperties": false,
            "$defs": {"friend": {"type": "object", "required": ["id"]}},
        });
        Compiled::new(&schema).expect("the schema is sound")
    }

    #[test]
    fn a_complaint_names_place_and_expectation() {
        let table = [
            (json!({"name": "Ada", "age": 36, "friends": [{"id": 1}]}), ""),
            (json!([]), "at the top: [] is not of type \"object\""),
            (json!({}), "at the top: \"name\" is a required property"),
            (json!({"name": "Ada", "age": "old"}), "at /age: \"old\" is not of type \"integer\""),
            (
                json!({"name": "Ada", "friends": [{"id": 1}, {}]}),
                "at /friends/1: \"id\" is a required property",
            ),
            (json!({"name": "Ada", "mood": "so so"}), "at /mood: \"so so\" is not one of"),
            (json!({"name": "Ada", "shoe": 1}), "'shoe' was unexpected"),
        ];
        let person = person();
        for (value, words) in table {
            let complaint = person.check(&value).err().unwrap_or_default();
            assert!(complaint.contains(words) && words.is_empty() == complaint.is_empty(), "{complaint}");
        }
    }

    #[test]
    fn a_complaint_stays_short() {
        let long = "x".repeat(100_000);
        let many: Vec<Value> = (0..1_000).map(|_| json!(long)).collect();
        let complaint =
            person().check(&json!({"friends": many, long.as_str(): long})).expect_err("it is wrong");
        assert!(complaint.len() < 2_000, "{}", complaint.len());
        assert!(complaint.ends_with("; and more"), "{complaint}");
    }

    #[test]
    fn a_wrong_schema_says_where() {
        let table = [
            (json!({"properties": {"a": {"type": "strnig"}}}), "/properties/a/type"),
            (json!({"properties": {"a": {"pattern": "("}}}), "/properties/a/pattern"),
            (json!({"properties": {"a": {"$ref": "#/$defs/none"}}}), "$defs/none"),
            (json!({"$ref": "https://example.com/schema.json"}), "example.com"),
            (json!({"$ref": "file:///etc/passwd"}), "passwd"),
            (json!("object"), "not an object"),
            (json!({"description": "x".repeat(2_000_000)}), "bytes"),
        ];
        for (schema, words) in table {
            let error = Compiled::new(&schema).expect_err("the schema is wrong");
            assert_eq!(error.class, Class::BadRequest);
            assert!(error.message.contains(words), "{words:?} is missing in {:?}", error.message);
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("日本", 6), "日本");
        assert_eq!(shortened("日本", 5), "日…");
    }
}
