//! A field of a payload that is searched for: the one place where the queue looks into a payload, and only because
//! somebody asks.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A payload's field with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Names from the outside in, with dots between them: `user.id`. A number picks one element of a list, and any other
    /// name is looked for in all of them.
    pub path: String,
    /// A string's content, or any other plain value as it is written: `42`, `true`, `null`. A list has the value when one
    /// of its elements has.
    pub value: String,
}

/// A field, ready to be looked for in many payloads.
pub(super) struct Finder<'a> {
    path: Vec<&'a str>,
    value: &'a str,
    /// Escapes hide a name or value from a plain look at the text.
    plain: bool,
}

impl<'a> Finder<'a> {
    pub(super) fn new(field: &'a Field) -> Self {
        let escaped = |text: &str| text.contains(|c: char| c == '"' || c == '\\' || c.is_control());
        let plain = !escaped(&field.value) && !escaped(&field.path);
        Self { path: field.path.split('.').collect(), value: &field.value, plain }
    }

    pub(super) fn is_in(&self, payload: &str) -> bool {
        // Most payloads are passed over without reading their structure.
        if self.plain && !payload.contains(self.value) && !payload.contains('\\') {
            return false;
        }
        let mut json = serde_json::Deserializer::from_str(payload);
        Seek { path: &self.path, value: self.value }.deserialize(&mut json).unwrap_or(false)
    }
}

/// Goes down a path and answers whether the value stands there.
#[derive(Clone, Copy)]
struct Seek<'a> {
    path: &'a [&'a str],
    value: &'a str,
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        if self.path.is_empty() {
            let raw = <&RawValue as serde::Deserialize>::deserialize(deserializer)?;
            return Ok(has_value(raw.get(), self.value));
        }
        deserializer.deserialize_any(self)
    }
}

/// Whether plain JSON, or an element of a list, is this value.
fn has_value(json: &str, value: &str) -> bool {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<Cow<'_, str>>(json).is_ok_and(|text| text == value),
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(json)
            .is_ok_and(|elements| elements.iter().any(|element| has_value(element.get(), value))),
        Some(b'{') | None => false,
        Some(_) => json == value,
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        let Some((name, path)) = self.path.split_first() else { return Ok(false) };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == *name {
                found |= map.next_value_seed(Seek { path, ..self })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        let Some((name, path)) = self.path.split_first() else { return Ok(false) };
        let picked = name.parse::<usize>().ok();
        let (mut found, mut index) = (false, 0);
        loop {
            let seen = match picked {
                None => list.next_element_seed(self)?,
                Some(picked) if picked == index => list.next_element_seed(Seek { path, ..self })?,
                Some(_) => list.next_element::<IgnoredAny>()?.map(|_| false),
            };
            let Some(seen) = seen else { return Ok(found) };
            found |= seen;
            index += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_path_and_the_text_of_its_value() {
        let payload = r#"{"user":{"id":42,"name":"Ann \"A\" Lee","on":true,"big":12345678901234567890123},
            "tags":["red","blue"],"items":[{"sku":"x1"},{"sku":"x2","n":1.50}],"none":null,"caf\u00e9":"\u0061b","42":1}"#;
        let found = |path: &str, value: &str| {
            Finder::new(&Field { path: path.to_owned(), value: value.to_owned() }).is_in(payload)
        };
        for (path, value) in [
            ("user.id", "42"),
            ("user.name", "Ann \"A\" Lee"),
            ("user.on", "true"),
            ("user.big", "12345678901234567890123"),
            ("none", "null"),
            ("tags", "blue"),
            ("tags.0", "red"),
            ("items.sku", "x2"),
            ("items.1.sku", "x2"),
            ("items.n", "1.50"),
            ("café", "ab"),
            ("42", "1"),
        ] {
            assert!(found(path, value), "{path}:{value}");
        }
        for (path, value) in [
            ("user.id", "4"),
            ("user.id", "42.0"),
            ("id", "42"),
            ("user", "42"),
            ("user.id.x", "42"),
            ("tags.1", "red"),
            ("items.0.sku", "x2"),
            ("items.n", "1.5"),
            ("", "42"),
        ] {
            assert!(!found(path, value), "{path}:{value}");
        }
        assert!(!Finder::new(&Field { path: "a".into(), value: "1".into() }).is_in("1"), "no object at all");
    }
}
