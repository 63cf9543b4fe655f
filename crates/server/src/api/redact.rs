//! Values under names of secrets are not shown to whoever only looks. Who may work gets whole payloads anyway.

use longhaul_queue::Json;
use serde_json::Value;

use crate::ctx::Ctx;
use crate::guard::Caller;
use crate::tokens::Scope;

/// What is shown instead.
const REDACTED: &str = "[redacted]";

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
/// Names that are a secret's at the end of a longer name only: `session_token` is, `max_tokens` and `token_count` are not.
const SECRET_ENDS: [&str; 1] = ["token"];

/// Whether what is shown to this caller is redacted. Without a token nobody has said that they may work.
pub(super) fn applies(ctx: &Ctx, caller: &Caller) -> bool {
    let Some(name) = &caller.0 else { return true };
    !ctx.tokens.list().iter().any(|token| token.name == *name && token.allows(Scope::Work))
}

/// The value without its secrets.
pub(super) fn redacted(json: &Json) -> Json {
    // Most values have none, and are shown as they are.
    let Ok(mut value) = json.to::<Value>() else { return json.clone() };
    if !hide(&mut value) {
        return json.clone();
    }
    Json::of(&value).unwrap_or_else(|_| Json::null())
}

fn hide(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => {
            let mut hidden = false;
            for (name, value) in fields {
                // Nothing is no secret, and it helps to see that it is missing.
                if is_secret(name) && !value.is_null() {
                    *value = Value::from(REDACTED);
                    hidden = true;
                } else {
                    hidden |= hide(value);
                }
            }
            hidden
        }
        Value::Array(items) => items.iter_mut().fold(false, |hidden, item| hide(item) | hidden),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn is_secret(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    SECRETS.iter().any(|secret| name.contains(secret)) || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names_wherever_they_stand() {
        let rows = [
            (r#"{"password":"x","user":"u"}"#, r#"{"password":"[redacted]","user":"u"}"#),
            (r#"{"Api-Key":"x"}"#, r#"{"Api-Key":"[redacted]"}"#),
            (r#"{"OPENAI_API_KEY":1}"#, r#"{"OPENAI_API_KEY":"[redacted]"}"#),
            (r#"{"headers":{"Authorization":["x"]}}"#, r#"{"headers":{"Authorization":"[redacted]"}}"#),
            (
                r#"[{"token":"x"},{"sessionToken":{"a":1}}]"#,
                r#"[{"token":"[redacted]"},{"sessionToken":"[redacted]"}]"#,
            ),
            (r#"{"client_secret":"x"}"#, r#"{"client_secret":"[redacted]"}"#),
            (r#"{"max_tokens":100,"token_count":5}"#, r#"{"max_tokens":100,"token_count":5}"#),
            (r#"{"secret":null}"#, r#"{"secret":null}"#),
            (r#"{"text":"my password is x"}"#, r#"{"text":"my password is x"}"#),
            ("1.00", "1.00"),
        ];
        for (stored, shown) in rows {
            assert_eq!(redacted(&Json::parse(stored).expect("JSON")).as_str(), shown);
        }
    }
}
