//! Whose calls are whose. Each process that opens the file holds a lock on a small file beside it. The system lets go of the lock when
//! the process ends, however it ends, so whoever looks later knows which calls nobody will settle any more. A lease in the file itself
//! would have to be renewed, and would take a machine that slept for a dead one.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Between the name of the file and that of a process.
const INFIX: &str = "-process-";
/// Files of dead processes that are removed at a start.
const REMOVED_MAX: usize = 1_000;
/// Tries to have a lock of one's own; only a neighbour that tidies up at the same moment makes one fail.
const CLAIMS_MAX: usize = 100;

/// This process, to others that share the file.
pub(super) struct Owner {
    name: String,
    /// Held until the process ends.
    lock: Option<(File, PathBuf)>,
}

impl Owner {
    /// Of what nobody shares.
    pub(super) fn alone() -> Self {
        Self { name: String::new(), lock: None }
    }

    /// Of a shared file. Where locks are not to be had it has no name, and its calls are taken for dead when they are very old.
    pub(super) fn claim(shared: &Path) -> Self {
        tidy(shared);
        for _ in 0..CLAIMS_MAX {
            let name = format!("{:016x}", fastrand::u64(..));
            let path = path_of(shared, &name);
            let Ok(file) = File::create_new(&path) else { continue };
            match file.try_lock() {
                // A neighbour may have taken it for a dead one's before it was locked.
                Ok(()) if path.exists() => return Self { name, lock: Some((file, path)) },
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(_)) => {
                    let _ = std::fs::remove_file(&path);
                    break;
                }
            }
        }
        Self::alone()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.lock {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the process of this name is gone. One that is not known for sure to be gone lives.
pub(super) fn is_dead(shared: &Path, name: &str) -> bool {
    match File::open(path_of(shared, name)) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Removes what killed processes left. Who holds no lock is dead, with a file or without one.
fn tidy(shared: &Path) {
    let start = format!("{}{INFIX}", file_name(shared));
    let folder = shared.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let others = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    for entry in others.take(REMOVED_MAX) {
        // The lock is held until the file is gone, so that nobody can begin to rely on it in between.
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
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

    #[test]
    fn a_process_lives_as_long_as_it_holds_its_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = folder.path().join("llm.db");
        let left = || std::fs::read_dir(folder.path()).expect("the folder").count();
        let (one, two) = (Owner::claim(&shared), Owner::claim(&shared));
        assert_ne!(one.name(), two.name());
        assert!(!is_dead(&shared, one.name()) && !is_dead(&shared, two.name()));
        let name = one.name().to_owned();
        drop(one);
        assert!(is_dead(&shared, &name), "it went in peace");
        // One that was killed: its file is there, and nobody holds it.
        std::fs::write(path_of(&shared, "killed"), "").expect("written");
        assert!(is_dead(&shared, "killed"));
        let three = Owner::claim(&shared);
        assert!(is_dead(&shared, "killed") && !is_dead(&shared, two.name()));
        assert_eq!(left(), 2, "its file was removed, those of the living stay");
        drop((two, three));
        assert_eq!(left(), 0);
    }
}
