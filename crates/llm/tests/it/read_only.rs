//! A file that may be read and not written. Tests often run as root, to whom permissions mean nothing; so the part that
//! meets them runs in a child process as nobody.
#![cfg(unix)]

use longhaul_llm::LlmFile;
use longhaul_llm::file::FileErrorKind;
use longhaul_sqlite::child;

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
    let folder = tempfile::tempdir().expect("a folder");
    drop(LlmFile::open(&folder.path().join("llm.db")).expect("it opens"));
    child::set_mode(&folder.path().join("llm.db"), 0o444);
    child::set_mode(folder.path(), 0o555);
    child::run_unprivileged(NAME, "child", folder.path());
    child::set_mode(folder.path(), 0o755);
}
