//! The store's URL: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?name=NAME&allow_eviction=true]`, or `rediss://` for TLS,
//! then also with `ca=FILE`.

use std::path::PathBuf;
use std::sync::Once;

use longhaul_queue::limits::check_name;
use longhaul_queue::{Error, Result};

use crate::address::check_escaped;

/// The installation of a URL that names none.
const DEFAULT_NAME: &str = "default";

/// Where a Redis store is, as a user writes it.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// For the client: with user and password, without the parameters.
    pub(super) server: String,
    /// Which of several installations on one server.
    pub name: String,
    /// Accept a server that may drop keys when its memory is full.
    pub allow_eviction: bool,
    /// The certificates (PEM) that the server's must go back to, instead of those that the system trusts.
    pub ca: Option<PathBuf>,
}

static CRYPTO: Once = Once::new();

impl RedisUrl {
    /// The way to the server, which has not been tried yet.
    pub(super) fn client(&self) -> Result<redis::Client> {
        let wrong = |error| Error::invalid(format!("store URL is no Redis URL: {error}"));
        if !self.is_encrypted() {
            return redis::Client::open(self.server.as_str()).map_err(wrong);
        }
        CRYPTO.call_once(|| {
            // An error means that the program has chosen one already, which serves as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let Some(ca) = &self.ca else { return redis::Client::open(self.server.as_str()).map_err(wrong) };
        let root_cert = std::fs::read(ca).map_err(|error| {
            Error::invalid(format!(
                "the file {} of ca= in the store URL cannot be read: {error}",
                ca.display()
            ))
        })?;
        let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
        redis::Client::build_with_tls(self.server.as_str(), certificates).map_err(|error| {
            Error::invalid(format!(
                "the file {} of ca= in the store URL is no certificate: {error}",
                ca.display()
            ))
        })
    }

    fn is_encrypted(&self) -> bool {
        self.server.starts_with("rediss://")
    }

    /// The prefix of all keys. What stands in braces decides a key's slot, so that all of them share one.
    pub(super) fn prefix(&self) -> String {
        format!("{{longhaul:{}}}", self.name)
    }
}

/// Without the password.
impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let server = match (self.server.split_once("://"), self.server.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
            _ => self.server.clone(),
        };
        write!(f, "{server}?name={}", self.name)
    }
}

impl std::str::FromStr for RedisUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        check_escaped(url)?;
        let (server, parameters) = url.split_once('?').unwrap_or((url, ""));
        let name = DEFAULT_NAME.to_owned();
        let mut parsed = Self { server: server.to_owned(), name, allow_eviction: false, ca: None };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("name", name) => name.clone_into(&mut parsed.name),
                ("allow_eviction", "true") => parsed.allow_eviction = true,
                ("allow_eviction", "false") => parsed.allow_eviction = false,
                ("ca", file) if !file.is_empty() => parsed.ca = Some(PathBuf::from(file)),
                ("allow_eviction", _) => {
                    return Err(Error::invalid("allow_eviction in a store URL is true or false"));
                }
                ("ca", _) => return Err(Error::invalid("ca= in a store URL names no file")),
                // Without its value: it may be a password.
                (other, _) => {
                    return Err(Error::invalid(format!(
                        "store URL parameter {other} is not known; use name=NAME, allow_eviction=true or ca=FILE"
                    )));
                }
            }
        }
        check_name("name", &parsed.name)?;
        if parsed.name.contains(['{', '}']) {
            return Err(Error::invalid("the name in a store URL cannot have braces"));
        }
        if parsed.ca.is_some() && !parsed.is_encrypted() {
            return Err(Error::invalid("ca=FILE in a store URL is for rediss://, which speaks TLS"));
        }
        redis::Client::open(server).map_err(|error| {
            Error::invalid(format!("store URL is no Redis URL: {error}; write redis://HOST:PORT/DATABASE"))
        })?;
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_server_and_installation() {
        let url: RedisUrl =
            "redis://u:secret@host:7000/3?name=blue&allow_eviction=true".parse().expect("a URL");
        assert_eq!((url.name.as_str(), url.allow_eviction), ("blue", true));
        assert_eq!(url.prefix(), "{longhaul:blue}");
        assert_eq!(format!("{url:?}"), "redis://…@host:7000/3?name=blue");
        let url: RedisUrl = "rediss://host?ca=/etc/ca.pem".parse().expect("a URL");
        assert_eq!(url.ca, Some(PathBuf::from("/etc/ca.pem")));
        let url: RedisUrl = "redis://host".parse().expect("a URL");
        assert_eq!((url.name.as_str(), url.allow_eviction), ("default", false));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, part) in [
            ("redis://host?nme=x", "nme is not known"),
            ("redis://host?allow_eviction=perhaps", "true or false"),
            ("redis://host?name=", "name is empty"),
            ("redis://host?name=a{b", "braces"),
            ("redis://host:port", "no Redis URL"),
            ("redis://host?ca=file.pem", "rediss://"),
            ("rediss://host?ca=", "names no file"),
            ("redis://:pa/ss@host", "%2F"),
        ] {
            let error = url.parse::<RedisUrl>().expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
