//! For tests: a test as a process of its own, with a role. The usual way to test what several processes do to one file.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROLE: &str = "LONGHAUL_TEST_ROLE";
const FOLDER: &str = "LONGHAUL_TEST_FOLDER";
const ROOT: u32 = 0;
const NOBODY: u32 = 65_534;

/// A command that runs the test `name` (`module::sentence`) of this binary again, in `role` and on `folder`.
pub fn command(name: &str, role: &str, folder: &Path) -> Command {
    of(&program(), name, role, folder)
}

/// The role and folder of this process, when it is such a child.
pub fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(FOLDER)?.into()))
}

/// Runs the child as somebody to whom permissions mean something, and demands success: tests often run as root.
pub fn run_unprivileged(name: &str, role: &str, folder: &Path) {
    let programs = tempfile::tempdir().expect("a temporary folder");
    set_mode(programs.path(), 0o755);
    // The binary may lie where nobody must not look.
    let (built, copy) = (program(), programs.path().join("it"));
    fs::hard_link(&built, &copy).or_else(|_| fs::copy(&built, &copy).map(|_| ())).expect("a copy");
    let mut command = of(&copy, name, role, folder);
    if fs::metadata(programs.path()).expect("it exists").uid() == ROOT {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().expect("the child starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sets the permissions of a file or folder.
pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("the mode is set");
}

fn program() -> PathBuf {
    std::env::current_exe().expect("a test has a binary")
}

fn of(program: &Path, name: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FOLDER, folder);
    command
}
