//! Reading a request: each error names the field, what was expected there and what was found. What nobody took is left
//! over for `extra`.

use serde_json::{Map, Value};

use crate::error::{Class, Error, Result};

/// An object whose fields are taken one by one. `null` counts as absent.
pub(super) struct Fields {
    map: Map<String, Value>,
    at: String,
}

impl Fields {
    pub(super) fn new(value: Value, at: &str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, at: at.to_owned() }),
            other => Err(wrong(if at.is_empty() { "the request" } else { at }, "an object", Some(&other))),
        }
    }

    /// The full name of a field.
    pub(super) fn path(&self, key: &str) -> String {
        if self.at.is_empty() { key.to_owned() } else { format!("{}.{key}", self.at) }
    }

    pub(super) fn peek(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        self.map.shift_remove(key).filter(|value| !value.is_null())
    }

    /// A text that must be there and stays where it is: of what is passed on, the order is kept.
    pub(super) fn needed_word(&self, key: &str) -> Result<String> {
        match self.peek(key) {
            Some(Value::String(word)) => Ok(word.clone()),
            other => Err(wrong(&self.path(key), "a string", other)),
        }
    }

    /// Puts a field back that is only passed on.
    pub(super) fn put_back(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.path(key), "a string", Some(&other))),
        }
    }

    pub(super) fn list(&mut self, key: &str) -> Result<Option<Vec<Value>>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.path(key), "a list", Some(&other))),
        }
    }

    pub(super) fn object(&mut self, key: &str) -> Result<Option<Self>> {
        let at = self.path(key);
        self.take(key).map(|value| Self::new(value, &at)).transpose()
    }

    pub(super) fn number(&mut self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a number", Value::as_f64)
    }

    pub(super) fn count(&mut self, key: &str) -> Result<Option<u32>> {
        self.read(key, "a whole number of 0 or more", |value| {
            value.as_u64().and_then(|n| u32::try_from(n).ok())
        })
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        self.read(key, "true or false", Value::as_bool)
    }

    /// A sampling seed. A negative one is left where it is: some engines mean "any seed" by it.
    pub(super) fn seed(&mut self, key: &str) -> Result<Option<u64>> {
        if self.peek(key).is_some_and(Value::is_i64) && self.peek(key).and_then(Value::as_u64).is_none() {
            return Ok(None);
        }
        self.read(key, "a whole number", Value::as_u64)
    }

    /// One text or several.
    pub(super) fn texts(&mut self, key: &str) -> Result<Vec<String>> {
        let at = self.path(key);
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => {
                let text = |(index, item)| match item {
                    Value::String(text) => Ok(text),
                    other => Err(wrong(&format!("{at}[{index}]"), "a string", Some(&other))),
                };
                items.into_iter().enumerate().map(text).collect()
            }
            Some(other) => Err(wrong(&at, "a string or a list of strings", Some(&other))),
        }
    }

    /// A field that must be there.
    pub(super) fn need<T>(&self, key: &str, expected: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| wrong(&self.path(key), expected, None))
    }

    pub(super) fn needed_text(&mut self, key: &str) -> Result<String> {
        let found = self.text(key)?;
        self.need(key, "a string", found)
    }

    pub(super) fn needed_list(&mut self, key: &str) -> Result<Vec<Value>> {
        let found = self.list(key)?;
        self.need(key, "a list", found)
    }

    /// Whether nothing but these fields is left.
    pub(super) fn has_only(&self, keys: &[&str]) -> bool {
        self.map.iter().all(|(key, value)| value.is_null() || keys.contains(&key.as_str()))
    }

    pub(super) fn rest(self) -> Map<String, Value> {
        self.map
    }

    fn read<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(&self.path(key), expected, Some(&value)))
    }
}

/// The error of a field. Names kinds, never values: they are the user's.
pub(super) fn wrong(at: &str, expected: &str, found: Option<&Value>) -> Error {
    let found = match found {
        None => "nothing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "a boolean",
        Some(Value::Number(_)) => "a number",
        Some(Value::String(_)) => "a string",
        Some(Value::Array(_)) => "a list",
        Some(Value::Object(_)) => "an object",
    };
    Error::new(Class::BadRequest, format!("{at}: expected {expected}, found {found}")).with_status(400)
}

/// The error of a word that is not known. The word is quoted: it names a kind.
pub(super) fn unknown(at: &str, expected: &str, found: &str) -> Error {
    let found: String = found.chars().take(40).collect();
    Error::new(Class::BadRequest, format!("{at}: expected {expected}, found {found:?}")).with_status(400)
}
