//! A test of this binary as a process of its own, with a role: the usual way to test what several processes do to one
//! file.

use std::path::{Path, PathBuf};
use std::process::Command;

const ROLE: &str = "LONGHAUL_TEST_ROLE";
const FOLDER: &str = "LONGHAUL_TEST_FOLDER";

/// A command that runs the test `name` (`module::sentence`) again, in `role` and on `folder`.
pub(crate) fn command(program: &Path, name: &str, role: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FOLDER, folder);
    command
}

/// The role and folder of this process, when it is such a child.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(FOLDER)?.into()))
}
