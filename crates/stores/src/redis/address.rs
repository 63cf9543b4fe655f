//! The store's URL: `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE][?name=NAME&allow_eviction=true]`.

use longhaul_queue::limits::check_name;
use longhaul_queue::{Error, Result};

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
}

impl RedisUrl {
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
        if url.starts_with("rediss://") {
            return Err(Error::invalid(
                "this build speaks no TLS to Redis; put a tunnel such as stunnel before the server and use redis://",
            ));
        }
        let (server, parameters) = url.split_once('?').unwrap_or((url, ""));
        let mut parsed =
            Self { server: server.to_owned(), name: DEFAULT_NAME.to_owned(), allow_eviction: false };
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("name", name) => name.clone_into(&mut parsed.name),
                ("allow_eviction", "true") => parsed.allow_eviction = true,
                ("allow_eviction", "false") => parsed.allow_eviction = false,
                (other, value) => {
                    return Err(Error::invalid(format!(
                        "store URL parameter {other}={value} is not known; use name=NAME or allow_eviction=true"
                    )));
                }
            }
        }
        check_name("name", &parsed.name)?;
        if parsed.name.contains(['{', '}']) {
            return Err(Error::invalid("the name in a store URL cannot have braces"));
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
        let url: RedisUrl = "redis://host".parse().expect("a URL");
        assert_eq!((url.name.as_str(), url.allow_eviction), ("default", false));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, part) in [
            ("redis://host?nme=x", "nme=x is not known"),
            ("redis://host?name=", "name is empty"),
            ("redis://host?name=a{b", "braces"),
            ("redis://host:port", "no Redis URL"),
            ("rediss://host", "TLS"),
        ] {
            let error = url.parse::<RedisUrl>().expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
