//! Ways to spoil a request.

use fastrand::Rng;
use serde_json::{Value, json};

use super::corpus::{Case, Content};

/// Stands where text comes that no serializer would write.
const RAW: &str = "@@raw@@";

/// Words that mean something somewhere.
const NAMES: [&str; 12] =
    ["kind", "id", "model", "messages", "limit", "requests", "data", "type", "tools", "é", "", "__proto__"];

const TYPES: [&str; 9] = [
    "application/json",
    "application/json; charset=utf-16",
    "APPLICATION/JSON",
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=other",
    "\u{fffd}/;;;=",
];

const SEGMENTS: [&str; 14] = [
    "%00",
    "..",
    ".",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "%ff%fe",
    "%",
    "%zz",
    "",
    "%F0%9F%92%A9",
    "a'%3BDROP%20TABLE%20jobs--",
    "00000000-0000-0000-0000-000000000000",
    "batch_00000000000000000000000000000000",
    "-1",
    "*",
];

const QUERIES: [&str; 20] = [
    "limit=-1",
    "limit=0",
    "limit=99999999999999999999999",
    "limit=%ff",
    "limit=1&limit=2",
    "cursor=x",
    "cursor=-9223372036854775808",
    "cursor=9223372036854775807",
    "cursor=%00",
    "=&&==&%",
    "state=none",
    "state=ready,ready,,failed",
    "search=%00%ff",
    "search=%22%5C%25_*()",
    "search=kind:",
    "order=%00",
    "after=file-none&purpose=batch_output",
    "after=batch_00000000000000000000000000000000",
    "before_id=x&after_id=y&limit=1",
    "wait=-1s&wait=1e400",
];

/// Spoils a request in one to three ways.
pub(super) fn spoil(rng: &mut Rng, case: &Case) -> Case {
    let mut case = case.clone();
    for _ in 0..rng.usize(1..=3) {
        match rng.u8(0..10) {
            0 => case.path = spoil_path(rng, &case.path),
            1 => case.path = spoil_query(rng, &case.path),
            2 => case.kind = rng.choice(TYPES).filter(|_| rng.u8(0..4) > 0).map(str::to_owned),
            3 => spoil_length(rng, &mut case),
            4 => {
                case.method =
                    rng.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "X"]).unwrap_or("X");
            }
            _ => case.content = spoil_content(rng, case.content),
        }
    }
    case
}

fn spoil_path(rng: &mut Rng, path: &str) -> String {
    let mut segments: Vec<String> = path.split('/').map(str::to_owned).collect();
    let at = rng.usize(1..segments.len());
    segments[at] = match rng.u8(0..10) {
        0 => "a".repeat(8_000),
        1 => "%61".repeat(2_000),
        _ => rng.choice(SEGMENTS).unwrap_or_default().to_owned(),
    };
    segments.join("/")
}

fn spoil_query(rng: &mut Rng, path: &str) -> String {
    let query = match rng.u8(0..10) {
        0 => format!("search={}", "x".repeat(20_000)),
        1 => "a=1&".repeat(2_000),
        _ => rng.choice(QUERIES).unwrap_or_default().to_owned(),
    };
    format!("{path}{}{query}", if path.contains('?') { '&' } else { '?' })
}

/// Seldom more than there is: the server waits for the rest.
fn spoil_length(rng: &mut Rng, case: &mut Case) {
    let length = case.content.bytes().len();
    case.length = match rng.u8(0..24) {
        0 => Some((length + 7).to_string()),
        1..6 => Some("-1".to_owned()),
        6..12 => Some("99999999999999999999999".to_owned()),
        12..18 => Some("x".to_owned()),
        _ => Some((length / 2).to_string()),
    };
}

fn spoil_content(rng: &mut Rng, content: Content) -> Content {
    match content {
        Content::Json(value) if rng.u8(0..10) < 7 => Content::Bytes(spoil_json(rng, value)),
        other => Content::Bytes(spoil_bytes(rng, other.bytes())),
    }
}

/// Spoils a value and writes it.
pub(super) fn spoil_json(rng: &mut Rng, mut value: Value) -> Vec<u8> {
    let place = place(rng, &mut value);
    let mut raw = String::new();
    match (rng.u8(0..8), place) {
        (0, Value::Object(fields)) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            rng.choice(keys).map(|key| fields.shift_remove(&key));
        }
        (1, Value::Object(fields)) => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            if let Some(old) = rng.choice(keys).and_then(|key| fields.shift_remove(&key)) {
                fields.insert(rng.choice(NAMES).unwrap_or_default().to_owned(), old);
            }
        }
        (2, Value::Object(fields)) => {
            fields.insert(rng.choice(NAMES).unwrap_or_default().to_owned(), odd(rng));
        }
        (3, Value::Array(items)) => {
            let again = items.clone();
            items.extend(again);
        }
        (4 | 5, place) => *place = odd(rng),
        (_, place) => {
            raw = odd_text(rng);
            *place = json!(RAW);
        }
    }
    let mut text = value.to_string().replace(&format!("\"{RAW}\""), &raw);
    if rng.u8(0..8) == 0
        && let Some(fields) = value.as_object()
        && let Some(key) = rng.choice(fields.keys())
    {
        text = text.replacen('{', &format!("{{{}:1,", json!(key)), 1);
    }
    text.into_bytes()
}

/// Any value within a value.
fn place<'a>(rng: &mut Rng, value: &'a mut Value) -> &'a mut Value {
    let inner = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if inner == 0 || rng.u8(0..4) == 0 {
        return value;
    }
    let at = rng.usize(0..inner);
    let chosen = match value {
        Value::Object(fields) => fields.values_mut().nth(at),
        Value::Array(items) => items.get_mut(at),
        _ => None,
    };
    match chosen {
        Some(chosen) => place(rng, chosen),
        None => unreachable!("it was counted"),
    }
}

fn odd(rng: &mut Rng) -> Value {
    let texts = [
        "",
        " ",
        "\0",
        "a\0b",
        "\u{feff}x",
        "\u{202e}abc",
        "👩‍👩‍👧‍👦",
        "e\u{301}",
        "\u{10ffff}",
        "\r\n",
        "../../x",
    ];
    match rng.u8(0..13) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.choice([0, 1, -1, i64::MIN, i64::MAX, 1 << 53, i64::from(u32::MAX) + 1])),
        3 => json!(rng.choice([1.5, -0.0, 1e308, -1e308, 5e-324])),
        4 => json!(u64::MAX),
        5 => json!("x".repeat(rng.choice([257, 600, 5_000, 100_000]).unwrap_or(1))),
        6 => json!([]),
        7 => json!({}),
        8 => json!([[], {}, null, [1, "x"]]),
        9 => json!({"type": "x", "content": [{"type": 7}]}),
        _ => json!(rng.choice(texts)),
    }
}

/// JSON that is legal or nearly so, and that no serializer writes.
fn odd_text(rng: &mut Rng) -> String {
    let texts = [
        "1e999",
        "-1E+999",
        "123456789012345678901234567890",
        "0.1e-999",
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        r#""\u0000""#,
        r#"{"a":1,"a":2}"#,
        "NaN",
        "01",
        "'x'",
        "[1,]",
        r#"{"\u0000":{}}"#,
        "\"\x01\"",
        "\u{feff}1",
    ];
    match rng.u8(0..8) {
        0 => nested(rng, 10_000),
        1 => {
            let depth = rng.usize(96..131);
            nested(rng, depth)
        }
        _ => rng.choice(texts).unwrap_or_default().to_owned(),
    }
}

fn nested(rng: &mut Rng, depth: usize) -> String {
    match rng.bool() {
        true => "[".repeat(depth) + &"]".repeat(depth),
        false => r#"{"a":"#.repeat(depth) + "1" + &"}".repeat(depth),
    }
}

/// Spoils text of any kind.
pub(super) fn spoil_bytes(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.is_empty() {
        return rng
            .choice([&b"{"[..], b"\0", b"null", b"[]", b"\xff\xfe", b"\"x\""])
            .unwrap_or_default()
            .to_vec();
    }
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(0..=bytes.len());
        let end = (at + rng.usize(0..20)).min(bytes.len());
        match rng.u8(0..7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            3 => drop(bytes.splice(at..at, *b"\xff\xc3\x28")),
            4 => bytes.insert(at, 0),
            _ if at < bytes.len() => bytes[at] ^= 1 << rng.u8(0..8),
            _ => {}
        }
    }
    bytes
}
