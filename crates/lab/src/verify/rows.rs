//! What SQLite itself says of the file: whether it is sound, and whether rows of jobs are left in any table.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rusqlite::{Connection, OpenFlags};

/// A commit takes no longer than this, with its fsync and those that are before it.
const COMMIT_MAX: Duration = Duration::from_millis(150);

/// Damage, in SQLite's words.
pub(super) fn damage(file: &Path) -> Result<Vec<String>> {
    let connection = open(file)?;
    let mut statement = connection.prepare("PRAGMA integrity_check")?;
    let lines = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(lines.into_iter().filter(|line| line != "ok").collect())
}

/// Tables with rows that belong to a job. Such a table has the job's place, `seq` or `child`, among its columns; what
/// a later migration adds is found without being named here.
pub(super) fn left(file: &Path) -> Result<Vec<String>> {
    let connection = open(file)?;
    let mut statement = connection.prepare(
        "SELECT DISTINCT tables.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
         WHERE tables.type = 'table' AND columns.name IN ('seq', 'child')",
    )?;
    let tables = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    anyhow::ensure!(!tables.is_empty(), "{} has no table of jobs", file.display());
    let mut left = Vec::new();
    for table in tables {
        let rows: i64 =
            connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
        if rows > 0 {
            left.push(format!("{rows} rows in {table}"));
        }
    }
    Ok(left)
}

/// Whether somebody could write: nobody holds the write lock for longer than a commit takes.
pub(super) fn lock_is_free(file: &Path) -> bool {
    let probe = || -> rusqlite::Result<()> {
        let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(COMMIT_MAX)?;
        connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")
    };
    probe().is_ok()
}

fn open(file: &Path) -> Result<Connection> {
    Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)
        .with_context(|| format!("opening {}", file.display()))
}
