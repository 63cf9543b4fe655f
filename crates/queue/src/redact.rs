//! Redacts values by name, in output and in searches. People and programs write payloads, and some put a key into one; a reader
//! of a job, above all a model, has no use for it.
//!
//! JSON is redacted as text, without parsing it into values: a name that occurs twice, or nests too deeply for other parsers, is
//! redacted as well, and everything that is not a secret stays byte for byte.

use std::borrow::Cow;

use crate::json::Json;

/// What is shown instead.
pub const REDACTED: &str = "[redacted]";
/// The same as JSON.
const REDACTED_JSON: &str = "\"[redacted]\"";

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
/// Secrets only at the end of a name: `session_token` is one, `max_tokens` and `token_count` are not.
const SECRET_END: &str = "token";
/// Words before the secret itself, as in `Authorization: Bearer …`.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// The value without its secrets.
pub fn json(value: &Json) -> Json {
    match json_text(value.as_str()) {
        Cow::Borrowed(_) => value.clone(),
        Cow::Owned(text) => Json::trusted(text),
    }
}

/// Whether a value was read where its secrets are hidden: who writes it back would lose them.
pub fn is_redacted(value: &Json) -> bool {
    let text = value.as_str();
    hidden_values(text)
        .is_some_and(|hidden| hidden.iter().any(|(from, to)| &text[*from..*to] == REDACTED_JSON))
}

/// JSON without its secrets. A text that is not JSON is hidden as a whole.
pub fn json_text(text: &str) -> Cow<'_, str> {
    match hidden_values(text) {
        None => Cow::Owned(REDACTED_JSON.to_owned()),
        Some(hidden) if hidden.is_empty() => Cow::Borrowed(text),
        Some(hidden) => Cow::Owned(replaced(text, &hidden, REDACTED_JSON)),
    }
}

/// Text for people, without the values that follow the name of a secret and `:` or `=`, quoted or not.
pub fn text(text: &str) -> Cow<'_, str> {
    let mut hidden: Vec<(usize, usize)> = Vec::new();
    for (at, _) in text.match_indices([':', '=']) {
        if hidden.last().is_some_and(|(_, end)| at < *end) || !is_secret(name_before(&text[..at])) {
            continue;
        }
        let value = value_after(text, at + 1);
        if value.0 < value.1 {
            hidden.push(value);
        }
    }
    if hidden.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(replaced(text, &hidden, REDACTED)) }
}

fn is_secret(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|letter| letter.to_ascii_lowercase()).collect();
    name.ends_with(SECRET_END) || SECRETS.iter().any(|secret| name.contains(secret))
}

fn replaced(text: &str, hidden: &[(usize, usize)], by: &str) -> String {
    let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
    for (start, end) in hidden {
        shown += &text[from..*start];
        shown += by;
        from = *end;
    }
    shown + &text[from..]
}

/// Where the values of secrets stand in a JSON document; `None` when it is not one.
fn hidden_values(text: &str) -> Option<Vec<(usize, usize)>> {
    let bytes = text.as_bytes();
    let mut hidden = Vec::new();
    // Whether each open bracket is that of an object, from the outside in.
    let mut open: Vec<bool> = Vec::new();
    let (mut at, mut name_is_next) = (0, false);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => {
                name_is_next = *byte == b'{';
                open.push(name_is_next);
            }
            b'}' | b']' => {
                open.pop()?;
                name_is_next = false;
            }
            b',' => name_is_next = *open.last()?,
            b'"' => {
                let end = string_end(bytes, at)?;
                if name_is_next {
                    name_is_next = false;
                    let value = value_of(bytes, end)?;
                    if is_secret_key(&text[at..end]) && &text[value.0..value.1] != "null" {
                        hidden.push(value);
                        at = value.1;
                        continue;
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    open.is_empty().then_some(hidden)
}

/// Whether a quoted name names a secret. A name that cannot be decoded counts as one.
fn is_secret_key(quoted: &str) -> bool {
    match quoted.contains('\\') {
        false => is_secret(quoted),
        true => serde_json::from_str::<String>(quoted).map_or(true, |name| is_secret(&name)),
    }
}

/// The range of the value whose name ends here.
fn value_of(bytes: &[u8], name_end: usize) -> Option<(usize, usize)> {
    let colon = skip_space(bytes, name_end);
    if bytes.get(colon) != Some(&b':') {
        return None;
    }
    let start = skip_space(bytes, colon + 1);
    let end = match bytes.get(start)? {
        b'"' => string_end(bytes, start)?,
        b'{' | b'[' => bracket_end(bytes, start)?,
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            bytes[start..].iter().position(ends).map_or(bytes.len(), |length| start + length)
        }
    };
    (start < end).then_some((start, end))
}

fn skip_space(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// After the closing quote of a string that begins here.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// After the bracket that closes the one here.
fn bracket_end(bytes: &[u8], start: usize) -> Option<usize> {
    let (mut at, mut depth) = (start, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => {
                at = string_end(bytes, at)?;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The name that a text ends with, quoted or not.
fn name_before(text: &str) -> &str {
    let text = text.trim_end().trim_end_matches(['"', '\'', '\\', '`']);
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let start = text.char_indices().rev().take_while(|(_, c)| is_part(*c)).last();
    start.map_or("", |(start, _)| &text[start..])
}

/// The range of the value that begins after `from`, without its quotes.
fn value_after(text: &str, from: usize) -> (usize, usize) {
    let is_quote = |c: char| matches!(c, '"' | '\'' | '`');
    let rest = &text[from..];
    let start = from + rest.len() - rest.trim_start_matches([' ', '\t', '\\']).len();
    let Some(first) = text[start..].chars().next() else { return (start, start) };
    if is_quote(first) {
        let start = start + first.len_utf8();
        let end = text[start..].find(first).map_or(text.len(), |length| start + length);
        return (start, end);
    }
    let word_end = |start: usize| {
        let ends =
            |c: char| c.is_whitespace() || is_quote(c) || matches!(c, ',' | ';' | '&' | ')' | '}' | ']');
        text[start..].find(ends).map_or(text.len(), |length| start + length)
    };
    let end = word_end(start);
    if SCHEMES.iter().any(|scheme| text[start..end].eq_ignore_ascii_case(scheme)) {
        let next = end + text[end..].len() - text[end..].trim_start_matches([' ', '\t']).len();
        return (start, word_end(next));
    }
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names_wherever_they_stand() {
        let deep = "[".repeat(200) + r#"{"password": "hunter2"}"# + &"]".repeat(200);
        let deep_shown = "[".repeat(200) + r#"{"password": "[redacted]"}"# + &"]".repeat(200);
        let rows = [
            (r#"{"password":"x", "user": "u"}"#, r#"{"password":"[redacted]", "user": "u"}"#),
            (r#"{"Api-Key":"x","api_key":1}"#, r#"{"Api-Key":"[redacted]","api_key":"[redacted]"}"#),
            (r#"{"headers":{"Authorization" : ["x"]}}"#, r#"{"headers":{"Authorization" : "[redacted]"}}"#),
            (
                r#"[{"token":"x"},{"sessionToken":{"a":"}"}},1]"#,
                r#"[{"token":"[redacted]"},{"sessionToken":"[redacted]"},1]"#,
            ),
            (r#"{"client_secret":"x\"y"}"#, r#"{"client_secret":"[redacted]"}"#),
            (r#"{"p\u0061ssword":"x"}"#, r#"{"p\u0061ssword":"[redacted]"}"#),
            (r#"{"\ud800":"x"}"#, r#"{"\ud800":"[redacted]"}"#),
            (r#"{"a":{"password":"x"},"a":1}"#, r#"{"a":{"password":"[redacted]"},"a":1}"#),
            (r#"{"password":1e999,"a":1.50}"#, r#"{"password":"[redacted]","a":1.50}"#),
            (r#"{"a":["password","x"],"b":"password:"}"#, r#"{"a":["password","x"],"b":"password:"}"#),
            (r#"{"max_tokens":100,"token_count":5}"#, r#"{"max_tokens":100,"token_count":5}"#),
            (r#"{"secret":null}"#, r#"{"secret":null}"#),
            (r#""password""#, r#""password""#),
            (&deep, &deep_shown),
        ];
        for (stored, shown) in rows {
            assert_eq!(json_text(stored), shown);
            assert_eq!(json_text(shown), shown, "twice is once");
        }
    }

    #[test]
    fn what_is_not_json_is_not_shown_as_it_is() {
        for text in [r#"{"password": "x"#, r#"{"password" "x"}"#, r#"{"a":{"password":"#, "]", r#"{"a":"\"#] {
            assert_eq!(json_text(text), REDACTED_JSON, "{text}");
        }
    }

    #[test]
    fn hiding_secrets_leaves_valid_json() {
        let pieces =
            ["{", "}", "[", "]", "\"a\"", "\"token\"", ":", ",", "1", "null", "\\", " ", "\"\\u0041\""];
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200_000 {
            let count = random.usize(1..12);
            let text: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
            let shown = json_text(&text);
            if Json::parse(&text).is_ok() {
                assert!(Json::parse(&shown).is_ok(), "{text} became {shown}");
            }
        }
    }

    #[test]
    fn a_text_is_shown_without_what_follows_the_name_of_a_secret() {
        let rows = [
            ("exit code 1: password=hunter2, user=ann", "exit code 1: password=[redacted], user=ann"),
            ("Authorization: Bearer abc.def rest", "Authorization: [redacted] rest"),
            (r#"sent {"api_key": "a b", "n": 1}"#, r#"sent {"api_key": "[redacted]", "n": 1}"#),
            ("GET /x?access_token=abc&n=1: 401", "GET /x?access_token=[redacted]&n=1: 401"),
            ("my password is x", "my password is x"),
            ("max_tokens: 5, token_count=7", "max_tokens: 5, token_count=7"),
            ("secret:", "secret:"),
            ("a: b = c", "a: b = c"),
        ];
        for (said, shown) in rows {
            assert_eq!(text(said), shown);
        }
    }
}
