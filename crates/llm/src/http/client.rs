//! Makes the client of a profile: TLS, proxy, headers.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Once;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Proxy, Url, redirect, retry};

use crate::error::{Class, Error, Result};
use crate::profile::{Profile, ProxyChoice, Secret};

static CRYPTO: Once = Once::new();
/// What is read of a file of certificates; the largest bundles have a quarter of it.
const CA_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The base URL of a profile, if it is one.
pub(super) fn address(profile: &Profile) -> Result<Url> {
    let url = Url::parse(&profile.base_url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    url.filter(Url::has_host).ok_or_else(|| wrong(profile, "its base URL is no http or https address"))
}

/// The client itself.
pub(super) fn build(profile: &Profile, url: &Url) -> Result<Client> {
    let mut builder = base().connect_timeout(profile.timeouts.connect.min(profile.timeouts.answer));
    builder = match &profile.proxy {
        ProxyChoice::System if !is_this_machine(url) => builder,
        ProxyChoice::System | ProxyChoice::Direct => builder.no_proxy(),
        ProxyChoice::Url(proxy) => {
            let proxy = Proxy::all(proxy.expose()).map_err(|_| wrong(profile, "its proxy is no address"))?;
            builder.proxy(proxy)
        }
    };
    if let Some(file) = &profile.ca_file {
        let problem = |what: &str| wrong(profile, &format!("{} {what}", file.display()));
        let mut pem = Vec::new();
        let read = File::open(file).and_then(|file| file.take(CA_FILE_BYTES_MAX).read_to_end(&mut pem));
        read.map_err(|error| problem(&format!("cannot be read: {error}")))?;
        let certificates =
            Certificate::from_pem_bundle(&pem).map_err(|_| problem("holds no PEM certificates"))?;
        builder = builder.tls_certs_merge(certificates);
    }
    builder.build().map_err(|error| wrong(profile, &super::chain(&error)))
}

/// A client for a service that is no model: no key, no redirects, no repetition.
pub fn plain_client(url: &str, limit: Duration) -> Result<Client> {
    let wrong = |text: String| Error::new(Class::BadRequest, format!("{url}: {text}"));
    let address = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    let mut builder = base().timeout(limit);
    if is_this_machine(&address) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| wrong(super::chain(&error)))
}

/// A client for a service that is no model, whose name leads to these addresses and to no others.
pub fn pinned_client(host: &str, addresses: &[SocketAddr], limit: Duration) -> Result<Client> {
    let builder = base().timeout(limit).no_proxy().resolve_to_addrs(host, addresses);
    builder
        .build()
        .map_err(|error| Error::new(Class::BadRequest, format!("{host}: {}", super::chain(&error))))
}

/// What all clients have in common.
fn base() -> ClientBuilder {
    CRYPTO.call_once(|| {
        // An error means that the program has chosen one already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    Client::builder()
        .user_agent(concat!("longhaul/", env!("CARGO_PKG_VERSION")))
        // A redirect would carry the key to another host, a repetition might be charged twice.
        .redirect(redirect::Policy::none())
        .retry(retry::never())
}

/// The headers of each call: the dialect's, then the profile's, which win.
pub(super) fn headers(profile: &Profile, dialect: &[(&'static str, String)]) -> Result<HeaderMap> {
    let own = dialect.iter().map(|(name, value)| (*name, value.as_str()));
    let given = profile.headers.iter().map(|(name, value)| (name.as_str(), value.expose()));
    let mut headers = HeaderMap::new();
    for (name, value) in own.chain(given) {
        let problem =
            || wrong(profile, &format!("{name:?} cannot be sent as a header: odd letters in name or value"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| problem())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| problem())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

/// What no message may show.
pub(super) fn secrets(profile: &Profile) -> Vec<Secret> {
    let proxy = match &profile.proxy {
        ProxyChoice::Url(url) => Some(url),
        ProxyChoice::System | ProxyChoice::Direct => None,
    };
    profile.key.iter().chain(profile.headers.values()).chain(proxy).cloned().collect()
}

/// A proxy out to the network leads nowhere from here to here.
pub(crate) fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback() || ip.is_unspecified())
}

fn wrong(profile: &Profile, what: &str) -> Error {
    Error::new(Class::BadRequest, format!("profile {:?}: {what}", profile.name))
}
