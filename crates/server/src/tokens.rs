//! Tokens of clients: random, shown once, stored as a digest, each with what it may do.

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use longhaul_pipeline::private_file::PrivateFile;
use longhaul_pipeline::secrets::random;
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

/// All tokens, in a file that only its owner can read. One that is added or removed by another process counts at once.
#[derive(Debug)]
pub struct Tokens {
    file: PrivateFile<Vec<Token>>,
}

impl Tokens {
    /// Those of a file; there are none where there is no file.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        Ok(Self { file: PrivateFile::open(path.into())? })
    }

    /// None, and none can be added that outlives the process.
    pub fn in_memory() -> Self {
        Self { file: PrivateFile::in_memory() }
    }

    /// All of them.
    pub fn list(&self) -> io::Result<Vec<Token>> {
        self.file.with(Clone::clone)
    }

    /// Adds one and answers it: it cannot be had again. One of the same name is replaced.
    pub fn add(&self, name: &str, scopes: &[Scope]) -> io::Result<String> {
        let secret = format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<TOKEN_BYTES>()?));
        let token = Token { name: name.to_owned(), scopes: scopes.to_vec(), sha256: digest(&secret) };
        self.file.change(|tokens| {
            tokens.retain(|known| known.name != name);
            if tokens.len() >= TOKENS_MAX {
                return Err(io::Error::other(format!("there are {TOKENS_MAX} tokens: remove one first")));
            }
            tokens.push(token);
            Ok(())
        })?;
        Ok(secret)
    }

    /// Removes one; false when there was none.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        self.file.change(|tokens| {
            let before = tokens.len();
            tokens.retain(|known| known.name != name);
            Ok(tokens.len() < before)
        })
    }

    /// The token that a client presents, if it is one of these. Takes the same time for every wrong one. While the file cannot be
    /// read nobody is let in, since a token that was known may have been removed.
    pub fn find(&self, presented: &str) -> io::Result<Option<Token>> {
        let digest = digest(presented);
        self.file.with(|tokens| {
            let mut found = None;
            for token in tokens {
                if bool::from(token.sha256.as_bytes().ct_eq(digest.as_bytes())) {
                    found = Some(token.clone());
                }
            }
            found
        })
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_known_to_other_processes_at_once_and_its_file_tells_it_to_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokens.json");
        let (server, command) = (Tokens::open(&path).expect("opened"), Tokens::open(&path).expect("opened"));
        let token = command.add("ci", &[Scope::Enqueue]).expect("added");
        let found = server.find(&token).expect("readable").expect("known");
        assert!(found.allows(Scope::Enqueue) && found.allows(Scope::Read) && !found.allows(Scope::Admin));
        assert_eq!(server.find("lh_wrong").expect("readable"), None);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(!text.contains(&token[TOKEN_PREFIX.len()..]), "{text}");
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o077, 0);
        assert!(command.remove("ci").expect("removed"));
        assert_eq!(server.find(&token).expect("readable"), None);
        fs::write(&path, "[{").expect("written");
        assert!(server.find(&token).is_err(), "nobody is let in by a damaged file");
    }
}
