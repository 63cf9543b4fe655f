//! Tables of runs: a second name of an upload, in a folder of the run's own. The output of a run may be made of its table, so the table
//! stays for as long as the run, whatever becomes of the upload. Content never changes once it is there, so a link is as good as a copy,
//! and costs nothing.

use std::io;
use std::path::{Path, PathBuf};

use super::{FileRecord, PART, Uploads};

/// The folder of all tables.
const TABLES: &str = "tables";
/// Longest name of a table.
const NAME_BYTES_MAX: usize = 100;

impl Uploads {
    /// Where the table of a run lies, under a name for people. The names of uploads are a client's words: of those, only what can
    /// mean nothing to a file system is taken.
    pub fn table(&self, run: &str, filename: &str) -> io::Result<PathBuf> {
        std::path::absolute(self.folder_of(run).join(safe_name(filename)))
    }

    /// Whether a file is the table of a run here.
    pub fn has_table(&self, run: &str, path: &Path) -> bool {
        let folder = std::path::absolute(self.folder_of(run)).ok();
        folder.is_some() && path.parent() == folder.as_deref()
    }

    /// Keeps an upload as a table. Repeatable.
    pub async fn keep_table(&self, record: &FileRecord, table: &Path) -> io::Result<()> {
        if tokio::fs::try_exists(table).await? {
            return Ok(());
        }
        if let Some(folder) = table.parent() {
            tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).await?;
        }
        let content = self.content(record);
        match tokio::fs::hard_link(&content, table).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Not every file system knows links.
            Err(_) => {
                let part = table.with_extension(PART);
                tokio::fs::copy(&content, &part).await?;
                tokio::fs::rename(&part, table).await
            }
        }
    }

    /// Removes the table of a run; nothing happens where there is none.
    pub async fn remove_table(&self, run: &str) -> io::Result<()> {
        match tokio::fs::remove_dir_all(self.folder_of(run)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// The runs that have a table here.
    pub async fn runs_with_tables(&self) -> io::Result<Vec<String>> {
        let mut entries = match tokio::fs::read_dir(self.inner.folder.join(TABLES)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut runs = Vec::new();
        while let Some(entry) = entries.next_entry().await? {
            runs.extend(entry.file_name().into_string());
        }
        Ok(runs)
    }

    fn folder_of(&self, run: &str) -> PathBuf {
        self.inner.folder.join(TABLES).join(run)
    }
}

/// A name that stays in its folder and in one line: letters, digits, `-`, `_` and single dots between them.
pub fn safe_name(filename: &str) -> String {
    let mut name = String::new();
    for letter in filename.rsplit(['/', '\\']).next().unwrap_or_default().chars() {
        let letter = if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' };
        if !(letter == '.' && (name.is_empty() || name.ends_with('.'))) {
            name.push(letter);
        }
    }
    // The end says how it is written, so the start goes.
    let name = &name[name.len().saturating_sub(NAME_BYTES_MAX)..];
    let name = name.trim_matches('.');
    if name.is_empty() { "table".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uploads::NewFile;
    use longhaul_queue::Timestamp;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[test]
    fn a_name_of_a_client_is_never_a_path() {
        let long = "x".repeat(300) + ".csv";
        let rows = [
            ("reviews.csv", "reviews.csv"),
            ("../../etc/passwd", "passwd"),
            ("..\\..\\boot.ini", "boot.ini"),
            ("..", "table"),
            ("...hidden", "hidden"),
            ("a..b", "a.b"),
            ("", "table"),
            ("/", "table"),
            ("a b\r\nc\".csv", "a_b__c_.csv"),
            ("größe.csv", "gr__e.csv"),
        ];
        for (given, expected) in rows {
            assert_eq!(safe_name(given), expected, "{given:?}");
        }
        assert_eq!(safe_name(&long).len(), NAME_BYTES_MAX);
        assert!(safe_name(&long).ends_with(".csv"));
    }

    #[tokio::test]
    async fn a_table_outlives_its_upload() {
        let folder = tempfile::tempdir().expect("a folder");
        let uploads = Uploads::open(folder.path(), NOW).expect("opened");
        let content = futures_util::stream::iter([Ok::<_, String>(bytes::Bytes::from("text\nA\n"))]);

        let upload = uploads.receive(100, NOW, content).await.expect("received");
        let record = uploads.keep(upload, NewFile::default()).await.expect("kept");
        let table = uploads.table("sheet-1", "../a.csv").expect("a place");
        assert!(table.starts_with(folder.path()) && uploads.has_table("sheet-1", &table));
        assert!(!uploads.has_table("sheet-2", &table));
        for _ in 0..2 {
            uploads.keep_table(&record, &table).await.expect("linked");
        }
        uploads.delete(&record.id).await.expect("deleted");
        // Also after a restart.
        let uploads = Uploads::open(folder.path(), NOW).expect("opened");
        assert_eq!(std::fs::read_to_string(&table).expect("content"), "text\nA\n");
        assert_eq!(uploads.runs_with_tables().await.expect("a list"), ["sheet-1"]);
        for _ in 0..2 {
            uploads.remove_table("sheet-1").await.expect("removed");
        }
        assert!(!table.exists());
    }
}
