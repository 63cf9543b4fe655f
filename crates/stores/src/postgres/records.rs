//! Records: small values that processes share, written by who knows their version.

use longhaul_queue::Json;
use longhaul_queue::store::Record;

use super::error::DbResult;
use super::rows::{read_fence, stored_fence};
use super::tx::Tx;

/// A record as it stands.
pub(super) async fn get(tx: &Tx<'_>, name: &str) -> DbResult<Option<Record>> {
    let row = tx.one("SELECT version, value FROM lh_records WHERE name = $1", &[&name]).await?;
    let Some(row) = row else { return Ok(None) };
    Ok(Some(Record { version: read_fence(&row, 0)?, value: Json::trusted(row.try_get::<_, String>(1)?) }))
}

/// Writes a record whose version is `expected`, 0 for one that is not there. Two who know the same version meet at the
/// row, and the second finds it changed.
pub(super) async fn put(tx: &Tx<'_>, name: &str, expected: u64, value: &Json) -> DbResult<bool> {
    let value = value.as_str();
    let written = if expected == 0 {
        let sql = "INSERT INTO lh_records (name, version, value) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING";
        tx.run(sql, &[&name, &value]).await?
    } else {
        let sql = "UPDATE lh_records SET version = version + 1, value = $3 WHERE name = $1 AND version = $2";
        tx.run(sql, &[&name, &stored_fence(expected), &value]).await?
    };
    Ok(written > 0)
}
