//! Finds the process that holds the write lock. A process that is stopped while it writes (SIGSTOP, `docker pause`) blocks all
//! writers of the file, and nothing in the file says which one it is; the system knows.
//!
//! Reads only the system's list of locks: opening and closing the files of the database here would drop the locks that
//! SQLite holds for this process.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{FileError, FileErrorKind};

/// SQLite locks this byte of the file `-shm` while it writes in WAL mode (`WAL_WRITE_LOCK` behind `UNIX_SHM_BASE`).
const WRITE_LOCK_BYTE: u64 = 120;

/// Names the process that is in the way in an error about a busy file, if the system tells which one it is.
pub(crate) fn name_holder(error: FileError, path: &Path) -> FileError {
    if error.kind != FileErrorKind::Busy {
        return error;
    }
    match LockHolder::of(path) {
        Some(holder) => FileError { message: format!("{holder}; nothing was written, try again"), ..error },
        None => error,
    }
}

/// A process that holds the write lock.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LockHolder {
    pid: u32,
    /// Its program, as far as the system tells.
    name: Option<String>,
    is_stopped: bool,
}

impl LockHolder {
    /// The holder of the write lock of the database at `path`. `None` if there is none, or if the system does not tell: outside
    /// Linux, or if the process is in another container.
    fn of(path: &Path) -> Option<Self> {
        let mut shm = path.as_os_str().to_owned();
        shm.push("-shm");
        let inode = std::fs::metadata(shm).ok()?.ino();
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let pid = locks.lines().find_map(|line| writer(line, inode))?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let (name, is_stopped) = program(&stat);
        Some(Self { pid, name, is_stopped })
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, is_stopped } = self;
        write!(f, "process {pid}")?;
        if let Some(name) = name {
            write!(f, " ({name})")?;
        }
        f.write_str(" holds the write lock")?;
        if *is_stopped {
            write!(f, " and is stopped; let it go on with `kill -CONT {pid}`, or end it")?;
        }
        Ok(())
    }
}

/// The process that holds the write lock, if this line of `/proc/locks` is about it:
/// `1: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`. A line with `->` is about a process that waits.
fn writer(line: &str, inode: u64) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, "WRITE", pid, file, first, last] = fields[..] else { return None };
    let of_file = file.rsplit(':').next()?.parse() == Ok(inode);
    let last: u64 = last.parse().unwrap_or(u64::MAX);
    let covers = (first.parse::<u64>().ok()?..=last).contains(&WRITE_LOCK_BYTE);
    (of_file && covers).then(|| pid.parse().ok())?
}

/// Name and whether it is stopped, from `/proc/PID/stat`: `4711 (name) T …`.
fn program(stat: &str) -> (Option<String>, bool) {
    let name = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')'));
    let is_stopped =
        name.is_some_and(|(_, rest)| matches!(rest.trim_start().chars().next(), Some('T' | 't')));
    (name.map(|(name, _)| name.to_owned()), is_stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_all_locks_the_one_on_the_write_byte_counts() {
        let lock = |kind: &str, file: u64, range: &str| {
            writer(&format!("1: POSIX  ADVISORY  {kind} 4711 08:01:{file} {range}"), 77)
        };
        assert_eq!(lock("WRITE", 77, "120 120"), Some(4711));
        assert_eq!(lock("WRITE", 77, "100 EOF"), Some(4711));
        assert_eq!(lock("READ", 77, "120 120"), None);
        assert_eq!(lock("WRITE", 78, "120 120"), None, "another file");
        assert_eq!(lock("WRITE", 77, "121 121"), None, "a checkpoint");
        assert_eq!(writer("1: -> POSIX  ADVISORY  WRITE 4712 08:01:77 120 120", 77), None, "it waits");
    }

    #[test]
    fn a_name_may_hold_anything() {
        assert_eq!(program("4711 (a (b) c) T 1 2"), (Some("a (b) c".to_owned()), true));
        assert_eq!(program("4711 (longhaul) S 1 2"), (Some("longhaul".to_owned()), false));
        assert_eq!(program(""), (None, false));
    }
}
