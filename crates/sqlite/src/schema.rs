//! The tables of a file: forward migrations, and how many of them a file has seen.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use crate::error::{FileError, FileErrorKind, FileResult};

/// The tables of a file, or some of them, as a list of migrations.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// The table, of `key` and `value`, that holds the version. It is created when missing.
    pub version_table: &'static str,
    /// The key of the version in that table.
    pub version_key: &'static str,
    /// In order; the version is the number of those applied. A new one goes to the end, old ones are never edited.
    pub migrations: &'static [&'static str],
    /// Whether the file must hold nothing else. Then a mistyped path cannot fill another program's database with our tables.
    pub is_alone: bool,
}

impl Schema {
    /// The version that this program writes.
    pub const fn newest(&self) -> i64 {
        #[expect(clippy::cast_possible_wrap, reason = "migrations are few")]
        let newest = self.migrations.len() as i64;
        newest
    }

    /// The version of a file; `None` if it does not have these tables.
    pub fn version(&self, connection: &Connection) -> FileResult<Option<i64>> {
        let Self { version_table, version_key, .. } = self;
        let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        if connection.query_row(exists, [version_table], |_| Ok(())).optional()?.is_none() {
            return Ok(None);
        }
        let version = format!("SELECT value FROM {version_table} WHERE key = ?1");
        Ok(connection.query_row(&version, [version_key], |row| row.get(0)).optional()?)
    }

    /// Applies the missing migrations inside the caller's transaction. A version newer than this program's is refused.
    pub fn apply(&self, transaction: &Connection) -> FileResult<()> {
        let found = self.version(transaction)?;
        let (version, newest) = (found.unwrap_or(0), self.newest());
        if version == newest {
            return Ok(());
        }
        if version > newest {
            let message = format!(
                "its schema is version {version}, this program knows versions up to {newest}; use a newer longhaul"
            );
            return Err(FileError::new(FileErrorKind::Newer, message));
        }
        if found.is_none() && self.is_alone {
            refuse_foreign(transaction)?;
        }
        let Self { version_table, version_key, .. } = self;
        transaction.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS {version_table} (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID"
        ))?;
        let done = usize::try_from(version).map_err(|_| {
            FileError::corrupt(format!("its schema is version {version}, which does not exist"))
        })?;
        for migration in self.migrations.iter().skip(done) {
            transaction.execute_batch(migration)?;
        }
        transaction.execute(
            &format!(
                "INSERT INTO {version_table} (key, value) VALUES (?1, ?2)
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            ),
            (version_key, newest),
        )?;
        Ok(())
    }

    /// Brings a file up to date, under the write lock: processes that start together do it once.
    pub(crate) fn migrate(&self, connection: &mut Connection) -> FileResult<()> {
        if self.version(connection)? == Some(self.newest()) {
            return Ok(());
        }
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        self.apply(&transaction)?;
        Ok(transaction.commit()?)
    }
}

fn refuse_foreign(connection: &Connection) -> FileResult<()> {
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(());
    }
    Err(FileError::invalid("it is a SQLite file of another program; name another path"))
}
