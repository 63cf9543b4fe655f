//! What a backup holds beside the store, in a table of the backup itself, so that it is one file: `llm.db`, uploaded files and, on
//! request, secrets. The table is not part of a store: a restore removes it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use rusqlite::{Connection, OpenFlags};

/// The table.
const TABLE: &str = "lh_backup_parts";
/// Files are cut into parts, since SQLite bounds one value.
const PART_BYTES_MAX: u64 = 16_000_000;
/// Most files in a backup.
const FILES_MAX: usize = 1_000_000;
/// Restored files are readable only by their owner.
const FILE_MODE: u32 = 0o600;

/// A file of the installation, and its name in a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

/// Adds files to a backup, which is the copy of a store.
pub(super) fn add(backup: &Path, files: &[Kept]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mut connection = Connection::open(backup)?;
    let transaction = connection.transaction()?;
    transaction.execute_batch(&format!(
        "CREATE TABLE {TABLE} (name TEXT NOT NULL, part INTEGER NOT NULL, content BLOB NOT NULL, PRIMARY KEY (name, part)) STRICT"
    ))?;
    for kept in files {
        let mut file = File::open(&kept.path).with_context(|| format!("opening {}", kept.path.display()))?;
        for part in 0.. {
            let mut content = Vec::new();
            let read = (&mut file).take(PART_BYTES_MAX).read_to_end(&mut content);
            read.with_context(|| format!("reading {}", kept.path.display()))?;
            if content.is_empty() && part > 0 {
                break;
            }
            let sql = format!("INSERT INTO {TABLE} (name, part, content) VALUES (?1, ?2, ?3)");
            transaction.execute(&sql, (&kept.name, part, content))?;
        }
    }
    transaction.commit()?;
    connection.close().map_err(|(_, error)| error)?;
    File::open(backup)?.sync_all().context("syncing the backup")
}

/// Names of the files in a backup.
pub(super) fn names(backup: &Path) -> Result<Vec<String>> {
    let connection = Connection::open_with_flags(backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let known = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    if connection.query_row(known, [TABLE], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT DISTINCT name FROM {TABLE} ORDER BY name LIMIT {FILES_MAX}");
    let mut statement = connection.prepare(&sql)?;
    let names = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(names)
}

/// Writes a file of a backup to a path that does not exist. It appears whole.
pub(super) fn put(backup: &Path, kept: &Kept) -> Result<()> {
    let context = || format!("writing {}", kept.path.display());
    if let Some(folder) = kept.path.parent() {
        fs::create_dir_all(folder).with_context(context)?;
    }
    let mut partial = kept.path.as_os_str().to_owned();
    partial.push(".restoring");
    let partial = PathBuf::from(partial);
    let written = write(backup, &kept.name, &partial).with_context(context);
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written?;
    fs::rename(&partial, &kept.path).with_context(context)
}

fn write(backup: &Path, name: &str, path: &Path) -> Result<()> {
    let connection = Connection::open_with_flags(backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    let mut statement =
        connection.prepare(&format!("SELECT content FROM {TABLE} WHERE name = ?1 ORDER BY part"))?;
    let mut rows = statement.query([name])?;
    while let Some(row) = rows.next()? {
        file.write_all(row.get_ref(0)?.as_blob()?)?;
    }
    Ok(file.sync_all()?)
}

/// Takes the files out of a copy of a backup: what is left is the store.
pub(super) fn strip(copy: &Path) -> Result<()> {
    let connection = Connection::open(copy)?;
    connection.execute_batch(&format!("DROP TABLE IF EXISTS {TABLE}"))?;
    connection.close().map_err(|(_, error)| error.into())
}

/// The files below a folder, by relative path; a missing folder has none.
pub(super) fn below(folder: &Path, prefix: &str) -> Result<Vec<Kept>> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), prefix.to_owned())];
    while let Some((folder, prefix)) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = format!("{prefix}/{}", entry.file_name().to_string_lossy());
            if kind.is_dir() {
                folders.push((path, name));
            } else if kind.is_file() && found.len() < FILES_MAX {
                found.push(Kept { name, path });
            }
        }
    }
    Ok(found)
}

/// Whether a name leads to a place below the folder that it is joined to.
pub(super) fn is_safe(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_out_as_they_went_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let backup = folder.path().join("b.db");
        Connection::open(&backup).and_then(|it| it.execute_batch("CREATE TABLE t (a)")).expect("a database");
        let large = vec![7; usize::try_from(PART_BYTES_MAX).expect("small") + 1];
        fs::create_dir_all(folder.path().join("files/deep")).expect("a folder");
        for (name, content) in [("files/empty", &b""[..]), ("files/deep/large", &large)] {
            fs::write(folder.path().join(name), content).expect("writing");
        }
        let files = below(&folder.path().join("files"), "files").expect("files");
        add(&backup, &files).expect("it takes them");
        assert_eq!(names(&backup).expect("names"), ["files/deep/large", "files/empty"]);
        for (name, length) in [("files/empty", 0), ("files/deep/large", large.len())] {
            let path = folder.path().join("out").join(name);
            put(&backup, &Kept { name: name.to_owned(), path: path.clone() }).expect("it is there");
            assert_eq!(fs::read(path).expect("a file").len(), length);
        }
        strip(&backup).expect("it has a table");
        assert_eq!(names(&backup).expect("no names"), [""; 0]);
    }

    #[test]
    fn a_name_of_a_backup_leads_nowhere_else() {
        for (name, safe) in [
            ("files/a", true),
            ("llm.db", true),
            ("../a", false),
            ("/etc/a", false),
            ("files/../../a", false),
        ] {
            assert_eq!(is_safe(name), safe, "{name}");
        }
    }
}
