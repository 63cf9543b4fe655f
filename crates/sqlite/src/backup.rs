//! A copy of a file while work goes on.

use std::path::Path;

use crate::error::{FileError, FileResult};
use crate::file::SqliteFile;
use crate::private;
use crate::session::Session;

impl<S: Session> SqliteFile<S> {
    /// Writes a consistent, compact copy while work goes on. Refuses to overwrite.
    pub async fn back_up(&self, target: &Path) -> Result<(), S::Reply> {
        let target = target.to_owned();
        self.with_reader(move |connection| Ok(copy(connection, &target)?)).await
    }
}

fn copy(connection: &rusqlite::Connection, target: &Path) -> FileResult<()> {
    if target.exists() {
        return Err(FileError::invalid(format!("{} exists; choose another name", target.display())));
    }
    let failed = |what: &str, error: std::io::Error| {
        FileError::invalid(format!("{} cannot be {what}: {error}", target.display()))
    };
    // SQLite accepts an empty file too. This one is nobody else's, and may be removed.
    let file = private::new_file().open(target).map_err(|error| failed("created", error))?;
    let copied = connection
        .execute("VACUUM INTO ?1", [target.to_string_lossy()])
        .map_err(FileError::from)
        .and_then(|_| file.sync_all().map_err(|error| failed("synced", error)));
    if copied.is_err() {
        // Half a copy is none, and would be in the way of the next.
        let _ = std::fs::remove_file(target);
    }
    copied
}
