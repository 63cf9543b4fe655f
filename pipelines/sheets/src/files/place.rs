//! A file that appears whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::super::{Error, Result};
use super::wrong;

/// As any program makes a file; the user's mask takes from it.
const FILE_MODE: u32 = 0o666;
const BUFFER_BYTES: usize = 256 * 1024;

/// Where a file is to be.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    kept: Option<Permissions>,
}

impl Place {
    /// A link stays a link: the file that it leads to is replaced.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| match fs::read_link(path) {
            // Leads to a file that is not there yet.
            Ok(to) => folder_of(path).join(to),
            Err(_) => path.to_owned(),
        });
        let kept = match fs::metadata(&path) {
            Ok(found) if found.is_file() => Some(found.permissions()),
            Ok(found) if found.is_dir() => {
                return Err(wrong(&path, "is a folder: name a file in it to write to"));
            }
            Ok(_) => return Err(wrong(&path, "is a device or a pipe: name a file to write to")),
            Err(_) => None,
        };
        Ok(Self { path, kept })
    }

    /// The folder in which it is made, as are all files on the way.
    pub(super) fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Writes a file beside the place and puts it there. After an error everything is as it was.
    pub(super) fn replace<T>(&self, write: impl FnOnce(&mut (dyn Write + Send)) -> Result<T>) -> Result<T> {
        let cannot = |error: io::Error| self.unwritable(&error);
        let mut builder = tempfile::Builder::new();
        let named =
            builder.prefix(".longhaul-").suffix(".partial").permissions(Permissions::from_mode(FILE_MODE));
        let file = named.tempfile_in(self.folder()).map_err(cannot)?;
        if let Some(permissions) = &self.kept {
            file.as_file().set_permissions(permissions.clone()).map_err(cannot)?;
        }
        let mut writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        let written = write(&mut writer)?;
        let file = writer.into_inner().map_err(|error| cannot(error.into_error()))?;
        // Content first, name second: after a power cut the name must not lead to an empty file.
        file.as_file().sync_all().map_err(cannot)?;
        file.persist(&self.path).map_err(|failed| cannot(failed.error))?;
        File::open(self.folder()).and_then(|folder| folder.sync_all()).map_err(cannot)?;
        Ok(written)
    }

    /// Why it cannot be written, and what to do.
    pub(super) fn unwritable(&self, error: &io::Error) -> Error {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "; make its folder first",
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "; name a file in a folder that this user may write to"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "; make space and export again, the scores are kept"
            }
            _ => "",
        };
        wrong(&self.path, &format!("cannot be written: {error}{hint}"))
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
