//! Values of cells: what we send, what Google sends back, and whether they are the same.

use std::borrow::Cow;

use serde_json::Value;

/// Letters that a cell holds, as Google counts them (UTF-16). One more, and it refuses the whole request.
const CELL_LETTERS_MAX: usize = 50_000;
const CUT: &str = " … (cut: a cell holds no more)";

/// A value as it is sent: a cell has no lists and no objects.
pub(super) fn sent(value: &Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(text) => Value::String(shortened(text)),
        Value::Array(_) | Value::Object(_) => Value::String(shortened(&value.to_string())),
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= CELL_LETTERS_MAX || text.encode_utf16().count() <= CELL_LETTERS_MAX {
        return text.to_owned();
    }
    let mut room = CELL_LETTERS_MAX - CUT.encode_utf16().count();
    let kept = text.chars().take_while(|letter| {
        let fits = letter.len_utf16() <= room;
        room = room.saturating_sub(letter.len_utf16());
        fits
    });
    kept.chain(CUT.chars()).collect()
}

/// A value as a text: numbers without a needless `.0`, truth as the sheet shows it.
pub(super) fn text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) => Cow::Borrowed(text),
        Value::Bool(true) => Cow::Borrowed("TRUE"),
        Value::Bool(false) => Cow::Borrowed("FALSE"),
        Value::Number(number) => Cow::Owned(match number.as_f64() {
            // Whole numbers up to here are exact.
            Some(float) if float.fract() == 0.0 && float.abs() < 9e15 => format!("{float:.0}"),
            _ => number.to_string(),
        }),
        Value::Array(_) | Value::Object(_) => Cow::Owned(value.to_string()),
    }
}

/// Whether nothing is there.
pub(super) fn is_blank(value: &Value) -> bool {
    text(value).trim().is_empty()
}

/// Whether a cell holds what was sent. A column of texts gives numbers back as texts, and ends of lines may change.
pub(super) fn same(found: &Value, sent: &Value) -> bool {
    let (found, sent) = (text(found), text(sent));
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    if let (Some(found), Some(sent)) = (number(&found), number(&sent)) {
        return (found - sent).abs() <= f64::EPSILON * 8.0 * sent.abs().max(1.0);
    }
    let lines = |text: &str| text.trim().replace("\r\n", "\n");
    lines(&found) == lines(&sent)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn own_values_are_known_again() {
        for (found, sent) in [
            (json!(0.85), json!(0.85)),
            (json!(1), json!(1.0)),
            (json!("0.85"), json!(0.85)),
            (json!("a\nb "), json!("a\r\nb")),
            (json!(true), json!(true)),
            (json!("NaN"), json!("NaN")),
            (json!("[1,2]"), sent(&json!([1, 2]))),
        ] {
            assert!(same(&found, &sent), "{found} {sent}");
        }
        for (found, sent) in [
            (json!(0.86), json!(0.85)),
            (json!("yes"), json!(true)),
            (json!(""), json!(0)),
            (json!("a"), json!("b")),
        ] {
            assert!(!same(&found, &sent), "{found} {sent}");
        }
    }

    #[test]
    fn values_read_as_texts() {
        for (value, want) in [
            (json!(3.0), "3"),
            (json!(-0.5), "-0.5"),
            (json!(null), ""),
            (json!(false), "FALSE"),
            (json!(1e20), "1e+20"),
        ] {
            assert_eq!(text(&value), want);
        }
        assert!(is_blank(&json!("  ")) && !is_blank(&json!(0)));
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let Value::String(text) = sent(&json!("ä😀".repeat(30_000))) else { panic!("a text") };
        assert!(text.ends_with(CUT) && text.encode_utf16().count() <= CELL_LETTERS_MAX);
        let fits = json!("ä".repeat(CELL_LETTERS_MAX));
        assert_eq!(sent(&fits), fits);
    }
}
