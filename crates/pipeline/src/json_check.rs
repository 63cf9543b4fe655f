//! JSON that everybody can read. Payloads are kept as the text they came as, and handed out again within other JSON: one that its
//! reader cannot bear (half a surrogate pair, a number out of range, a thousand levels) would spoil the whole page that it is on.
//! So it is not let in.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Most levels of one request. Many readers end at 128, and an answer wraps what it shows in a few of its own.
const LEVELS_MAX: usize = 100;

/// Reads all of a text and keeps nothing of it.
pub fn check(text: &[u8]) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    Levels(LEVELS_MAX).deserialize(&mut reader)?;
    reader.end()
}

/// How many levels may follow.
#[derive(Clone, Copy)]
struct Levels(usize);

impl Levels {
    fn below<E: serde::de::Error>(self) -> Result<Self, E> {
        let below = self.0.checked_sub(1).map(Self);
        below.ok_or_else(|| E::custom(format!("more than {LEVELS_MAX} levels of nesting")))
    }
}

impl<'de> DeserializeSeed<'de> for Levels {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Levels {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        if number.is_finite() { Ok(()) } else { Err(E::custom("number out of range")) }
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let below = self.below::<A::Error>()?;
        while items.next_element_seed(below)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let below = self.below::<A::Error>()?;
        while fields.next_key_seed(below)?.is_some() {
            fields.next_value_seed(below)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_reader_could_not_bear_is_told() {
        let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let rows = [
            (r#"{"a": [1, -1, 1.5, "x", null, true, "\ud83d\ude00", "\u0000"], "a": {}}"#.to_owned(), true),
            (deep(LEVELS_MAX), true),
            (deep(LEVELS_MAX + 1), false),
            (deep(100_000), false),
            (r#"["\ud800"]"#.to_owned(), false),
            (r#"{"\udc00": 1}"#.to_owned(), false),
            ("[1e999]".to_owned(), false),
            ("1 2".to_owned(), false),
            (String::new(), false),
        ];
        for (text, is_let_in) in rows {
            assert_eq!(check(text.as_bytes()).is_ok(), is_let_in, "{text:.50}");
        }
    }
}
