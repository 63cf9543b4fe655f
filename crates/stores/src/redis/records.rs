//! Records: small values that processes share, written by whoever knows their version.

use longhaul_queue::store::Record;
use longhaul_queue::{Json, Result, Timestamp};

use super::RedisStore;
use super::codec::{self, Reader};
use super::encode::Args;
use super::reply;
use super::scripts::Function;

pub(super) async fn record(store: &RedisStore, name: &str) -> Result<Option<Record>> {
    let mut command = redis::cmd("HGET");
    command.arg(store.link.key("records")).arg(name);
    let found: Option<Vec<u8>> = store.link.ask(&command).await?;
    found.map(|bytes| read(&bytes)).transpose()
}

/// Its version in six bytes, then its value.
pub(super) fn read(bytes: &[u8]) -> Result<Record> {
    let mut reader = Reader::new(bytes);
    let version = reader.seq()?.unsigned_abs();
    Ok(Record { version, value: codec::json(reader.rest())? })
}

pub(super) fn bytes(version: u64, value: &Json) -> Vec<u8> {
    let mut bytes = version.to_be_bytes()[2..].to_vec();
    bytes.extend(value.as_str().as_bytes());
    bytes
}

pub(super) async fn put_record(
    store: &RedisStore,
    name: String,
    expected: u64,
    value: &Json,
) -> Result<bool> {
    let args: Args =
        vec![name.into_bytes(), expected.to_string().into_bytes(), value.as_str().as_bytes().to_vec()];
    let written = store.link.run(Function::PutRecord, Timestamp::default(), args).await?;
    Ok(reply::int(&written)? == 1)
}
