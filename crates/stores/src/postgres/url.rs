//! Where a Postgres store is, as a user writes it:
//! `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=longhaul&connections=8`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use longhaul_queue::{Error, Result};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

/// The schema of an installation that names none.
const SCHEMA_DEFAULT: &str = "longhaul";
/// Postgres cuts longer names off.
const SCHEMA_BYTES_MAX: usize = 63;
/// Connections of one store, the listener aside.
const CONNECTIONS_DEFAULT: usize = 8;
const CONNECTIONS_MAX: usize = 1_000;
/// How long a connection may take to come about, unless the URL says otherwise.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A Postgres database and the schema in it. Its debug form hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    config: Config,
    schema: String,
    connections: usize,
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
                tokio_postgres::config::Host::Tcp(host) => format!("{host}:{port}"),
                #[cfg(unix)]
                tokio_postgres::config::Host::Unix(path) => format!("{}:{port}", path.display()),
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
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut schema, mut connections) = (SCHEMA_DEFAULT.to_owned(), CONNECTIONS_DEFAULT);
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = check_schema(name)?,
                Some(("connections", count)) => connections = check_connections(count)?,
                Some(("sslmode", "require" | "verify-ca" | "verify-full")) => return Err(no_tls()),
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
        if config.get_ssl_mode() == SslMode::Require {
            return Err(no_tls());
        }
        if config.get_hosts().is_empty() {
            return Err(Error::invalid(
                "the Postgres URL names no host; write postgres://USER@HOST/DATABASE",
            ));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WAIT);
        }
        if config.get_application_name().is_none() {
            config.application_name("longhaul");
        }
        Ok(Self { config, schema, connections })
    }
}

fn no_tls() -> Error {
    Error::invalid(
        "this build speaks to Postgres without TLS; drop sslmode from the URL and reach a remote server through a \
         private network or a tunnel",
    )
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
    fn what_cannot_be_meant_is_refused() {
        for (url, part) in [
            ("postgres://db/work?sslmode=require", "without TLS"),
            ("postgres://db/work?sslmode=verify-full", "without TLS"),
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
