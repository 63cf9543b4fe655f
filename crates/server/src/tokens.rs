//! Tokens of clients: random, shown once, stored as a digest, each with what it may do.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

/// Tokens begin so, which lets scanners find one that leaked.
pub const TOKEN_PREFIX: &str = "lh_";
/// Random bytes in a token.
const TOKEN_BYTES: usize = 24;
/// Tokens kept.
const TOKENS_MAX: usize = 1_000;

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Look at everything but secrets.
    Read,
    /// Hand in jobs, runs, files and batches, and ask models.
    Enqueue,
    /// Claim and settle jobs.
    Work,
    /// Change what is there: cancel, retry, delete, pause, schedules, webhooks.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Read, Self::Enqueue, Self::Work, Self::Admin];

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Enqueue => "enqueue",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }

    /// From its word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word)
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Whose it is.
    pub name: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// SHA-256 of the token. It is random and long, so a slow hash would add nothing.
    sha256: String,
}

impl Token {
    /// Whether it may do this. Whoever may change things may look at them, and whoever hands in or works may too.
    pub fn allows(&self, scope: Scope) -> bool {
        scope == Scope::Read || self.scopes.contains(&scope)
    }
}

/// All tokens, in a file that only its owner can read. Other processes may change it.
#[derive(Debug)]
pub struct Tokens {
    path: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    tokens: Vec<Token>,
    /// When the file was written that they were read from.
    written_at: Option<SystemTime>,
}

impl Tokens {
    /// Those of a file; there are none where there is no file.
    pub fn open(path: impl Into<PathBuf>) -> std::io::Result<Self> {
        let path = path.into();
        let known = Known { tokens: read(&path)?, written_at: written_at(&path) };
        Ok(Self { path: Some(path), known: Mutex::new(known) })
    }

    /// None, and none can be added that outlives the process.
    pub fn in_memory() -> Self {
        Self { path: None, known: Mutex::default() }
    }

    /// All of them.
    pub fn list(&self) -> Vec<Token> {
        self.known().tokens.clone()
    }

    /// Adds one and answers it: it cannot be had again. One of the same name is replaced.
    pub fn add(&self, name: &str, scopes: &[Scope]) -> std::io::Result<String> {
        let mut random = [0; TOKEN_BYTES];
        let no_random = |_| std::io::Error::other("the system gives no random numbers");
        SystemRandom::new().fill(&mut random).map_err(no_random)?;
        let secret = format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
        let token = Token { name: name.to_owned(), scopes: scopes.to_vec(), sha256: digest(&secret) };
        let known = &mut self.known().tokens;
        known.retain(|known| known.name != name);
        if known.len() >= TOKENS_MAX {
            return Err(std::io::Error::other(format!("there are {TOKENS_MAX} tokens: remove one first")));
        }
        known.push(token);
        self.write(known)?;
        Ok(secret)
    }

    /// Removes one; false when there was none.
    pub fn remove(&self, name: &str) -> std::io::Result<bool> {
        let known = &mut self.known().tokens;
        let before = known.len();
        known.retain(|known| known.name != name);
        let removed = known.len() < before;
        if removed {
            self.write(known)?;
        }
        Ok(removed)
    }

    /// The token that a client presents, if it is one of these. Takes the same time for every wrong one.
    pub fn find(&self, presented: &str) -> Option<Token> {
        let digest = digest(presented);
        let mut found = None;
        for token in &self.known().tokens {
            if bool::from(token.sha256.as_bytes().ct_eq(digest.as_bytes())) {
                found = Some(token.clone());
            }
        }
        found
    }

    /// What the file says now: a token that was added or removed elsewhere counts at once.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &self.path
            && written_at(path) != known.written_at
            // One that cannot be read is being replaced, or broken: what was known goes on to count.
            && let Ok(tokens) = read(path)
        {
            *known = Known { tokens, written_at: written_at(path) };
        }
        known
    }

    /// Appears whole, or not at all.
    fn write(&self, tokens: &[Token]) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let part = path.with_extension("part");
        let mut file =
            fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec_pretty(tokens)?)?;
        file.sync_all()?;
        fs::rename(&part, path)
    }
}

fn written_at(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read(path: &Path) -> std::io::Result<Vec<Token>> {
    match fs::read(path) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_known_to_other_processes_at_once_and_its_file_tells_it_to_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let (server, command) = (Tokens::open(&path).expect("opened"), Tokens::open(&path).expect("opened"));
        let token = command.add("ci", &[Scope::Enqueue]).expect("added");
        let found = server.find(&token).expect("known");
        assert!(found.allows(Scope::Enqueue) && found.allows(Scope::Read) && !found.allows(Scope::Admin));
        assert_eq!(server.find("lh_wrong"), None);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(!text.contains(&token[TOKEN_PREFIX.len()..]), "{text}");
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o077, 0);
        assert!(command.remove("ci").expect("removed"));
        assert_eq!(server.find(&token), None);
    }
}
