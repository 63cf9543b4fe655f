//! A file that may be read and not written. Tests often run as root, to whom permissions mean nothing; so the part that
//! meets them runs in a child process as nobody.
#![cfg(unix)]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use longhaul_llm::LlmFile;
use longhaul_llm::file::FileErrorKind;

use crate::child;

const ROOT: u32 = 0;
const NOBODY: u32 = 65_534;

#[test]
fn a_file_that_cannot_be_written_is_refused_by_name() {
    const NAME: &str = "read_only::a_file_that_cannot_be_written_is_refused_by_name";
    if let Some((_, folder)) = child::role() {
        let error = LlmFile::open(&folder.join("llm.db")).err().expect("it is refused");
        assert_eq!(error.kind, FileErrorKind::ReadOnly, "{error}");
        assert!(error.to_string().contains("llm.db: the database is read-only"), "{error}");
        let error = LlmFile::open(&folder.join("new.db")).err().expect("it is refused");
        assert!(error.to_string().contains("new.db"), "{error}");
        return;
    }
    let set_mode = |path: &std::path::Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("the mode is set");
    };
    let (folder, programs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    drop(LlmFile::open(&folder.path().join("llm.db")).expect("it opens"));
    set_mode(&folder.path().join("llm.db"), 0o444);
    set_mode(folder.path(), 0o555);
    set_mode(programs.path(), 0o755);
    // The binary may lie where nobody must not look.
    let (built, program) =
        (std::env::current_exe().expect("a test has a binary"), programs.path().join("it"));
    fs::copy(built, &program).expect("a copy");
    let mut command = child::command(&program, NAME, "child", folder.path());
    if fs::metadata(programs.path()).expect("it exists").uid() == ROOT {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().expect("the child starts");
    set_mode(folder.path(), 0o755);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
