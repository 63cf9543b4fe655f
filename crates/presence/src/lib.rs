//! Who holds a lock beside a shared file: whether another process that uses the file lives.
//!
//! Each process that wants to be known holds a lock on a small file `SHARED-process-NAME`. The system lets go of the lock when the
//! process ends, however it ends and whatever it was called, so whoever looks later knows that nobody goes on with what that process
//! had begun. A lease in the shared file itself would have to be renewed, and would take a machine that slept for a dead one; a process
//! number may be somebody else's by then, and is another one in a container. Processes that share a file of SQLite have one kernel, and
//! so one idea of these locks.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

pub mod private;

/// Between the name of the shared file and that of a process.
const INFIX: &str = "-process-";
/// Files of dead processes that one look takes, each an open handle until it is looked after; later looks take the others.
const REMAINS_MAX: usize = 64;
/// Tries to have a lock of one's own; only a neighbour that looks for remains at the same moment makes one fail.
const CLAIMS_MAX: usize = 100;
/// Notes of one process, in bytes.
const NOTES_BYTES_MAX: usize = 1024 * 1024;

/// This process, to others that share the file: a lock, held until this is dropped or the process ends. Dropping it takes the file
/// away.
#[derive(Debug)]
pub struct Presence {
    name: String,
    file: File,
    path: PathBuf,
    noted: usize,
    stays: bool,
}

impl Presence {
    /// Takes a lock under a new name. `None` where locks are not to be had, and beside a file that does not exist.
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
                // A neighbour may have taken it for a dead one's before it was locked.
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

    /// The name, to be left where others find it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Leaves a line for whoever finds the remains. It is there when this returns.
    pub fn note(&mut self, line: &str) -> io::Result<()> {
        let bytes = format!("{line}\n");
        if line.contains('\n') || self.noted + bytes.len() > NOTES_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the note has several lines, or is one too many",
            ));
        }
        self.file.write_all(bytes.as_bytes())?;
        self.noted += bytes.len();
        Ok(())
    }

    /// Lets go of the lock and leaves the file with its notes, as a killed process does.
    pub fn leave_remains(mut self) {
        self.stays = true;
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if !self.stays {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Whether who claimed this name is gone, with remains or without. One that is not known for sure to be gone lives.
pub fn is_gone(shared: &Path, name: &str) -> bool {
    match File::open(path_of(shared, name)) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// What a dead process left. Its lock is held meanwhile, so that nobody else looks after it.
#[derive(Debug)]
pub struct Remains {
    file: File,
    path: PathBuf,
}

impl Remains {
    /// The lines that it noted. One that was cut off by its death is none.
    pub fn notes(&self) -> io::Result<Vec<String>> {
        let mut text = Vec::new();
        (&self.file).take(NOTES_BYTES_MAX as u64).read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        Ok(String::from_utf8_lossy(&text[..whole]).lines().map(str::to_owned).collect())
    }

    /// Takes the file away. The lock is held until it is gone, so that nobody can begin to rely on it in between.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What dead processes left beside a shared file, up to 64 of them.
pub fn remains(shared: &Path) -> Vec<Remains> {
    let start = format!("{}{INFIX}", file_name(shared));
    let folder = shared.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_ours = |name: &str| name.strip_prefix(&start).is_some_and(is_name);
    let paths = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_ours));
    let found = paths.filter_map(|entry| {
        let path = entry.path();
        let file = File::open(&path).ok()?;
        // The lock is good only if it is that of the file which has this name now: another look may have removed it meanwhile.
        (file.try_lock().is_ok() && path.exists()).then_some(Remains { file, path })
    });
    found.take(REMAINS_MAX).collect()
}

/// Whether a claim draws such names; what else lies there is somebody's own.
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

        fn claim(&self) -> Presence {
            Presence::claim(&self.shared).expect("a lock")
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
        assert!(remains(shared).is_empty());
        let name = one.name().to_owned();
        drop(one);
        assert!(is_gone(shared, &name), "it went in peace");
        // One that was killed: its file is there, and nobody holds it.
        std::fs::write(path_of(shared, KILLED), "").expect("written");
        assert!(is_gone(shared, KILLED) && !is_gone(shared, two.name()));
        remains(shared).into_iter().for_each(Remains::remove);
        assert!(is_gone(shared, KILLED) && !is_gone(shared, two.name()));
        assert_eq!(place.left(), 1, "its file was removed, that of the living stays");
        drop(two);
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn remains_tell_what_was_noted_and_are_one_finder_s() {
        let place = Place::new();
        let mut one = place.claim();
        one.note("a").expect("noted");
        one.note("b c").expect("noted");
        assert!(one.note("two\nlines").is_err());
        one.file.write_all(b"cut off").expect("written");
        one.leave_remains();
        let found = remains(&place.shared);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].notes().expect("read"), ["a", "b c"]);
        assert!(remains(&place.shared).is_empty(), "somebody looks after them");
        drop(found);
        assert_eq!(remains(&place.shared).len(), 1, "who gave up leaves them to others");
        remains(&place.shared).into_iter().for_each(Remains::remove);
        assert_eq!(place.left(), 0);
    }

    #[test]
    fn many_remains_are_taken_a_few_at_a_time() {
        let place = Place::new();
        for number in 0..REMAINS_MAX + 1 {
            std::fs::write(path_of(&place.shared, &format!("{number:016x}")), "w\n").expect("written");
        }
        let first = remains(&place.shared);
        assert_eq!(first.len(), REMAINS_MAX);
        assert_eq!(remains(&place.shared).len(), 1, "who looks meanwhile takes the rest");
        first.into_iter().for_each(Remains::remove);
        assert_eq!(place.left(), 1);
        remains(&place.shared).into_iter().for_each(Remains::remove);
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
        assert!(remains(&place.shared).is_empty());
        assert_eq!(place.left(), others.len());
    }

    #[test]
    fn what_is_no_file_has_no_locks_beside_it() {
        let place = Place::new();
        assert!(Presence::claim(&place.folder.path().join(":memory:")).is_none());
        assert!(Presence::claim(&place.folder.path().join("no/folder.db")).is_none());
        assert!(remains(&place.folder.path().join("no/folder.db")).is_empty());
        assert_eq!(place.left(), 0);
    }
}
