//! The tables of a pipeline in the data store, which the pipeline itself migrates.

use longhaul_queue::Result;
use longhaul_sqlite::{FileError, Schema};
use longhaul_stores::sqlite::Db;

/// Brings the tables of a pipeline up to date. Migrations are in order; a new one is added at the end, old ones are never
/// edited. Several processes may do so at once.
pub async fn migrate(db: &Db, slice: &'static str, migrations: &'static [&'static str]) -> Result<()> {
    let schema = Schema { version_table: "slice_versions", version_key: slice, migrations, is_alone: false };
    db.transaction(move |tx| {
        let named =
            |error: FileError| FileError { message: format!("the tables of {slice}: {error}"), ..error };
        Ok(schema.apply(tx.connection()).map_err(named)?)
    })
    .await
}

#[cfg(test)]
mod tests {
    use longhaul_stores::sqlite::SqliteOptions;

    use super::*;

    #[tokio::test]
    async fn each_slice_has_its_own_version_and_a_newer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&folder.path().join("test.db"), SqliteOptions::default()).unwrap();
        const FIRST: &str = "CREATE TABLE a (id INTEGER)";
        const SECOND: &str = "CREATE TABLE b (id INTEGER)";
        migrate(&db, "one", &[]).await.unwrap();
        migrate(&db, "two", &[FIRST]).await.unwrap();
        migrate(&db, "two", &[FIRST, SECOND]).await.unwrap();
        migrate(&db, "one", &["CREATE TABLE c (id INTEGER)"]).await.unwrap();
        let refused = migrate(&db, "two", &[FIRST]).await.unwrap_err().to_string();
        for words in ["the tables of two", "version 2", "up to 1", "newer longhaul"] {
            assert!(refused.contains(words), "{refused}");
        }
    }
}
