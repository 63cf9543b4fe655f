//! When a sheet elsewhere was written, so that all processes together keep to its quota.

use std::time::Duration;

use longhaul_queue::Timestamp;
use rusqlite::{OptionalExtension as _, params};

use super::Tables;
use crate::Result;

/// The time over which a quota counts.
const QUOTA_WINDOW: Duration = Duration::from_secs(60);

impl Tables {
    /// Takes one of an account's writes of this minute. All processes that share the data store count together, also
    /// across restarts. `Err` says how long to wait.
    pub async fn take_write(
        &self,
        account: &str,
        per_minute: u32,
        now: Timestamp,
    ) -> Result<Result<(), Duration>> {
        let account = account.to_owned();
        let taken = self.write(move |connection| {
            let since = now.as_millis() - i64::try_from(QUOTA_WINDOW.as_millis()).unwrap_or(i64::MAX);
            // One of the future was counted before the clock was set back.
            let sql = "DELETE FROM score_writes WHERE at <= ?1 OR at > ?2";
            connection.execute(sql, params![since, now.as_millis()])?;
            // The oldest write that still stands in the way.
            let sql = "SELECT at FROM score_writes WHERE account = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2";
            let in_the_way: Option<i64> = connection
                .query_row(sql, params![account, per_minute.saturating_sub(1)], |row| row.get(0))
                .optional()?;
            if let Some(at) = in_the_way {
                let wait = u64::try_from(at - since).unwrap_or(0).max(1);
                return Ok(Err(Duration::from_millis(wait)));
            }
            let sql = "INSERT INTO score_writes (account, at) VALUES (?1, ?2)";
            connection.execute(sql, params![account, now.as_millis()])?;
            Ok(Ok(()))
        });
        taken.await
    }
}
