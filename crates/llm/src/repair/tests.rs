use serde_json::json;

use super::*;
use crate::types::{OutputSchema, Usage};

#[test]
fn the_ladder_takes_the_first_step_that_holds() {
    let table = [
        // As it is.
        (r#"{"a": 1}"#, Step::AsIs, json!({"a": 1})),
        ("  [1, 2]\n", Step::AsIs, json!([1, 2])),
        ("\u{feff}{}", Step::AsIs, json!({})),
        ("42", Step::AsIs, json!(42)),
        ("\"yes\"", Step::AsIs, json!("yes")),
        // Fences.
        ("```json\n{\"a\": 1}\n```", Step::Fence, json!({"a": 1})),
        ("Here you are:\n```\n[1]\n```\nGood luck!", Step::Fence, json!([1])),
        ("```json\n{\"a\": 1}", Step::Fence, json!({"a": 1})),
        ("```JSON{\"a\": 1}```", Step::Fence, json!({"a": 1})),
        ("```\ntrue\n```", Step::Fence, json!(true)),
        ("```json\n{\"code\": \"```py```\"}\n```", Step::Fence, json!({"code": "```py```"})),
        ("```\n[1]\n```\nor rather\n```\n[1, 2]\n```", Step::Fence, json!([1, 2])),
        // Prose.
        ("The answer is {\"a\": {\"b\": [1]}}.", Step::Prose, json!({"a": {"b": [1]}})),
        ("See [1] and [2]: {\"score\": 3}", Step::Prose, json!({"score": 3})),
        ("Use { for blocks. {\"a\": 1}", Step::Prose, json!({"a": 1})),
        ("In {{name}} put {\"a\": 1}", Step::Prose, json!({"a": 1})),
        (r#"So: {"a": "a } in \" quotes"}"#, Step::Prose, json!({"a": "a } in \" quotes"})),
        // Mended.
        ("{\"a\": 1,}", Step::Mended, json!({"a": 1})),
        ("[1, 2, ]", Step::Mended, json!([1, 2])),
        ("{'a': 'it\\'s'}", Step::Mended, json!({"a": "it's"})),
        ("{a: True, b_2: False, c: None}", Step::Mended, json!({"a": true, "b_2": false, "c": null})),
        ("{“a”: “b”}", Step::Mended, json!({"a": "b"})),
        ("{\"a\": 1 // one\n, /* two */ \"b\": 2}", Step::Mended, json!({"a": 1, "b": 2})),
        ("{\"a\": \"two\nlines\"}", Step::Mended, json!({"a": "two\nlines"})),
        (r#"{"a": "\alpha \u00e4 \ud83d\ude00",}"#, Step::Mended, json!({"a": "\\alpha ä 😀"})),
        ("```json\n{\"a\": 1,}\n```", Step::Mended, json!({"a": 1})),
        ("Format [1]: {'score': 3}", Step::Mended, json!({"score": 3})),
    ];
    for (text, step, value) in table {
        let found = extract(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(found, (value, step), "{text:?}");
    }
}

#[test]
fn what_cannot_be_had_is_given_up() {
    let table = [
        ("", "empty"),
        (" \n", "empty"),
        ("I would rather not.", "no JSON"),
        ("Use } or ].", "no JSON"),
        // Cut off, though nobody said so: neither completed nor taken for one of its parts.
        (r#"{"items": [{"a": 1}, {"a": 2}"#, "not closed"),
        (r#"{"a": "b"#, "not closed"),
        ("[1, 2", "not closed"),
        ("Sure: {", "not closed"),
        // Broken: its parts are not the answer.
        (r#"{"a": [1, 2], "b": oops}"#, "broken"),
        (r#"{"a": [1, 2], "b": oops} See [1]."#, "broken"),
        (r#"{"a" 1}"#, "broken"),
        (r#"{"a": "\ud800"}"#, "broken"),
        ("{'a': 'it's'}", "broken"),
    ];
    for (text, words) in table {
        let error = extract(text).expect_err(text);
        assert_eq!(error.class, Class::BadShape, "{text:?}");
        assert!(error.message.contains(words), "{text:?}: {}", error.message);
    }
}

#[test]
fn a_cut_off_or_declined_answer_is_not_touched() {
    let answer = |stop| Answer {
        id: String::new(),
        model: "m".into(),
        text: "{\"a\": 1}".into(),
        tool_calls: Vec::new(),
        vectors: Vec::new(),
        own: None,
        stop,
        usage: Usage::default(),
    };
    assert_eq!(of_answer(&answer(Stop::End)).expect("it is JSON").0, json!({"a": 1}));
    for (stop, class) in [(Stop::Length, Class::Truncated), (Stop::Refused, Class::Refused)] {
        let error = of_answer(&answer(stop)).expect_err("it is not touched");
        assert_eq!(error.class, class);
        assert_eq!(error.answer.as_deref(), Some(&answer(stop)), "it was paid for");
    }
}

#[test]
fn odd_brackets_cost_no_quadratic_time() {
    let size = 300_000;
    for piece in ["{ ", "[ x", "{\"", "[[", "{\"a\":", "['", "``` ", "{{", "[\"\\", "/*", "{a:"] {
        let _ = extract(&piece.repeat(size / piece.len()));
    }
    let error = extract(&" x".repeat(TEXT_BYTES_MAX)).expect_err("it is too long");
    assert!(error.message.contains("too long"));
}

/// Any JSON value, small.
fn any_value(random: &mut fastrand::Rng, depth: usize) -> Value {
    let kinds = if depth == 0 { 5 } else { 7 };
    match random.u8(0..kinds) {
        0 => Value::Null,
        1 => random.bool().into(),
        2 => random.i64(..).into(),
        3 => (random.f64() * 1e6).into(),
        4 => any_text(random).into(),
        5 => (0..random.usize(0..4)).map(|_| any_value(random, depth - 1)).collect(),
        _ => (0..random.usize(0..4)).map(|_| (any_text(random), any_value(random, depth - 1))).collect(),
    }
}

fn any_text(random: &mut fastrand::Rng) -> String {
    const PIECES: [&str; 16] =
        ["a", "Z", "\"", "'", "\\", "\n", "```", "{", "}", "[", "]", ",", ": ", "ä", "😀", "\u{1}"];
    (0..random.usize(0..8)).map(|_| PIECES[random.usize(..PIECES.len())]).collect()
}

#[test]
fn json_stays_as_it_is_and_is_found_in_fences_and_prose() {
    let mut random = fastrand::Rng::with_seed(20_261_115);
    for round in 0..5_000 {
        let value = any_value(&mut random, 3);
        for text in [value.to_string(), format!("{value:#}")] {
            let found = |text: &str| {
                extract(text)
                    .map(|(value, _)| value)
                    .unwrap_or_else(|error| panic!("round {round}: {text}: {error}"))
            };
            assert_eq!(found(&text), value, "round {round}: {text}");
            assert_eq!(found(&format!("```json\n{text}\n```")), value, "round {round}: {text}");
            if value.is_object() || value.is_array() {
                assert_eq!(
                    found(&format!("Here it is: {text} Anything else?")),
                    value,
                    "round {round}: {text}"
                );
            }
        }
    }
}

#[test]
fn what_is_json_is_read_the_same_by_the_forgiving_parser() {
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..5_000 {
        let value = Value::Array(vec![any_value(&mut random, 3)]);
        let text = value.to_string();
        assert_eq!(mend::value(&text), Some((value, text.len())), "round {round}: {text}");
    }
}

#[test]
fn no_bytes_make_it_panic() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
        let _ = extract(&String::from_utf8_lossy(&bytes));
        let text: String = (0..random.usize(0..12)).map(|_| any_text(&mut random)).collect();
        let _ = extract(&text);
        // A sound value with one character lost.
        let mut chars: Vec<char> = any_value(&mut random, 3).to_string().chars().collect();
        chars.remove(random.usize(..chars.len()));
        let _ = extract(&chars.into_iter().collect::<String>());
    }
    let _ = extract(&"[".repeat(100_000));
    let _ = extract(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
}

#[test]
fn a_re_ask_repeats_answer_and_error_within_bounds() {
    let schema = OutputSchema { name: "x".into(), schema: json!({}), strict: true };
    let request = ChatRequest {
        messages: vec![Message::text(Role::User, "Rate this.")],
        schema: Some(schema),
        ..ChatRequest::default()
    };
    let text = |request: &ChatRequest, index: usize| match &request.messages[index].content[0] {
        crate::types::Part::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    };
    let again = reask(&request, "{\"score\": \"high\"}", "at /score: \"high\" is not of type \"integer\"");
    assert_eq!(again.messages.len(), 3);
    assert_eq!(again.messages[0], request.messages[0]);
    assert_eq!((again.messages[1].role, text(&again, 1)), (Role::Assistant, "{\"score\": \"high\"}".into()));
    assert_eq!(again.messages[2].role, Role::User);
    for words in ["at /score", "not of type", "required schema"] {
        assert!(text(&again, 2).contains(words), "{}", text(&again, 2));
    }
    assert_eq!(again.schema, request.schema);

    let long = format!("BEGIN{}END", "ä".repeat(100_000));
    let again = reask(&request, &long, &long);
    let repeated = text(&again, 1);
    assert!(repeated.len() < REASK_ANSWER_BYTES_MAX + 100, "{}", repeated.len());
    assert!(repeated.starts_with("BEGIN") && repeated.ends_with("END") && repeated.contains("left out"));
    assert!(text(&again, 2).len() < REASK_ERROR_BYTES_MAX + 300);
    assert_eq!(text(&reask(&request, " ", "the answer is empty"), 1), "(nothing)");
}
