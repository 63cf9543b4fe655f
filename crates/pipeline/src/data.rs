//! The tables of a slice in the data store: made and brought up to date by the slice itself.

use longhaul_queue::{Error, Result};
use longhaul_stores::sqlite::{Db, DbError};
use rusqlite::OptionalExtension as _;

/// Brings the tables of a slice up to date. Migrations are in order; a new one is added at the end, old ones are never
/// edited. Several processes may do so at once.
pub async fn migrate(db: &Db, slice: &'static str, migrations: &'static [&'static str]) -> Result<()> {
    let newest = migrations.len();
    let found = db
        .transaction(move |tx| {
            let connection = tx.connection();
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS slice_versions (slice TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT",
            )?;
            let version = connection
                .query_row("SELECT version FROM slice_versions WHERE slice = ?1", [slice], |row| row.get(0))
                .optional()?;
            let version: usize = version.unwrap_or(0);
            for migration in migrations.iter().skip(version) {
                connection.execute_batch(migration)?;
            }
            if version < newest {
                connection.execute(
                    "INSERT INTO slice_versions (slice, version) VALUES (?1, ?2)
                     ON CONFLICT (slice) DO UPDATE SET version = excluded.version",
                    (slice, newest),
                )?;
            }
            Ok::<_, DbError>(version)
        })
        .await?;
    if found > newest {
        return Err(Error::invalid(format!(
            "the tables of {slice} have version {found}, and this program knows {newest}: use a newer longhaul"
        )));
    }
    Ok(())
}
