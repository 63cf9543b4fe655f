//! Locks beside a shared file that tell which of the processes using it are alive.
//!
//! Each process that wants to be known holds a lock on a small file `SHARED-process-NAME`. The system releases the lock when
//! the process ends, however it ends, so whoever finds the file unlocked knows that nobody continues what that process began.
//! Dropped alternatives: a lease in the shared file has to be renewed and takes a sleeping machine for a dead one; a process
//! number may be reused, and differs between containers. Processes that share a SQLite file share a kernel, and so its locks.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::private;

/// Between the name of the shared file and that of a process.
const INFIX: &str = "-process-";
/// Dead processes that one search returns, each with an open file; the next search returns others.
const DEAD_MAX: usize = 64;
/// Attempts to take a new lock. One fails only if another process searches for dead ones at the same moment.
const CLAIMS_MAX: usize = 100;
/// Notes of one process, in bytes.
const NOTES_BYTES_MAX: usize = 1024 * 1024;

/// The lock that shows that this process is alive, held until this is dropped or the process ends. Dropping it removes the
/// file.
#[derive(Debug)]
pub struct ProcessLock {
    name: String,
    file: File,
    path: PathBuf,
    noted: usize,
    stays: bool,
}

impl ProcessLock {
    /// Takes a lock under a new name. `None` if the file system has no locks, or if the shared file does not exist.
    pub fn claim(shared: &Path) -> Option<Self> {
        if !shared.is_file() {
            return None;
        }
        for _ in 0..CLAIMS_MAX {
            let name = format!("{:016x}", fastrand::u64(..));
            let path = path_of(shared, &name);
            let file = match private::new_file().open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(_) => return None,
            };
            match file.try_lock() {
                // Another process may have removed it as a dead one's before it was locked.
                Ok(()) if path.exists() => return Some(Self { name, file, path, noted: 0, stays: false }),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(_)) => {
                    let _ = std::fs::remove_file(&path);
                    return None;
                }
            }
        }
        None
    }

    /// The name of this process, for [`is_gone`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends a line for whoever finds this process dead. It is written when this returns.
    pub fn note(&mut self, line: &str) -> io::Result<()> {
        let bytes = format!("{line}\n");
        if line.contains('\n') || self.noted + bytes.len() > NOTES_BYTES_MAX {
            let text = "the note has several lines, or the file is full";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.file.write_all(bytes.as_bytes())?;
        self.noted += bytes.len();
        Ok(())
    }

    /// Releases the lock and leaves the file with its notes, as a killed process does.
    pub fn abandon(mut self) {
        self.stays = true;
    }
}

impl Drop for ProcessLock {
    fn drop(&mut self) {
        if !self.stays {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether the process of this name is gone. If that cannot be told for sure, it counts as alive.
pub fn is_gone(shared: &Path, name: &str) -> bool {
    match File::open(path_of(shared, name)) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// What a dead process left behind. Its lock is held meanwhile, so that only one finder handles it.
#[derive(Debug)]
pub struct DeadProcess {
    file: File,
    path: PathBuf,
}

impl DeadProcess {
    /// The lines that it noted, without one that its death cut off.
    pub fn notes(&self) -> io::Result<Vec<String>> {
        let mut text = Vec::new();
        (&self.file).take(NOTES_BYTES_MAX as u64).read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        Ok(String::from_utf8_lossy(&text[..whole]).lines().map(str::to_owned).collect())
    }

    /// Removes the file. The lock is held until then, so that nobody takes it in between.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Processes that died beside a shared file, up to 64 of them.
pub fn dead_processes(shared: &Path) -> Vec<DeadProcess> {
    let start = format!("{}{INFIX}", file_name(shared));
    let Ok(entries) = std::fs::read_dir(private::folder_of(shared)) else { return Vec::new() };
    let is_ours = |name: &str| name.strip_prefix(&start).is_some_and(is_name);
    let paths = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
    let found = paths.filter_map(|entry| {
        let path = entry.path();
        let file = File::open(&path).ok()?;
        // The lock counts only on the file that has this name now: another search may have removed it meanwhile.
        (file.try_lock().is_ok() && path.exists()).then_some(DeadProcess { file, path })
    });
    found.take(DEAD_MAX).collect()
}

/// Whether a claim draws such names; other files are left alone.
fn is_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn path_of(shared: &Path, name: &str) -> PathBuf {
    shared.with_file_name(format!("{}{INFIX}{name}", file_name(shared)))
}

fn file_name(shared: &Path) -> String {
    shared.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: &str = "00000000deadbeef";

    struct Place {
        folder: tempfile::TempDir,
        shared: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let shared = folder.path().join("shared.db");
            std::fs::write(&shared, "").expect("written");
            Self { folder, shared }
        }

        /// Files beside the shared one.
        fn left(&self) -> usize {
            std::fs::read_dir(self.folder.path()).expect("the folder").count() - 1
        }

        fn claim(&self) -> ProcessLock {
            ProcessLock::claim(&self.shared).expect("a lock")
        }
    }

    #[test]
    fn a_process_lives_as_long_as_it_holds_its_lock() {
        let place = Place::new();
        let shared = &place.shared;
        let (one, two) = (place.claim(), place.claim());
        assert_ne!(one.name(), two.name());
        // Also a lock that this process holds itself, by another handle, is held.
        assert!(!is_gone(shared, one.name()) && !is_gone(shared, two.name()));
        assert!(dead_processes(shared).is_empty());
        let name = one.name().to_owned();
        drop(one);
        assert!(is_gone(shared, &name), "it ended in order");
        // One that was killed: its file is there, and nobody holds it.
        std::fs::write(path_of(shared, KILLED), "").expect("written");
        assert!(is_gone(shared, KILLED) && !is_gone(shared, two.name()));
        dead_processes(shared).into_iter().for_each(DeadProcess::remove);
        assert!(is_gone(shared, KILLED) && !is_gone(shared, two.name()));
        assert_eq!(place.left(), 1, "its file was removed, that of the living stays");
        drop(two);
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn a_dead_process_tells_what_it_noted_to_one_finder() {
        let place = Place::new();
        let mut one = place.claim();
        one.note("a").expect("noted");
        one.note("b c").expect("noted");
        assert!(one.note("two\nlines").is_err());
        one.file.write_all(b"cut off").expect("written");
        one.abandon();
        let found = dead_processes(&place.shared);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].notes().expect("read"), ["a", "b c"]);
        assert!(dead_processes(&place.shared).is_empty(), "another finder has it");
        drop(found);
        assert_eq!(dead_processes(&place.shared).len(), 1, "a finder that gives up leaves it to others");
        dead_processes(&place.shared).into_iter().for_each(DeadProcess::remove);
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn many_dead_processes_are_returned_a_few_at_a_time() {
        let place = Place::new();
        for number in 0..DEAD_MAX + 1 {
            std::fs::write(path_of(&place.shared, &format!("{number:016x}")), "w\n").expect("written");
        }
        let first = dead_processes(&place.shared);
        assert_eq!(first.len(), DEAD_MAX);
        assert_eq!(dead_processes(&place.shared).len(), 1, "a search meanwhile returns the rest");
        first.into_iter().for_each(DeadProcess::remove);
        assert_eq!(place.left(), 1);
        dead_processes(&place.shared).into_iter().for_each(DeadProcess::remove);
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn other_files_are_left_alone() {
        let place = Place::new();
        let others = [
            "shared.db-process-notes",
            "shared.db-process-00000000DEADBEEF",
            "other.db-process-00000000deadbeef",
            "shared.db-wal",
        ];
        for name in others {
            std::fs::write(place.folder.path().join(name), "w\n").expect("written");
        }
        assert!(dead_processes(&place.shared).is_empty());
        assert_eq!(place.left(), others.len());
    }

    #[test]
    fn a_file_that_does_not_exist_has_no_locks_beside_it() {
        let place = Place::new();
        assert!(ProcessLock::claim(&place.folder.path().join(":memory:")).is_none());
        assert!(ProcessLock::claim(&place.folder.path().join("no/folder.db")).is_none());
        assert!(dead_processes(&place.folder.path().join("no/folder.db")).is_empty());
        assert_eq!(place.left(), 0);
    }
}
