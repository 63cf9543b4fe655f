//! Where lines go: stdout, a device or pipe as it is, or a file that appears whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Stdout, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use tempfile::NamedTempFile;

use crate::exit::{Failure, PipeClosed};
use crate::texts;

/// As any program makes a file; the user's mask takes from it.
const FILE_MODE: u32 = 0o666;

/// A place to write to.
#[derive(Debug)]
pub(crate) enum Sink {
    /// The program's own output.
    Stdout(BufWriter<Stdout>),
    /// Something that cannot be replaced: a pipe, a terminal.
    Device(BufWriter<File>, PathBuf),
    /// A file beside `path`, which takes its place in the end.
    File(BufWriter<NamedTempFile>, PathBuf),
}

impl Sink {
    /// Whether a place can be opened later on. A device is not tried: opening a pipe waits for its reader.
    pub(super) fn check(path: &Path) -> Result<()> {
        let is_device = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if !is_device {
            Self::open(path)?;
        }
        Ok(())
    }

    /// Opens a place; `-` is stdout.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Stdout(BufWriter::new(io::stdout())));
        }
        let cannot = |error: io::Error| {
            // The error itself names the temporary file, which nobody has asked for.
            let why = match error.kind() {
                io::ErrorKind::NotFound => format!("there is no folder {}", folder_of(path).display()),
                kind => kind.to_string(),
            };
            Failure::new(texts::code_of(&error), format!("{} cannot be written: {why}", path.display()))
                .hint("name a file in a folder that exists and may be written to")
        };
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(cannot(io::ErrorKind::IsADirectory.into()).into());
        }
        // A link stays a link: the file that it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let kept = match fs::metadata(&path) {
            Ok(found) if found.is_file() => Some(found.permissions()),
            Ok(found) if found.is_dir() => return Err(cannot(io::ErrorKind::IsADirectory.into()).into()),
            Ok(_) => {
                let file = OpenOptions::new().write(true).open(&path).map_err(cannot)?;
                return Ok(Self::Device(BufWriter::new(file), path));
            }
            Err(_) => None,
        };
        let mut builder = tempfile::Builder::new();
        let named =
            builder.prefix(".longhaul-").suffix(".partial").permissions(Permissions::from_mode(FILE_MODE));
        let file = named.tempfile_in(folder_of(&path)).map_err(cannot)?;
        if let Some(permissions) = kept {
            file.as_file().set_permissions(permissions).map_err(cannot)?;
        }
        Ok(Self::File(BufWriter::new(file), path))
    }

    /// Writes whole lines.
    pub(crate) fn write(&mut self, lines: &str) -> Result<()> {
        match self {
            Self::Stdout(stdout) => stdout_written(stdout.write_all(lines.as_bytes())),
            Self::Device(file, path) => written(file.write_all(lines.as_bytes()), path),
            Self::File(file, path) => written(file.write_all(lines.as_bytes()), path),
        }
    }

    /// For formats that do not consist of lines.
    pub(super) fn bytes(&mut self) -> &mut (dyn Write + Send) {
        match self {
            Self::Stdout(stdout) => stdout,
            Self::Device(file, _) => file,
            Self::File(file, _) => file,
        }
    }

    /// Makes sure that everything is there, and puts a file in its place.
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::Stdout(mut stdout) => stdout_written(stdout.flush()),
            Self::Device(mut file, path) => written(file.flush(), &path),
            Self::File(file, path) => {
                let file = file.into_inner().map_err(|error| anyhow!(error.into_error()));
                let file = file.with_context(|| format!("writing {}", path.display()))?;
                // Content first, name second: after a power cut the name must not lead to an empty file.
                written(file.as_file().sync_all(), &path)?;
                let placed = file.persist(&path).map_err(|failed| failed.error);
                placed.with_context(|| format!("putting {} in its place", path.display()))?;
                // The name must last too: who deletes the jobs next has nothing else left of the answers.
                written(File::open(folder_of(&path)).and_then(|folder| folder.sync_all()), &path)
            }
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn written(result: io::Result<()>, path: &Path) -> Result<()> {
    result.with_context(|| format!("writing {}", path.display()))
}

fn stdout_written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(PipeClosed.into()),
        result => result.context("writing to stdout"),
    }
}
