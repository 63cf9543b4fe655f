//! Uploaded files, in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::sim_core::{SimCore, not_found};
use longhaul_llm::error::{Class, Error};

/// Most bytes of all files together.
pub const FILES_BYTES_MAX: usize = 4 * 1000 * 1000 * 1000;
/// Most files.
pub const FILES_MAX: usize = 100_000;

/// An uploaded file.
#[derive(Debug, Clone)]
pub struct StoredFile {
    /// Its name here.
    pub id: String,
    /// Its name there.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// When it came, in milliseconds since the epoch.
    pub created_ms: i64,
    /// What is in it.
    pub content: Bytes,
}

/// All files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    next: u64,
    bytes: usize,
    /// Ids sort by age.
    files: BTreeMap<String, StoredFile>,
}

impl SimCore {
    /// Keeps a file; `prefix` begins its name.
    pub fn add_file(
        &self,
        prefix: &str,
        filename: &str,
        purpose: &str,
        content: Bytes,
    ) -> Result<StoredFile, Error> {
        let mut shelf = self.files.shelf();
        if shelf.bytes + content.len() > FILES_BYTES_MAX || shelf.files.len() >= FILES_MAX {
            return Err(Error::new(Class::BadRequest, "the simulator keeps no more files; delete some")
                .with_status(413));
        }
        shelf.next += 1;
        shelf.bytes += content.len();
        let file = StoredFile {
            id: format!("{prefix}{:012}", shelf.next),
            filename: filename.to_owned(),
            purpose: purpose.to_owned(),
            created_ms: self.clock.0.now_ms(),
            content,
        };
        shelf.files.insert(file.id.clone(), file.clone());
        Ok(file)
    }

    /// A file by its name.
    pub fn file(&self, id: &str) -> Result<StoredFile, Error> {
        self.files.shelf().files.get(id).cloned().ok_or_else(|| not_found(&format!("file: {id}")))
    }

    /// All files, newest first.
    pub fn list_files(&self) -> Vec<StoredFile> {
        self.files.shelf().files.values().rev().cloned().collect()
    }

    /// Forgets a file.
    pub fn delete_file(&self, id: &str) -> Result<(), Error> {
        let mut shelf = self.files.shelf();
        let file = shelf.files.remove(id).ok_or_else(|| not_found(&format!("file: {id}")))?;
        shelf.bytes -= file.content.len();
        Ok(())
    }
}

impl Files {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
