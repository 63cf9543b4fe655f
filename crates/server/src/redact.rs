//! Values under the names of secrets are not shown. Payloads are written by people and programs, and some write a key into one;
//! whoever looks at a job, a model above all, has no use for it.

use longhaul_queue::Json;
use serde_json::Value;

/// What is shown instead.
pub const REDACTED: &str = "[redacted]";

/// Names of secrets, as letters and digits only; a name that contains one is one too.
const SECRETS: [&str; 9] = [
    "password",
    "passwd",
    "secret",
    "apikey",
    "authorization",
    "accesskey",
    "privatekey",
    "credential",
    "cookie",
];
/// A secret's name only where a name ends so: `session_token` is one, `max_tokens` and `token_count` are not.
const SECRET_END: &str = "token";

/// The value without its secrets.
pub fn shown(json: &Json) -> Json {
    let shown = match json.to::<Value>() {
        // What cannot be read cannot be searched either. Over HTTP no such value comes in, but there are other ways.
        Err(_) => Value::from(REDACTED),
        Ok(mut value) => match self::json(&mut value) {
            true => value,
            // Most values have none, and are shown as they are.
            false => return json.clone(),
        },
    };
    Json::of(&shown).unwrap_or_else(|_| Json::null())
}

/// Hides the values that stand under the name of a secret, at any depth, and says whether there were any.
pub fn json(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut hidden = false;
            for (name, value) in fields {
                // Nothing is no secret, and it helps to see that it is missing.
                if is_secret(name) && !value.is_null() {
                    *value = Value::from(REDACTED);
                    hidden = true;
                } else {
                    hidden |= json(value);
                }
            }
            hidden
        }
        Value::Array(items) => items.iter_mut().fold(false, |hidden, item| json(item) | hidden),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn is_secret(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    name.ends_with(SECRET_END) || SECRETS.iter().any(|secret| name.contains(secret))
}

#[cfg(test)]
mod tests {
    use longhaul_queue::Json;
    use serde_json::json;

    #[test]
    fn what_cannot_be_read_is_not_shown_as_it_is() {
        let rows = [
            (r#"{"a": 1.50}"#.to_owned(), r#"{"a": 1.50}"#),
            (r#"{"password": "hunter2", "a": 1e999}"#.to_owned(), r#""[redacted]""#),
            (r#"{"password": "hunter2", "a": "\ud800"}"#.to_owned(), r#""[redacted]""#),
            ("[".repeat(200) + r#"{"password": "hunter2"}"# + &"]".repeat(200), r#""[redacted]""#),
        ];
        for (text, expected) in rows {
            assert_eq!(super::shown(&Json::parse(&text).expect("JSON")).as_str(), expected);
        }
    }

    #[test]
    fn secrets_are_known_by_their_names_wherever_they_stand() {
        let rows = [
            (json!({"password": "x", "user": "u"}), json!({"password": "[redacted]", "user": "u"})),
            (
                json!({"Api-Key": "x", "api_key": 1}),
                json!({"Api-Key": "[redacted]", "api_key": "[redacted]"}),
            ),
            (
                json!({"headers": {"Authorization": ["x"]}}),
                json!({"headers": {"Authorization": "[redacted]"}}),
            ),
            (
                json!([{"token": "x"}, {"sessionToken": {"a": 1}}]),
                json!([{"token": "[redacted]"}, {"sessionToken": "[redacted]"}]),
            ),
            (json!({"client_secret": "x"}), json!({"client_secret": "[redacted]"})),
            (json!({"max_tokens": 100, "token_count": 5}), json!({"max_tokens": 100, "token_count": 5})),
            (json!({"secret": null}), json!({"secret": null})),
            (json!({"text": "my password is x"}), json!({"text": "my password is x"})),
            (json!("password"), json!("password")),
        ];
        for (mut stored, shown) in rows {
            super::json(&mut stored);
            assert_eq!(stored, shown);
        }
    }
}
