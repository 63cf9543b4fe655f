//! Small files of JSON that only their owner can read, and that several processes may change at once.
//!
//! A change is made under a lock on a second file, to the content at that moment, so that no change of another process
//! is lost. A rename replaces the whole file at once, so a reader needs no lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_sqlite::private::{FILE_MODE, create_folder, folder_of};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest wait for another process that is changing the file: it may be stopped while it holds the lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Delay between two attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// A value in such a file, read again whenever the file has changed. Without a path it lives as long as the process.
#[derive(Debug)]
pub struct PrivateFile<T> {
    path: Option<PathBuf>,
    known: Mutex<Known<T>>,
}

/// What was read last.
#[derive(Debug, Default)]
struct Known<T> {
    value: T,
    stamp: Option<Stamp>,
    /// Held open: while it is, no file that replaces it can have the same number.
    _file: Option<File>,
}

/// Identifies the file that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    number: u64,
    length: u64,
    modified: (i64, i64),
}

impl<T: Clone + Default + Serialize + DeserializeOwned> PrivateFile<T> {
    /// The value of a file; the default where there is none.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let known = Mutex::new(read(&path)?);
        Ok(Self { path: Some(path), known })
    }

    /// A value without a file.
    pub fn in_memory() -> Self {
        Self { path: None, known: Mutex::default() }
    }

    /// Reads the current value. Fails if the file cannot be read: the previous content no longer counts.
    pub fn with<R>(&self, look: impl FnOnce(&T) -> R) -> io::Result<R> {
        let mut known = self.known();
        self.refresh(&mut known)?;
        Ok(look(&known.value))
    }

    /// Reads the current value or, if the file cannot be read, the last known one.
    pub fn with_last<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        let mut known = self.known();
        if let Err(error) = self.refresh(&mut known) {
            tracing::warn!(%error, "a file cannot be read, its last known content applies");
        }
        look(&known.value)
    }

    /// Changes the value, and returns once the change is on disk. Blocks while another process changes the file.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> io::Result<R>) -> io::Result<R> {
        let Some(path) = &self.path else {
            let mut known = self.known();
            let mut value = known.value.clone();
            let answer = change(&mut value)?;
            known.value = value;
            return Ok(answer);
        };
        create_folder(folder_of(path))?;
        let _lock = lock(path)?;
        let mut known = self.known();
        *known = read(path)?;
        let mut value = known.value.clone();
        let answer = change(&mut value)?;
        replace(path, &serde_json::to_vec_pretty(&value)?)?;
        *known = read(path)?;
        Ok(answer)
    }

    fn known(&self) -> MutexGuard<'_, Known<T>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refresh(&self, known: &mut Known<T>) -> io::Result<()> {
        if let Some(path) = &self.path
            && stamp_of(path)? != known.stamp
        {
            *known = read(path)?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner can read. It appears whole, or not at all, and stays after a power cut.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = folder_of(path);
    create_folder(folder)?;
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

/// Options for a file that only its owner can read, created or truncated.
pub fn options() -> tokio::fs::OpenOptions {
    std_options().into()
}

/// The same, off the async runtime.
pub fn std_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(FILE_MODE);
    options
}

fn stamp_of(path: &Path) -> io::Result<Option<Stamp>> {
    match path.metadata() {
        Ok(metadata) => Ok(Some(Stamp::new(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Stamp {
    fn new(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            number: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

fn read<T: Default + DeserializeOwned>(path: &Path) -> io::Result<Known<T>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Known::default()),
        Err(error) => return Err(error),
    };
    let stamp = Stamp::new(&file.metadata()?);
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let value = serde_json::from_slice(&text).map_err(|error| {
        let text = format!("{} is damaged ({error}): move it away or restore a copy", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    })?;
    Ok(Known { value, stamp: Some(stamp), _file: Some(file) })
}

/// Waits for the right to change a file. The file itself is replaced, so the lock is on one beside it, which stays.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new().create(true).write(true).truncate(false).mode(FILE_MODE).open(&name)?;
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                let text = format!(
                    "another process has been changing {} for {} s: try again, or look for a stopped longhaul",
                    path.display(),
                    LOCK_WAIT_MAX.as_secs()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(folder: &tempfile::TempDir) -> PrivateFile<Vec<u32>> {
        PrivateFile::open(folder.path().join("new").join("values.json")).expect("opened")
    }

    fn push(file: &PrivateFile<Vec<u32>>, value: u32) {
        file.change(|values| {
            values.push(value);
            Ok(())
        })
        .expect("changed");
    }

    #[test]
    fn no_change_of_many_writers_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writers, rounds) = (8, 20);
        std::thread::scope(|scope| {
            for writer in 0..writers {
                // Each with a view of its own, as processes have.
                let file = at(&folder);
                scope.spawn(move || (0..rounds).for_each(|round| push(&file, writer * rounds + round)));
            }
        });
        let mut values = at(&folder).with(Clone::clone).expect("readable");
        values.sort_unstable();
        assert_eq!(values, (0..writers * rounds).collect::<Vec<_>>());
        let mut names: Vec<_> = std::fs::read_dir(folder.path().join("new"))
            .expect("listed")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["values.json", "values.json.lock"], "nothing is left beside it");
    }

    #[test]
    fn a_change_is_seen_by_others_even_within_one_tick_of_the_clock() {
        let folder = tempfile::tempdir().expect("a folder");
        let (writer, reader) = (at(&folder), at(&folder));
        for round in 0..200 {
            writer
                .change(|values| {
                    *values = vec![round % 10];
                    Ok(())
                })
                .expect("changed");
            assert_eq!(reader.with(Clone::clone).expect("readable"), [round % 10]);
        }
    }

    #[test]
    fn a_damaged_file_is_an_error_and_what_it_said_before_is_known_to_those_who_ask_for_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = at(&folder);
        push(&file, 7);
        let path = folder.path().join("new").join("values.json");
        std::fs::write(&path, "[7").expect("written");
        let error = file.with(Clone::clone).expect_err("it is damaged").to_string();
        assert!(error.contains("values.json is damaged"), "{error}");
        assert_eq!(file.with_last(Clone::clone), [7]);
        assert!(file.change(|_| Ok(())).is_err(), "nothing is written over it");
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), "[7");
    }
}
