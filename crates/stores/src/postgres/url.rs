//! Where a Postgres store is, as a user writes it:
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=longhaul&connections=8`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use longhaul_queue::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::address::check_escaped;

/// The schema of an installation that names none.
const SCHEMA_DEFAULT: &str = "longhaul";
/// Postgres cuts longer names off.
const SCHEMA_BYTES_MAX: usize = 63;
/// Connections of one store, the listener aside.
const CONNECTIONS_DEFAULT: usize = 8;
const CONNECTIONS_MAX: usize = 1_000;
/// Those of libpq that need no proof; it also has `allow`, which would rather not encrypt.
const SSL_MODES: [&str; 3] = ["disable", "prefer", "require"];
/// How long a connection may take to come about, unless the URL says otherwise.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A Postgres database and the schema in it. Its debug form hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    config: Config,
    schema: String,
    connections: usize,
    tls: TlsOptions,
}

/// What a server must show before it is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Proof {
    /// Nothing, unless a root certificate is named.
    #[default]
    None,
    /// A certificate that a root certificate has signed.
    Signed,
    /// One that names the host as well.
    Host,
}

/// How connections are encrypted, as far as the client library does not know it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TlsOptions {
    pub(super) proof: Proof,
    pub(super) root_file: Option<PathBuf>,
}

impl PostgresUrl {
    /// The schema that holds the installation.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The schema as SQL writes it: a plain name may be one of its own words.
    pub(super) fn quoted_schema(&self) -> String {
        format!("\"{}\"", self.schema)
    }

    /// Connections that a store opens at most, the listener aside.
    pub fn connections(&self) -> usize {
        self.connections
    }

    pub(super) fn tls(&self) -> &TlsOptions {
        &self.tls
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// For messages: hosts and database, never the password.
    pub(super) fn place(&self) -> String {
        let hosts: Vec<String> = self
            .config
            .get_hosts()
            .iter()
            .zip(self.config.get_ports().iter().chain(std::iter::repeat(&5432)))
            .map(|(host, port)| match host {
                Host::Tcp(host) => format!("{host}:{port}"),
                #[cfg(unix)]
                Host::Unix(path) => format!("{}:{port}", path.display()),
            })
            .collect();
        format!("postgres://{}/{}", hosts.join(","), self.config.get_dbname().unwrap_or(""))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}?schema={}", self.place(), self.schema)
    }
}

impl FromStr for PostgresUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        check_escaped(url)?;
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut connections) = (SCHEMA_DEFAULT.to_owned(), CONNECTIONS_DEFAULT);
        let mut tls = TlsOptions::default();
        let mut others = Vec::new();
        if query.split('&').filter(|pair| pair.starts_with("sslmode=")).count() > 1 {
            return Err(Error::invalid("sslmode stands twice in the Postgres URL; which one counts?"));
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = check_schema(name)?,
                Some(("connections", count)) => connections = check_connections(count)?,
                Some(("sslmode", mode @ ("verify-ca" | "verify-full"))) => {
                    tls.proof = if mode == "verify-full" { Proof::Host } else { Proof::Signed };
                    others.push("sslmode=require");
                }
                Some(("sslmode", mode)) if !SSL_MODES.contains(&mode) => {
                    let modes = SSL_MODES.join(", ");
                    let text =
                        format!("there is no sslmode {mode:?} here; use {modes}, verify-ca or verify-full");
                    return Err(Error::invalid(text));
                }
                Some(("sslrootcert", file)) => tls.root_file = Some(PathBuf::from(decode(file)?)),
                _ => others.push(pair),
            }
        }
        let plain = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        let mut config: Config = plain.parse().map_err(|error: tokio_postgres::Error| {
            let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Error::invalid(format!(
                "the Postgres URL cannot be read: {reason}; write postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME"
            ))
        })?;
        if config.get_hosts().is_empty() {
            return Err(Error::invalid(
                "the Postgres URL names no host; write postgres://USER@HOST/DATABASE",
            ));
        }
        let is_socket = |host: &Host| !matches!(host, Host::Tcp(_));
        if config.get_ssl_mode() == SslMode::Prefer && config.get_hosts().iter().any(is_socket) {
            // A socket of this machine is never encrypted.
            config.ssl_mode(SslMode::Disable);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WAIT);
        }
        if config.get_application_name().is_none() {
            config.application_name("longhaul");
        }
        Ok(Self { config, schema, connections, tls })
    }
}

/// A value of the query with its `%41` read.
fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = (*first == b'%').then(|| behind.get(..2)).flatten();
        let decoded = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8(bytes).map_err(|_| Error::invalid("the Postgres URL has a value that is not UTF-8"))
}

/// Only plain names, so that they read the same in every tool.
fn check_schema(name: &str) -> Result<String> {
    let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let begins = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if plain && begins && name.len() <= SCHEMA_BYTES_MAX && !is_postgres_own(name) {
        return Ok(name.to_owned());
    }
    Err(Error::invalid(format!(
        "schema {name:?} is no plain name: lower-case letters, digits and _, at most {SCHEMA_BYTES_MAX}, not pg_… nor \
         information_schema; choose another in schema= of the store URL"
    )))
}

fn is_postgres_own(name: &str) -> bool {
    name.starts_with("pg_") || name == "information_schema"
}

fn check_connections(count: &str) -> Result<usize> {
    let count = count.parse().ok().filter(|count| (1..=CONNECTIONS_MAX).contains(count));
    count.ok_or_else(|| Error::invalid(format!("connections is a number from 1 to {CONNECTIONS_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_database_and_a_schema() {
        let url: PostgresUrl =
            "postgres://ann:secret@db:5433/work?schema=night&connections=3".parse().expect("a URL");
        assert_eq!((url.schema(), url.connections()), ("night", 3));
        assert_eq!(format!("{url:?}"), "postgres://db:5433/work?schema=night");
        let url: PostgresUrl = "postgresql://ann@db/work?application_name=x".parse().expect("a URL");
        assert_eq!((url.schema(), url.config().get_application_name()), ("longhaul", Some("x")));
    }

    #[test]
    fn a_url_says_what_a_server_must_show() {
        let tls = |query: &str| {
            let url: PostgresUrl = format!("postgres://db/work?{query}").parse().expect("a URL");
            let file = url.tls().root_file.as_ref().map(|path| path.display().to_string());
            (url.config().get_ssl_mode(), url.tls().proof, file)
        };
        assert_eq!(tls("schema=s"), (SslMode::Prefer, Proof::None, None));
        assert_eq!(tls("sslmode=disable"), (SslMode::Disable, Proof::None, None));
        assert_eq!(tls("sslmode=require"), (SslMode::Require, Proof::None, None));
        let root = Some("/a b/100%.pem".to_owned());
        assert_eq!(
            tls("sslmode=verify-full&sslrootcert=%2Fa%20b/100%.pem"),
            (SslMode::Require, Proof::Host, root)
        );
        assert_eq!(tls("sslmode=verify-ca").1, Proof::Signed);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (url, part) in [
            ("postgres://db/work?sslmode=verify-full&sslmode=prefer", "sslmode stands twice"),
            ("postgres://db/work?sslmode=allow", "no sslmode \"allow\""),
            ("postgres://db/work?sslmode=on", "use disable, prefer, require, verify-ca or verify-full"),
            ("postgres://db/work?schema=Night", "no plain name"),
            ("postgres://db/work?schema=pg_x", "no plain name"),
            ("postgres://db/work?connections=0", "a number from 1"),
            ("postgres://db/work?colour=red", "cannot be read"),
            ("postgres:///work", "names no host"),
        ] {
            let error = url.parse::<PostgresUrl>().expect_err(url).to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
