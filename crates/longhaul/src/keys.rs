//! Stored keys: a file each, readable by its owner alone, in the user's configuration folder. Keys are never shown.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use longhaul_llm::profile::Secret;
use longhaul_pipeline::private_file;

use crate::exit::{Code, Failure};

/// Longest key that is read.
const KEY_BYTES_MAX: usize = 8_192;

/// The folder of stored keys.
pub(crate) struct Keys {
    /// `None` where the user has no home.
    folder: Option<PathBuf>,
}

impl Keys {
    /// The user's folder.
    pub(crate) fn open() -> Self {
        Self { folder: crate::config::user_folder().map(|folder| folder.join("keys")) }
    }

    /// Where the key of a profile would be.
    pub(crate) fn path(&self, profile: &str) -> Option<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let usable = !profile.starts_with('.') && profile.chars().all(plain) && !profile.is_empty();
        self.folder.as_ref().filter(|_| usable).map(|folder| folder.join(profile))
    }

    /// The stored key of a profile.
    pub(crate) fn get(&self, profile: &str) -> Result<Option<Secret>> {
        match self.path(profile).filter(|path| path.is_file()) {
            Some(path) => read(&path).map(Some),
            None => Ok(None),
        }
    }

    /// Stores a key.
    pub(crate) fn set(&self, profile: &str, key: &str) -> Result<PathBuf> {
        let path = self.path(profile).ok_or_else(|| no_folder(profile))?;
        let key = check(key)?;
        private_file::replace(&path, format!("{key}\n").as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Removes a stored key; false when there was none.
    pub(crate) fn remove(&self, profile: &str) -> Result<bool> {
        let Some(path) = self.path(profile).filter(|path| path.is_file()) else { return Ok(false) };
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
        Ok(true)
    }
}

/// Reads a key from a file.
pub(crate) fn read(path: &std::path::Path) -> Result<Secret> {
    let text = crate::small_file::read(path).map_err(|error| {
        Failure::new(Code::Config, format!("the key file {} cannot be read: {error}", path.display()))
    })?;
    Ok(Secret::new(check(&text)?))
}

fn check(key: &str) -> Result<&str> {
    let key = key.trim();
    let wrong = |text: &str| Err(Failure::new(Code::Config, text).hint("a key is one line of text").into());
    if key.is_empty() {
        return wrong("the key is empty");
    }
    if key.len() > KEY_BYTES_MAX || key.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return wrong("this is not a key: it has spaces or line breaks, or is too long");
    }
    Ok(key)
}

fn no_folder(profile: &str) -> Failure {
    Failure::new(Code::Config, format!("no key can be stored for {profile:?}"))
        .hint("a profile's name has letters, digits, - and _; and HOME must be set")
}
