//! Small files of JSON that only their owner can read, and that other processes may change.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A value in such a file, read again whenever the file has changed. Without a path it lives as long as the process.
#[derive(Debug)]
pub(crate) struct PrivateFile<T> {
    path: Option<PathBuf>,
    known: Mutex<Known<T>>,
}

#[derive(Debug, Default)]
struct Known<T> {
    value: T,
    /// When the file was written that the value was read from.
    written_at: Option<SystemTime>,
}

impl<T: Clone + Default + Serialize + DeserializeOwned> PrivateFile<T> {
    /// The value of a file; the default where there is none.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        let known = Known { value: read(&path)?, written_at: written_at(&path) };
        Ok(Self { path: Some(path), known: Mutex::new(known) })
    }

    /// A value without a file.
    pub(crate) fn in_memory() -> Self {
        Self { path: None, known: Mutex::default() }
    }

    /// The value as it is now.
    pub(crate) fn get(&self) -> T {
        self.known().value.clone()
    }

    /// Looks at the value without copying it.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.known().value)
    }

    /// Changes the value. The change counts once it is on disk.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> io::Result<R>) -> io::Result<R> {
        let mut known = self.known();
        let mut value = known.value.clone();
        let answer = change(&mut value)?;
        if let Some(path) = &self.path {
            write(path, &value)?;
            known.written_at = written_at(path);
        }
        known.value = value;
        Ok(answer)
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path
            && written_at(path) != known.written_at
            // One that cannot be read is being replaced, or broken: what was known goes on to count.
            && let Ok(value) = read(path)
        {
            *known = Known { value, written_at: written_at(path) };
        }
        known
    }
}

fn written_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read<T: Default + DeserializeOwned>(path: &Path) -> io::Result<T> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Appears whole, or not at all.
fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let part = path.with_extension("part");
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.sync_all()?;
    fs::rename(&part, path)
}
