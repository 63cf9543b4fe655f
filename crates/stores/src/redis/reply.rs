//! What the server answers, taken apart.

use longhaul_queue::{Error, Result, Timestamp};
use redis::Value;

use super::codec::{Reader, corrupt};

/// An answer of another shape than the scripts give.
fn odd() -> Error {
    corrupt("an answer")
}

pub(super) fn list(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(odd()),
    }
}

/// A list of so many.
pub(super) fn fixed<const N: usize>(value: Value) -> Result<[Value; N]> {
    list(value)?.try_into().map_err(|_| odd())
}

pub(super) fn int(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(odd()),
    }
}

pub(super) fn count(value: &Value) -> Result<u64> {
    u64::try_from(int(value)?).map_err(|_| odd())
}

pub(super) fn bytes(value: &Value) -> Result<&[u8]> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        _ => Err(odd()),
    }
}

/// Bytes, or nothing.
pub(super) fn maybe(value: &Value) -> Result<Option<&[u8]>> {
    match value {
        Value::Nil => Ok(None),
        value => bytes(value).map(Some),
    }
}

/// A time that a script packed, or nothing.
pub(super) fn time(value: &Value) -> Result<Option<Timestamp>> {
    Ok(maybe(value)?.map(|bytes| Reader::new(bytes).time()).transpose()?.flatten())
}

/// The fields of a hash.
pub(super) fn pairs(value: Value) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let values = list(value)?;
    let mut pairs = Vec::with_capacity(values.len() / 2);
    for pair in values.chunks(2) {
        let [name, value] = pair else { return Err(odd()) };
        pairs.push((bytes(name)?.to_vec(), bytes(value)?.to_vec()));
    }
    Ok(pairs)
}

/// The text in front of a list, and the list behind it.
pub(super) fn headed(value: Value) -> Result<(String, Vec<Value>)> {
    let mut values = list(value)?;
    if values.is_empty() {
        return Err(odd());
    }
    let rest = values.split_off(1);
    let head = bytes(&values[0])?;
    Ok((String::from_utf8_lossy(head).into_owned(), rest))
}
