//! Uploaded files: content and description side by side in one folder. A file is there when its description is, which is
//! written last and appears whole; content without one is what an upload left that broke off, and goes at a later start.
//!
//! Processes share the folder: a server takes a file in, and a worker reads it. What one process has not seen is looked for on disk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use longhaul_queue::{Clock, JobId, Timestamp};
use longhaul_sqlite::private::create_folder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tracing::{debug, warn};

use crate::job_name::{id_of, name_of};
use crate::private_file;

mod tables;

pub use tables::safe_name;

/// Names of files begin so.
pub const FILE_PREFIX: &str = "file-";
const ABOUT: &str = "json";
const CONTENT: &str = "content";
const PART: &str = "part";
/// What is being written beside its place.
const PARTIAL: &str = "partial";
/// How often expired files are looked for.
const PRUNED_EVERY: Duration = Duration::from_secs(60);
/// Content without a description that nobody has written to for this long is left over: a slower upload has timed out.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(3_600);
/// Expired files removed before others have their turn.
const PRUNED_AT_ONCE_MAX: usize = 1_000;

/// A file that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name here; later ones sort after earlier ones.
    pub id: String,
    /// Its length.
    pub bytes: u64,
    /// When it came.
    pub created_at: Timestamp,
    /// Its name at the client's.
    pub filename: String,
    /// What for.
    pub purpose: String,
    /// When it goes by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// The name of the token that it came with; none where none was needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// What a client says of a file.
#[derive(Debug, Clone, Default)]
pub struct NewFile {
    /// Its name at the client's.
    pub filename: String,
    /// What for.
    pub purpose: String,
    /// When it goes by itself.
    pub expires_at: Option<Timestamp>,
    /// The name of the client's token, if it has one.
    pub owner: Option<String>,
}

/// Why a file was not stored.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It is too large.
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    /// It did not come whole.
    #[error("the upload broke off: {0}")]
    Broken(String),
    /// The disk.
    #[error("the file cannot be stored: {0}")]
    Disk(#[from] io::Error),
}

/// Content that has come, and is gone again unless it is kept.
#[derive(Debug)]
pub struct Upload {
    id: String,
    at: Timestamp,
    /// Where it lies.
    pub path: PathBuf,
    /// How much of it there is.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    kept: bool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now goes at the next start.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// All uploaded files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Uploads {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    known: Mutex<BTreeMap<String, FileRecord>>,
    /// When the folder had changed last as of the last look at all of it.
    looked: Mutex<Option<SystemTime>>,
}

impl Uploads {
    /// The files in a folder, which is made if need be.
    pub fn open(folder: impl Into<PathBuf>, now: Timestamp) -> io::Result<Self> {
        let folder = folder.into();
        create_folder(&folder)?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let is_left_over = match path.extension().and_then(|extension| extension.to_str()) {
                Some(CONTENT) => !path.with_extension(ABOUT).exists(),
                Some(PART | PARTIAL) => true,
                _ => false,
            };
            // Another process may be receiving it right now.
            if is_left_over && is_older(&path, LEFT_OVER_AFTER, now) {
                std::fs::remove_file(&path)?;
            }
        }
        let (known, looked) = (Mutex::default(), Mutex::default());
        let uploads = Self { inner: Arc::new(Inner { folder, known, looked }) };
        uploads.look()?;
        Ok(uploads)
    }

    /// Learns what other processes have added and removed, if the folder has changed since the last look.
    fn look(&self) -> io::Result<()> {
        let changed = std::fs::metadata(&self.inner.folder)?.modified()?;
        let mut looked = self.inner.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if *looked == Some(changed) {
            return Ok(());
        }
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(&self.inner.folder)? {
            let path = entry?.path();
            let id = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if path.extension().is_some_and(|extension| extension == ABOUT) {
                let known = self.known().get(id).cloned();
                if let Some(record) = known.map_or_else(|| self.read(id), |record| Ok(Some(record)))? {
                    found.insert(record.id.clone(), record);
                }
            }
        }
        *self.known() = found;
        *looked = Some(changed);
        Ok(())
    }

    /// The description of a file on disk. The name comes from a client, so it is checked before it becomes a path.
    fn read(&self, id: &str) -> io::Result<Option<FileRecord>> {
        if id_of(id, FILE_PREFIX).is_none() {
            return Ok(None);
        }
        match std::fs::read(self.path(id, ABOUT)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes in content as it comes, piece by piece. Nothing of it stays when it does not come whole, or is not kept.
    pub async fn receive<E: std::fmt::Display>(
        &self,
        bytes_max: u64,
        now: Timestamp,
        content: impl Stream<Item = Result<Bytes, E>>,
    ) -> Result<Upload, UploadError> {
        let mut upload = self.new_upload(now);
        write(&mut upload, bytes_max, content).await?;
        Ok(upload)
    }

    /// Content that is yet to come.
    pub fn new_upload(&self, now: Timestamp) -> Upload {
        let id = name_of(JobId::generate(now, fastrand::u128(..)), FILE_PREFIX);
        Upload { path: self.path(&id, CONTENT), id, at: now, bytes: 0, sha256: String::new(), kept: false }
    }

    /// Keeps what was received.
    pub async fn keep(&self, mut upload: Upload, new: NewFile) -> Result<FileRecord, UploadError> {
        let NewFile { filename, purpose, expires_at, owner } = new;
        let (id, bytes, created_at) = (upload.id.clone(), upload.bytes, upload.at);
        let record = FileRecord { id, bytes, created_at, filename, purpose, expires_at, owner };
        let part = self.path(&record.id, PART);
        let mut file = private_file::options().open(&part).await?;
        file.write_all(&serde_json::to_vec(&record).map_err(io::Error::from)?).await?;
        file.sync_all().await?;
        tokio::fs::rename(&part, self.path(&record.id, ABOUT)).await?;
        tokio::fs::File::open(&self.inner.folder).await?.sync_all().await?;
        upload.kept = true;
        self.known().insert(record.id.clone(), record.clone());
        Ok(record)
    }

    /// What is known of a file. One that has expired is gone.
    pub fn get(&self, id: &str, now: Timestamp) -> Option<FileRecord> {
        let known = self.known().get(id).cloned();
        let record = known.or_else(|| {
            let read =
                self.read(id).inspect_err(|error| warn!(file = id, %error, "a file cannot be read now"));
            let record = read.ok().flatten()?;
            self.known().insert(record.id.clone(), record.clone());
            Some(record)
        });
        record.filter(|record| !is_over(record, now))
    }

    /// All files, oldest first.
    pub fn list(&self, now: Timestamp) -> Vec<FileRecord> {
        if let Err(error) = self.look() {
            warn!(%error, "the folder of files cannot be read now");
        }
        self.known().values().filter(|record| !is_over(record, now)).cloned().collect()
    }

    /// Where a file's content lies.
    pub fn content(&self, record: &FileRecord) -> PathBuf {
        self.path(&record.id, CONTENT)
    }

    /// Removes a file for good; false when there was none.
    pub async fn delete(&self, id: &str) -> io::Result<bool> {
        if !self.known().contains_key(id) && self.read(id)?.is_none() {
            return Ok(false);
        }
        // The description first: content without one counts as nothing.
        for extension in [ABOUT, CONTENT] {
            match tokio::fs::remove_file(self.path(id, extension)).await {
                // Another process that shares the folder was here first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        // Last: what could not be removed is known on, and removed at the next try.
        self.known().remove(id);
        Ok(true)
    }

    /// Removes some files whose time has passed, at most `limit`, and says how many.
    pub async fn prune(&self, now: Timestamp, limit: usize) -> io::Result<usize> {
        let over: Vec<String> = {
            let known = self.known();
            let over = known.values().filter(|record| is_over(record, now));
            over.take(limit).map(|record| record.id.clone()).collect()
        };
        let mut failed = None;
        for id in &over {
            // One that cannot be removed does not keep the others.
            if let Err(error) = self.delete(id).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(over.len()), Err)
    }

    /// Removes files as their time passes, until it is dropped.
    pub async fn keep_pruned(&self, clock: &dyn Clock) {
        loop {
            match self.prune(clock.now(), PRUNED_AT_ONCE_MAX).await {
                Ok(PRUNED_AT_ONCE_MAX..) => continue,
                Ok(0) => {}
                Ok(files) => debug!(files, "expired files were removed"),
                Err(error) => warn!(%error, "an expired file cannot be removed now"),
            }
            clock.sleep_until(clock.now() + PRUNED_EVERY).await;
        }
    }

    fn path(&self, id: &str, extension: &str) -> PathBuf {
        self.inner.folder.join(id).with_extension(extension)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, FileRecord>> {
        self.inner.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nobody has written to a file for this long. One that cannot be looked at is not.
fn is_older(path: &Path, age: Duration, now: Timestamp) -> bool {
    let written = std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let written = written.and_then(|written| written.duration_since(UNIX_EPOCH).ok());
    written.is_some_and(|written| {
        now.as_millis().saturating_sub(written.as_millis() as i64) > age.as_millis() as i64
    })
}

fn is_over(record: &FileRecord, now: Timestamp) -> bool {
    record.expires_at.is_some_and(|expires_at| expires_at <= now)
}

async fn write<E: std::fmt::Display>(
    upload: &mut Upload,
    bytes_max: u64,
    content: impl Stream<Item = Result<Bytes, E>>,
) -> Result<(), UploadError> {
    // Each write is a turn on another thread: a client that drips must not ask for one with every few bytes.
    let mut file = tokio::io::BufWriter::new(private_file::options().open(&upload.path).await?);
    let mut digest = Sha256::new();
    let mut content = std::pin::pin!(content);
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(|error| UploadError::Broken(error.to_string()))?;
        upload.bytes += piece.len() as u64;
        if upload.bytes > bytes_max {
            return Err(UploadError::TooLarge(bytes_max));
        }
        digest.update(&piece);
        file.write_all(&piece).await?;
    }
    file.flush().await?;
    file.get_ref().sync_all().await?;
    upload.sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);
    /// When everything that a test has written is left over.
    const MUCH_LATER: Timestamp = Timestamp::from_millis(i64::MAX);

    fn pieces(pieces: &[&str]) -> impl Stream<Item = Result<Bytes, String>> + use<> {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from((*piece).to_owned()))).collect();
        futures_util::stream::iter(pieces)
    }

    fn left_in(folder: &Path) -> usize {
        std::fs::read_dir(folder).expect("the folder").count()
    }

    #[tokio::test]
    async fn files_outlive_the_process_and_broken_uploads_leave_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let uploads = Uploads::open(folder.path(), NOW).expect("opened");
        let new =
            NewFile { filename: "a.jsonl".to_owned(), purpose: "batch".to_owned(), ..NewFile::default() };
        let upload = uploads.receive(100, NOW, pieces(&["one\n", "two\n"])).await.expect("received");
        let stored = uploads.keep(upload, new).await.expect("stored");
        assert_eq!(stored.bytes, 8);
        let broken = pieces(&["half"]).chain(futures_util::stream::iter([Err("gone".to_owned())]));
        assert!(matches!(uploads.receive(100, NOW, broken).await, Err(UploadError::Broken(_))));
        assert!(matches!(uploads.receive(3, NOW, pieces(&["four"])).await, Err(UploadError::TooLarge(3))));
        drop(uploads.receive(100, NOW, pieces(&["not kept"])).await.expect("received"));
        assert_eq!(left_in(folder.path()), 2, "the content and the description of the first");
        // What a crash in the middle of an upload leaves.
        std::fs::write(folder.path().join("file-x.content"), "half").expect("written");
        std::fs::write(folder.path().join("file-x.part"), "{").expect("written");
        let while_received = Uploads::open(folder.path(), NOW).expect("opened");
        assert_eq!((while_received.list(NOW).len(), left_in(folder.path())), (1, 4), "it may be under way");
        let again = Uploads::open(folder.path(), MUCH_LATER).expect("opened");
        assert_eq!(again.get(&stored.id, NOW), Some(stored.clone()));
        assert_eq!(std::fs::read_to_string(again.content(&stored)).expect("content"), "one\ntwo\n");
        assert_eq!(left_in(folder.path()), 2);
        assert!(again.delete(&stored.id).await.expect("deleted"));
        assert!(!again.delete(&stored.id).await.expect("nothing to delete"));
        assert_eq!(left_in(folder.path()), 0);
    }

    #[tokio::test]
    async fn processes_that_share_a_folder_see_each_others_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || Uploads::open(folder.path(), NOW).expect("opened");
        let (server, worker) = (open(), open());
        let upload = server.receive(100, NOW, pieces(&["x"])).await.expect("received");
        let stored = server.keep(upload, NewFile::default()).await.expect("stored");
        assert_eq!(worker.get(&stored.id, NOW), Some(stored.clone()));
        assert_eq!(worker.list(NOW), std::slice::from_ref(&stored));
        for foreign in ["file-../x", "../x", "file-", ""] {
            assert_eq!(worker.get(foreign, NOW), None, "{foreign}");
        }
        assert!(worker.delete(&stored.id).await.expect("deleted"));
        assert_eq!(server.list(NOW), []);
        assert!(!server.delete(&stored.id).await.expect("nothing to delete"));
    }

    #[tokio::test]
    async fn a_file_goes_when_its_time_has_passed() {
        let folder = tempfile::tempdir().expect("a folder");
        let uploads = Uploads::open(folder.path(), NOW).expect("opened");
        let expires_at = Some(Timestamp::from_millis(2_000));
        let new = NewFile { expires_at, ..NewFile::default() };
        let upload = uploads.receive(100, NOW, pieces(&["x"])).await.expect("received");
        let stored = uploads.keep(upload, new).await.expect("stored");
        let later = Timestamp::from_millis(2_000);
        assert!(uploads.get(&stored.id, NOW).is_some());
        assert!(uploads.get(&stored.id, later).is_none() && uploads.list(later).is_empty());
        assert_eq!(uploads.prune(later, 10).await.expect("pruned"), 1);
        assert_eq!(left_in(folder.path()), 0);
    }
}
