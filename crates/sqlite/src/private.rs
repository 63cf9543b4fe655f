//! Files and folders that only their owner can read: they hold prompts, answers and names of people.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Mode of a file that only its owner can read and write.
pub const FILE_MODE: u32 = 0o600;

/// Creates an empty file for SQLite to fill; SQLite gives the log and the index beside it the same mode. An existing file keeps
/// its content and mode.
///
/// The file is closed before it gets its name: closing a file drops the locks that another thread of this process has on it.
pub fn create_file(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder_of(path))?;
    match file.into_temp_path().persist_noclobber(path) {
        Err(refused) if refused.error.kind() != io::ErrorKind::AlreadyExists => Err(refused.error),
        _ => Ok(()),
    }
}

/// Creates a folder, and those above it, that only its owner can read. An existing one stays as it is.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Options for a new private file: opening fails if it exists.
pub fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(FILE_MODE);
    options
}
