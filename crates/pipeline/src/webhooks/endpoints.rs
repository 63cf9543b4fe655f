//! Who wants to be told of what.

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use longhaul_queue::Timestamp;
use ring::hmac;
use serde::{Deserialize, Serialize};

use crate::private_file::PrivateFile;
use crate::secrets::random;

/// Secrets begin so.
pub(super) const SECRET_PREFIX: &str = "whsec_";
/// Random bytes in a secret.
const SECRET_BYTES: usize = 32;
/// Endpoints kept.
const ENDPOINTS_MAX: usize = 100;

/// An address that wants to be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its name here.
    pub name: String,
    /// Where to.
    pub url: String,
    /// What it wants to know: `batch.completed`, `run.*`, `*`.
    pub events: Vec<String>,
    /// Whether it may lie on this machine or its network.
    #[serde(default)]
    pub allow_private: bool,
    /// Why nothing is sent to it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<String>,
    /// When it was added.
    pub created_at: Timestamp,
    /// What messages are signed with; the newest first. The one before counts on while it is being replaced.
    secrets: Vec<String>,
}

impl Endpoint {
    /// Whether it wants to know of something.
    pub fn wants(&self, kind: &str) -> bool {
        let is_wanted = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => kind.starts_with(prefix),
            None => pattern == kind,
        };
        self.disabled.is_none() && self.events.iter().any(is_wanted)
    }

    /// The header that proves that a message is ours.
    pub fn signature(&self, message: &str, seconds: i64, body: &str) -> String {
        let signed = format!("{message}.{seconds}.{body}");
        let sign = |secret: &String| {
            let bytes = STANDARD.decode(secret.trim_start_matches(SECRET_PREFIX)).unwrap_or_default();
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), signed.as_bytes());
            format!("v1,{}", STANDARD.encode(tag.as_ref()))
        };
        self.secrets.iter().map(sign).collect::<Vec<_>>().join(" ")
    }
}

/// A new endpoint, or what is to change of one.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Its name.
    pub name: String,
    /// Where to.
    pub url: String,
    /// What it wants to know.
    pub events: Vec<String>,
    /// Whether it may lie on this machine or its network.
    pub allow_private: bool,
}

/// All endpoints, in a file that only its owner can read: it holds secrets.
#[derive(Debug)]
pub struct Endpoints {
    file: PrivateFile<Vec<Endpoint>>,
}

impl Endpoints {
    /// Those of a file.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        Ok(Self { file: PrivateFile::open(path.into())? })
    }

    /// None that outlives the process.
    pub fn in_memory() -> Self {
        Self { file: PrivateFile::in_memory() }
    }

    /// All of them.
    pub fn list(&self) -> Vec<Endpoint> {
        self.file.with_last(Clone::clone)
    }

    /// The endpoint of this name.
    pub fn get(&self, name: &str) -> Option<Endpoint> {
        self.file.with_last(|endpoints| endpoints.iter().find(|endpoint| endpoint.name == name).cloned())
    }

    /// Those that want to know of something.
    pub fn wanting(&self, kind: &str) -> Vec<Endpoint> {
        self.file.with_last(|endpoints| {
            endpoints.iter().filter(|endpoint| endpoint.wants(kind)).cloned().collect()
        })
    }

    /// Adds an endpoint and answers its secret, or changes one and lets its secret be. A disabled one is let in again.
    pub fn put(&self, wish: Wish, now: Timestamp) -> io::Result<Option<String>> {
        let secret = format!("{SECRET_PREFIX}{}", STANDARD.encode(random::<SECRET_BYTES>()?));
        self.file.change(|endpoints| {
            let Wish { name, url, events, allow_private } = wish;
            if let Some(known) = endpoints.iter_mut().find(|known| known.name == name) {
                *known = Endpoint { url, events, allow_private, disabled: None, ..known.clone() };
                return Ok(None);
            }
            if endpoints.len() >= ENDPOINTS_MAX {
                return Err(io::Error::other(format!(
                    "there are {ENDPOINTS_MAX} webhooks: remove one first"
                )));
            }
            let secrets = vec![secret.clone()];
            endpoints.push(Endpoint {
                name,
                url,
                events,
                allow_private,
                disabled: None,
                created_at: now,
                secrets,
            });
            Ok(Some(secret))
        })
    }

    /// Draws a new secret; messages are signed with the one before as well until the next rotation.
    pub fn rotate(&self, name: &str) -> io::Result<Option<String>> {
        let secret = format!("{SECRET_PREFIX}{}", STANDARD.encode(random::<SECRET_BYTES>()?));
        self.file.change(|endpoints| {
            let Some(known) = endpoints.iter_mut().find(|known| known.name == name) else { return Ok(None) };
            known.secrets.insert(0, secret.clone());
            known.secrets.truncate(2);
            Ok(Some(secret))
        })
    }

    /// Sends nothing to an endpoint any more, for a reason.
    pub fn disable(&self, name: &str, reason: &str) -> io::Result<()> {
        self.file.change(|endpoints| {
            for known in endpoints.iter_mut().filter(|known| known.name == name) {
                known.disabled = Some(reason.to_owned());
            }
            Ok(())
        })
    }

    /// Removes an endpoint; false when there was none.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        self.file.change(|endpoints| {
            let before = endpoints.len();
            endpoints.retain(|known| known.name != name);
            Ok(endpoints.len() < before)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(events: &[&str]) -> Wish {
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        Wish { name: "a".to_owned(), url: "https://example.org".to_owned(), events, allow_private: false }
    }

    #[test]
    fn endpoints_hear_what_they_asked_for() {
        let endpoints = Endpoints::in_memory();
        let now = Timestamp::from_millis(0);
        assert!(endpoints.put(wish(&["batch.*", "run.failed"]), now).expect("added").is_some());
        let wants = |kind: &str| !endpoints.wanting(kind).is_empty();
        assert!(wants("batch.completed") && wants("run.failed"));
        assert!(!wants("run.completed") && !wants("batches"));
        endpoints.disable("a", "410").expect("disabled");
        assert!(!wants("run.failed"));
        assert_eq!(endpoints.put(wish(&["*"]), now).expect("changed"), None, "its secret stays");
        assert!(wants("anything"));
    }

    /// The example of the Standard Webhooks specification.
    #[test]
    fn signatures_are_as_the_standard_has_them() {
        let endpoints = Endpoints::in_memory();
        endpoints.put(wish(&["*"]), Timestamp::from_millis(0)).expect("added");
        let mut endpoint = endpoints.get("a").expect("there");
        endpoint.secrets = vec!["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned()];
        let body = "{\"test\": 2432232314}";
        let signature = endpoint.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        endpoint.secrets.push("whsec_AAAA".to_owned());
        assert_eq!(endpoint.signature("msg", 1, body).split(' ').count(), 2, "both while it is replaced");
    }
}
