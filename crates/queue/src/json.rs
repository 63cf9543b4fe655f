//! JSON as text. The queue never learns what a payload means, so it neither parses nor rebuilds one.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// A valid JSON document on one line, otherwise kept as the text it came as. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Arc<str>);

impl Json {
    /// Checks that `text` is one JSON value.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str::<&RawValue>(text)
            .map_err(|error| Error::invalid(format!("not valid JSON: {error}")))?;
        Ok(Self::one_line(text.trim()))
    }

    /// A document of many lines becomes one line: line breaks can only stand between its tokens, and results are
    /// handed out as lines.
    fn one_line(text: &str) -> Self {
        if text.contains(['\n', '\r']) {
            Self(text.replace(['\n', '\r'], " ").into())
        } else {
            Self(text.into())
        }
    }

    /// Serialises a value.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let text = serde_json::to_string(value)
            .map_err(|error| Error::invalid(format!("value cannot be written as JSON: {error}")))?;
        Ok(Self(text.into()))
    }

    /// Text that a store wrote earlier and hands back.
    pub fn trusted(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// `null`.
    pub fn null() -> Self {
        Self("null".into())
    }

    /// Reads the value as `T`.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_str(&self.0).map_err(|error| Error::invalid(error.to_string()))
    }

    /// Reads a field whose `null` is a value like any other: `#[serde(default, deserialize_with = "Json::present")]`.
    pub fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        Self::deserialize(deserializer).map(Some)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Size of the text in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: an empty text is not JSON.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self::one_line(raw.get()))
    }
}
